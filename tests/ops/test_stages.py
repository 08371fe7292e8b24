# SPDX-License-Identifier: Apache-2.0
"""Each operator alone against its golden model, over the model's CASES, on both builds of the twin."""

from __future__ import annotations

from functools import cache

import kda_run
import numpy as np
import pytest
from goldens import golden_module
from kda_compare import FACTOR, below_diagonal, check_triangle, judge
from kda_inputs import (
    case_seed,
    make_inputs,
    stage_finalize_inputs,
    stage_h_inputs,
    to_bf16,
)

FP32 = {"gk", "q_rstd", "k_rstd", "beta_eff"}
#: The cube multiplies bf16: each of the two operands of a score is rounded once, and then the score itself.
#: Three independent roundings cost sqrt(3) = 1.73 of one.
SCORE_FACTOR = {"aqk": 2.0, "akk": 2.0}


def cases(op: str):
    """Ids `<case>-<build>` over the golden model's CASES."""
    names = golden_module(op).CASES
    return pytest.mark.parametrize("case", names), pytest.mark.parametrize("build", ["fast", "checked"])


@cache
def prepare_case(case: str):
    inputs = make_inputs(golden_module("chunk_kda_fwd_prepare").CASES[case], case_seed(case))
    golden = golden_module("chunk_kda_fwd_prepare").golden
    kwargs = inputs.golden_kwargs()
    return inputs, golden(**kwargs), golden(**kwargs, round_slots=True)


@cache
def h_case(case: str):
    inputs = stage_h_inputs(golden_module("chunk_fwd_h").CASES[case], case_seed(case))
    kwargs = {n: x for n, x in inputs.options.items() if n != "output_final_state"}
    kwargs |= {**inputs.arrays, "initial_state": inputs.initial_state}
    golden = golden_module("chunk_fwd_h").golden
    exact, rounded = golden(**kwargs), golden(**kwargs, round_slots=True)
    if inputs.initial_state is not None and inputs.state_dtype == "bfloat16":
        rounded["final_state"] = to_bf16(rounded["final_state"])
    return inputs, exact, rounded


@cache
def finalize_case(case: str):
    inputs = stage_finalize_inputs(golden_module("chunk_kda_fwd_finalize").CASES[case], case_seed(case))
    golden = golden_module("chunk_kda_fwd_finalize").golden
    kwargs = {**inputs.arrays, **inputs.options}
    return inputs, golden(**kwargs), golden(**kwargs, round_slots=True)


def judge_prepare(slots: dict, exact: dict, rounded: dict, cu_seqlens=None) -> None:
    """Every slot against its floor, and the triangles entry by entry."""
    for name, x in slots.items():
        dtype = "float32" if name in FP32 else "bfloat16"
        assert x.dtype == kda_run.TORCH[dtype], f"{name} has dtype {x.dtype}"
        assert x.is_contiguous()
        got, want, model = kda_run.array(x), exact[name], rounded[name]
        if name in ("aqk", "akk"):
            check_triangle(name, got, cu_seqlens, unit=name == "akk")
        if name == "akk":
            got, want, model = (below_diagonal(x, cu_seqlens) for x in (got, want, model))
        judge(name, got, want, model, dtype, SCORE_FACTOR.get(name, FACTOR))


def run_h(inputs):
    tensors = kda_run.tensors_of(inputs)
    tensors["kg"] = tensors.pop("k")
    state = kda_run.tensor(inputs.initial_state, inputs.state_dtype)
    return kda_run.fwd_h(tensors, inputs, state, **inputs.options)


@cases("chunk_kda_fwd_prepare")[0]
@cases("chunk_kda_fwd_prepare")[1]
def test_prepare(case, build, twin):
    inputs, exact, rounded = prepare_case(case)
    slots = kda_run.prepare(inputs)
    judge_prepare(slots, exact, rounded, inputs.options.get("cu_seqlens"))
    if build == "checked":
        twin(mode="checked")
        assert kda_run.differing(kda_run.prepare(inputs), slots) == []


@cases("chunk_fwd_h")[0]
@cases("chunk_fwd_h")[1]
def test_fwd_h(case, build, twin):
    inputs, exact, rounded = h_case(case)
    out = run_h(inputs)
    for name, x in out.items():
        judge(f"fwd_h.{name}", kda_run.array(x), exact[name], rounded[name], str(x.dtype)[6:])
    if build == "checked":
        twin(mode="checked")
        assert kda_run.differing(run_h(inputs), out) == []


@cases("chunk_kda_fwd_finalize")[0]
@cases("chunk_kda_fwd_finalize")[1]
def test_finalize(case, build, twin):
    inputs, exact, rounded = finalize_case(case)
    tensors = kda_run.tensors_of(inputs)
    out = kda_run.finalize(tensors, inputs, **inputs.options)
    judge("finalize.o", kda_run.array(out), exact["attn_out"], rounded["attn_out"])
    if build == "checked":
        twin(mode="checked")
        assert kda_run.same_bits(kda_run.finalize(tensors, inputs, **inputs.options), out)


def test_modes_share_their_bits():
    """A slot has the same bits in every mode that fills it."""
    inputs, _, _ = prepare_case("ragged_tail")
    full = kda_run.prepare(inputs, mode="save")
    for mode in ("none", "forward", "recompute"):
        part = kda_run.prepare(inputs, mode=mode)
        assert kda_run.differing(part, {name: full[name] for name in part}) == [], mode


def test_qg_scaled_is_scale_times_the_rounded_qg():
    """To the bit, but for products below 2^-126, which the twin flushes to zero."""
    inputs, _, _ = prepare_case("ragged_tail")
    slots = kda_run.prepare(inputs)
    want = slots["qg"].float() * np.float32(inputs.options["scale"])
    want = want.where(want.abs() >= 2.0**-126, want * 0.0).bfloat16()
    assert kda_run.same_bits(slots["qg_scaled"], want)


def test_save_without_norm_and_sigmoid_returns_what_came_in():
    """q_hat = q, k_hat = k, rstd = 1, beta_eff = float32(beta)."""
    inputs = make_inputs({"T": 70, "HK": 2, "HV": 4, "layout": "BSND", "beta_dtype": "bfloat16"}, 1)
    tensors = kda_run.tensors_of(inputs)
    slots = kda_run.prepare(inputs, tensors)
    assert kda_run.same_bits(slots["q_hat"], tensors["q"].transpose(1, 2).contiguous())
    assert kda_run.same_bits(slots["k_hat"], tensors["k"].transpose(1, 2).contiguous())
    assert (slots["q_rstd"] == 1).all() and (slots["k_rstd"] == 1).all()
    assert kda_run.same_bits(slots["beta_eff"], tensors["beta"].transpose(1, 2).float().contiguous())


def test_stage_output_equals_its_formula_on_the_published_operands():
    """o = qg_scaled @ h + tril(aqk) @ v_new to one rounding, from the operators' own slots."""
    inputs = make_inputs({"cu": [0, 65, 131, 202, 281], "HV": 2, "gate": "softplus"}, 2)
    stages = kda_run.forward(inputs)
    golden = golden_module("chunk_kda_fwd_finalize").golden
    kwargs = {n: kda_run.array(stages[n]) for n in ("qg_scaled", "aqk", "v_new", "h")}
    kwargs["cu_seqlens"] = inputs.options["cu_seqlens"]
    want, model = (golden(**kwargs, round_slots=r)["attn_out"] for r in (False, True))
    judge("finalize.o", kda_run.array(stages["o"]), want, model)
