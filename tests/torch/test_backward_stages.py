# SPDX-License-Identifier: Apache-2.0
"""The three backward stages on PyTorch: what the wrappers add to the operators, forms of their inputs."""

from __future__ import annotations

import pytest
import torch
from fla_npu.ops.ascendc import (
    chunk_fwd_h,
    chunk_gated_delta_rule_bwd_dhu,
    chunk_kda_bwd_finalize,
    chunk_kda_bwd_prepare,
)
from in_step import in_step
from test_views import strided
from torch_calls import SCALE, make, prepare, same_bits

FIRST = ("aqk", "v_new", "d_o", "h")
SECOND = ("qg", "kg", "w", "d_o", "dv")
LAST = (
    "q_hat", "k_hat", "v", "gk", "raw_g", "beta_eff", "a_log", "dt_bias", "akk", "v_new", "h", "dh", "dv_scan",
    "d_aqk", "dq_raw",
)  # fmt: skip
STATES = ("h", "dh")
PARAMETERS = ("a_log", "dt_bias")


def first(s, **options) -> tuple:
    return chunk_kda_bwd_prepare(*(s[n] for n in FIRST), scale=SCALE, **options)


def second(s, **options) -> tuple:
    given = {"gK": s["gk"], "use_exp2": True, **options}
    return chunk_gated_delta_rule_bwd_dhu(*(s[n] for n in SECOND), SCALE, 64, **given)


def last(s, **options) -> tuple:
    given = {"scale": SCALE, "q_rstd": s["q_rstd"], "k_rstd": s["k_rstd"], **options}
    return chunk_kda_bwd_finalize(*(s[n] for n in LAST), **given)


@pytest.fixture(scope="module")
def s() -> dict[str, torch.Tensor]:
    """Every tensor of a call's chain, rank 4."""
    t = make(tokens=133)
    names = (
        "gk",
        "aqk",
        "akk",
        "w",
        "u",
        "qg",
        "kg",
        "qg_scaled",
        "q_hat",
        "k_hat",
        "q_rstd",
        "k_rstd",
        "beta_eff",
    )
    made = dict(in_step(names, prepare(t))) | {n: t[n] for n in ("v", "beta", *PARAMETERS)}
    made["raw_g"] = t["g"]
    made["h"], made["v_new"], _ = chunk_fwd_h(made["kg"], made["w"], made["u"], gk=made["gk"], use_exp2=True)
    made["d_o"] = torch.randn(made["v"].shape, generator=torch.Generator().manual_seed(2)).bfloat16()
    made["d_aqk"], made["dv"], made["dq_raw"] = first(made)
    made["dh"], _, made["dv_scan"] = second(made)
    return made


def test_types_and_shapes(s):
    assert [x.dtype for x in first(s)] == [torch.float32, torch.bfloat16, torch.float32]
    for dtype in (torch.float32, torch.bfloat16):
        h0 = torch.zeros(1, 4, 128, 128, dtype=dtype)
        dh, dh0, dv_scan = second(s, h0=h0)
        assert (dh.shape, dh0.dtype, dh0.shape) == ((1, 3, 4, 128, 128), dtype, (1, 4, 128, 128))
        assert same_bits((dh, dv_scan), (s["dh"], s["dv_scan"]))
    assert second(s)[1] is None
    shapes = [tuple(x.shape) for x in last(s)]
    rows = (1, 4, 133, 128)
    assert shapes == [(1, 2, 133, 128)] * 2 + [rows, rows[:3], rows, (4,), (4, 128)]


def test_rank_3_is_rank_4_without_the_batch(s):
    flat = {n: x if n in PARAMETERS else x[0] for n, x in s.items()}
    assert same_bits([x[None] for x in first(flat, layout="NTD")], list(first(s)))
    got, want = last(flat, output_layout="NTD"), last(s)
    assert same_bits([x[None] for x in got[:5]] + list(got[5:]), list(want))


@pytest.mark.parametrize(("layout", "rank"), [("BSND", 4), ("TND", 3)])
def test_token_major_results(s, layout, rank):
    given = s if rank == 4 else {n: x if n in PARAMETERS else x[0] for n, x in s.items()}
    got, want = last(given, output_layout=layout), last(given, output_layout="BNSD" if rank == 4 else "NTD")
    assert same_bits([x.transpose(rank - 3, rank - 2) for x in got[:5]], list(want[:5]))
    assert same_bits(got[5:], want[5:])


@pytest.mark.parametrize("negative", [False, True])
def test_beta_as_a_logit(s, negative):
    """With the sigmoid inside, beta is the logit and dbeta its gradient; all else is as with beta_eff."""
    factor = 2.0 if negative else 1.0
    effective = (s["beta"].double().sigmoid() * factor).float()
    flags = {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": negative}
    got = last({**s, "beta_eff": s["beta"]}, **flags)
    want = last({**s, "beta_eff": effective})
    assert same_bits([x for i, x in enumerate(got) if i != 3], [x for i, x in enumerate(want) if i != 3])
    chain = want[3].double() * effective.double() * (1 - effective.double() / factor)
    assert torch.allclose(got[3].double(), chain, rtol=1e-5, atol=1e-9)
    half = last({**s, "beta_eff": s["beta"].bfloat16()}, **flags)
    assert half[3].dtype == torch.bfloat16


def test_without_rstds_the_gradient_is_of_the_normalised(s):
    hats = last(s, q_rstd=None, k_rstd=None)
    want = last(s)
    for i, (hat, rstd) in enumerate((("q_hat", "q_rstd"), ("k_hat", "k_rstd"))):
        x, d = s[hat].double(), hats[i].double()
        back = s[rstd].double()[..., None] * (d - x * (x * d).sum(-1, keepdim=True))
        assert float((back - want[i].double()).norm() / back.norm()) < 6e-3


def test_parameters_in_other_forms(s):
    want = last(s)
    flat = last({**s, "dt_bias": s["dt_bias"].flatten()})
    assert same_bits(flat[:6], want[:6])
    assert same_bits(flat[6].reshape(4, 128), want[6])
    half = {n: s[n].bfloat16() for n in PARAMETERS}
    full = {n: x.float() for n, x in half.items()}
    assert same_bits(last({**s, **half}), last({**s, **full}))
    none = last({**s, "dt_bias": None})
    assert none[6] is None
    assert same_bits(none[:6], last({**s, "dt_bias": torch.zeros(4, 128)})[:6])
    free = {**s, "a_log": None, "dt_bias": None, "raw_g": -s["raw_g"].abs() / 32}
    got = last(free, use_gate_in_kernel=False, safe_gate=False)
    assert got[5] is None and got[6] is None
    assert same_bits(
        last({**free, "gk": s["gk"] * 0}, use_gate_in_kernel=False, safe_gate=False)[:5], got[:5]
    )


@pytest.mark.parametrize("how", ["transposed", "every_second", "head_token"])
def test_views(s, how):
    views = {n: x if n in PARAMETERS or x.dim() < 4 else strided(x, how) for n, x in s.items()}
    assert same_bits(first(views), first(s))
    assert same_bits(second(views), second(s))
    assert same_bits(last(views), last(s))


def test_outputs_are_detached(s):
    grad = {n: x.clone().requires_grad_() for n, x in s.items()}
    outputs = [
        *first(grad),
        *second(grad),
        *last({**grad, "beta_eff": grad["beta"]}, use_beta_sigmoid_in_kernel=True),
    ]
    assert not any(x.requires_grad for x in outputs if x is not None)
