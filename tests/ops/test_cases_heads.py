# SPDX-License-Identifier: Apache-2.0
"""Heads, widths, types and states: whose parameters a head reads, and what is refused."""

from __future__ import annotations

import kda_run
import numpy as np
import pytest
import torch
from kda_inputs import KdaInputs, make_inputs, to_bf16
from test_forward import check_forward

MODEL = {"l2norm": True, "gate": "bounded", "beta": "sigmoid", "state": "float32"}


def one_head(inputs: KdaInputs, head: int, group: int) -> KdaInputs:
    """Value head `head` of head-major inputs as a call of its own."""
    arrays = dict(inputs.arrays)
    for name in ("v", "g", "beta"):
        arrays[name] = arrays[name][:, head : head + 1]
    for name in ("q", "k"):
        arrays[name] = arrays[name][:, head // group : head // group + 1]
    arrays["a_log"] = arrays["a_log"][head : head + 1]
    arrays["dt_bias"] = arrays["dt_bias"].reshape(-1, 128)[head]
    state = inputs.initial_state[:, head : head + 1]
    return KdaInputs(arrays, inputs.dtypes, inputs.options, inputs.mode, state, inputs.state_dtype)


@pytest.mark.parametrize("gate", ["bounded", "softplus"])
def test_c1_each_value_head_reads_its_own_parameters(gate):
    """Six heads on two key heads have the bits of six calls of one head."""
    inputs = make_inputs({"T": 130, "HK": 2, "HV": 6, **MODEL, "gate": gate}, 1)
    inputs.arrays["a_log"] = np.float64(np.float32(np.linspace(0.0, 2.0, 6)))
    whole = kda_run.forward(inputs)
    for head in range(6):
        single = kda_run.forward(one_head(inputs, head, 3))
        for name, x in single.items():
            axis = 2 if name in ("o", "h") else 1
            index = head // 3 if name in ("q_hat", "k_hat", "q_rstd", "k_rstd") else head
            part = whole[name].narrow(axis, index, 1)
            assert kda_run.same_bits(part, x), f"head {head}: {name}"


@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
def test_c2_groups_are_consecutive_heads(layout):
    """Key head 0 serves value heads 0 and 1: the written rows are 0, 0, 1, 1."""
    inputs = make_inputs({"T": 1, "HK": 2, "HV": 4, "layout": layout}, 2)
    axis = 1 if layout == "BNSD" else 2
    for name in ("q", "k"):
        inputs.arrays[name] = np.zeros_like(inputs.arrays[name])
    k = np.moveaxis(inputs.arrays["k"], axis, 0)
    k[0, ..., 0] = k[1, ..., 1] = 1.0
    inputs.arrays["v"][:] = inputs.arrays["beta"][:] = 1.0
    inputs.arrays["g"][:] = 0.0
    final = kda_run.array(kda_run.forward(inputs)["final_state"])
    for head, row in enumerate((0, 0, 1, 1)):
        want = np.zeros((128, 128))
        want[row] = 1.0
        assert np.array_equal(final[0, head], want)


@pytest.mark.parametrize("heads", [(2, 3), (4, 2), (3, 8)], ids=str)
def test_c4_head_counts_that_do_not_divide(heads):
    key, value = (kda_run.tensors_of(make_inputs({"T": 4, "HK": 1, "HV": n}, n)) for n in heads)
    key_heads = {n: x.repeat(1, heads[0], 1, 1) for n, x in key.items() if n in "qk"}
    with pytest.raises(ValueError, match="HV|heads"):
        kda_run.prepare(make_inputs({"T": 4}, 0), {**value, **key_heads})


@pytest.mark.parametrize("width", [(64, 64), (256, 256), (64, 128), (128, 64), (72, 72), (16, 16)], ids=str)
def test_c6_other_widths_are_refused(width):
    tensors = kda_run.tensors_of(make_inputs({"T": 4}, 3))
    tensors["v"] = torch.zeros(1, 1, 4, width[1], dtype=torch.bfloat16)
    for name in ("q", "k", "g"):
        tensors[name] = torch.zeros(1, 1, 4, width[0], dtype=tensors[name].dtype)
    with pytest.raises(ValueError, match="128"):
        kda_run.prepare(make_inputs({"T": 4}, 3), tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_d9_other_types_are_refused(name, dtype):
    tensors = kda_run.tensors_of(make_inputs({"T": 4}, 4))
    tensors[name] = tensors[name].to(dtype)
    with pytest.raises(TypeError, match=name):
        kda_run.prepare(make_inputs({"T": 4}, 4), tensors)


@pytest.mark.parametrize("g_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("beta_dtype", ["float32", "bfloat16"])
def test_d9_gate_and_beta_types(g_dtype, beta_dtype):
    """The same values in a narrower type give the same bits: the arithmetic is fp32 either way."""
    inputs = make_inputs({"T": 100, "HV": 2, **MODEL}, 5)
    for name in ("g", "beta"):
        inputs.arrays[name] = to_bf16(inputs.arrays[name])
    wide = kda_run.forward(inputs)
    inputs.dtypes |= {"g": g_dtype, "beta": beta_dtype}
    assert kda_run.differing(kda_run.forward(inputs), wide) == []


@pytest.mark.parametrize("v_first", [False, True], ids=["k_first", "v_first"])
def test_d10_no_state_equals_zeros(v_first):
    inputs = make_inputs({"T": 100, "HV": 2, "state_v_first": v_first}, 6)
    without = kda_run.forward(inputs)
    assert without["final_state"].dtype == torch.float32
    inputs.initial_state = np.zeros((1, 2, 128, 128))
    assert kda_run.differing(kda_run.forward(inputs), without) == []


def test_d10_bf16_state_starts_where_fp32_does():
    """A bf16 initial state changes the type of final_state, and no other bit."""
    inputs = make_inputs({"T": 100, "HV": 2, "state": "bfloat16"}, 7)
    narrow = kda_run.forward(inputs)
    inputs.state_dtype = "float32"
    wide = kda_run.forward(inputs)
    assert narrow["final_state"].dtype == torch.bfloat16
    assert kda_run.same_bits(narrow.pop("final_state"), wide.pop("final_state").bfloat16())
    assert kda_run.differing(narrow, wide) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_d10_other_state_types_are_refused(dtype):
    inputs = make_inputs({"T": 4}, 8)
    stages = kda_run.forward(inputs)
    state = torch.zeros(1, 1, 128, 128, dtype=dtype)
    with pytest.raises(TypeError, match="initial_state"):
        kda_run.fwd_h(stages, inputs, state)


def test_d10_final_state_only_when_asked():
    inputs = make_inputs({"T": 70, "HV": 2, "state": "float32"}, 9)
    stages = kda_run.forward(inputs)
    state = kda_run.tensor(inputs.initial_state, "float32")
    out = kda_run.fwd_h(stages, inputs, state, output_final_state=False)
    assert kda_run.differing(out, {n: stages[n] for n in ("h", "v_new")}) == []


@pytest.mark.parametrize("v_first", [False, True], ids=["k_first", "v_first"])
def test_h3_state_axes_are_not_mixed(v_first):
    """A state with one row is not a state with one column, although K = V."""
    inputs = make_inputs({"T": 70, "HV": 2, "state": "float32", "state_v_first": v_first}, 10)
    inputs.initial_state[:] = 0.0
    inputs.initial_state[:, :, 3, :] = 1.0
    stages = check_forward(inputs)
    other = make_inputs({"T": 70, "HV": 2, "state": "float32", "state_v_first": not v_first}, 10)
    other.initial_state = inputs.initial_state.swapaxes(-1, -2).copy()
    turned = kda_run.forward(other)
    for name in ("h", "final_state"):
        assert kda_run.same_bits(turned[name].transpose(-1, -2), stages[name]), name
    assert kda_run.same_bits(turned["o"], stages["o"])
