# SPDX-License-Identifier: Apache-2.0
"""Gradients where gates, exponents, norms and the solve went wrong elsewhere, each with its right value."""

from __future__ import annotations

import math

import grad_run
import kda_run
import numpy as np
import pytest
import torch
from backward import Cotangents, make_cotangents
from goldens import relative_l2
from kda_inputs import to_bf16, to_dtype, unit_rows
from test_cases_gates import MIXTURES, base, unit_vector_inputs


def judged(inputs, seeds=None, factor=2.0, **changes) -> dict:
    """Every gradient within its floor, as arrays.

    Where a strong decay leaves a handful of tokens to carry the norm, so few roundings meet that the ratio
    to the floor scatters; model-like inputs are held to 1.5 in test_backward.py.
    """
    got = grad_run.check_gradients(inputs, seeds or make_cotangents(inputs, 1), factor, **changes)
    return {name: kda_run.array(x) for name, x in got.items()}


def run(inputs, seeds, **changes) -> dict:
    """Every gradient as arrays, and finite."""
    got = {n: kda_run.array(x) for n, x in grad_run.gradients(inputs, seeds, **changes).items()}
    for name, x in got.items():
        assert np.isfinite(x).all(), (
            f"gradient of {name} has {np.count_nonzero(~np.isfinite(x))} non-finite values"
        )
    return got


def cotangents(inputs, out=0.0, final=0.0) -> Cotangents:
    """Constant ones."""
    shape = inputs.arrays["v"].shape
    return Cotangents(np.full(shape, out), np.full((shape[0], shape[1], 128, 128), final))


@pytest.mark.parametrize("step", [-1.38, -1.39, -1.5, -5.0, -20.0], ids=str)
def test_a1_decay_of_a_full_chunk(step):
    inputs = base(64, state="float32")
    inputs.arrays["g"][:] = np.float64(np.float32(step))
    judged(inputs)


@pytest.mark.parametrize("channels", [slice(None), slice(0, 1)], ids=["all_channels", "channel_0"])
def test_a2_masked_exponents_have_no_gradient(channels):
    """0 * inf in the upper triangle turns every gradient to NaN where the forward is fine."""
    inputs = base(64)
    inputs.arrays["g"][:] = np.float64(np.float32(-0.1))
    inputs.arrays["g"][..., channels] = -3.0
    judged(inputs)


@pytest.mark.parametrize("tokens", [64, 130])
@pytest.mark.parametrize("loss", ["both", "final_only", "none"])
def test_a3_saturated_bounded_gate(tokens, loss):
    """Raw g = +30 saturates at -5 per step; the raw gate then has no gradient to speak of."""
    inputs = base(tokens, gate="bounded", lower_bound=-5.0, state="float32", no_bias=True)
    inputs.arrays["a_log"][:] = 0.0
    inputs.arrays["g"][:] = 30.0
    seeds = make_cotangents(inputs, 1)
    seeds.out *= loss == "both"
    seeds.final *= loss != "none"
    got = run(inputs, seeds)
    assert np.abs(got["g"]).max() < 1e-10
    exact, rounded = grad_run.reference(inputs, seeds)
    for name in ("q", "k", "v", "beta", "initial_state"):
        if loss == "none":
            assert not got[name].any(), name
        else:
            assert (
                relative_l2(got[name], exact[name]) < 2.0 * relative_l2(rounded[name], exact[name]) + 1e-3
            ), name


@pytest.mark.parametrize("bound", [-1.0, -2.5, -5.0])
def test_a3_anchor_span(bound):
    inputs = base(130, gate="bounded", lower_bound=bound, HV=2)
    inputs.arrays["g"][:, :, ::2] = 30.0
    judged(inputs)


@pytest.mark.parametrize("step", [-5.0, -8.0])
def test_a3_external_gate_below_the_bound(step):
    inputs = base(130, state="float32")
    inputs.arrays["g"][:] = step
    judged(inputs)


def test_a5_no_clamp_in_the_intra_path():
    """dv0 = exp(-60) do1 = 8.76e-27, not exp(-50) do1."""
    inputs = unit_vector_inputs(2)
    inputs.arrays["v"][0, 0, 0, 0] = to_bf16(1e25)
    inputs.arrays["beta"][0, 0, 0] = 1.0
    inputs.arrays["g"][0, 0, 1] = -60.0
    seeds = cotangents(inputs)
    seeds.out[0, 0, 1, 0] = 1.0
    got = run(inputs, seeds)
    assert got["v"][0, 0, 0, 0] == pytest.approx(math.exp(-60), rel=1.2e-2)
    assert got["g"][0, 0, 1, 0] == pytest.approx(to_bf16(1e25) * math.exp(-60), rel=1.6e-2)
    assert got["beta"][0, 0, 0] == pytest.approx(to_bf16(1e25) * math.exp(-60), rel=1.6e-2)


def test_a5_no_clamp_in_the_state_path():
    inputs = unit_vector_inputs(1, state="float32")
    inputs.initial_state[:] = to_bf16(1e25)
    inputs.arrays["g"][:] = -60.0
    got = run(inputs, cotangents(inputs, final=1.0))
    assert np.allclose(got["initial_state"], math.exp(-60), rtol=2e-5)
    assert np.allclose(got["g"], 128 * to_bf16(1e25) * math.exp(-60), rtol=2e-5)


def test_a7_scattered_resets():
    judged(base(128, state="float32", mask=0.4))


def test_a7_thousands_then_mild():
    """Running sums near 32000 keep 2e-3 of a later step; sums of steps keep all of it."""
    inputs = base(64, state="float32")
    rng = np.random.default_rng(1)
    inputs.arrays["g"][:] = -0.02 * rng.uniform(size=inputs.arrays["g"].shape)
    inputs.arrays["g"] = np.float64(np.float32(inputs.arrays["g"]))
    inputs.arrays["g"][:, :, :32] = -1000.0
    judged(inputs)


@pytest.mark.parametrize("row", [0, 10, 16, 63, 64, 69])
def test_a7_reset_by_minus_infinity(row):
    """Nothing flows through a reset, and the reset itself has no gradient beyond rounding."""
    inputs = base(70, state="float32", HV=2)
    inputs.arrays["g"][:, 0, row] = -np.inf
    inputs.arrays["g"][:, 1, row, ::3] = -np.inf
    got = judged(inputs)
    reset = np.isneginf(inputs.arrays["g"])
    assert np.abs(got["g"][reset]).max() < 2e-4 * np.abs(got["g"]).max()


@pytest.mark.parametrize("tokens", [64, 130])
@pytest.mark.parametrize("beta", [0.5, 1.0, 1.9])
def test_a8_constant_key(beta, tokens):
    """One row of the state carries everything: its error is a handful of draws."""
    inputs = unit_vector_inputs(tokens, beta="negative")
    inputs.arrays["v"][:] = to_bf16(np.random.default_rng(2).standard_normal(inputs.arrays["v"].shape))
    inputs.arrays["beta"][:] = np.float32(math.log(beta / (2.0 - beta)))
    judged(inputs, factor=3.0)


def test_a8_nearly_constant_keys():
    inputs = base(64, beta="negative", state="float32")
    keys = np.zeros((1, 1, 64, 128))
    keys[..., 0] = 1.0
    noise = np.random.default_rng(3).standard_normal(keys.shape)
    inputs.arrays["k"] = to_bf16(unit_rows(keys + 0.01 * noise))
    inputs.arrays["g"][:] = 0.0
    inputs.arrays["beta"][:] = np.float32(math.log(19.0))
    judged(inputs)


def test_a10_tiny_final_gradient_reaches_the_first_state():
    """dht = 2^-25 with a state of 65536: dh0 = 2^-25 exp(-4), nothing flushed, nothing infinite."""
    inputs = unit_vector_inputs(1, state="float32")
    inputs.arrays["q"][:] = inputs.arrays["k"][:] = 0.0
    inputs.initial_state[:] = 0.0
    inputs.initial_state[0, 0, 0, 0] = 65536.0
    inputs.arrays["g"][:] = -4.0
    got = run(inputs, cotangents(inputs, final=2.0**-25))
    assert np.allclose(got["initial_state"], 2.0**-25 * math.exp(-4), rtol=1e-6)
    assert got["g"][0, 0, 0, 0] == pytest.approx(65536 * 2.0**-25 * math.exp(-4), rel=8e-3)


def test_a10_state_gradient_keeps_more_than_bf16():
    """Nothing is written; after 300 tokens the gradient has lost no digits to the bf16 tape dh."""
    inputs = unit_vector_inputs(300, state="float32")
    inputs.arrays["g"][:] = np.float64(np.float32(-0.001))
    seeds = make_cotangents(inputs, 2)
    seeds.out[:] = 0.0
    want = seeds.final * math.exp(300 * float(np.float32(-0.001)))
    assert relative_l2(run(inputs, seeds)["initial_state"], want) < 1e-5


@pytest.mark.parametrize("value", [0.3, -0.3])
def test_a11_huge_a_log(value):
    """exp(100) leaves fp32, the gate is flat: dg = da_log = 0, where the naive product is 0 * inf."""
    inputs = base(66, gate="bounded", lower_bound=-5.0)
    inputs.arrays["a_log"][:] = 100.0
    inputs.arrays["dt_bias"][:] = 0.0
    inputs.arrays["g"][:] = np.float64(np.float32(value))
    got = run(inputs, make_cotangents(inputs, 1))
    assert not got["g"].any() and not got["a_log"].any() and not got["dt_bias"].any()
    assert got["v"].any()


@pytest.mark.parametrize("gate", ["bounded", "softplus"])
def test_a11_padding_rows_do_not_reach_the_parameters(gate):
    """Three tokens, bias 5, no loss: rows 3 .. 63 of the chunk do not exist."""
    inputs = base(3, gate=gate)
    inputs.arrays["dt_bias"][:] = 5.0
    got = run(inputs, cotangents(inputs))
    assert not any(x.any() for n, x in got.items() if n not in ("o", "final_state"))
    judged(inputs, factor=3.0)


@pytest.mark.parametrize("exp2", [True, False], ids=["exp2", "natural"])
def test_a12_exponent_base_in_the_state_path(exp2):
    """dh0 = exp(-1) = 0.36788 and dg = 128 exp(-1); a base-2 slip gives 0.5, a slip in dg a factor ln 2."""
    inputs = unit_vector_inputs(1, state="float32", use_exp2=exp2)
    inputs.initial_state[:] = 1.0
    inputs.arrays["g"][:] = -1.0
    got = run(inputs, cotangents(inputs, final=1.0))
    assert np.allclose(got["initial_state"], math.exp(-1), rtol=2e-6)
    assert np.allclose(got["g"], 128 * math.exp(-1), rtol=2e-5)


@pytest.mark.parametrize("exp2", [True, False], ids=["exp2", "natural"])
def test_a12_exponent_base_in_the_intra_path(exp2):
    inputs = unit_vector_inputs(2, use_exp2=exp2)
    inputs.arrays["v"][0, 0, 0] = 1.0
    inputs.arrays["beta"][0, 0, 0] = 1.0
    inputs.arrays["g"][0, 0, 1] = -1.0
    seeds = cotangents(inputs)
    seeds.out[0, 0, 1] = 1.0
    got = run(inputs, seeds)
    assert np.allclose(got["v"][0, 0, 0], math.exp(-1), rtol=8e-3)
    assert got["g"][0, 0, 1, 0] == pytest.approx(128 * math.exp(-1), rel=8e-3)


@pytest.mark.parametrize("exp2", [True, False], ids=["exp2", "natural"])
def test_a12_exponent_base_between_chunks(exp2):
    judged(base(130, HV=2, use_exp2=exp2, g_scale=5.0, state="float32"), factor=1.6)


@pytest.mark.parametrize("epsilon", [1e-6, 1e-2])
def test_a13_epsilon_in_both_directions(epsilon):
    """Rows of 1e-3: epsilon decides the norm, and the same one must decide its gradient."""
    inputs = base(3, l2norm=True, epsilon=epsilon, HV=2)
    rng = np.random.default_rng(1)
    for name in ("q", "k"):
        inputs.arrays[name] = to_bf16(1e-3 * (1.0 + 0.3 * rng.standard_normal(inputs.arrays[name].shape)))
    judged(inputs)


@pytest.mark.parametrize("whole", [False, True], ids=["one_row", "whole_q"])
def test_a15_zero_rows(whole):
    """The gradient of a zero row is dy / sqrt(epsilon), finite; other rows are untouched by it."""
    inputs = base(70, l2norm=True, HV=2)
    inputs.arrays["q"][:, :, slice(None) if whole else 3] = 0.0
    inputs.arrays["k"][:, :, 3] = 0.0
    seeds = make_cotangents(inputs, 1)
    got = judged(inputs, seeds)
    exact = grad_run.reference(inputs, seeds, floor=False)[0]
    others = np.arange(70) != 3
    for name in ("q", "k"):
        assert np.abs(got[name][:, :, 3]).max() > 10.0
        assert relative_l2(got[name][:, :, others], exact[name][:, :, others]) < 6e-3, name


STEPS = [0.0, -1e-3, -1.0, -10.0, -100.0, -1000.0, -math.inf]


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("beta", [0.999, 1.999], ids=str)
def test_nothing_is_ever_nan(step, beta):
    """Identical keys, beta near 1 and near 2, a zero row, any gate: finite, and right where it is stable.

    One row of the state carries everything, so other draws of the roundings move the floor by a factor of 2.3.
    """
    inputs = base(70, beta="negative", l2norm=True, state="float32")
    inputs.arrays["k"][:] = inputs.arrays["k"][:, :, :1]
    inputs.arrays["q"][:, :, 7] = inputs.arrays["k"][:, :, 7] = inputs.arrays["v"][:, :, 9] = 0.0
    inputs.arrays["beta"][:] = np.float32(math.log(beta / (2.0 - beta)))
    inputs.arrays["g"][:] = to_dtype(step, "float32") if math.isfinite(step) else step
    seeds = make_cotangents(inputs, 1)
    got = run(inputs, seeds)
    assert got["v"].any() and got["q"].any()
    if beta < 1.0 or step <= -1.0:
        judged(inputs, seeds, factor=3.0)


@pytest.mark.parametrize("raw", [200.0, -200.0, 60.0, -60.0], ids=str)
@pytest.mark.parametrize("gate", ["softplus", "bounded"])
def test_saturated_gates_are_finite(gate, raw):
    inputs = base(70, gate=gate, HV=2, state="float32", l2norm=True)
    inputs.arrays["g"][:] = raw
    got = run(inputs, make_cotangents(inputs, 1))
    assert got["v"].any() and got["dt_bias"].shape == (256,)
    judged(inputs)


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize(
    "per",
    ["entry", pytest.param("channel", marks=pytest.mark.full), pytest.param("token", marks=pytest.mark.full)],
)
def test_mixtures_of_extreme_gates(name, per):
    case, values = MIXTURES[name]
    inputs = base(80, HV=2, state="float32", l2norm=True, **case)
    shape = {"entry": (1, 2, 80, 128), "channel": (1, 2, 1, 128), "token": (1, 2, 80, 1)}[per]
    picked = np.random.default_rng(len(name)).choice(to_dtype(values, "float32"), shape)
    inputs.arrays["g"] = np.broadcast_to(picked, (1, 2, 80, 128)).copy()
    judged(inputs)


def test_softplus_far_from_zero():
    inputs = base(66, gate="softplus", no_bias=True, HV=2, state="float32")
    inputs.arrays["a_log"][:] = [0.0, -2.0]
    inputs.arrays["g"][:, :, ::2] = 60.0
    inputs.arrays["g"][:, :, 1::2] = -60.0
    judged(inputs)


def test_adversarial_scales_of_rows():
    """Rows of q, k and v that differ by eight orders of magnitude."""
    inputs = base(130, HV=2, l2norm=True, gate="softplus", state="float32")
    size = 10.0 ** np.random.default_rng(5).uniform(-4, 4, (1, 1, 130, 1))
    for name in ("q", "k", "v"):
        inputs.arrays[name] = to_bf16(inputs.arrays[name] * size)
    judged(inputs)


@pytest.mark.parametrize(("beta", "most"), [("sigmoid", 1.0), ("negative", 2.0)])
def test_d2_gradient_of_the_logit(beta, most):
    """dbeta_raw = c s (1 - s) dbeta_eff; the factor is missing in neither mode."""
    inputs = base(70, beta=beta, HV=2)
    seeds = make_cotangents(inputs, 1)
    got = judged(inputs, seeds)["beta"]
    outside = base(70, HV=2)
    share = 1.0 / (1.0 + np.exp(-inputs.arrays["beta"]))
    outside.arrays = {**inputs.arrays, "beta": to_dtype(most * share, "float32")}
    effective = run(outside, seeds)["beta"]
    assert np.allclose(
        got, effective * most * share * (1.0 - share), rtol=2e-5, atol=1e-6 * np.abs(got).max()
    )


@pytest.mark.parametrize("logit", [30.0, -30.0, 200.0, -200.0], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_d2_saturated_logits(logit, dtype):
    """dbeta goes to zero and stays finite."""
    inputs = base(5, beta="sigmoid", beta_dtype=dtype, l2norm=True)
    inputs.arrays["beta"][:] = logit
    got = run(inputs, make_cotangents(inputs, 1))
    assert np.abs(got["beta"]).max() < 1e-9


@pytest.mark.parametrize("bound", [-5.0, -1e-3, None], ids=str)
def test_d4_lower_bound_inside_its_range(bound):
    inputs = base(70, gate="bounded", HV=2)
    inputs.options["lower_bound"] = bound
    judged(inputs)


@pytest.mark.parametrize("gate", ["softplus", "bounded"])
def test_d5_absent_bias_means_zeros_and_no_gradient(gate):
    inputs = base(70, gate=gate, no_bias=True, HV=2)
    seeds = make_cotangents(inputs, 1)
    without = grad_run.gradients(inputs, seeds)
    assert "dt_bias" not in without
    inputs.arrays["dt_bias"] = np.zeros(256)
    inputs.dtypes["dt_bias"] = "float32"
    zeros = grad_run.gradients(inputs, seeds)
    assert zeros.pop("dt_bias").any()
    assert kda_run.differing(zeros, without) == []


def test_d6_gradient_of_the_bias_has_the_shape_given():
    inputs = base(70, gate="softplus", HV=2)
    seeds = make_cotangents(inputs, 1)
    flat = grad_run.gradients(inputs, seeds)
    inputs.arrays["dt_bias"] = inputs.arrays["dt_bias"].reshape(2, 128)
    by_head = grad_run.gradients(inputs, seeds)
    assert flat["dt_bias"].shape == (256,) and by_head["dt_bias"].shape == (2, 128)
    by_head["dt_bias"] = by_head["dt_bias"].reshape(256)
    assert kda_run.differing(by_head, flat) == []


@pytest.mark.parametrize("gate", ["softplus", "bounded"])
def test_d7_bf16_gate_parameters(gate):
    """The same values in bf16: the same bits inside, and gradients in the parameters' type."""
    inputs = base(70, gate=gate, HV=2)
    for name in ("a_log", "dt_bias"):
        inputs.arrays[name] = to_bf16(inputs.arrays[name])
    seeds = make_cotangents(inputs, 1)
    wide = grad_run.gradients(inputs, seeds)
    inputs.dtypes |= {"a_log": "bfloat16", "dt_bias": "bfloat16"}
    narrow = grad_run.gradients(inputs, seeds)
    for name in ("a_log", "dt_bias"):
        assert narrow[name].dtype == torch.bfloat16
        wide[name] = wide[name].bfloat16()
    assert kda_run.differing(narrow, wide) == []
