# SPDX-License-Identifier: Apache-2.0
"""What a stage call costs beside its kernel, on one chunk of one head. A report, not a gate.

Times depend on who else uses the machine, so nothing is asserted about them; `tools/bench` compares.
"""

from __future__ import annotations

import time

from fla_npu import aclnn
from fla_npu.ops.ascendc import chunk_fwd_h, chunk_kda_fwd_finalize
from torch_calls import make, prepare, stages

ROUNDS = 200


class Timed:
    """A C function that adds up the time spent inside."""

    def __init__(self, function) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *arguments):
        start = time.perf_counter()
        status = self.function(*arguments)
        self.seconds += time.perf_counter() - start
        return status


def measure(op: str, call, monkeypatch) -> tuple[float, float]:
    """Best (total, beside the kernel) microseconds per call over a few batches."""
    call()
    caller = aclnn._callers[op]
    timed = Timed(caller.phase2)
    monkeypatch.setattr(caller, "phase2", timed)
    best = (float("inf"), float("inf"))
    for _ in range(5):
        timed.seconds = 0.0
        start = time.perf_counter()
        for _ in range(ROUNDS):
            call()
        total = time.perf_counter() - start
        best = min(best, (total, total - timed.seconds), key=lambda pair: pair[1])
    return tuple(1e6 * x / ROUNDS for x in best)


def test_report(monkeypatch, capsys):
    import torch

    torch.use_deterministic_algorithms(False)  # the NaN fill of outputs is the tests', not the op's
    t = make(tokens=64, hk=1, hv=1)
    s = stages(t)
    h = {"gk": s["gk"], "output_final_state": True, "use_exp2": True}
    last = [s[n] for n in ("qg_scaled", "aqk", "v_new", "h")]
    calls = {
        "chunk_kda_fwd_prepare": lambda: prepare(t, backward_mode="none"),
        "chunk_fwd_h": lambda: chunk_fwd_h(s["kg"], s["w"], s["u"], **h),
        "chunk_kda_fwd_finalize": lambda: chunk_kda_fwd_finalize(*last),
    }
    rows = {op: measure(op, call, monkeypatch) for op, call in calls.items()}
    with capsys.disabled():
        for op, (total, beside) in rows.items():
            print(f"\n  {op:24s} {total:6.0f} us per call, {beside:4.0f} us of it beside the kernel", end="")
        print()
    assert set(rows) == set(calls)
