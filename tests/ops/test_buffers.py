# SPDX-License-Identifier: Apache-2.0
"""What surrounds the tensors: neighbours of inputs are not read, neighbours of outputs not written."""

from __future__ import annotations

import gc

import kda_run
import numpy as np
import pytest
import torch
from kda_inputs import make_inputs

GUARD = 4096  # bytes before and behind every tensor
CASES = {
    "T5": {"T": 5, "HK": 1, "HV": 2, "state": "float32"},
    "T70_bounded": {"T": 70, "HK": 2, "HV": 4, "layout": "BSND", "gate": "bounded", "l2norm": True},
    "packed": {
        "cu": [0, 5, 5, 70, 133], "HK": 1, "HV": 3, "layout": "TND", "gate": "softplus",
        "state": "bfloat16", "state_v_first": True,
    },
    "natural_bf16": {"T": 17, "HV": 1, "use_exp2": False, "g_dtype": "bfloat16", "beta_dtype": "bfloat16"},
}  # fmt: skip


class Guarded:
    """Tensors inside larger byte buffers whose other bytes hold one pattern."""

    def __init__(self, pattern: int) -> None:
        self.pattern, self.buffers = pattern, []

    def place(self, shape, dtype) -> torch.Tensor:
        """An uninitialised (NaN) contiguous tensor with guards on both sides."""
        size = int(np.prod(shape)) * torch.empty((), dtype=dtype).element_size()
        buffer = torch.full((size + 2 * GUARD,), self.pattern, dtype=torch.uint8)
        body = buffer[GUARD : GUARD + size].view(dtype).view(shape)
        body.fill_(float("nan"))
        self.buffers.append(buffer)
        return body

    def copy(self, x: torch.Tensor | None) -> torch.Tensor | None:
        return None if x is None else self.place(x.shape, x.dtype).copy_(x)

    def intact(self) -> bool:
        """True when no guard byte changed."""
        return all(
            bool((b[:GUARD] == self.pattern).all() and (b[-GUARD:] == self.pattern).all())
            for b in self.buffers
        )


def run_all(inputs, tensors, state):
    """The three operators; every relayed tensor goes through `tensors["relay"]` first."""
    relay = tensors.get("relay", lambda x: x)
    t = {n: x for n, x in tensors.items() if n != "relay"}
    stages = {n: relay(x) for n, x in kda_run.prepare(inputs, t).items()}
    stages |= {n: relay(x) for n, x in kda_run.fwd_h(stages, inputs, state).items()}
    return stages | {"o": kda_run.finalize(stages, inputs)}


@pytest.mark.parametrize("build", ["fast", "checked"])
@pytest.mark.parametrize("case", CASES)
def test_b3_neighbours(case, build, twin, monkeypatch):
    """NaN right before and behind every input; a known pattern around every output."""
    inputs = make_inputs(CASES[case], 1)
    tensors = kda_run.tensors_of(inputs)
    state = kda_run.tensor(inputs.initial_state, inputs.state_dtype)
    want = run_all(inputs, tensors, state)
    around_inputs, around_outputs = Guarded(0xFF), Guarded(0xA5)  # 0xFFFF.. is NaN in bf16 and fp32
    guarded = {name: around_inputs.copy(x) for name, x in tensors.items()}
    guarded_state = around_inputs.copy(state)
    plain_empty = torch.empty

    def guarded_empty(*shape, dtype=None, **options):
        shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        if dtype not in (torch.bfloat16, torch.float32) or not shape:
            return plain_empty(shape, dtype=dtype, **options)
        monkeypatch.setattr(torch, "empty", plain_empty)
        out = around_outputs.place(tuple(shape), dtype)
        monkeypatch.setattr(torch, "empty", guarded_empty)
        return out

    monkeypatch.setattr(torch, "empty", guarded_empty)
    twin(mode=build)
    got = run_all(inputs, {**guarded, "relay": around_inputs.copy}, guarded_state)
    assert len(around_outputs.buffers) == 13 + 3 + 1
    assert kda_run.differing(got, want) == []
    assert around_outputs.intact() and around_inputs.intact()
    for name, x in tensors.items():
        assert kda_run.same_bits(guarded[name], x), f"input {name} was changed"
    assert kda_run.same_bits(guarded_state, state), "initial_state was changed"


def test_padding_rows_of_relayed_tensors_are_not_read():
    """Columns of aqk above the diagonal may hold anything, NaN too."""
    inputs = make_inputs({"T": 70, "HV": 2}, 2)
    stages = kda_run.forward(inputs)
    want = stages["o"]
    rows = torch.arange(70)[:, None] % 64
    above = (torch.arange(64)[None, :] > rows).expand(1, 2, 70, 64)
    for noise in (float("nan"), float("inf"), 1e30):
        noisy = {**stages, "aqk": stages["aqk"].masked_fill(above, noise)}
        assert kda_run.same_bits(kda_run.finalize(noisy, inputs), want), noise


def test_only_the_last_gate_row_of_a_chunk_reaches_the_state():
    inputs = make_inputs({"T": 70, "HV": 2, "state": "float32"}, 3)
    stages = kda_run.forward(inputs)
    state = kda_run.tensor(inputs.initial_state, "float32")
    noisy = stages["gk"].clone()
    noisy[:, :, :63] = noisy[:, :, 64:69] = float("nan")
    got = kda_run.fwd_h({**stages, "gk": noisy}, inputs, state)
    assert kda_run.differing(got, {n: stages[n] for n in got}) == []


def test_outputs_share_no_memory_with_inputs_or_each_other():
    inputs = make_inputs({"T": 70, "HV": 2, "state": "float32"}, 4)
    tensors = kda_run.tensors_of(inputs)
    stages = kda_run.prepare(inputs, tensors)
    state = kda_run.tensor(inputs.initial_state, "float32")
    stages |= kda_run.fwd_h(stages, inputs, state)
    stages["o"] = kda_run.finalize(stages, inputs)
    regions = sorted(
        (x.data_ptr(), x.data_ptr() + x.numel() * x.element_size())
        for x in [*tensors.values(), *stages.values(), state]
    )
    assert all(a[1] <= b[0] for a, b in zip(regions, regions[1:]))


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


@pytest.mark.full
def test_f6_memory_stays_flat():
    """300 calls of 300 lengths with temporaries as inputs leave nothing behind."""
    inputs = make_inputs({"T": 400, "HV": 2, "gate": "bounded"}, 5)

    def call(tokens):
        cut = {n: x for n, x in inputs.arrays.items()}
        for name in ("q", "k", "v", "g", "beta"):
            cut[name] = cut[name][:, :, :tokens]
        part = make_inputs({"T": 1, "HV": 2, "gate": "bounded"}, 5)
        part.arrays = cut
        kda_run.forward(part)

    for tokens in range(1, 41):
        call(tokens)
    call(400)
    gc.collect()
    before = resident_bytes()
    for tokens in range(101, 401):
        call(tokens)
    gc.collect()
    assert resident_bytes() - before < 32 << 20
