# SPDX-License-Identifier: Apache-2.0
"""A training framework's own context parallelism on the stage operators: nothing of `fla_npu.torch` is used.

As FLA-NPU's callers do it: local cu_seqlens of document fragments, the summary of the last fragment
forward and of the first one backward, an all_gather, and the merge into the boundary state. The gate
of the backward summary is bfloat16, the gradient of the boundary state too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from in_step import in_step
from torch_work import SCALE, Case, cotangents, inputs, part

GATE = {"safe_gate": True, "lower_bound": -5.0}


@dataclass(frozen=True)
class Context:
    """What such a caller keeps per batch: local offsets, and how many ranks before and after share a document."""

    cu: tuple[int, ...]
    before: int
    after: int
    rank: int
    size: int

    @property
    def meta(self) -> dict:
        pairs = [
            i
            for s, (a, b) in enumerate(in_step(self.cu[:-1], self.cu[1:]))
            for c in range((b - a + 63) // 64)
            for i in (s, c)
        ]
        return {"cu_seqlens": self.cu, "chunk_indices": tuple(pairs)}


def make_context(lengths: tuple[int, ...], cu: tuple[int, ...], rank: int) -> Context:
    starts = [sum(lengths[:r]) for r in range(len(lengths) + 1)]
    a, b = starts[rank], starts[rank + 1]
    local = (0, *(x - a for x in cu if a < x < b), b - a)
    first = max(x for x in cu if x <= a)  # where the document of the first token begins
    last = min(x for x in cu if x >= b)  # where that of the last token ends
    owner = max(r for r in range(len(lengths)) if starts[r] <= first)
    ender = min(r for r in range(len(lengths)) if starts[r + 1] >= last)
    return Context(local, rank - owner, ender - rank, rank, len(lengths))


def gathered(x: torch.Tensor, size: int) -> torch.Tensor:
    rows = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(rows, x.contiguous())
    return torch.stack(rows)


class Caller(torch.autograd.Function):
    """Tokens [1, T, H, D] of this rank in and out."""

    @staticmethod
    def forward(ctx, q, k, v, g, beta, a_log, dt_bias, context):
        from fla_npu.ops import ascendc as ops

        q, k, v, g, beta = (x.transpose(1, 2).contiguous() for x in (q, k, v, g, beta))
        meta, cu = context.meta, context.cu
        prepared = ops.chunk_kda_fwd_prepare(
            q, k, v, g, beta, SCALE, layout="BNSD", chunk_size=64, A_log=a_log, dt_bias=dt_bias.flatten(),
            use_gate_in_kernel=True, use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True,
            use_exp2=True, backward_mode="save", **GATE, **meta,
        )  # fmt: skip
        gk, aqk, _, w, u, _, kg, qg_scaled, *_ = prepared
        hm = ops.pre_process_fwd_kernel_merged(kg, w, u, gk=gk, cu_seqlens=(cu[-2], cu[-1]))
        assert hm.shape == (1, v.shape[1], 128, 256) and hm.dtype is torch.float32
        summaries = gathered(hm[0], context.size)
        state = None
        if context.before:
            first = torch.empty(v.shape[1], 128, 128)
            same = ops.merge_fwd_bwd_kernel(
                first, summaries, context.before, context.rank, forward=True, state_v_first=False
            )
            assert same is first
            state = torch.zeros(len(cu) - 1, v.shape[1], 128, 128)
            state[0] = first
        hidden, v_new, _ = ops.chunk_fwd_h(
            kg, w, u, gk=gk, initial_state=state, output_final_state=False, use_exp2=True, **meta
        )
        out = ops.chunk_kda_fwd_finalize(qg_scaled, aqk, v_new, hidden, output_layout="BSND", **meta)
        ctx.save_for_backward(v, g, a_log, dt_bias, hidden, v_new, *prepared)
        ctx.context = context
        return out

    @staticmethod
    def backward(ctx, d_out):
        from fla_npu.ops import ascendc as ops

        v, g, a_log, dt_bias, hidden, v_new, *prepared = ctx.saved_tensors
        gk, aqk, akk, w, _, qg, kg, _, q_hat, k_hat, q_rstd, k_rstd, beta_eff = prepared
        context = ctx.context
        meta, cu, grad = context.meta, context.cu, d_out.transpose(1, 2).contiguous()
        d_aqk, dv, dq_raw = ops.chunk_kda_bwd_prepare(
            aqk[0], v_new[0], grad[0], hidden[0], scale=SCALE, layout="NTD", chunk_size=64, **meta
        )
        dhm = ops.pre_process_bwd_kernel_merged(
            qg, kg, w, grad, dv[None], SCALE, 64, gk=gk.bfloat16(), cu_seqlens=(cu[0], cu[1])
        )
        assert dhm.shape == (v.shape[1], 128, 256) and dhm.dtype is torch.float32
        summaries = gathered(dhm, context.size)
        dht = None
        if context.after:
            last = torch.empty(v.shape[1], 128, 128)
            ops.merge_fwd_bwd_kernel(last, summaries, context.after, context.rank, forward=False)
            dht = torch.zeros(len(cu) - 1, v.shape[1], 128, 128)
            dht[-1] = last
            dht = dht.bfloat16()
        dh, dh0, dv_scan = ops.chunk_gated_delta_rule_bwd_dhu(
            qg, kg, w, grad, dv[None], SCALE, 64, gK=gk, h0=None, dht=dht, use_exp2=True, **meta
        )
        assert dh0 is None
        tensors = (q_hat, k_hat, v, gk, g, beta_eff, akk, v_new, hidden, dh, dv_scan)
        q_hat, k_hat, v, gk, g, beta, akk, v_new, hidden, dh, dv_scan = (x[0] for x in tensors)
        dq, dk, dv, dbeta, dg, da_log, ddt_bias = ops.chunk_kda_bwd_finalize(
            q_hat, k_hat, v, gk, g, beta, a_log, dt_bias, akk, v_new, hidden, dh, dv_scan, d_aqk, dq_raw,
            scale=SCALE, chunk_size=64, use_gate_in_kernel=True, use_exp2=True, q_rstd=q_rstd[0],
            k_rstd=k_rstd[0], use_beta_sigmoid_in_kernel=False, output_layout="NTD", **GATE, **meta,
        )  # fmt: skip
        dbeta = dbeta * beta * (1 - beta)
        tokenwise = (x[None].transpose(1, 2) for x in (dq, dk, dv, dg, dbeta))
        return *tokenwise, da_log, ddt_bias.reshape_as(dt_bias), None


def run(rank: int, size: int, case: Case) -> dict[str, torch.Tensor]:
    """The caller's step on this rank's tokens; case.layout is BSND."""
    context = make_context(case.lengths, case.cu, rank)
    start = sum(case.lengths[:rank])
    stop = start + case.lengths[rank]
    t, (d_out, _) = inputs(case), cotangents(case)
    mine = {n: part(x, 1, start, stop) if n in "q k v g beta".split() else x for n, x in t.items()}
    leaves = {n: x.clone().requires_grad_() for n, x in mine.items()}
    out = Caller.apply(*leaves.values(), context)
    out.backward(part(d_out, 1, start, stop))
    return {"o": out.detach()} | {f"d{n}": x.grad for n, x in leaves.items()}
