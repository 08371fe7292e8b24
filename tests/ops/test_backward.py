# SPDX-License-Identifier: Apache-2.0
"""Every gradient of npu_chunk_kda against the adjoint of the token recurrence, over the whole domain."""

from __future__ import annotations

import itertools

import grad_run
import kda_run
import numpy as np
import pytest
from backward import Cotangents, make_cotangents
from goldens import relative_l2
from grad_run import check_gradients
from kda_inputs import case_seed, make_inputs
from test_forward import GATES, LAYOUTS, SWEEP, TAILS

MODEL = {"l2norm": True, "gate": "bounded", "beta": "sigmoid"}


def run_case(name: str, case: dict, **changes) -> dict:
    inputs = make_inputs(case, case_seed(name))
    return check_gradients(inputs, make_cotangents(inputs, 1), **changes)


#: Left to the long tier: near another entry, as far as gradients go.
LONG = {
    "state_bf16",
    "v_first_no_state",
    "packed_all_rows_single",
    "decay_mild",
    "decay_strong",
    "bound_weak",
    "batch",
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.full] if n in LONG else []) for n in SWEEP if n != "scale_zero"],
)
def test_sweep(name):
    run_case(name, SWEEP[name])


def test_scale_zero_leaves_no_gradient_through_the_scores():
    """scale = 0.0 is 0.0: o is zero, so only the final state has gradients."""
    inputs = make_inputs({**SWEEP["scale_zero"], "state": "float32"}, 1)
    seeds = make_cotangents(inputs, 1)
    got = check_gradients(inputs, seeds)
    assert not got["q"].any() and got["k"].any()
    silent = grad_run.gradients(inputs, Cotangents(seeds.out, np.zeros_like(seeds.final)))
    assert not any(silent[n].any() for n in ("q", "k", "v", "g", "beta", "initial_state"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("gate", GATES)
def test_layout_and_gate(layout, gate):
    run_case(layout + gate, {"T": 80, "HK": 1, "HV": 2, "layout": layout, "gate": gate, "l2norm": True})


@pytest.mark.parametrize("heads", [(2, 6), (1, 8)], ids=lambda h: f"HK{h[0]}-HV{h[1]}")
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "l2norm"])
def test_grouped_heads(heads, norm):
    case = {"T": 66, "HK": heads[0], "HV": heads[1], "layout": "BSND", "gate": "softplus", "l2norm": norm}
    run_case(f"{heads}{norm}", {**case, "state": "float32"})


@pytest.mark.parametrize("tokens", TAILS)
def test_every_tail(tokens):
    """Two tokens meet so few roundings that the ratio to the floor scatters."""
    inputs = make_inputs({"T": tokens, "HV": 2, "state": "float32", "gate": "softplus"}, tokens)
    check_gradients(inputs, make_cotangents(inputs, tokens), factor=1.5 if tokens > 7 else 2.5)


@pytest.mark.parametrize("exp2", [True, False], ids=["exp2", "natural"])
@pytest.mark.parametrize("layout", ["BSND", "TND"])
def test_recompute_has_the_bits_of_save(exp2, layout):
    """Tail, grouped heads, state V-first, safe gate: disable_recompute changes memory only."""
    case = {
        "HK": 2,
        "HV": 4,
        **MODEL,
        "layout": layout,
        "use_exp2": exp2,
        "state": "float32",
        "state_v_first": True,
    }
    case |= {"cu": [0, 0, 65, 131, 140]} if layout == "TND" else {"B": 2, "T": 79}
    inputs = make_inputs(case, 2)
    seeds = make_cotangents(inputs, 2)
    save, again = (grad_run.gradients(inputs, seeds, disable_recompute=flag) for flag in (True, False))
    assert kda_run.differing(again, save) == []


@pytest.mark.parametrize("gate", GATES)
def test_recompute_has_the_bits_of_save_for_every_gate(gate):
    inputs = make_inputs({"T": 130, "HK": 2, "HV": 2, "gate": gate}, 3)
    seeds = make_cotangents(inputs, 3, final=False)
    save, again = (grad_run.gradients(inputs, seeds, disable_recompute=flag) for flag in (True, False))
    assert kda_run.differing(again, save) == []


def test_composed_gradients_agree_with_the_stage_operators():
    """The six operators with the bf16 slots of the ABI, called one by one: same gradients within their floor."""
    inputs = make_inputs(
        {"T": 200, "HK": 2, "HV": 4, "l2norm": True, "gate": "bounded", "state": "float32"}, 4
    )
    seeds = make_cotangents(inputs, 4)
    stages, whole = grad_run.chain(inputs, seeds), grad_run.gradients(inputs, seeds)
    pairs = {"q": "dq", "k": "dk", "v": "dv", "g": "dg", "beta": "dbeta", "initial_state": "dh0"}
    for name, slot in pairs.items():
        # k and g also see v_new, which the composed call relays wider than the ABI's slot.
        assert relative_l2(kda_run.array(stages[slot]), kda_run.array(whole[name])) < 4e-3, name


def test_both_exponent_bases_agree():
    two, e = (
        grad_run.gradients(inputs, make_cotangents(inputs, 5))
        for inputs in (
            make_inputs({"T": 130, "HV": 2, "gate": "softplus", "use_exp2": b}, 5) for b in (True, False)
        )
    )
    for name in two:
        limit = 2e-3 if name != "a_log" else 2e-2
        assert relative_l2(kda_run.array(two[name]), kda_run.array(e[name])) < limit, name


@pytest.mark.parametrize("gate", GATES)
def test_layouts_hold_the_same_gradients(gate):
    """The four layouts of one call give the same bits, turned."""
    case = {"T": 70, "HK": 1, "HV": 2, "gate": gate, "l2norm": True, "state": "float32"}
    results = {}
    for layout in LAYOUTS:
        inputs = make_inputs({**case, "layout": layout}, 6)
        out = grad_run.gradients(inputs, make_cotangents(inputs, 6))
        for name in ("q", "k", "v", "g", "beta"):
            x = out[name] if layout in ("BNSD", "BSND") else out[name][None]
            out[name] = x.transpose(1, 2).contiguous() if layout in ("BSND", "TND") else x
        out["o"] = out["o"] if layout in ("BNSD", "BSND") else out["o"][None]
        results[layout] = out
    for layout in LAYOUTS[1:]:
        assert kda_run.differing(results[layout], results["BNSD"]) == [], layout


def open_case(tokens: int = 65, **case):
    """Strong decay, constant dht, loss on final_state only, and a last row of v whose mean is 0.003.

    The gradient of the last key is the relayed value summed over V; bf16 slots of u and v_new cost it 6 %.
    """
    inputs = make_inputs({"T": tokens, "l2norm": True, "g_scale": 20.0, **case}, 7)
    last = inputs.arrays["v"][..., tokens - 1, :]
    last -= last.mean(-1, keepdims=True) - 0.003
    inputs.arrays["v"] = np.float64(kda_run.array(kda_run.tensor(inputs.arrays["v"], "bfloat16")))
    heads = inputs.arrays["v"].shape[1]
    return inputs, Cotangents(np.zeros_like(inputs.arrays["v"]), np.ones((1, heads, 128, 128)))


@pytest.mark.parametrize("disable_recompute", [True, False], ids=["save", "recompute"])
@pytest.mark.parametrize("exp2", [True, False], ids=["exp2", "natural"])
def test_a_loss_on_the_final_state_keeps_its_digits(disable_recompute, exp2):
    inputs, seeds = open_case(HV=2, use_exp2=exp2)
    got = grad_run.gradients(inputs, seeds, disable_recompute=disable_recompute)
    exact = grad_run.reference(inputs, seeds, floor=False)[0]
    errors = grad_run.worst_error(got, exact, ("k", "v", "g", "beta"))
    assert max(errors.values()) < 0.01, errors
    assert not got["q"].any()


@pytest.mark.parametrize("gate", GATES)
def test_model_like_short(gate):
    case = {"T": 260, "HK": 1, "HV": 2, "layout": "BSND", "l2norm": True, "gate": gate, "beta": "sigmoid"}
    run_case(gate, case, draws=grad_run.DRAWS)


@pytest.mark.full
@pytest.mark.parametrize("gate", ["bounded", "softplus"])
@pytest.mark.parametrize("tokens", [1024, 2000], ids="T{}".format)
def test_model_like(gate, tokens):
    """Every gradient at most 1.5 x what the slots cost, at a model's size; about 0.3 % each."""
    case = {"T": tokens, "HK": 4, "HV": 8, "layout": "BSND", "l2norm": True, "gate": gate, "beta": "sigmoid"}
    inputs = make_inputs({**case, "state": "float32"}, case_seed(f"{gate}{tokens}"))
    seeds = make_cotangents(inputs, 1)
    got = check_gradients(inputs, seeds, draws=grad_run.DRAWS)
    errors = grad_run.worst_error(got, grad_run.reference(inputs, seeds, floor=False)[0])
    assert max(x for n, x in errors.items() if n != "a_log") < 6e-3, errors


DOMAIN = list(
    itertools.product(GATES, LAYOUTS, (False, True), (False, True), (True, False), ("raw", "negative"))
)


@pytest.mark.full
@pytest.mark.parametrize(("gate", "layout", "packed", "v_first", "exp2", "beta"), DOMAIN)
def test_whole_domain(gate, layout, packed, v_first, exp2, beta):
    case = {
        "HK": 1, "HV": 3, "layout": layout, "gate": gate, "use_exp2": exp2, "beta": beta,
        "state": "bfloat16" if exp2 else "float32", "state_v_first": v_first, "l2norm": beta == "negative",
    }  # fmt: skip
    case |= {"cu": [0, 1, 1, 66, 80, 145]} if packed else {"T": 145}
    run_case(f"{gate}{layout}{packed}{v_first}{exp2}{beta}", case, disable_recompute=packed)
