# SPDX-License-Identifier: Apache-2.0
"""The C header and the contract table: what the twin and CANN builds have in common."""

from __future__ import annotations

import json
import textwrap

from contract import DTYPES, Op, Param

ROLES = {"in": "kInput", "out": "kOutput", "ints": "kInts"}


def banner(op: Op, what: str) -> str:
    what = textwrap.fill(what, 100, initial_indent="// ", subsequent_indent="// ")
    return (
        f"// SPDX-License-Identifier: Apache-2.0\n"
        f"{what}\n// Generated from ascendc/ops/{op.name}/op.json; edit that file.\n"
    )


def quoted(text: str) -> str:
    return json.dumps(text)


def header_name(op: Op) -> str:
    return f"aclnn_{op.name}.h"


def parameter_list(declarations: list[str], indent: int = 4) -> str:
    """Declarations, comma separated, wrapped at 100 columns; a declaration is never split."""
    lines, pad = [""], " " * indent
    for index, text in enumerate(declarations):
        text += "," if index + 1 < len(declarations) else ""
        if len(pad) + len(lines[-1]) + len(text) + 2 > 100:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + text
    return "\n".join(pad + line for line in lines)


def describe(p: Param) -> str:
    """One line for people: shape, dtypes, optional, meaning."""
    if p.is_tensor:
        kind = " or ".join(p.shapes()) + " " + "/".join(p.dtypes)
    else:
        kind = "int64 array" if p.role == "ints" else p.type
    optional = ", may be null" if p.optional else ""
    return f"{kind}{optional}. {p.doc}"


def phase_one(op: Op) -> str:
    return f"aclnnStatus {op.aclnn}GetWorkspaceSize(\n{parameter_list(op.prototype())})"


def phase_two(op: Op) -> str:
    return (
        f"aclnnStatus {op.aclnn}(void *workspace, uint64_t workspaceSize,\n"
        f"    aclOpExecutor *executor, aclrtStream stream)"
    )


def header(op: Op) -> str:
    """aclnn_<op>.h, for C and C++."""
    guard = header_name(op).replace(".", "_").upper()
    lines = [f" * @param {p.c}{'  [out]' if p.role == 'out' else ''}  {describe(p)}" for p in op.params]
    lines = [textwrap.fill(line, 100, subsequent_indent=" *     ") for line in lines]
    docs = "\n".join(lines)
    return (
        banner(op, f"{op.aclnn}: {op.summary}")
        + f"""
#ifndef {guard}
#define {guard}

#include <stdbool.h>
#include <stdint.h>

#include "aclnn/acl_meta.h"

#ifdef __cplusplus
extern "C" {{
#endif

/*
 * Phase 1: checks the call, tells the workspace it needs and makes the executor.
{docs}
 * @param workspaceSize  [out]  Bytes that phase 2 needs.
 * @param executor  [out]  For one call of phase 2, which destroys it.
 * @return 0, 161001 (a required pointer is null) or 161002 (an argument clashes with the contract);
 *     aclGetRecentErrMsg() says which and why.
 */
__attribute__((visibility("default")))
{phase_one(op)};

/* Phase 2: runs the executor on a stream. */
__attribute__((visibility("default")))
{phase_two(op)};

#ifdef __cplusplus
}}
#endif
#endif /* {guard} */
"""
    )


def contract_function(op: Op) -> str:
    return f"{op.op_type}Contract"


def _param_line(p: Param) -> str:
    role = (
        ROLES.get(p.role)
        or {"bool": "kBool", "int": "kInt", "double": "kDouble", "string": "kString"}[p.type]
    )
    calls = [f"c.Add(Role::{role}, {quoted(p.name)})"]
    if p.dtypes:
        calls.append("Types({" + ", ".join(f"DType::{DTYPES[d]}" for d in p.dtypes) + "})")
    for layout, letters in p.dims:
        calls.append(f"Dims({quoted(layout) + ', ' if layout else ''}{quoted(letters)})")
    if p.optional:
        calls.append("Optional()")
    if p.present_if:
        calls.append(f"PresentIf({quoted(p.present_if)})")
    if p.refused:
        calls.append(f"Refused({quoted(p.refused)})")
    if p.windows:
        calls.append(f"Windows({'true' if p.windows == 'first' else 'false'})")
    if p.values and p.type == "string":
        calls.append("Values(std::vector<std::string>{" + ", ".join(map(quoted, p.values)) + "})")
    elif p.values:
        calls.append("Values(std::vector<int64_t>{" + ", ".join(str(int(v)) for v in p.values) + "})")
    one_line = "    " + ".".join(calls) + ";"
    return one_line if len(one_line) <= 100 else "    " + "\n        .".join(calls) + ";"


def contract_header(op: Op) -> str:
    guard = f"FLA_{op.name.upper()}_CONTRACT_H"
    return (
        banner(op, f"The contract of {op.name} for checks at run time.")
        + f"""
#ifndef {guard}
#define {guard}

#include "contract.h"

namespace fla {{

const Contract &{contract_function(op)}();

}}  // namespace fla
#endif  // {guard}
"""
    )


def contract_source(op: Op) -> str:
    lines = [f"    c.Fixed({quoted(k)}, {v});" for k, v in op.fixed.items()]
    lines += [f"    c.Layout({quoted(op.layout)});"] if op.layout else []
    for mode, outputs in op.modes.items():
        lines.append(f"    c.Mode({quoted(mode)}, {{" + ", ".join(map(quoted, outputs)) + "});")
    body = "\n".join(lines + [_param_line(p) for p in op.params])
    return (
        banner(op, f"The contract of {op.name}, parameter by parameter.")
        + f"""
#include "{op.name}_contract.h"

namespace fla {{
namespace {{

Contract Make()
{{
    Contract c({quoted(op.name)});
{body}
    return c;
}}

}}  // namespace

const Contract &{contract_function(op)}()
{{
    static const Contract *contract = new Contract(Make());
    return *contract;
}}

}}  // namespace fla
"""
    )
