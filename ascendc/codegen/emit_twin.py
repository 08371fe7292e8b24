# SPDX-License-Identifier: Apache-2.0
"""The twin's glue of one operator: two-phase entry points, plan entry, kernel entry."""

from __future__ import annotations

from contract import Op, Param
from emit_api import banner, contract_function, header_name, parameter_list, phase_one, phase_two, quoted


def _named(p: Param) -> str:
    call = {"in": "In", "out": "Out", "ints": "Ints", "attr": "Attr"}[p.role]
    return f".{call}({quoted(p.name)}, {p.c})"


def entry_points(op: Op) -> str:
    """The exported pair aclnnX / aclnnXGetWorkspaceSize."""
    named = "\n            ".join(_named(p) for p in op.params)
    mutated = ", ".join(map(quoted, op.mutated))
    return (
        banner(op, f"Two-phase entry points of {op.name} on the twin.")
        + f"""
#include "{header_name(op)}"

#include "{op.name}_contract.h"
#include "two_phase.h"

namespace {{

const fla::OpEntry &Entry()
{{
    static const fla::OpEntry entry{{&fla::{contract_function(op)}(), "{op.op_type}", {{{mutated}}}}};
    return entry;
}}

}}  // namespace

extern "C" {phase_one(op)}
{{
    return fla::PhaseOne(Entry(), workspaceSize, executor, [&](fla::CallBuilder &call) {{
        call{named};
    }});
}}

extern "C" {phase_two(op)}
{{
    return fla::PhaseTwo(executor, workspace, workspaceSize, stream);
}}
"""
    )


def plan_entry(op: Op) -> str:
    """fla_plan_<op>, by which libcust_opapi.so calls the plan in the tiling library."""
    return (
        banner(op, f"Where libcust_opapi.so finds the plan of {op.name}.")
        + f"""
#include "{op.name}_plan.h"

extern "C" __attribute__((visibility("default"))) void fla_plan_{op.name}(
    const fla::OpCall &call, const fla::ChipSpec &chip, fla::Plan &plan)
{{
    plan = fla::Plan{op.op_type}(call, chip);
}}
"""
    )


def kernel_entry(op: Op) -> str:
    """fla_kernel_<op>: the four builds of the kernel source behind one table."""
    pointers = [f"uint8_t *{p.name}" for p in op.inputs]
    pointers += [f"uint8_t *{p.name}{'' if p.role == 'out' else '_out'}" for p in op.written]
    pointers += ["uint8_t *workspace", "uint8_t *tiling"]
    slots = [
        f"{op.name}_{build}_{core}" if core in op.cores else ""
        for build in ("fast", "checked")
        for core in ("aic", "aiv")
    ]
    thunks = ",\n    ".join(f"twin::Thunk<&{slot}>::Call" if slot else "nullptr" for slot in slots)
    builds = ",\n    ".join(slot for slot in slots if slot)
    return (
        banner(op, f"The kernel {op.name}: one source, compiled for two cores in two builds.")
        + f"""
#include <cstdint>

#include "acl/kernel_thunk.h"
#include "machine/launch.h"

using Kernel = void(
{parameter_list(pointers)});

extern "C" Kernel
    {builds};

extern "C" __attribute__((visibility("default"))) const twin::KernelEntry fla_kernel_{op.name} = {{
    "{op.name}",
    {thunks},
}};
"""
    )
