# SPDX-License-Identifier: Apache-2.0
"""Inputs that are views give the bits of contiguous copies; inputs are not written."""

from __future__ import annotations

import pytest
import torch
from fla_npu.ops.ascendc import chunk_fwd_h, chunk_kda_fwd_finalize
from torch_calls import TOKENWISE, kda, make, prepare, same_bits, stages


def strided(x: torch.Tensor, how: str) -> torch.Tensor:
    """A view with the values of x and other strides."""
    if how == "transposed":
        view = x.transpose(-1, -2).contiguous().transpose(-1, -2)
    elif how == "every_second":
        wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), float("nan"), dtype=x.dtype)
        wide[..., ::2] = x
        view = wide[..., ::2]
    elif how == "slice":
        wide = torch.full((*x.shape[:-1], x.shape[-1] + 24), float("nan"), dtype=x.dtype)
        wide[..., 8 : 8 + x.shape[-1]] = x
        view = wide[..., 8 : 8 + x.shape[-1]]
    else:
        view = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(view, x)
    return view


@pytest.mark.parametrize("how", ["transposed", "every_second", "slice", "head_token"])
@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta"])
def test_prepare_views(name, how):
    t = make()
    assert same_bits(prepare({**t, name: strided(t[name], how)}), prepare(t))


def test_prepare_broadcast_views():
    t = make()
    row = t["g"][:, :, :1]
    expanded = {**t, "g": row.expand_as(t["g"]), "beta": t["beta"][:, :1].expand_as(t["beta"])}
    dense = {name: x.contiguous() for name, x in expanded.items()}
    assert same_bits(prepare(expanded), prepare(dense))


def test_lazily_negated_input():
    t = make()
    lazy = torch.complex(torch.zeros_like(t["g"]), -t["g"]).conj().imag
    assert lazy.is_neg()
    assert same_bits(prepare({**t, "g": lazy}), prepare(t))


def test_small_parameters_as_views():
    t = make()
    bias = strided(t["dt_bias"], "transposed")
    assert same_bits(prepare({**t, "dt_bias": bias}), prepare(t))
    assert same_bits(prepare({**t, "dt_bias": t["dt_bias"].flatten()}), prepare(t))
    rate = torch.stack([t["a_log"], t["a_log"]], dim=1)[:, 0]
    assert same_bits(prepare({**t, "a_log": rate}), prepare(t))


def test_bf16_parameters_equal_their_float32_values():
    t = make()
    half = {**t, "a_log": t["a_log"].bfloat16(), "dt_bias": t["dt_bias"].bfloat16()}
    full = {**half, "a_log": half["a_log"].float(), "dt_bias": half["dt_bias"].float()}
    assert same_bits(prepare(half), prepare(full))


@pytest.mark.parametrize("how", ["transposed", "every_second", "head_token"])
def test_later_stages_views(how):
    s = stages(make())
    state = torch.randn(1, 4, 128, 128)
    options = {"output_final_state": True, "use_exp2": True}
    want = chunk_fwd_h(s["kg"], s["w"], s["u"], gk=s["gk"], initial_state=state, **options)
    views = {n: strided(s[n], how) for n in ("kg", "w", "u", "gk")}
    got = chunk_fwd_h(
        views["kg"], views["w"], views["u"], gk=views["gk"], initial_state=strided(state, how), **options
    )
    assert same_bits(got, want)
    tensors = [s[n] for n in ("qg_scaled", "aqk", "v_new", "h")]
    assert same_bits(chunk_kda_fwd_finalize(*(strided(x, how) for x in tensors)), s["out"])


def test_layouts_are_the_same_numbers():
    t = make(layout="BNSD")
    want, state = kda(t)
    swap = {n: (x.transpose(1, 2) if n in TOKENWISE else x) for n, x in t.items()}
    for layout, tensors in (("BSND", swap), ("BSND", {n: x.contiguous() for n, x in swap.items()})):
        got, final = kda(tensors, layout=layout)
        assert same_bits((got, final), (want, state))
    flat = {n: (x[0] if n in TOKENWISE else x) for n, x in t.items()}
    got, final = kda(flat, layout="NTD")
    assert same_bits((got, final), (want[0], state))
    flat = {n: (x[0] if n in TOKENWISE else x) for n, x in swap.items()}
    got, final = kda(flat, layout="TND")
    assert same_bits((got, final), (want[0], state))


def test_inputs_are_not_written():
    t = make()
    before = {name: x.clone() for name, x in t.items()}
    state = torch.randn(1, 4, 128, 128)
    kept = state.clone()
    kda(t, initial_state=state)
    assert all(same_bits(t[n], before[n]) for n in t)
    assert same_bits(state, kept)
