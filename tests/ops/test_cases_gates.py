# SPDX-License-Identifier: Apache-2.0
"""Gate, exponent-range and solve faults that hit other implementations, each with its right value.

Every case runs on both builds of the twin, which must agree bit for bit.
"""

from __future__ import annotations

import math

import kda_run
import numpy as np
import pytest
from goldens import golden_module, relative_l2
from kda_compare import check_triangle
from kda_inputs import make_inputs, to_bf16, to_dtype, unit_rows
from recurrence import kda_recurrence
from test_forward import check_forward
from test_stages import judge_prepare


@pytest.fixture(params=["fast", "checked"])
def run(request, twin):
    """run(inputs): the forward chain; in the checked variant both builds, compared bit for bit."""

    def forward(inputs):
        stages = kda_run.forward(inputs)
        if request.param == "checked":
            twin(mode="checked")
            assert kda_run.differing(kda_run.forward(inputs), stages) == []
            twin(mode=None)
        return {name: kda_run.array(x) for name, x in stages.items()}

    return forward


def judged(run, inputs, factor=2.0):
    """Run on the requested build, then hold the result to its floors.

    Where a strong decay leaves a handful of tokens to carry the norm, so few roundings meet that the ratio
    to the floor scatters; model-like inputs are held to 1.5 in test_forward.py.
    """
    run(inputs)
    return {name: kda_run.array(x) for name, x in check_forward(inputs, factor=factor).items()}


def base(tokens, **case):
    """One head, no gate in the kernel, head-major; arrays are then overwritten by the test."""
    return make_inputs({"T": tokens, **case}, tokens)


def unit_vector_inputs(tokens, **case):
    """q = k = e0, v = 0, beta = 0, g = 0, scale = 1."""
    inputs = base(tokens, scale=1.0, **case)
    for name in inputs.arrays:
        inputs.arrays[name] = np.zeros_like(inputs.arrays[name])
    inputs.arrays["q"][..., 0] = inputs.arrays["k"][..., 0] = 1.0
    return inputs


@pytest.mark.parametrize("step", [-1.38, -1.39, -1.5, -5.0, -20.0], ids=str)
def test_a1_decay_of_a_full_chunk(run, step):
    """exp(G_i) and exp(-G_j) built apart leave the fp32 range from -1.39 on."""
    inputs = base(64, state="float32")
    inputs.arrays["g"][:] = step
    judged(run, inputs)


@pytest.mark.parametrize("channels", [slice(None), slice(0, 1)], ids=["all_channels", "channel_0"])
def test_a2_upper_exponents_never_reach_the_scores(run, channels):
    """Upper-triangle differences reach +189; masked entries are exactly zero all the same."""
    inputs = base(64)
    inputs.arrays["g"][:] = -0.1
    inputs.arrays["g"][..., channels] = -3.0
    out = judged(run, inputs)
    check_triangle("aqk", out["aqk"])
    check_triangle("akk", out["akk"], unit=True)


@pytest.mark.parametrize("tokens", [64, 130])
def test_a3_saturated_bounded_gate(run, tokens):
    """Raw g = +30 saturates at -5 per step: 315 nats in a chunk."""
    inputs = base(tokens, gate="bounded", lower_bound=-5.0, state="float32")
    inputs.arrays["g"][:] = 30.0
    judged(run, inputs)


@pytest.mark.parametrize("bound", [-1.0, -2.5, -5.0])
def test_a3_anchor_span(run, bound):
    inputs = base(130, gate="bounded", lower_bound=bound, HV=2)
    inputs.arrays["g"][:, :, ::2] = 30.0
    judged(run, inputs)


@pytest.mark.parametrize("step", [-5.0, -8.0])
def test_a3_external_gate_below_the_bound(run, step):
    """A gate computed outside is bound by nothing and must be right at any strength."""
    inputs = base(130, state="float32")
    inputs.arrays["g"][:] = step
    judged(run, inputs)


def test_a3_safe_gate_needs_the_gate_in_the_kernel():
    inputs = base(64)
    with pytest.raises(ValueError, match="safe_gate"):
        kda_run.prepare(inputs, safe_gate=True, lower_bound=-5.0)


def test_a5_no_clamp_in_the_intra_path(run):
    """v0 = 1e25 decayed by exp(-60) gives 0.0876; a clamp at -50 would give 1929."""
    inputs = unit_vector_inputs(2)
    inputs.arrays["v"][0, 0, 0, 0] = to_bf16(1e25)
    inputs.arrays["beta"][0, 0, 0] = 1.0
    inputs.arrays["g"][0, 0, 1] = -60.0
    out = run(inputs)
    want = to_bf16(1e25) * math.exp(-60)
    assert abs(want - 0.08757) < 1e-3
    assert out["o"][0, 1, 0, 0] == pytest.approx(want, rel=8e-3)
    assert out["final_state"][0, 0, 0, 0] == pytest.approx(want, rel=8e-3)


def test_a5_no_clamp_in_the_state_path(run):
    inputs = unit_vector_inputs(1, state="float32")
    inputs.initial_state[:] = np.float32(1e25)
    inputs.arrays["g"][:] = -60.0
    want = float(np.float32(1e25)) * math.exp(-60)
    assert run(inputs)["final_state"] == pytest.approx(np.full((1, 1, 128, 128), want), rel=2e-5)


def test_a7_scattered_resets(run):
    inputs = base(128, state="float32", mask=0.4)
    judged(run, inputs)


def test_a7_thousands_then_mild(run):
    """After 32 steps of -1000 an fp32 running sum resolves later steps to about 2e-3 only."""
    inputs = base(64, state="float32")
    rng = np.random.default_rng(1)
    inputs.arrays["g"][:] = -0.02 * rng.uniform(size=inputs.arrays["g"].shape)
    inputs.arrays["g"] = np.float64(np.float32(inputs.arrays["g"]))
    inputs.arrays["g"][:, :, :32] = -1000.0
    truth, out = kda_recurrence(**inputs.recurrence_kwargs()), run(inputs)
    assert relative_l2(out["o"].swapaxes(1, 2), truth["o"]) < 5e-3
    assert relative_l2(out["final_state"], truth["final_state"]) < 5e-3


@pytest.mark.parametrize("row", [0, 10, 15, 16, 63, 64, 69])
def test_a7_reset_by_minus_infinity(run, row):
    """g[row] = -inf in some channels resets those rows of the state, as the recurrence does."""
    inputs = base(70, state="float32", HV=2)
    inputs.arrays["g"][:, 0, row] = -np.inf
    inputs.arrays["g"][:, 1, row, ::3] = -np.inf
    judged(run, inputs)


@pytest.mark.parametrize("tokens", [64, 130])
@pytest.mark.parametrize("beta", [0.5, 1.0, 1.9])
def test_a8_constant_key(run, beta, tokens):
    """S row 0 follows S <- (1 - beta) S + beta v; repeated squaring is off by up to 2.6e20."""
    inputs = unit_vector_inputs(tokens, beta="negative")
    rng = np.random.default_rng(2)
    inputs.arrays["v"][:] = to_bf16(rng.standard_normal(inputs.arrays["v"].shape))
    inputs.arrays["beta"][:] = np.float32(math.log(beta / (2.0 - beta)))
    # With beta = 1.9 rounding errors are passed on at 0.9 per token: the slots cost up to 10 % themselves, and
    # the floor, one draw of roundings, moves 2.3 x between draws.
    out, row = judged(run, inputs, factor=3.0 if beta == 1.9 else 2.0), np.zeros(128)
    for v in inputs.arrays["v"][0, 0]:
        row = (1.0 - beta) * row + beta * v
    assert relative_l2(out["final_state"][0, 0, 0], row) < (0.16 if beta == 1.9 else 0.04)


def test_a8_nearly_constant_keys(run):
    inputs = base(64, beta="negative", state="float32")
    rng = np.random.default_rng(3)
    keys = np.zeros((1, 1, 64, 128))
    keys[..., 0] = 1.0
    inputs.arrays["k"] = to_bf16(unit_rows(keys + 0.01 * rng.standard_normal(keys.shape)))
    inputs.arrays["g"][:] = 0.0
    inputs.arrays["beta"][:] = np.float32(math.log(19.0))
    judged(run, inputs)


def test_a10_state_beyond_fp16(run):
    """65536 * exp(-4) = 1200.334: the running state is fp32."""
    inputs = unit_vector_inputs(1, state="float32")
    inputs.arrays["q"][:] = inputs.arrays["k"][:] = 0.0
    inputs.initial_state[:] = 0.0
    inputs.initial_state[0, 0, 0, 0] = 65536.0
    inputs.arrays["g"][:] = -4.0
    final = run(inputs)["final_state"]
    assert final[0, 0, 0, 0] == pytest.approx(1200.334, rel=1e-6)
    assert np.count_nonzero(final) == 1


def test_a10_state_keeps_more_than_bf16(run):
    """Nothing is written; after 300 tokens the fp32 state has lost no digits to the bf16 tape h."""
    inputs = unit_vector_inputs(300, state="float32")
    inputs.arrays["g"][:] = np.float64(np.float32(-0.001))
    want = inputs.initial_state * math.exp(300 * float(np.float32(-0.001)))
    assert relative_l2(run(inputs)["final_state"], want) < 1e-5


@pytest.mark.parametrize("value", [0.3, 0.0, -0.3])
def test_a11_huge_a_log(run, value):
    """exp(100) leaves fp32: the gate is saturated (0.3), half open (0) or shut (-0.3), never NaN."""
    inputs = base(66, gate="bounded", no_bias=True)
    inputs.arrays["a_log"][:] = 100.0
    inputs.arrays["g"][:] = np.float64(np.float32(value))
    gk = run(inputs)["gk"]
    step = -5.0 / math.log(2.0) * (1.0 if value > 0 else 0.5 if value == 0 else 0.0)
    want = step * (np.arange(66) % 64 + 1)
    assert np.allclose(gk[0, 0], want[:, None], rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("exp2", [True, False], ids=["exp2", "natural"])
def test_a12_exponent_base_in_the_state_path(run, exp2):
    """exp(-1) = 0.36788; a base-2 slip gives 0.5."""
    inputs = unit_vector_inputs(1, state="float32", use_exp2=exp2)
    inputs.initial_state[:] = 1.0
    inputs.arrays["g"][:] = -1.0
    assert np.allclose(run(inputs)["final_state"], math.exp(-1), rtol=2e-6)


@pytest.mark.parametrize("exp2", [True, False], ids=["exp2", "natural"])
def test_a12_exponent_base_in_the_intra_path(run, exp2):
    inputs = unit_vector_inputs(2, use_exp2=exp2)
    inputs.arrays["v"][0, 0, 0] = 1.0
    inputs.arrays["beta"][0, 0, 0] = 1.0
    inputs.arrays["g"][0, 0, 1] = -1.0
    assert np.allclose(run(inputs)["o"][0, 1, 0], math.exp(-1), rtol=4e-3)


@pytest.mark.parametrize("gate", ["none", "softplus", "bounded"])
def test_a12_both_bases_agree(gate):
    """Same results either way but for a bf16 rounding that falls on the other side now and then."""
    case = {"T": 130, "HV": 2, "state": "float32", "gate": gate}
    two, e = (kda_run.forward(make_inputs({**case, "use_exp2": b}, 4)) for b in (True, False))
    assert np.allclose(kda_run.array(two["gk"]) * math.log(2.0), kda_run.array(e["gk"]), rtol=1e-5, atol=1e-6)
    for name in ("aqk", "akk", "w", "u", "kg", "qg", "h", "v_new", "o", "final_state"):
        assert relative_l2(kda_run.array(two[name]), kda_run.array(e[name])) < 1e-3, name


@pytest.mark.parametrize("epsilon", [1e-6, 1e-2])
def test_a13_epsilon_is_added_to_the_sum(run, epsilon):
    """Inside the root, to the sum: not to the mean, and no max(norm, eps)."""
    inputs = base(3, l2norm=True, epsilon=epsilon)
    inputs.arrays["q"][:] = inputs.arrays["k"][:] = to_bf16(1e-3)
    out = judged(run, inputs)
    value = float(to_bf16(1e-3))
    want = (128 * value**2 + float(np.float32(epsilon))) ** -0.5
    for name in ("q", "k"):
        assert np.allclose(out[f"{name}_rstd"], want, rtol=1e-6)
        assert np.allclose(out[f"{name}_hat"], value * want, rtol=4e-3)


@pytest.mark.parametrize("whole", [False, True], ids=["one_row", "whole_q"])
def test_a15_zero_rows(run, whole):
    inputs = base(70, l2norm=True, HV=2)
    inputs.arrays["q"][:, :, slice(None) if whole else 3] = 0.0
    inputs.arrays["k"][:, :, 3] = 0.0
    out = judged(run, inputs)
    assert not out["o"][:, 3].any()
    assert out["o"].any() != whole


def test_d2_beta_activations(run):
    """Logit 0: 0.5 with the sigmoid, 1.0 with negative eigenvalues; raw beta stays itself."""
    for beta, want in (("sigmoid", 0.5), ("negative", 1.0)):
        inputs = base(1, beta=beta)
        inputs.arrays["beta"][:] = 0.0
        assert run(inputs)["beta_eff"] == want
    for logit in (30.0, -30.0, 80.0, -60.0):  # below that, products meet the twin's flush at 2^-126
        inputs = base(5, beta="sigmoid")
        inputs.arrays["beta"][:] = logit
        out = judged(run, inputs)
        assert np.allclose(out["beta_eff"], float(logit > 0), atol=1e-12)
    for logit in (200.0, -200.0):
        inputs.arrays["beta"][:] = logit
        assert (run(inputs)["beta_eff"] == float(logit > 0)).all()


def test_d2_negative_eigenvalues_need_the_sigmoid():
    with pytest.raises(ValueError, match="allow_neg_eigval"):
        kda_run.prepare(base(5), allow_neg_eigval=True)


@pytest.mark.parametrize("bound", [0.0, -5.0001, 1.0, math.nan, math.inf], ids=str)
def test_d4_lower_bound_outside_its_range(bound):
    with pytest.raises(ValueError, match="lower_bound"):
        kda_run.prepare(base(5, gate="bounded"), lower_bound=bound)


@pytest.mark.parametrize("bound", [-5.0, -1e-3, None], ids=str)
def test_d4_lower_bound_inside_its_range(bound):
    inputs = base(70, gate="bounded", HV=2)
    inputs.options["lower_bound"] = bound
    check_forward(inputs)


@pytest.mark.parametrize("gate", ["softplus", "bounded"])
def test_d5_absent_bias_means_zeros(gate):
    inputs = base(70, gate=gate, no_bias=True, HV=2)
    without = kda_run.forward(inputs)
    inputs.arrays["dt_bias"] = np.zeros(256)
    assert kda_run.differing(kda_run.forward(inputs), without) == []


def test_d5_gate_parameters_must_match_the_flag():
    inputs = base(5, gate="bounded")
    with pytest.raises(ValueError, match="a_log|A_log"):
        kda_run.prepare(base(5), use_gate_in_kernel=True)
    with pytest.raises(ValueError, match="use_gate_in_kernel"):
        kda_run.prepare(inputs, use_gate_in_kernel=False, safe_gate=False)


def test_d6_bias_flat_or_by_head():
    inputs = base(70, gate="softplus", HV=2)
    tensors = kda_run.tensors_of(inputs)
    flat = kda_run.prepare(inputs, tensors)
    tensors["dt_bias"] = tensors["dt_bias"].reshape(2, 128)
    assert kda_run.differing(kda_run.prepare(inputs, tensors), flat) == []


def test_softplus_far_from_zero(run):
    """Raw gates of +-60 under the unbounded gate: linear on one side, vanishing on the other."""
    inputs = base(66, gate="softplus", no_bias=True, HV=2, state="float32")
    inputs.arrays["a_log"][:] = [0.0, -2.0]
    inputs.arrays["g"][:, :, ::2] = 60.0
    inputs.arrays["g"][:, :, 1::2] = -60.0
    judged(run, inputs)


def test_nearly_open_gate():
    """softplus(-12) = 6e-6 per step: the decay of a whole chunk is right to fp32's resolution of 1 + x."""
    inputs = base(64, gate="softplus", no_bias=True)
    inputs.arrays["g"][:] = -12.0
    want = golden_module("chunk_kda_fwd_prepare").golden(**inputs.golden_kwargs())["gk"]
    got = kda_run.array(kda_run.prepare(inputs)["gk"])
    assert np.abs(got - want).max() < 64 * 2.0**-23
    assert (got < 0).all()


def test_adversarial_scales_of_rows():
    """Keys and values whose rows differ by eight orders of magnitude."""
    inputs = base(130, HV=2, l2norm=True, gate="softplus", state="float32")
    size = 10.0 ** np.random.default_rng(5).uniform(-4, 4, (1, 1, 130, 1))
    for name in ("q", "k", "v"):
        inputs.arrays[name] = to_bf16(inputs.arrays[name] * size)
    check_forward(inputs)
    exact, rounded = (
        golden_module("chunk_kda_fwd_prepare").golden(**inputs.golden_kwargs(), round_slots=r)
        for r in (False, True)
    )
    judge_prepare(kda_run.prepare(inputs), exact, rounded)


MIXTURES = {
    "open_and_saturated": (
        {"gate": "bounded", "lower_bound": -5.0, "no_bias": True},
        [30.0, -30.0],
    ),
    "saturated_runs": (
        {"gate": "bounded", "lower_bound": -5.0, "no_bias": True},
        [30.0, 30.0, 30.0, -9.0],
    ),
    "softplus_extremes": ({"gate": "softplus", "no_bias": True}, [60.0, -60.0, 0.0, 3.0]),
    "external": ({"gate": "none"}, [0.0, -0.001, -0.5, -80.0, -1000.0]),
    "external_with_resets": ({"gate": "none"}, [0.0, 0.0, -0.1, -300.0, -np.inf]),
    "no_decay_at_all": ({"gate": "none"}, [0.0]),
}


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("per", ["entry", "channel", "token"])
def test_mixtures_of_extreme_gates(run, name, per):
    """Neighbouring tokens and channels at opposite ends: no anchor serves both, each must be right."""
    case, values = MIXTURES[name]
    inputs = base(140, HV=2, state="float32", l2norm=True, **case)
    shape = {"entry": (1, 2, 140, 128), "channel": (1, 2, 1, 128), "token": (1, 2, 140, 1)}[per]
    picked = np.random.default_rng(len(name)).choice(to_dtype(values, "float32"), shape)
    inputs.arrays["g"] = np.broadcast_to(picked, (1, 2, 140, 128)).copy()
    judged(run, inputs)
