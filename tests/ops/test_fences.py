# SPDX-License-Identifier: Apache-2.0
"""Every fence in the kernels is needed: without any one of them the checked twin fails the call.

The fence lines are found by text, so a new one is tested as soon as it is written. FLA_NPU_TWIN_SKIP makes
the call at one line do nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

import kda_run
import pytest
from goldens import ROOT
from kda_inputs import make_inputs

KERNELS = ("chunk_kda_fwd_prepare", "chunk_fwd_h", "chunk_kda_fwd_finalize")
STAGES = ("prepare", "state", "output")
FENCE = re.compile(
    r"\b(SetFlag|WaitFlag|PipeBarrier|CrossCoreSetFlag|CrossCoreWaitFlag|SyncAll)\s*(<[^;]*?>)?\s*\("
)

#: Small calls that together reach every path of the kernels.
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


def fence_lines() -> list[str]:
    """`<file name>:<line>` of every fence call in the kernels and their common headers."""
    folders = [ROOT / "ascendc" / "ops" / op / "op_kernel" for op in KERNELS]
    folders.append(ROOT / "ascendc" / "common" / "kernel")
    folders += [ROOT / "ascendc" / "common" / "stages" / stage for stage in STAGES]
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


def calls_until_fault(cores: int) -> bool:
    """True as soon as one of the small calls is failed by the twin."""
    from fla_npu.errors import TwinFault

    for name, case in CALLS.items():
        try:
            kda_run.forward(make_inputs(case, len(name)))
        except TwinFault:
            return True
    return False


def test_the_search_finds_fences():
    assert len(fence_lines()) > 20


def test_all_fences_in_place_is_clean(twin):
    twin(mode="checked", cores=2)
    assert not calls_until_fault(2)


@pytest.mark.full
@pytest.mark.parametrize("line", fence_lines())
def test_every_fence_is_needed(line, twin):
    for cores in (1, 2):
        twin(mode="checked", cores=cores, skip=line)
        if calls_until_fault(cores):
            return
    pytest.fail(f"{line}: all calls stay clean without this fence; it is redundant or a check is missing")
