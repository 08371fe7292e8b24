# SPDX-License-Identifier: Apache-2.0
"""The gradients' references against each other: differences of the recurrence, its adjoint, the chunk formulas."""

from __future__ import annotations

import numpy as np
import pytest
from backward import Cotangents, chain_gradients, finalize_kwargs, make_cotangents, saved_slots
from backward import backward_stages as stages_of
from goldens import golden_module, relative_l2
from gradients import kda_gradients
from kda_inputs import case_seed, make_inputs
from recurrence import from_head_major, kda_recurrence
from test_golden import SWEEP

MODES = {
    "none": {"T": 40, "HV": 2, "state": "float32"},
    "bounded": {"T": 40, "HK": 1, "HV": 2, "gate": "bounded", "l2norm": True, "beta": "sigmoid", "layout": "BSND"},
    "softplus": {"T": 40, "HK": 2, "HV": 4, "gate": "softplus", "beta": "negative", "state": "float32"},
    "no_bias": {"T": 20, "gate": "bounded", "no_bias": True, "lower_bound": -1.5},
    "v_first": {"T": 40, "HV": 1, "l2norm": True, "epsilon": 1e-2, "state": "float32", "state_v_first": True},
    "packed": {"cu": [0, 0, 17, 17, 50], "HK": 1, "HV": 2, "layout": "TND", "gate": "softplus", "state": "float32"},
}  # fmt: skip


def truth(inputs, seeds: Cotangents) -> dict:
    d_out = from_head_major(seeds.out, inputs.options["layout"])
    return kda_gradients(**inputs.recurrence_kwargs(), d_out=d_out, d_final=seeds.final)


def loss(kwargs: dict, d_out, d_final) -> float:
    out = kda_recurrence(**kwargs)
    return float((out["o"] * d_out).sum() + (out["final_state"] * d_final).sum())


@pytest.mark.parametrize("mode", MODES)
def test_adjoint_is_the_derivative(mode):
    """Directional derivatives by a fourth-order difference; every input along its own random direction."""
    inputs = make_inputs(MODES[mode], case_seed(mode))
    seeds, kwargs = make_cotangents(inputs, 1), inputs.recurrence_kwargs()
    d_out = from_head_major(seeds.out, inputs.options["layout"])
    rng, step = np.random.default_rng(2), 1e-3
    for name, gradient in truth(inputs, seeds).items():
        if kwargs.get(name) is None:
            continue
        along = rng.standard_normal(kwargs[name].shape)
        along *= 1.0 / np.abs(along).max()
        at = {
            n: loss({**kwargs, name: kwargs[name] + n * step * along}, d_out, seeds.final)
            for n in (-2, -1, 1, 2)
        }
        slope = (8.0 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12.0 * step)
        assert np.isclose(slope, (gradient * along).sum(), rtol=1e-6, atol=1e-8 * np.abs(gradient).sum()), (
            name
        )


@pytest.mark.parametrize("name", SWEEP)
def test_chunk_formulas_equal_the_adjoint(name):
    inputs = make_inputs(SWEEP[name], case_seed(name))
    seeds = make_cotangents(inputs, 1)
    chain = chain_gradients(inputs, seeds)
    for key, want in truth(inputs, seeds).items():
        assert np.isfinite(want).all(), key
        # Sums of steps of -1000 leave float64 no more than 12 digits of the steps between them.
        assert relative_l2(chain[key], want) < (1e-11 if name == "resets" else 1e-12), key


@pytest.mark.parametrize("tokens", [1, 2, 7, 15, 16, 17, 31, 33, 63, 64, 65, 66, 71, 79, 127, 128, 129])
def test_every_tail(tokens):
    inputs = make_inputs({"T": tokens, "state": "float32", "gate": "softplus", "l2norm": True}, tokens)
    seeds = make_cotangents(inputs, 2)
    chain = chain_gradients(inputs, seeds)
    for key, want in truth(inputs, seeds).items():
        assert relative_l2(chain[key], want) < 1e-12, key


def test_resets_by_minus_infinity():
    """Nothing flows through a reset, nor to the step itself, on both sides of a chunk edge."""
    inputs = make_inputs({"T": 100, "HV": 2, "state": "float32"}, 3)
    inputs.arrays["g"][:, :, [10, 63, 64]] = -np.inf
    inputs.arrays["g"][:, 0, 70, ::2] = -np.inf
    seeds = make_cotangents(inputs, 3)
    seeds.out[:, :, :10] = 0.0
    chain, want = chain_gradients(inputs, seeds), truth(inputs, seeds)
    for key in want:
        assert np.isfinite(want[key]).all() and relative_l2(chain[key], want[key]) < 1e-12, key
    assert not want["g"][np.isneginf(inputs.arrays["g"])].any()
    assert not want["initial_state"].any()


def test_closed_form_of_the_first_state():
    """beta = 0: dh0 = exp(sum g) dht + sum_t scale exp(G_t) q_t do_t^T."""
    inputs = make_inputs({"T": 70, "HV": 2, "state": "float32", "l2norm": False}, 4)
    inputs.arrays["beta"][:] = 0.0
    seeds = make_cotangents(inputs, 4)
    total = np.cumsum(inputs.arrays["g"][0], axis=1)
    q = np.repeat(inputs.arrays["q"][0], 2, axis=0) * np.exp(total) * inputs.options["scale"]
    want = np.exp(total[:, -1])[..., None] * seeds.final[0] + np.swapaxes(q, -1, -2) @ seeds.out[0]
    for got in (truth(inputs, seeds), chain_gradients(inputs, seeds)):
        assert relative_l2(got["initial_state"][0], want) < 1e-13


def test_saturated_gates_have_flat_slopes():
    """a_log = 100: exp leaves fp32, the gate is flat there, and 0 * inf does not appear."""
    inputs = make_inputs({"T": 30, "gate": "bounded", "no_bias": True}, 5)
    inputs.arrays["a_log"][:] = 100.0
    inputs.arrays["g"][:] = 0.3
    seeds = make_cotangents(inputs, 5)
    for got in (truth(inputs, seeds), chain_gradients(inputs, seeds)):
        assert not got["g"].any() and not got["a_log"].any() and not got["dt_bias"].any()
        assert got["k"].any()


def test_gradients_of_grouped_keys_are_sums():
    """Four value heads on one key head equal four calls of one head, dq and dk added up."""
    whole = make_inputs({"T": 70, "HK": 1, "HV": 4, "l2norm": True, "state": "float32"}, 6)
    seeds = make_cotangents(whole, 6)
    together, alone = truth(whole, seeds), []
    for head in range(4):
        one = make_inputs({"T": 70, "HK": 1, "HV": 1, "l2norm": True, "state": "float32"}, 6)
        pick = slice(head, head + 1)
        one.arrays = {n: x if n in "qk" else x[:, pick] for n, x in whole.arrays.items()}
        one.initial_state = whole.initial_state[:, pick]
        alone.append(truth(one, Cotangents(seeds.out[:, pick], seeds.final[:, pick])))
    for name in ("q", "k"):
        assert relative_l2(together[name], sum(x[name] for x in alone)) < 1e-14
    for name in ("v", "g", "beta", "initial_state"):
        assert relative_l2(together[name], np.concatenate([x[name] for x in alone], axis=1)) < 1e-14


def finalize_case():
    """Arguments of a grouped packed bwd_finalize call, and the golden model."""
    inputs = make_inputs({"cu": [0, 5, 5, 70], "HK": 1, "HV": 2, "gate": "bounded", "l2norm": True}, 7)
    slots = saved_slots(inputs)
    kwargs = finalize_kwargs(inputs, slots | stages_of(inputs, slots, make_cotangents(inputs, 7)))
    return kwargs, golden_module("chunk_kda_bwd_finalize").golden


def test_finalize_takes_every_spelling_of_the_same_call():
    kwargs, golden = finalize_case()
    want = golden(**kwargs)
    flat = {n: x[0] if np.ndim(x) > 2 else x for n, x in kwargs.items() if n not in ("a_log", "dt_bias")}
    got = golden(**flat, a_log=kwargs["a_log"], dt_bias=kwargs["dt_bias"], output_layout="TND")
    for name in ("dq", "dk", "dv", "dbeta", "dg"):
        assert np.array_equal(np.swapaxes(got[name], 0, 1), want[name][0]), name
    planes = np.stack([kwargs["v_new"] - 0.5, np.full_like(kwargs["v_new"], 0.5)])
    turned = golden(**{**kwargs, "v_new": planes, "h": np.swapaxes(kwargs["h"], -1, -2)}, state_v_first=True)
    for name, x in turned.items():
        assert np.allclose(x, want[name], rtol=1e-12, atol=1e-13), name


def test_finalize_makes_the_sigmoid_of_a_raw_beta():
    kwargs, golden = finalize_case()
    raw = np.random.default_rng(8).standard_normal(kwargs["beta"].shape)
    for most in (1.0, 2.0):
        beta = most / (1.0 + np.exp(-raw))
        outside = golden(**{**kwargs, "beta": beta})
        inside = golden(
            **{**kwargs, "beta": raw}, use_beta_sigmoid_in_kernel=True, allow_neg_eigval=most == 2.0
        )
        outside["dbeta"] = outside["dbeta"] * beta * (1.0 - beta / most)
        for name, x in inside.items():
            assert np.allclose(x, outside[name], rtol=1e-12, atol=1e-14), name


def test_slot_floor_is_about_bf16():
    """Rounding the published slots costs about 0.3 % in every gradient."""
    case = {
        "T": 512,
        "HK": 2,
        "HV": 2,
        "l2norm": True,
        "gate": "bounded",
        "beta": "sigmoid",
        "state": "float32",
    }
    inputs = make_inputs(case, 8)
    seeds = make_cotangents(inputs, 8)
    exact = chain_gradients(inputs, seeds)
    for wide in (True, False):
        rounded = chain_gradients(inputs, seeds, True, wide)
        for key in exact:
            low = 1e-4 if key in ("initial_state", "a_log", "dt_bias") else 1e-3
            assert low < relative_l2(rounded[key], exact[key]) < 8e-3, (key, wide)


def test_wide_relay_is_what_a_loss_on_the_final_state_needs():
    """Strong decay, T = 65, constant dht, no loss on o: bf16 slots cost dk percents, the wide relay does not."""
    inputs = make_inputs({"T": 65, "l2norm": True, "g_scale": 20.0}, 9)
    inputs.arrays["v"][..., 64, :] -= inputs.arrays["v"][..., 64, :].mean() - 0.003
    seeds = Cotangents(np.zeros((1, 1, 65, 128)), np.ones((1, 1, 128, 128)))
    exact = chain_gradients(inputs, seeds)["k"]
    narrow, wide = (relative_l2(chain_gradients(inputs, seeds, True, w)["k"], exact) for w in (False, True))
    assert wide < 5e-3 < 1e-2 < narrow, (wide, narrow)
