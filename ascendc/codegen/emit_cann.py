# SPDX-License-Identifier: Apache-2.0
"""CANN's files of one operator: OpDef, tiling and inference entries, L0 and L2 of the aclnn call."""

from __future__ import annotations

import textwrap

from contract import Op, Param
from emit_api import (
    banner,
    contract_function,
    header_name,
    parameter_list,
    phase_one,
    phase_two,
    quoted,
)

GE_DTYPES = {
    "float32": "DT_FLOAT",
    "float16": "DT_FLOAT16",
    "int32": "DT_INT32",
    "int64": "DT_INT64",
    "bfloat16": "DT_BF16",
}
ATTR_SETTERS = {"bool": "Bool", "int": "Int", "double": "Float", "string": "String"}
SOCS = ("ascend910b", "ascend910_93")


def files(op: Op) -> dict[str, str]:
    return {
        f"{op.name}_def.cpp": op_def(op),
        f"{op.name}_tiling.cpp": tiling(op),
        f"{op.name}_infershape.cpp": infershape(op),
        f"{op.name}_l0.h": l0_header(op),
        f"{op.name}_l0.cpp": l0_source(op),
        f"aclnn_{op.name}.cpp": l2_source(op),
    }


def _dtype_columns(op: Op, p: Param) -> str:
    """The DataType list of one port: one entry per supported combination of all ports."""
    if p.role == "ints":
        return "int64"
    if len(p.dtypes) == 1:
        return p.dtypes[0]
    names = ", ".join(f"ge::{GE_DTYPES[column[p.name]]}" for column in op.dtype_columns())
    return "{" + textwrap.fill(names, 70).replace("\n", "\n" + " " * 23) + "}"


def _port(op: Op, p: Param, kind: str) -> str:
    # An output left out of a call is a placeholder (see output_mask), so the graph always has it.
    needed = "OPTIONAL" if p.optional and kind == "Input" else "REQUIRED"
    lines = [
        f"this->{kind}({quoted(p.name)})",
        f".ParamType({needed})",
        f".DataType({_dtype_columns(op, p)})",
        ".Format(nd)",
        ".UnknownShapeFormat(nd)",
    ]
    lines += [".ValueDepend(OPTIONAL)"] if p.role == "ints" else []
    lines[-1] += ";"
    one_line = " " * 8 + "".join(lines)
    return one_line if len(one_line) <= 100 else " " * 8 + ("\n" + " " * 12).join(lines)


def _attr(p: Param) -> str:
    value = quoted(p.default) if isinstance(p.default, (str, bool)) else str(p.default)  # "x", true, 1.0
    return f"        this->Attr({quoted(p.name)}).AttrType(OPTIONAL).{ATTR_SETTERS[p.type]}({value});"


def op_def(op: Op) -> str:
    """OpDef registration: one column per dtype combination."""
    columns = len(op.dtype_columns())
    single = {p.dtypes[0] for p in op.by_role("in", "out") if len(p.dtypes) == 1}
    single |= {"int64"} if op.by_role("ints") else set()
    lists = "\n".join(
        f"        const std::vector<ge::DataType> {d}({columns}, ge::{GE_DTYPES[d]});" for d in sorted(single)
    )
    # An input that is written is an output of the same name, too: CANN then gives both one address.
    ports = [_port(op, p, "Input") for p in op.inputs] + [_port(op, p, "Output") for p in op.written]
    attrs = [_attr(p) for p in op.attrs]
    if op.optional_outputs:
        attrs.append('        this->Attr("output_mask").AttrType(OPTIONAL).Int(-1);')
    configs = "\n".join(f'        this->AICore().AddConfig("{soc}");' for soc in SOCS)
    return (
        banner(
            op,
            f"Registration of {op.op_type} with CANN; column i of the lists is one supported "
            "combination of dtypes.",
        )
        + f"""
#include <vector>

#include "register/op_def_registry.h"

namespace optiling {{
ge::graphStatus Tiling{op.op_type}(gert::TilingContext *context);
}}
namespace ge {{
graphStatus InferShape{op.op_type}(gert::InferShapeContext *context);
graphStatus InferDataType{op.op_type}(gert::InferDataTypeContext *context);
}}  // namespace ge

namespace ops {{

class {op.op_type} : public OpDef
{{
  public:
    explicit {op.op_type}(const char *name) : OpDef(name)
    {{
        const std::vector<ge::Format> nd({columns}, ge::FORMAT_ND);
{lists}
{chr(10).join(ports)}
{chr(10).join(attrs)}
        this->SetInferShape(ge::InferShape{op.op_type});
        this->SetInferDataType(ge::InferDataType{op.op_type});
        this->AICore().SetTiling(optiling::Tiling{op.op_type});
{configs}
    }}
}};

OP_ADD({op.op_type});

}}  // namespace ops
"""
    )


def tiling(op: Op) -> str:
    return (
        banner(op, f"Tiling entry of {op.op_type}: the contract, then the plan.")
        + f"""
#include "host_entry.h"
#include "{op.name}_contract.h"
#include "{op.name}_plan.h"

namespace optiling {{

ge::graphStatus Tiling{op.op_type}(gert::TilingContext *context)
{{
    return fla::cann::Tiling(fla::{contract_function(op)}(), fla::Plan{op.op_type}, *context);
}}

}}  // namespace optiling
"""
    )


def infershape(op: Op) -> str:
    mutated = ", {" + ", ".join(map(quoted, op.mutated)) + "}" if op.mutated else ""
    return (
        banner(op, f"Shapes and dtypes of the outputs of {op.op_type}.")
        + f"""
#include "host_entry.h"
#include "{op.name}_contract.h"

namespace ge {{

graphStatus InferShape{op.op_type}(gert::InferShapeContext *context)
{{
    return fla::cann::InferShapes(fla::{contract_function(op)}(), *context{mutated});
}}

graphStatus InferDataType{op.op_type}(gert::InferDataTypeContext *context)
{{
    return fla::cann::InferDataTypes(fla::{contract_function(op)}(), *context{mutated});
}}

}}  // namespace ge
"""
    )


def _l0_declarations(op: Op) -> list[str]:
    """Parameters of the L0 function: inputs, attributes, outputs, executor."""
    tensors = [f"const aclTensor *{p.name}" for p in op.inputs]
    attrs = [
        f"{'float' if p.type == 'double' else p.c_type}{'' if p.c_type.endswith('*') else ' '}{p.name}"
        for p in op.attrs
    ]
    mask = ["int64_t output_mask"] if op.optional_outputs else []
    outputs = [f"const aclTensor *{p.name}" for p in op.outputs]
    return [*tensors, *attrs, *mask, *outputs, "aclOpExecutor *executor"]


def l0_header(op: Op) -> str:
    guard = f"FLA_{op.name.upper()}_L0_H"
    return (
        banner(op, f"L0: puts one launch of {op.op_type} on an executor.")
        + f"""
#ifndef {guard}
#define {guard}

#include "opdev/op_executor.h"

namespace l0op {{

aclnnStatus {op.op_type}(
{parameter_list(_l0_declarations(op))});

}}  // namespace l0op
#endif  // {guard}
"""
    )


def l0_source(op: Op) -> str:
    inputs = ", ".join(p.name for p in op.inputs)
    attrs = ", ".join([p.name for p in op.attrs] + (["output_mask"] if op.optional_outputs else []))
    outputs = ", ".join(p.name for p in op.outputs)
    dfx = parameter_list(", ".join(x for x in (inputs, attrs, outputs) if x).split(", "), 11).lstrip()
    written = ", ".join(p.name for p in op.written)
    arguments = [f"OP_INPUT({inputs})", f"OP_OUTPUT({written})"] + ([f"OP_ATTR({attrs})"] if attrs else [])
    launch = ",\n".join(
        textwrap.fill(a, 100, initial_indent=" " * 8, subsequent_indent=" " * 12) for a in arguments
    )
    return (
        banner(op, f"L0: puts one launch of {op.op_type} on an executor.")
        + f"""
#include "{op.name}_l0.h"

#include "opdev/make_op_executor.h"
#include "opdev/op_def.h"
#include "opdev/op_dfx.h"

namespace l0op {{

OP_TYPE_REGISTER({op.op_type});

aclnnStatus {op.op_type}(
{parameter_list(_l0_declarations(op))})
{{
    L0_DFX({op.op_type}, {dfx});
    return ADD_TO_LAUNCHER_LIST_AICORE({op.op_type},
{launch});
}}

}}  // namespace l0op
"""
    )


def _ready(p: Param) -> str:
    """Name of the local that holds what the kernel gets: initial_state -> initialStateReady."""
    head, *tail = p.name.split("_")
    return head + "".join(part.capitalize() for part in tail) + "Ready"


def _l2_ready(op: Op) -> str:
    """One local per kernel input and output."""
    lines = []
    for p in op.inputs:
        value = f"Ready({p.c}, launch)" if p.role == "in" else f"ReadyInts({quoted(p.name)}, launch)"
        lines.append(f"        const aclTensor *{_ready(p)} = call.{value};")
    for p in op.outputs:
        lines.append(
            f"        const aclTensor *{_ready(p)} = call.ReadyOutput({quoted(p.name)}, {p.c}, launch);"
        )
    return "\n".join(lines)


def _l2_arguments(op: Op) -> list[str]:
    attrs = [f"static_cast<float>({p.c})" if p.type == "double" else p.c for p in op.attrs]
    mask = ["call.OutputMask()"] if op.optional_outputs else []
    return [*map(_ready, op.inputs), *attrs, *mask, *map(_ready, op.outputs), "launch"]


def l2_source(op: Op) -> str:
    """The exported pair, in opdev's style."""
    named = "\n        ".join(
        f".{ {'in': 'In', 'out': 'Out', 'ints': 'Ints', 'attr': 'Attr'}[p.role] }({quoted(p.name)}, {p.c})"
        for p in op.params
    )
    given = parameter_list([p.c for p in op.params if p.role != "out"], 26).lstrip()
    made = parameter_list([p.c for p in op.written], 27).lstrip()
    return (
        banner(op, f"{op.aclnn} for CANN: contract, plan, contiguous inputs, launch.")
        + f"""
#include "{header_name(op)}"

#include "opdev/make_op_executor.h"
#include "opdev/op_dfx.h"
#include "opdev/op_executor.h"

#include "{op.name}_contract.h"
#include "{op.name}_l0.h"
#include "{op.name}_plan.h"
#include "l2_call.h"

using namespace op;  // the opdev macros expect it

extern "C" {phase_one(op)}
{{
    L2_DFX_PHASE_1({op.aclnn},
                   DFX_IN({given}),
                   DFX_OUT({made}));
    auto unique = CREATE_EXECUTOR();
    CHECK_RET(unique.get() != nullptr, ACLNN_ERR_INNER_CREATE_EXECUTOR);

    fla::cann::L2Call call(fla::{contract_function(op)}());
    call{named};
    const aclnnStatus checked = call.Check(fla::Plan{op.op_type});
    if (checked != ACLNN_SUCCESS) {{
        return checked;
    }}
    if (call.Launches()) {{
        aclOpExecutor *launch = unique.get();
{_l2_ready(op)}
        CHECK_RET(call.Complete(), ACLNN_ERR_INNER_NULLPTR);
        const aclnnStatus added = l0op::{op.op_type}(
{parameter_list(_l2_arguments(op), 12)});
        CHECK_RET(added == ACLNN_SUCCESS, added);
    }}
    *workspaceSize = unique->GetWorkspaceSize();
    unique.ReleaseTo(executor);
    return ACLNN_SUCCESS;
}}

extern "C" {phase_two(op)}
{{
    L2_DFX_PHASE_2({op.aclnn});
    return CommonOpExecutorRun(workspace, workspaceSize, executor, stream);
}}
"""
    )
