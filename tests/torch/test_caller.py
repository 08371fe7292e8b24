# SPDX-License-Identifier: Apache-2.0
"""A training framework that calls the six stages itself, with the call shapes FLA-NPU's callers use.

It checks signatures before it calls, passes some arguments by position and some by keyword, keeps
packed tokens at rank 4 forward and drops the batch axis for two backward stages, sends bfloat16 for the
gradient of the final state, and does the beta sigmoid's derivative by itself.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from fla_npu.ops import ascendc
from fla_npu.torch import npu_chunk_kda
from in_step import in_step
from torch_calls import SCALE, make

REQUIRED = {
    "chunk_kda_fwd_prepare": ("backward_mode", "use_qk_l2norm_in_kernel", "use_beta_sigmoid_in_kernel"),
    "chunk_fwd_h": ("output_final_state", "cu_seqlens", "chunk_indices"),
    "chunk_kda_fwd_finalize": ("output_layout", "cu_seqlens", "chunk_indices"),
    "chunk_kda_bwd_prepare": ("scale", "layout", "cu_seqlens", "chunk_indices"),
    "chunk_gated_delta_rule_bwd_dhu": ("gK", "dht", "cu_seqlens", "chunk_indices"),
    "chunk_kda_bwd_finalize": ("q_rstd", "k_rstd", "use_beta_sigmoid_in_kernel", "output_layout"),
}
GATE = {"safe_gate": True, "lower_bound": -5.0}


def resolve(name: str):
    """An operator under either of its names, refused when its signature hides a parameter."""
    for spelled in (f"npu_{name}", name):
        function = getattr(ascendc, spelled, None)
        if callable(function):
            parameters = inspect.signature(function).parameters
            missing = [p for p in REQUIRED[name] if p not in parameters]
            assert not missing, f"{name} lacks {missing}"
            return function
    raise AttributeError(name)


class Caller(torch.autograd.Function):
    """Tokens [B, T, H, D] in and out; `lengths` are those of packed sequences (B = 1), or None."""

    @staticmethod
    def forward(ctx, q, k, v, g, beta, a_log, dt_bias, state, lengths):
        q, k, v, g, beta = (x.transpose(1, 2).contiguous() for x in (q, k, v, g, beta))
        meta = {}
        if lengths:
            cu = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
            pairs = [(s, c) for s, n in enumerate(lengths) for c in range((n + 63) // 64)]
            meta = {"cu_seqlens": tuple(cu), "chunk_indices": tuple(i for pair in pairs for i in pair)}
        prepared = resolve("chunk_kda_fwd_prepare")(
            q, k, v, g, beta, SCALE, layout="BNSD", chunk_size=64, A_log=a_log, dt_bias=dt_bias.flatten(),
            use_gate_in_kernel=True, use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True,
            use_exp2=True, backward_mode="save", **GATE, **meta,
        )  # fmt: skip
        assert len(prepared) == 13 and all(isinstance(x, torch.Tensor) for x in prepared)
        gk, aqk, _, w, u, _, kg, qg_scaled, *_ = prepared
        hidden, v_new, last = resolve("chunk_fwd_h")(
            kg, w, u, gk=gk, initial_state=state, output_final_state=True, use_exp2=True, **meta
        )
        out = resolve("chunk_kda_fwd_finalize")(qg_scaled, aqk, v_new, hidden, output_layout="BSND", **meta)
        ctx.save_for_backward(v, g, a_log, dt_bias, hidden, v_new, *prepared)
        ctx.meta = meta
        return out, last

    @staticmethod
    def backward(ctx, d_out, d_state):
        v, g, a_log, dt_bias, hidden, v_new, *prepared = ctx.saved_tensors
        gk, aqk, akk, w, _, qg, kg, _, q_hat, k_hat, q_rstd, k_rstd, beta_eff = prepared
        packed, meta = bool(ctx.meta), ctx.meta
        flat = (lambda x: x.squeeze(0)) if packed else (lambda x: x)
        layout = "NTD" if packed else "BNSD"
        grad = d_out.transpose(1, 2).contiguous()
        d_aqk, dv, dq_raw = resolve("chunk_kda_bwd_prepare")(
            flat(aqk),
            flat(v_new),
            flat(grad),
            flat(hidden),
            scale=SCALE,
            layout=layout,
            chunk_size=64,
            **meta,
        )
        dv_local = dv.unsqueeze(0) if packed else dv
        dh, dh0, dv_scan = resolve("chunk_gated_delta_rule_bwd_dhu")(
            qg, kg, w, grad, dv_local, SCALE, 64, gK=gk, h0=None,
            dht=None if d_state is None else d_state.bfloat16(), use_exp2=True, **meta,
        )  # fmt: skip
        assert dh0 is None
        tensors = (q_hat, k_hat, v, gk, g, beta_eff, akk, v_new, hidden, dh, dv_scan)
        q_hat, k_hat, v, gk, g, beta, akk, v_new, hidden, dh, dv_scan = map(flat, tensors)
        dq, dk, dv, dbeta, dg, da_log, ddt_bias = resolve("chunk_kda_bwd_finalize")(
            q_hat, k_hat, v, gk, g, beta, a_log, dt_bias, akk, v_new, hidden, dh, dv_scan, d_aqk, dq_raw,
            scale=SCALE, chunk_size=64, use_gate_in_kernel=True, use_exp2=True, q_rstd=flat(q_rstd),
            k_rstd=flat(k_rstd), use_beta_sigmoid_in_kernel=False, output_layout=layout, **GATE, **meta,
        )  # fmt: skip
        dbeta = dbeta * beta * (1 - beta)
        back = (lambda x: x.unsqueeze(0)) if packed else (lambda x: x)
        tokenwise = (back(x).transpose(1, 2) for x in (dq, dk, dv, dg, dbeta))
        return *tokenwise, da_log, ddt_bias.reshape_as(dt_bias), None, None


def gradients(call, t: dict, seeds: tuple) -> tuple[list, dict]:
    leaves = {name: x.clone().requires_grad_() for name, x in t.items()}
    outputs = call(leaves)
    torch.autograd.backward([x for x, s in in_step(outputs, seeds) if s is not None],
                            [s for s in seeds if s is not None])  # fmt: skip
    return [x.detach() for x in outputs], {name: x.grad for name, x in leaves.items()}


def ours(lengths, state):
    cu = None if lengths is None else [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    return lambda t: npu_chunk_kda(
        **t, scale=SCALE, layout="BSND", output_final_state=True, cu_seqlens=cu, initial_state=state,
        use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True, **GATE,
    )  # fmt: skip


@pytest.mark.parametrize("with_state", [False, True], ids=["fresh", "state"])
@pytest.mark.parametrize("lengths", [None, [64, 5, 70]], ids=["dense", "packed"])
def test_forward_and_backward(lengths, with_state):
    batch, tokens = (2, 130) if lengths is None else (1, sum(lengths))
    t = make(tokens=tokens, hk=2, hv=2, batch=batch, layout="BSND")
    sequences = batch if lengths is None else len(lengths)
    state = torch.randn(sequences, 2, 128, 128) if with_state else None
    d_state = torch.randn(sequences, 2, 128, 128).bfloat16().float() if with_state else None
    seeds = (torch.randn(batch, tokens, 2, 128).bfloat16(), d_state)
    order = ("q", "k", "v", "g", "beta", "a_log", "dt_bias")
    theirs = gradients(lambda x: Caller.apply(*(x[n] for n in order), state, lengths), t, seeds)
    want = gradients(ours(lengths, state), t, seeds)
    for got, other in in_step(theirs[0], want[0]):
        assert_near(got, other, 4e-3)
    for name in order:
        assert theirs[1][name].shape == t[name].shape
        # The caller's v_new and u are bfloat16, npu_chunk_kda keeps both wider.
        assert_near(theirs[1][name], want[1][name], 2e-2 if name in ("a_log", "dt_bias") else 8e-3)


def assert_near(got, want, limit):
    error = float((got.double() - want.double()).norm() / want.double().norm())
    assert error < limit, error


def test_grouped_heads_as_repeated_ones():
    """Such callers repeat q and k to the value heads; the operators also take the group as it is."""
    t = make(tokens=70, hk=2, hv=4, layout="BSND")
    wide = {n: (x.repeat_interleave(2, 2) if n in ("q", "k") else x) for n, x in t.items()}
    seeds = (torch.randn(1, 70, 4, 128).bfloat16(), None)
    order = ("q", "k", "v", "g", "beta", "a_log", "dt_bias")

    def run(x):
        return Caller.apply(*(x[n] for n in order), None, None)

    (out, _), narrow = gradients(run, t, seeds)
    (same, _), repeated = gradients(run, wide, seeds)
    assert torch.equal(out, same)
    for name in order:
        grad = repeated[name]
        if name in ("q", "k"):
            grad = grad.float().unflatten(2, (2, 2)).sum(3)
        assert_near(narrow[name], grad, 8e-3)
