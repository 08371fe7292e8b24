# SPDX-License-Identifier: Apache-2.0
"""Each backward operator alone against its golden model, over the model's CASES, on both builds of the twin."""

from __future__ import annotations

import math
from functools import cache

import backward_inputs
import grad_run
import kda_run
import numpy as np
import pytest
import torch
from backward import make_cotangents
from goldens import golden_module
from kda_compare import FACTOR, check_triangle, judge
from kda_inputs import case_seed, make_inputs

OPS = {
    "chunk_kda_bwd_prepare": (backward_inputs.prepare_case, grad_run.bwd_prepare),
    "chunk_gated_delta_rule_bwd_dhu": (backward_inputs.dhu_case, grad_run.dhu),
    "chunk_kda_bwd_finalize": (backward_inputs.finalize_case, grad_run.bwd_finalize),
}
CASES = [(op, name) for op in OPS for name in golden_module(op).CASES]
#: Own error on top of what the inputs carry: together 1.5 x the floor of the slots.
ADDED = math.sqrt(FACTOR**2 - 1.0)
#: A handful of sums of thousands of terms: their errors are single draws of a normal variable.
FEW = {"da_log": 3.0}


@cache
def case_of(op: str, name: str):
    return OPS[op][0](golden_module(op).CASES[name], case_seed(name))


def dtype_of(case, name: str) -> str:
    wide = ("d_aqk", "dq_raw", "dbeta", "dg", "da_log", "ddt_bias")
    return case.out_dtypes.get(name) or ("float32" if name in wide else "bfloat16")


#: Long on the checked twin, and like another case there.
LONG = {"long", "grouped_eight", "ragged_tail", "strong_decay", "planes", "bf16_gate"}
BUILDS = [pytest.param(*case, "fast", id=f"{case[0][6:]}-{case[1]}-fast") for case in CASES]
BUILDS += [
    pytest.param(
        *c, "checked", id=f"{c[0][6:]}-{c[1]}-checked", marks=[pytest.mark.full] if c[1] in LONG else []
    )
    for c in CASES
]


@pytest.mark.parametrize(("op", "name", "build"), BUILDS)
def test_stage(op, name, build, twin):
    case, run = case_of(op, name), OPS[op][1]
    tensors = grad_run.tensors_of(case)
    out = run(tensors, **case.options)
    if build == "checked":
        twin(mode="checked")
        assert kda_run.differing(run(tensors, **case.options), out) == []
        return
    factor = ADDED if op == "chunk_kda_bwd_finalize" else FACTOR
    for key, x in out.items():
        assert x.dtype == kda_run.TORCH[dtype_of(case, key)], f"{key} has dtype {x.dtype}"
        assert (
            x.is_contiguous() or case.options.get("output_layout") == "BSND"
        )  # a view of the head-major result
        got = kda_run.array(x)
        if key == "d_aqk":
            check_triangle(key, got, case.options.get("cu_seqlens"))
        want, model = (np.reshape(y[key], got.shape) for y in (case.exact, case.rounded))
        judge(f"{op[-8:]}.{key}", got, want, model, dtype_of(case, key), FEW.get(key, factor))


def test_d_aqk_is_zero_where_no_score_is():
    """Above the diagonal, and in the columns beyond the rows of a tail."""
    inputs = make_inputs({"cu": [0, 5, 70, 134], "HV": 2, "layout": "NTD"}, 1)
    stages = grad_run.chain(inputs, make_cotangents(inputs, 1))
    check_triangle("d_aqk", kda_run.array(stages["d_aqk"]), inputs.options["cu_seqlens"])


@pytest.mark.parametrize("v_first", [False, True], ids=["k_first", "v_first"])
def test_state_flags_turn_states_only(v_first):
    """V-first turns h, h0, dht and dh0; dh, and every other bit, stays."""
    base = make_inputs({"cu": [0, 65, 130], "HV": 2, "gate": "softplus", "state": "float32"}, 2)
    seeds = make_cotangents(base, 2)
    want = grad_run.chain(base, seeds)
    if v_first:
        base.state_v_first = True
        base.initial_state = base.initial_state.swapaxes(-1, -2).copy()
        seeds.final = seeds.final.swapaxes(-1, -2).copy()
    got = grad_run.chain(base, seeds)
    for name in ("h", "dh0", "final_state"):
        got[name] = got[name].transpose(-1, -2).contiguous() if v_first else got[name]
    assert kda_run.differing(got, want) == []


def test_h0_asks_for_dh0_and_is_not_read():
    case = case_of("chunk_gated_delta_rule_bwd_dhu", "ragged_tail")
    tensors = grad_run.tensors_of(case)
    want = grad_run.dhu(tensors, **case.options)
    noise = torch.full_like(tensors["h0"], float("nan"))
    assert kda_run.differing(grad_run.dhu({**tensors, "h0": noise}, **case.options), want) == []
    without = grad_run.dhu({n: x for n, x in tensors.items() if n != "h0"}, **case.options)
    assert kda_run.differing(without, {n: want[n] for n in ("dh", "dv2")}) == []


def test_absent_dht_means_zeros():
    case = case_of("chunk_gated_delta_rule_bwd_dhu", "v_first")
    tensors = grad_run.tensors_of(case)
    zeros = {**tensors, "dht": torch.zeros_like(tensors["dht"])}
    without = {n: x for n, x in tensors.items() if n != "dht"}
    assert kda_run.differing(grad_run.dhu(without, **case.options), grad_run.dhu(zeros, **case.options)) == []


def test_absent_bias_means_zeros():
    case = case_of("chunk_kda_bwd_finalize", "packed_rank4")
    tensors = grad_run.tensors_of(case)
    assert "dt_bias" not in tensors
    want = grad_run.bwd_finalize({**tensors, "dt_bias": torch.zeros(128)}, **case.options)
    got = grad_run.bwd_finalize(tensors, **case.options)
    assert want.pop("ddt_bias").any()
    assert kda_run.differing(got, want) == []


def test_gk_is_a_port_only():
    """Decays come from raw_g: the cumulative gate may hold anything."""
    case = case_of("chunk_kda_bwd_finalize", "ragged_tail")
    tensors = grad_run.tensors_of(case)
    noise = torch.full_like(tensors["gk"], float("nan"))
    want = grad_run.bwd_finalize(tensors, **case.options)
    assert kda_run.differing(grad_run.bwd_finalize({**tensors, "gk": noise}, **case.options), want) == []


@pytest.mark.parametrize("most", [1.0, 2.0], ids=["sigmoid", "negative"])
@pytest.mark.parametrize("beta_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_beta_sigmoid_inside_finalize(most, beta_dtype):
    """The raw logit with the flag equals beta_eff without it, times the sigmoid's slope."""
    case = case_of("chunk_kda_bwd_finalize", "ragged_tail")
    tensors = grad_run.tensors_of(case)
    raw = torch.randn(tensors["beta"].shape, generator=torch.Generator().manual_seed(3)).to(beta_dtype)
    beta = most * raw.float().sigmoid()
    options = {**case.options, "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": most == 2.0}
    inside = grad_run.bwd_finalize({**tensors, "beta": raw}, **options)
    outside = grad_run.bwd_finalize({**tensors, "beta": beta}, **case.options)
    slope = outside.pop("dbeta") * beta * (1.0 - beta / most)
    got = inside.pop("dbeta")
    assert got.dtype == beta_dtype
    tolerance = 1e-5 if beta_dtype == torch.float32 else 8e-3
    assert torch.allclose(got.float(), slope, rtol=tolerance, atol=1e-5 * float(slope.abs().max()))
    for name, x in inside.items():
        error = np.linalg.norm(kda_run.array(x) - kda_run.array(outside[name]))
        assert error <= 1e-3 * np.linalg.norm(kda_run.array(outside[name])), name


def test_without_rstd_gradients_are_of_the_normalised_rows():
    """dq with rstd = rstd (dq - q (q . dq)) of dq without, up to its bf16 rounding."""
    case = case_of("chunk_kda_bwd_finalize", "one_chunk")
    tensors = grad_run.tensors_of(case)
    want = grad_run.bwd_finalize(tensors, **case.options)
    bare = {n: x for n, x in tensors.items() if not n.endswith("rstd")}
    plain = grad_run.bwd_finalize(bare, **case.options)
    for name, rstd in (("q", "q_rstd"), ("k", "k_rstd")):
        x, dx = tensors[name].double(), plain[f"d{name}"].double()
        turned = tensors[rstd].double()[..., None] * (dx - x * (x * dx).sum(-1, keepdim=True))
        assert float((want[f"d{name}"].double() - turned).norm() / turned.norm()) < 6e-3
    assert kda_run.differing({n: plain[n] for n in ("dv", "dg")}, {n: want[n] for n in ("dv", "dg")}) == []
