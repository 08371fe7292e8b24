# SPDX-License-Identifier: Apache-2.0
"""The chunk formulas of the golden models against the token recurrence, both in float64."""

from __future__ import annotations

import numpy as np
import pytest
from goldens import forward_golden, relative_l2
from kda_inputs import case_seed, make_inputs, to_bf16
from recurrence import from_head_major, kda_recurrence

SWEEP = {
    "dense": {"B": 2, "T": 130, "HK": 1, "HV": 2},
    "tail1": {"B": 1, "T": 65, "HK": 1, "HV": 1, "state": "float32"},
    "l2norm": {"B": 1, "T": 70, "HK": 2, "HV": 4, "l2norm": True, "state": "float32"},
    "bounded": {"B": 1, "T": 70, "HK": 2, "HV": 4, "gate": "bounded", "layout": "BSND"},
    "bounded_mild": {"B": 1, "T": 70, "HK": 1, "HV": 2, "gate": "bounded", "lower_bound": -0.5},
    "softplus": {
        "B": 1,
        "T": 100,
        "HK": 1,
        "HV": 3,
        "gate": "softplus",
        "layout": "BSND",
        "beta": "sigmoid",
    },
    "negative_eigenvalues": {
        "B": 1,
        "T": 100,
        "HK": 1,
        "HV": 2,
        "beta": "negative",
        "l2norm": True,
    },
    "natural": {"B": 1, "T": 100, "HK": 1, "HV": 2, "use_exp2": False, "state": "float32"},
    "v_first": {"B": 2, "T": 100, "HK": 1, "HV": 2, "state": "float32", "state_v_first": True},
    "packed": {
        "cu": [0, 15, 100, 228],
        "HK": 1,
        "HV": 2,
        "layout": "TND",
        "gate": "bounded",
        "state": "float32",
    },
    "packed_empty": {
        "cu": [0, 0, 5, 5, 70, 70],
        "HK": 1,
        "HV": 2,
        "layout": "NTD",
        "state": "float32",
        "state_v_first": True,
    },
    "packed_rank4": {"cu": [0, 1, 65], "HK": 1, "HV": 2, "layout": "BSND", "state": "float32"},
    "strong": {"B": 1, "T": 130, "HK": 1, "HV": 1, "g_scale": 20.0, "state": "float32"},
    "resets": {"B": 1, "T": 130, "HK": 1, "HV": 1, "mask": 0.4, "state": "float32"},
}


def both(inputs):
    """(golden chain, recurrence) with o token-major of rank 4 and final_state."""
    chain = forward_golden(
        inputs.golden_kwargs(),
        initial_state=inputs.initial_state,
        state_v_first=inputs.state_v_first,
    )
    truth = kda_recurrence(**inputs.recurrence_kwargs())
    rank3 = inputs.options["layout"] in ("NTD", "TND")
    o = truth["o"][None] if rank3 else truth["o"]
    o = np.swapaxes(o, 1, 2) if inputs.options["layout"] in ("BNSD", "NTD") else o
    return chain, {"o": o, "final_state": truth["final_state"]}


@pytest.mark.parametrize("name", SWEEP)
def test_chunk_formulas_equal_recurrence(name):
    inputs = make_inputs(SWEEP[name], case_seed(name))
    chain, truth = both(inputs)
    for key in ("o", "final_state"):
        assert np.isfinite(truth[key]).all()
        assert relative_l2(chain[key], truth[key]) < 1e-10, key


@pytest.mark.parametrize("tokens", [1, 2, 7, 15, 16, 17, 31, 33, 63, 64, 65, 66, 71, 79, 127, 128, 129])
def test_every_tail(tokens):
    chain, truth = both(make_inputs({"T": tokens, "state": "float32", "gate": "softplus"}, tokens))
    assert relative_l2(chain["o"], truth["o"]) < 1e-10
    assert relative_l2(chain["final_state"], truth["final_state"]) < 1e-10


def test_reset_by_minus_infinity():
    inputs = make_inputs({"T": 100, "HV": 2, "state": "float32"}, 3)
    inputs.arrays["g"][:, :, 10] = -np.inf
    inputs.arrays["g"][:, 0, 70, ::2] = -np.inf
    chain, truth = both(inputs)
    for key in ("o", "final_state"):
        assert np.isfinite(truth[key]).all()
        assert relative_l2(chain[key], truth[key]) < 1e-10, key


def test_block_of_thousands_then_mild():
    inputs = make_inputs({"T": 64, "state": "float32"}, 4)
    inputs.arrays["g"][:, :, :32] = -1000.0
    chain, truth = both(inputs)
    # float64 itself resolves differences of sums near 32000 only to 1e-11 or so.
    assert relative_l2(chain["o"], truth["o"]) < 1e-9


def test_layouts_hold_the_same_numbers():
    base = make_inputs({"T": 70, "HK": 1, "HV": 2, "layout": "BNSD", "gate": "bounded"}, 5)
    want = kda_recurrence(**base.recurrence_kwargs())["o"]
    for layout in ("BSND", "NTD", "TND"):
        other = make_inputs({"T": 70, "HK": 1, "HV": 2, "layout": layout, "gate": "bounded"}, 5)
        got = kda_recurrence(**other.recurrence_kwargs())["o"]
        assert np.array_equal(got, from_head_major(want, layout))


def test_two_halves_carry_the_state():
    """Running 70 tokens equals running 33 and then 37 from the state in between."""
    inputs = make_inputs({"T": 70, "HK": 1, "HV": 2, "state": "float32"}, 6)
    whole = kda_recurrence(**inputs.recurrence_kwargs())
    kwargs = inputs.recurrence_kwargs()
    heads_first = ("q", "k", "v", "g", "beta")
    first = kda_recurrence(**{**kwargs, **{n: kwargs[n][:, :, :33] for n in heads_first}})
    rest = {n: kwargs[n][:, :, 33:] for n in heads_first}
    second = kda_recurrence(**{**kwargs, **rest, "initial_state": first["final_state"]})
    assert np.allclose(second["final_state"], whole["final_state"], rtol=0, atol=1e-13)
    assert np.allclose(second["o"], whole["o"][:, :, 33:], rtol=0, atol=1e-13)


def test_closed_form_of_a_constant_key():
    """k_t = e0, no decay: row 0 of S follows S <- (1 - beta) S + beta v exactly."""
    inputs = make_inputs({"T": 64}, 7)
    inputs.arrays["k"][:] = 0.0
    inputs.arrays["k"][..., 0] = 1.0
    inputs.arrays["g"][:] = 0.0
    inputs.arrays["beta"][:] = 1.9
    row = np.zeros(128)
    for v in inputs.arrays["v"][0, 0]:
        row = (1.0 - 1.9) * row + 1.9 * v
    for result in both(inputs):
        assert np.allclose(result["final_state"][0, 0, 0], row, rtol=1e-12)
        assert not result["final_state"][0, 0, 1:].any()


def test_slot_floor_is_about_bf16():
    """Rounding the published slots costs a few tenths of a percent in o and final_state."""
    inputs = make_inputs(
        {"B": 1, "T": 512, "HK": 2, "HV": 2, "l2norm": True, "gate": "bounded", "beta": "sigmoid"},
        8,
    )
    exact = forward_golden(inputs.golden_kwargs())
    rounded = forward_golden(inputs.golden_kwargs(), round_slots=True)
    for key in ("o", "final_state"):
        assert 1e-3 < relative_l2(rounded[key], exact[key]) < 6e-3


def test_bf16_rounding_is_to_nearest_even():
    values = np.array([1.0, 1.00390625, 1.01171875, -1.00390625, 3.0e38, 0.0, 1.0000001, 257.0])
    assert to_bf16(values).tolist() == [1.0, 1.0, 1.015625, -1.0, to_bf16(3.0e38), 0.0, 1.0, 256.0]
