# SPDX-License-Identifier: Apache-2.0
"""How tools/bench measures: the inputs, the calls it compares, a clock that waits for a quiet machine, memory.

Candidates run in rotation and medians are compared, so that a slow minute of the machine hits all of them alike.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from functools import partial
from pathlib import Path

SHAPES = {"S1": (512, 4), "S2": (2048, 8), "S3": (4096, 16)}  # tokens, heads; batch is 1
SCALE = 128**-0.5
LOWER_BOUND = -5.0
QUIET = 0.15  # cores that other processes may use during a sample that counts


def busy_seconds() -> float:
    """CPU seconds that the whole machine has spent, idle and I/O wait left out."""
    ticks = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


class Samples:
    def __init__(self, threads: int) -> None:
        self.threads, self.taken = threads, []

    def run(self, call) -> None:
        busy, cpu, wall = busy_seconds(), time.process_time(), time.perf_counter()
        call()
        wall, cpu, busy = time.perf_counter() - wall, time.process_time() - cpu, busy_seconds() - busy
        others = max(0.0, busy - cpu) / max(wall, 1e-9)
        self.taken.append((others, cpu if self.threads == 1 else wall))

    def median(self) -> float:
        quiet = [seconds for others, seconds in self.taken if others < QUIET]
        enough = quiet if len(quiet) >= 3 else [seconds for _, seconds in self.taken]
        return statistics.median(enough)


def rotate(candidates: dict, threads: int, rounds: int) -> dict[str, float]:
    """Median seconds per call of each candidate; one unmeasured call each first."""
    samples = {name: Samples(threads) for name in candidates}
    for call in candidates.values():
        call()
    for _ in range(rounds):
        for name, call in candidates.items():
            samples[name].run(call)
    return {name: sample.median() for name, sample in samples.items()}


def inputs(torch, tokens: int, heads: int):
    """fp32 [H, T, D] inputs: normalised q and k, gate 0.5 logsigmoid(N), beta sigmoid(N)."""
    torch.manual_seed(7)
    unit = torch.nn.functional.normalize
    q, k = (unit(torch.randn(heads, tokens, 128), dim=-1) for _ in range(2))
    v = torch.randn(heads, tokens, 128)
    g = 0.5 * torch.nn.functional.logsigmoid(torch.randn(heads, tokens, 128))
    return q, k, v, g, torch.randn(heads, tokens).sigmoid()


def our_call(torch, tensors, gate: str, **options):
    """(call, leaves): the public call on CPU tensors, bf16 in, as a function of its tensors.

    gate "bounded": the kernel makes the same steps from raw values, as a model's safe gate does, which
    is more work than torch gets; both sides then rely on bounded steps. "none": the steps themselves.
    """
    from fla_npu.torch import npu_chunk_kda

    q, k, v, g, beta = (x.unsqueeze(0) for x in tensors)
    q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
    options |= {"use_gate_in_kernel": False}
    if gate == "bounded":
        g = torch.logit(g / LOWER_BOUND)
        options |= {"safe_gate": True, "lower_bound": LOWER_BOUND, "use_gate_in_kernel": True}
        options["a_log"] = torch.zeros(g.shape[1])
    return lambda *t: npu_chunk_kda(*t, SCALE, layout="BNSD", **options)[0], (q, k, v, g, beta)


def our_forward(torch, tensors, gate: str):
    """Nothing kept for a backward pass."""
    call, given = our_call(torch, tensors, gate)
    return partial(call, *given)


def training(torch, call, tensors):
    """Forward and backward with a cotangent of ones: a function that returns the gradients."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]

    def step():
        out = call(*leaves)
        return torch.autograd.grad(out, leaves, torch.ones_like(out))

    return step


def torch_training(torch, tensors, compiled: bool):
    import torch_yardstick as yardstick

    train = yardstick.compiled_train() if compiled else yardstick.chunk_train
    return training(torch, lambda *t: train(*t, SCALE)[0], tensors)


def status(key: str) -> int:
    """A line of /proc/self/status, in KiB."""
    return int(re.search(rf"{key}:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def peak(torch, who: str, name: str, gate: str) -> float:
    """Megabytes that one training step adds to this process; a small step has loaded all code before."""
    for tokens, heads in ((64, 1), SHAPES[name]):
        tensors = inputs(torch, tokens, heads)
        if who == "torch":
            step = torch_training(torch, tensors, False)
        else:
            step = training(torch, *our_call(torch, tensors, gate, disable_recompute=who == "save"))
        if tokens == 64:
            step()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = status("VmRSS")
    kept = step()
    return (status("VmHWM") - before) / 1024 if kept else 0.0
