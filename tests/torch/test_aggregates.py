# SPDX-License-Identifier: Apache-2.0
"""chunk_kda_fwd and chunk_kda_bwd: what they return in each mode, and that they are the stages' numbers."""

from __future__ import annotations

import pytest
import torch
from fla_npu import errors
from fla_npu.chunk_kda import route
from fla_npu.ops.ascendc import chunk_kda_bwd, chunk_kda_fwd
from fla_npu.torch import explain_route
from in_step import in_step
from torch_calls import OPTIONS, SCALE, gradients, kda, make, prepare, same_bits, stages

CU = [0, 65, 65, 70, 133]
NAMES = ("attn_out", "final_state", "gk", "aqk", "akk", "w", "u", "qg", "kg", "v_new", "h", "initial_state")


def forward(t, layout="BNSD", **changes) -> dict:
    keywords = {("A_log" if name == "a_log" else name): x for name, x in t.items()}
    out = chunk_kda_fwd(**keywords, scale=SCALE, layout=layout, **{**OPTIONS, **changes})
    assert len(out) == len(NAMES)
    return dict(in_step(NAMES, out))


def present(made: dict) -> set[str]:
    return {name for name, x in made.items() if x is not None}


def test_forward_modes():
    t = make(tokens=133)
    always = {"attn_out", "aqk", "akk"}
    kept = {"gk", "w", "u", "qg", "kg", "v_new", "h"}
    assert present(forward(t)) == always
    assert present(forward(t, return_intermediate_states=True)) == always | {"h"}
    assert present(forward(t, disable_recompute=True, output_final_state=True)) == always | kept | {
        "final_state"
    }
    free = {n: x for n, x in t.items() if n not in ("a_log", "dt_bias")} | {"g": -t["g"].abs()}
    assert present(forward(free, use_gate_in_kernel=False, safe_gate=False)) == always | {"gk"}


@pytest.mark.parametrize("layout", ["BNSD", "TND"])
def test_forward_is_the_stages(layout):
    t = make(tokens=133, layout=layout)
    cu = CU if layout == "TND" else None
    made = forward(t, layout, disable_recompute=True, output_final_state=True, cu_seqlens=cu)
    out, final = kda(t, layout=layout, cu_seqlens=cu)
    assert same_bits((made["attn_out"], made["final_state"]), (out, final))
    slots = prepare(t, layout=layout, cu_seqlens=cu)
    order = ("gk", "aqk", "akk", "w", "u", "qg", "kg")
    assert all(same_bits(made[n], slots[i]) for i, n in enumerate(order))
    lead = () if layout == "TND" else (1,)
    assert made["h"].shape == (*lead, 4 if cu else 3, 4, 128, 128)
    assert made["v_new"].shape == (*lead, 4, 133, 128)


def test_outputs_to_be_written():
    t = make(tokens=70)
    shapes = {"q_hat": (1, 2, 70, 128), "k_hat": (1, 2, 70, 128), "q_rstd": (1, 2, 70), "k_rstd": (1, 2, 70)}
    given = {f"{n}_out": torch.empty(s, dtype=torch.bfloat16 if "hat" in n else torch.float32)
             for n, s in shapes.items()}  # fmt: skip
    given["beta_eff_out"] = torch.empty(1, 4, 70)
    forward(t, **given)
    assert same_bits(list(given.values()), list(prepare(t)[8:]))


def test_initial_state_is_handed_through():
    t, state = make(), torch.randn(1, 4, 128, 128)
    made = forward(t, initial_state=state, output_final_state=True)
    assert made["initial_state"] is state
    assert same_bits((made["attn_out"], made["final_state"]), kda(t, initial_state=state))


def backward(t, save: bool, implementation="auto", state=None, dht=None, norm=True) -> tuple:
    hats = {f"{n}_out": torch.empty_like(t[n[0]]) for n in ("q_hat", "k_hat")}
    rows = {"q_rstd": 2, "k_rstd": 2, "beta_eff": 4}
    hats |= {f"{n}_out": torch.empty(1, h, t["q"].shape[2]) for n, h in rows.items()}
    made = forward(t, disable_recompute=save, initial_state=state, **hats)
    rstds = {n: hats[f"{n}_out"] for n in ("q_rstd", "k_rstd")} if norm else {}
    torch.manual_seed(1)
    d_o = torch.randn(made["attn_out"].shape).bfloat16().transpose(1, 2)
    kept = [made[n] for n in ("gk", "aqk", "akk", "w", "qg", "kg", "v_new", "h")]
    return chunk_kda_bwd(
        hats["q_hat_out"], hats["k_hat_out"], t["v"], hats["beta_eff_out"], *kept, d_o, SCALE, raw_g=t["g"],
        A_log=t["a_log"], dt_bias=t["dt_bias"], initial_state=state, dht=dht, use_gate_in_kernel=True,
        disable_recompute=save, implementation=implementation, **rstds,
    )  # fmt: skip


@pytest.mark.parametrize("with_state", [False, True])
def test_backward_is_the_gradient(with_state):
    t = make(tokens=133)
    state = torch.randn(1, 4, 128, 128) if with_state else None
    dht = torch.randn(1, 4, 128, 128) if with_state else None
    dq, dk, dv, db, dg, dh0, da, dbias = backward(t, True, state=state, dht=dht)
    torch.manual_seed(1)
    d_out = torch.randn(1, 133, 4, 128).bfloat16()
    inputs = {**t, "initial_state": state} if with_state else t
    want = gradients(inputs, cotangents=(d_out, dht), output_final_state=with_state)
    got = {"q": dq, "k": dk, "v": dv, "g": dg, "a_log": da, "dt_bias": dbias}
    for name, x in got.items():
        assert (x.shape, x.dtype) == (want[name].shape, want[name].dtype)
        # The ABI's v_new is bfloat16, that of npu_chunk_kda two planes.
        assert float((x - want[name]).norm() / want[name].norm()) < 8e-3, name
    assert (dh0 is None) == (not with_state)
    if with_state:
        assert same_bits(dh0, want["initial_state"])
    assert db.dtype == torch.float32


def test_recompute_and_legacy():
    t = make(tokens=133)
    want = backward(t, True)
    again = backward(t, False)
    for a, b in in_step(again, want):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype and float((a.float() - b.float()).norm() / b.float().norm()) < 8e-3
    legacy, same = backward(t, True, norm=False), backward(t, True, "optimized", norm=False)
    assert [x.dtype for x in legacy[:4]] == [torch.float32, torch.float32, torch.bfloat16, torch.float32]
    assert same_bits([x.bfloat16() for x in legacy[:2]], list(same[:2]))
    assert same_bits(list(legacy[2:5]), list(same[2:5]))


def test_refusals():
    t = make()
    with pytest.raises(errors.ArgumentError, match="implementation = 'v3'"):
        backward(t, True, "v3")
    with pytest.raises(errors.ArgumentError, match="'legacy' knows no norm"):
        backward(t, True, "legacy")
    x = torch.zeros(1, 2, 70, 128).bfloat16()
    beta = torch.zeros(1, 2, 70)
    rest = [None] * 8
    with pytest.raises(errors.ArgumentError, match="raw_g is None"):
        chunk_kda_bwd(x, x, x, beta, *rest, x, 1.0)
    with pytest.raises(errors.ArgumentError, match="gk is None; disable_recompute = True"):
        chunk_kda_bwd(x, x, x, beta, *rest, x, 1.0, raw_g=x)
    with pytest.raises(errors.ArgumentError, match="w is given, but disable_recompute = False"):
        chunk_kda_bwd(x, x, x, beta, None, None, None, x, *rest[4:], x, 1.0, raw_g=x, disable_recompute=False)
    with pytest.raises(errors.ArgumentError, match="needs a_log"):
        chunk_kda_bwd(x, x, x, beta, *rest, x, 1.0, raw_g=x, use_gate_in_kernel=True, disable_recompute=False)
    with pytest.raises(errors.ArgumentError, match="q_rstd is given without k_rstd"):
        chunk_kda_bwd(x, x, x, beta, *rest, x, 1.0, raw_g=x, disable_recompute=False, q_rstd=beta)


@pytest.mark.parametrize("options", [{}, {"cu_seqlens": CU}, {"use_exp2": False}])
def test_both_routes_give_the_same_bits(options, monkeypatch):
    t = make(tokens=133)
    options = {"safe_gate": False, **options}
    assert explain_route(a_log=t["a_log"], **options).name == "aggregates"
    want, grads = kda(t, **options), gradients(t, **options)
    state_only = gradients(t, cotangents=(None, torch.ones_like(want[1])), **options)
    monkeypatch.setattr(route, "aggregates_missing", lambda: "left out by this test")
    assert explain_route(**options).name == "stages"
    assert same_bits(kda(t, **options), want)
    chain = gradients(t, **options)
    assert all(same_bits(chain[n], grads[n]) for n in t)
    chain = gradients(t, cotangents=(None, torch.ones_like(want[1])), **options)
    assert all(torch.equal(chain[n], state_only[n]) for n in t)


def test_aggregates_of_the_stage_helpers():
    """The bf16 relay of the public stages is within a rounding of the aggregate's float32 one."""
    t = make(tokens=70)
    s, made = stages(t), forward(t, disable_recompute=True)
    for name, limit in (("h", 4e-3), ("v_new", 4e-3)):
        assert float((s[name].float() - made[name].float()).norm() / made[name].float().norm()) < limit
