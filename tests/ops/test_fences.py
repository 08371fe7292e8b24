# SPDX-License-Identifier: Apache-2.0
"""Every fence in the kernels is needed: without any one of them the checked twin fails the call.

The fence lines are found by text, so a new one is tested as soon as it is written. FLA_NPU_TWIN_SKIP makes
the call at one line do nothing.
"""

from __future__ import annotations

import re
from functools import cache, partial
from pathlib import Path

import backward_inputs
import grad_run
import kda_run
import merge_run
import pytest
import summary_run
from goldens import ROOT, golden_module
from kda_inputs import case_seed, make_inputs

#: Operators and the folders of their stages.
FORWARD = {
    "chunk_kda_fwd_prepare": "prepare",
    "chunk_fwd_h": "state",
    "chunk_kda_fwd_finalize": "output",
}
BACKWARD = {
    "chunk_kda_bwd_prepare": "output_grad",
    "chunk_gated_delta_rule_bwd_dhu": "state_grad",
    "chunk_kda_bwd_finalize": "chunk_grad",
}
#: Their work is in the stages of states and of their gradients.
SUMMARY = {summary_run.FORWARD: "summary", summary_run.BACKWARD: "summary"}
STAGES = ROOT / "ascendc" / "common" / "stages"
#: Where the merge operator has its one stage.
MERGE = ROOT / "ascendc" / "ops" / merge_run.OP / "op_kernel"
FENCE = re.compile(
    r"\b(SetFlag|WaitFlag|PipeBarrier|CrossCoreSetFlag|CrossCoreWaitFlag|SyncAll)\s*(<[^;]*?>)?\s*\("
)

#: Small calls that together reach every path of the forward's kernels.
CALLS = {
    "plain": {"T": 200, "HK": 1, "HV": 2, "state": "float32"},
    "bounded": {
        "T": 200, "HK": 1, "HV": 3, "l2norm": True, "gate": "bounded", "beta": "negative",
        "layout": "BSND",
    },
    "packed": {
        "cu": [0, 0, 5, 5, 70, 200], "HK": 1, "HV": 2, "gate": "softplus", "use_exp2": False,
        "state": "bfloat16", "state_v_first": True, "g_dtype": "bfloat16", "beta_dtype": "bfloat16",
        "l2norm": True,
    },
    "token_major_bf16": {"T": 70, "HK": 1, "HV": 2, "layout": "TND", "beta_dtype": "bfloat16"},
    "mode_none": {"T": 450, "HK": 1, "HV": 1, "mode": "none", "l2norm": True},
}  # fmt: skip

#: The same for each operator of the backward: entries of its golden model's CASES.
BACKWARD_CALLS = {
    "chunk_kda_bwd_prepare": ("sub_block_tail", "packed_v_first", "ragged_tail", "long"),
    "chunk_gated_delta_rule_bwd_dhu": (
        "v_first_bf16", "narrow_dht_wide_h0", "ragged_tail", "packed_empty", "h0_only", "packed_no_state",
        "gk_bf16", "natural", "long",
    ),
    "chunk_kda_bwd_finalize": (
        "packed", "packed_rank4", "no_gate_natural", "bf16_gate", "one_row_tail", "v_first", "reset_gates",
        "ragged_tail",
    ),
}  # fmt: skip

#: And for the summaries.
SUMMARY_CALLS = {
    summary_run.FORWARD: ("grouped_windows", "wide_u", "ragged_tail"),
    summary_run.BACKWARD: ("grouped_window", "no_gate", "ragged_tail"),
}

MERGE_CALLS = ("forward_middle", "v_first", "bf16", "bf16_v_first", "one_summary", "none")


def fence_lines() -> list[str]:
    """`<file name>:<line>` of every fence call in the kernels and their common headers."""
    users = FORWARD | BACKWARD | SUMMARY
    folders = [ROOT / "ascendc" / "ops" / op / "op_kernel" for op in users]
    folders += [MERGE, ROOT / "ascendc" / "common" / "kernel"]
    folders += [STAGES / stage for stage in dict.fromkeys(users.values())]
    found = []
    for folder in folders:
        for path in sorted(folder.glob("*")):
            found += lines_of(path)
    return found


def lines_of(path: Path) -> list[str]:
    """Fence calls of one file; comment text does not count."""
    out = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if FENCE.search(line.split("//")[0]):
            out.append(f"{path.name}:{number}")
    return out


@cache
def backward_case(op: str, name: str):
    """A case with its tensors: made once, called for every fence."""
    make = {
        "chunk_kda_bwd_prepare": backward_inputs.prepare_case,
        "chunk_gated_delta_rule_bwd_dhu": backward_inputs.dhu_case,
        "chunk_kda_bwd_finalize": backward_inputs.finalize_case,
    }[op]
    case = make(golden_module(op).CASES[name], case_seed(name))
    return case.options, grad_run.tensors_of(case)


def backward_calls(ops):
    run = {
        "chunk_kda_bwd_prepare": grad_run.bwd_prepare,
        "chunk_gated_delta_rule_bwd_dhu": grad_run.dhu,
        "chunk_kda_bwd_finalize": grad_run.bwd_finalize,
    }
    for op in ops:
        for name in BACKWARD_CALLS[op]:
            options, tensors = backward_case(op, name)
            yield partial(run[op], tensors, **options)


@cache
def merge_case(name: str):
    return merge_run.named(name)


@cache
def summary_case(op: str, name: str):
    return summary_run.named(op, name)


def calls(line: str):
    """All small calls; those of the merge or backward operator that the line belongs to come first."""
    file = line.split(":")[0]
    merges = [merge_case(name).run for name in MERGE_CALLS]
    if file and (MERGE / file).exists():
        yield from merges
    owners = [op for op, folder in BACKWARD.items() if file and (STAGES / folder / file).exists()]
    yield from backward_calls(owners)
    for op, names in SUMMARY_CALLS.items():
        yield from (summary_case(op, name).run for name in names)
    yield from merges
    for name, case in CALLS.items():
        yield partial(kda_run.forward, make_inputs(case, len(name)))
    yield partial(kda_run.relayed, make_inputs(CALLS["packed"], 6), True)
    yield from backward_calls(op for op in BACKWARD if op not in owners)


def calls_until_fault(line: str = "") -> bool:
    """True as soon as one of the small calls is failed by the twin."""
    from fla_npu.errors import TwinFault

    for call in calls(line):
        try:
            call()
        except TwinFault:
            return True
    return False


def test_the_search_finds_fences():
    assert len(fence_lines()) > 20


def test_all_fences_in_place_is_clean(twin):
    twin(mode="checked", cores=2)
    assert not calls_until_fault()


@pytest.mark.full
@pytest.mark.parametrize("line", fence_lines())
def test_every_fence_is_needed(line, twin):
    for cores in (1, 2):
        twin(mode="checked", cores=cores, skip=line)
        if calls_until_fault(line):
            return
    pytest.fail(f"{line}: all calls stay clean without this fence; it is redundant or a check is missing")
