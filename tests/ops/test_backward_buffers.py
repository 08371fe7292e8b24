# SPDX-License-Identifier: Apache-2.0
"""What surrounds the backward's tensors: neighbours of inputs are not read, neighbours of outputs not written."""

from __future__ import annotations

import gc

import backward_inputs
import grad_run
import kda_run
import pytest
import torch
from backward import make_cotangents
from goldens import golden_module
from kda_inputs import make_inputs
from test_buffers import Guarded, resident_bytes

BOUNDED = {"gate": "bounded", "l2norm": True}
CALLS = {
    "prepare_T5": ("prepare", {"T": 5, "HV": 2}),
    "prepare_packed": ("prepare", {"cu": [0, 5, 5, 70, 133], "HV": 3, "layout": "NTD", "state_v_first": True}),
    "dhu_T5": ("dhu", {"T": 5, "HV": 2, "state": "float32", "dht": "float32"}),
    "dhu_packed": ("dhu", {"cu": [0, 5, 5, 70, 133], "HV": 3, "state": "bfloat16", "dht": "bfloat16"}),
    "dhu_bare": ("dhu", {"T": 70, "HV": 1, "use_exp2": False, "gk_dtype": "bfloat16"}),
    "finalize_T5": ("finalize", {"T": 5, "HK": 1, "HV": 2, "state": "float32", "planes": True, **BOUNDED}),
    "finalize_packed": ("finalize", {"cu": [0, 5, 5, 70, 133], "HK": 1, "HV": 3, "layout": "NTD", "gate": "softplus"}),
    "finalize_bare": ("finalize", {"T": 17, "use_exp2": False, "g_dtype": "bfloat16", "beta_dtype": "bfloat16"}),
}  # fmt: skip
RUN = {"prepare": grad_run.bwd_prepare, "dhu": grad_run.dhu, "finalize": grad_run.bwd_finalize}


@pytest.mark.parametrize("build", ["fast", "checked"])
@pytest.mark.parametrize("name", CALLS)
def test_b3_neighbours(name, build, twin, monkeypatch):
    """NaN right before and behind every input; a known pattern around every output."""
    op, case = CALLS[name]
    call = getattr(backward_inputs, f"{op}_case")(case, 1)
    tensors = grad_run.tensors_of(call)
    want = RUN[op](tensors, **call.options)
    around_inputs, around_outputs = Guarded(0xFF), Guarded(0xA5)
    guarded = {n: around_inputs.copy(x) for n, x in tensors.items()}
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
    got = RUN[op](guarded, **call.options)
    assert len(around_outputs.buffers) == len(got)
    assert kda_run.differing(got, want) == []
    assert around_outputs.intact() and around_inputs.intact()
    for n, x in tensors.items():
        assert kda_run.same_bits(guarded[n], x), f"input {n} was changed"


@pytest.mark.parametrize("noise", [float("nan"), float("inf"), 1e30], ids=str)
def test_scores_above_the_diagonal_are_not_read(noise):
    """aqk of bwd_prepare may hold anything there."""
    case = backward_inputs.prepare_case(golden_module("chunk_kda_bwd_prepare").CASES["ragged_tail"], 2)
    tensors = grad_run.tensors_of(case)
    want = grad_run.bwd_prepare(tensors, **case.options)
    rows = torch.arange(200)[:, None] % 64
    above = (torch.arange(64)[None, :] > rows).expand(2, 3, 200, 64)
    noisy = {**tensors, "aqk": tensors["aqk"].masked_fill(above, noise)}
    assert kda_run.differing(grad_run.bwd_prepare(noisy, **case.options), want) == []


def test_only_the_last_gate_row_of_a_chunk_reaches_the_state():
    case = backward_inputs.dhu_case({"T": 70, "HV": 2, "state": "float32", "dht": "float32"}, 3)
    tensors = grad_run.tensors_of(case)
    want = grad_run.dhu(tensors, **case.options)
    noisy = tensors["gk"].clone()
    noisy[:, :, :63] = noisy[:, :, 64:69] = float("nan")
    assert kda_run.differing(grad_run.dhu({**tensors, "gk": noisy}, **case.options), want) == []


def test_gradients_share_no_memory_and_leave_inputs_alone():
    inputs = make_inputs({"T": 70, "HK": 1, "HV": 2, "gate": "bounded", "state": "float32"}, 4)
    seeds = make_cotangents(inputs, 4)
    leaves = kda_run.tensors_of(inputs) | {"initial_state": kda_run.tensor(inputs.initial_state, "float32")}
    leaves = grad_run.requiring(leaves)
    before = {n: x.detach().clone() for n, x in leaves.items()}
    got = grad_run.gradients(inputs, seeds, leaves)
    assert kda_run.differing({n: x.detach() for n, x in leaves.items()}, before) == []
    regions = sorted(
        (x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()) for x in (*leaves.values(), *got.values())
    )
    assert all(a[1] <= b[0] for a, b in zip(regions, regions[1:]))


@pytest.mark.full
@pytest.mark.parametrize("disable_recompute", [True, False], ids=["save", "recompute"])
def test_f6_memory_stays_flat(disable_recompute):
    """300 training steps of 300 lengths leave nothing behind."""

    def call(tokens):
        inputs = make_inputs({"T": tokens, "HV": 2, "gate": "bounded"}, 5)
        grad_run.gradients(inputs, make_cotangents(inputs, 5), disable_recompute=disable_recompute)

    for tokens in (*range(1, 41), 400):
        call(tokens)
    gc.collect()
    before = resident_bytes()
    for tokens in range(101, 401):
        call(tokens)
    gc.collect()
    assert resident_bytes() - before < 32 << 20
