# SPDX-License-Identifier: Apache-2.0
"""What a call costs beside its kernels, on one chunk of one head. A report, not a gate.

Times depend on who else uses the machine, so nothing is asserted about them; `tools/bench` compares.
"""

from __future__ import annotations

import time

from fla_npu import aclnn
from fla_npu.chunk_kda import BACKWARD_STAGES, STAGES
from fla_npu.ops.ascendc import chunk_fwd_h, chunk_kda_fwd_finalize
from torch_calls import kda, leaves, make, prepare, seeds, stages

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


def measure(ops: tuple[str, ...], call, monkeypatch) -> tuple[float, float]:
    """Best (total, beside the kernels) microseconds per call over a few batches."""
    call()
    timers = []
    for op in ops:
        caller = aclnn._callers[op]
        timers.append(Timed(caller.phase2))
        monkeypatch.setattr(caller, "phase2", timers[-1])
    best = (float("inf"), float("inf"))
    for _ in range(5):
        for timer in timers:
            timer.seconds = 0.0
        start = time.perf_counter()
        for _ in range(ROUNDS):
            call()
        total = time.perf_counter() - start
        best = min(best, (total, total - sum(t.seconds for t in timers)), key=lambda pair: pair[1])
    monkeypatch.undo()
    return tuple(1e6 * x / ROUNDS for x in best)


def test_report(monkeypatch, capsys):
    import torch

    torch.use_deterministic_algorithms(False)  # the NaN fill of outputs is the tests', not the op's
    t = make(tokens=64, hk=1, hv=1)
    s = stages(t)
    h = {"gk": s["gk"], "output_final_state": True, "use_exp2": True}
    last = [s[n] for n in ("qg_scaled", "aqk", "v_new", "h")]
    train = leaves(t)
    tensors = list(train.values())
    seed = seeds(*kda(t))

    def step():
        torch.autograd.grad(kda(train), tensors, seed)

    calls = {
        "chunk_kda_fwd_prepare": (STAGES[:1], lambda: prepare(t, backward_mode="none")),
        "chunk_fwd_h": (STAGES[1:2], lambda: chunk_fwd_h(s["kg"], s["w"], s["u"], **h)),
        "chunk_kda_fwd_finalize": (STAGES[2:], lambda: chunk_kda_fwd_finalize(*last)),
        "npu_chunk_kda": (STAGES, lambda: kda(t)),
        "npu_chunk_kda, with gradients": (BACKWARD_STAGES, step),
    }
    rows = {name: measure(*call, monkeypatch) for name, call in calls.items()}
    with capsys.disabled():
        for name, (total, beside) in rows.items():
            print(
                f"\n  {name:30s} {total:6.0f} us per call, {beside:4.0f} us of it beside the kernels", end=""
            )
        print()
    assert set(rows) == set(calls)
