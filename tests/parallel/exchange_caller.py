# SPDX-License-Identifier: Apache-2.0
"""A training framework that splits sequences over ranks by itself, with FLA-NPU's call shapes.

It keeps an interval of the packed tokens per rank, summarises the last piece of a sequence forward and the
first one backward, gathers the summaries of all ranks, merges those of its neighbours, and hands the state
on to the stages. It sends bfloat16 for gk and for the gradient of the final state, and never asks for a
merge of no ranks: those states it leaves zero.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from fla_npu.ops import ascendc
from torch import Tensor

SCALE = 128**-0.5
GATE = {"safe_gate": True, "lower_bound": -5.0}
TOKENWISE = ("q", "k", "v", "g", "beta")
ORDER = (*TOKENWISE, "a_log", "dt_bias")


@dataclass(frozen=True)
class Piece:
    """What a rank owns: tokens start to stop, and how many ranks share its first and last sequence."""

    rank: int
    start: int
    stop: int
    cu: tuple[int, ...]  # of its own pieces of sequences
    before: int  # ranks before it that hold an earlier part of its first sequence
    behind: int  # ranks behind it that hold a later part of its last one

    @property
    def meta(self) -> dict:
        if len(self.cu) == 2:
            return {}
        pairs = [(s, c) for s, (a, b) in enumerate(pairwise(self.cu)) for c in range((b - a + 63) // 64)]
        return {"cu_seqlens": self.cu, "chunk_indices": tuple(i for pair in pairs for i in pair)}


def cut(lengths: tuple[int, ...], cu: tuple[int, ...], rank: int) -> Piece:
    offsets = [0, *accumulate(lengths)]
    start, stop = offsets[rank : rank + 2]
    first = cu[bisect_right(cu, start) - 1]  # where the first sequence begins
    last = next(edge for edge in cu if edge >= stop)  # and the last one ends
    inner = tuple(edge - start for edge in cu if start < edge < stop)
    owner = bisect_right(offsets, first) - 1, bisect_right(offsets, last - 1) - 1
    return Piece(rank, start, stop, (0, *inner, stop - start), rank - owner[0], owner[1] - rank)


class Exchanged(torch.autograd.Function):
    """Tokens [1, T, H, D] of one rank in and out. `gather`: a tensor of every rank, stacked by rank."""

    @staticmethod
    def forward(ctx, q, k, v, g, beta, a_log, dt_bias, piece: Piece, gather: Callable[[Tensor], Tensor]):
        q, k, v, g, beta = (x.transpose(1, 2).contiguous() for x in (q, k, v, g, beta))
        meta = piece.meta
        prepared = ascendc.npu_chunk_kda_fwd_prepare(
            q, k, v, g, beta, SCALE, layout="BNSD", chunk_size=64, A_log=a_log, dt_bias=dt_bias.flatten(),
            use_gate_in_kernel=True, use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True,
            use_exp2=True, backward_mode="save", **GATE, **meta,
        )  # fmt: skip
        gk, aqk, _, w, u, _, kg, qg_scaled, *_ = prepared
        tail = piece.cu[-2:]
        hm = ascendc.npu_pre_process_fwd_kernel_merged(kg, w, u, gk=gk, cu_seqlens=tail)
        assert hm.dtype == torch.float32 and tuple(hm.shape) == (1, w.shape[1], 128, 256)
        ag_hm = gather(hm.squeeze(0))
        state = None
        if piece.before:
            state = torch.zeros(len(piece.cu) - 1, w.shape[1], 128, 128)
            ascendc.npu_merge_fwd_bwd_kernel(
                state[0], ag_hm, piece.before, piece.rank, forward=True, state_v_first=False
            )
        hidden, v_new, _ = ascendc.npu_chunk_fwd_h(
            kg, w, u, gk=gk, initial_state=state, output_final_state=False, use_exp2=True, **meta
        )
        out = ascendc.npu_chunk_kda_fwd_finalize(qg_scaled, aqk, v_new, hidden, output_layout="BSND", **meta)
        ctx.save_for_backward(v, g, a_log, dt_bias, hidden, v_new, *prepared)
        ctx.piece, ctx.gather = piece, gather
        return out

    @staticmethod
    def backward(ctx, d_out):
        v, g, a_log, dt_bias, hidden, v_new, *prepared = ctx.saved_tensors
        gk, aqk, akk, w, _, qg, kg, _, q_hat, k_hat, q_rstd, k_rstd, beta_eff = prepared
        piece, meta = ctx.piece, ctx.piece.meta
        packed = bool(meta)
        flat = (lambda x: x.squeeze(0)) if packed else (lambda x: x)
        layout = "NTD" if packed else "BNSD"
        grad = d_out.transpose(1, 2).contiguous()
        d_aqk, dv, dq_raw = ascendc.npu_chunk_kda_bwd_prepare(
            flat(aqk), flat(v_new), flat(grad), flat(hidden),
            scale=SCALE, layout=layout, chunk_size=64, **meta,
        )  # fmt: skip
        dv = dv.unsqueeze(0) if packed else dv
        dhm = ascendc.npu_pre_process_bwd_kernel_merged(
            qg, kg, w, grad, dv, SCALE, 64, gk=gk.to(torch.bfloat16), cu_seqlens=piece.cu[:2]
        )
        assert dhm.dtype == torch.float32 and tuple(dhm.shape) == (w.shape[1], 128, 256)
        ag_dhm = ctx.gather(dhm)
        dht = None
        if piece.behind:
            dht = torch.zeros(len(piece.cu) - 1, w.shape[1], 128, 128)
            made = ascendc.npu_merge_fwd_bwd_kernel(dht[-1], ag_dhm, piece.behind, piece.rank, forward=False)
            assert made.data_ptr() == dht[-1].data_ptr()
        dh, _, dv_scan = ascendc.npu_chunk_gated_delta_rule_bwd_dhu(
            qg, kg, w, grad, dv, SCALE, 64, gK=gk, h0=None,
            dht=None if dht is None else dht.bfloat16(), use_exp2=True, **meta,
        )  # fmt: skip
        tensors = (q_hat, k_hat, v, gk, g, beta_eff, akk, v_new, hidden, dh, dv_scan)
        q_hat, k_hat, v, gk, g, beta, akk, v_new, hidden, dh, dv_scan = map(flat, tensors)
        dq, dk, dv, dbeta, dg, da_log, ddt_bias = ascendc.npu_chunk_kda_bwd_finalize(
            q_hat, k_hat, v, gk, g, beta, a_log, dt_bias, akk, v_new, hidden, dh, dv_scan, d_aqk, dq_raw,
            scale=SCALE, chunk_size=64, use_gate_in_kernel=True, use_exp2=True, q_rstd=flat(q_rstd),
            k_rstd=flat(k_rstd), use_beta_sigmoid_in_kernel=False, output_layout=layout, **GATE, **meta,
        )  # fmt: skip
        dbeta = dbeta * beta * (1 - beta)
        back = (lambda x: x.unsqueeze(0)) if packed else (lambda x: x)
        tokenwise = (back(x).transpose(1, 2) for x in (dq, dk, dv, dg, dbeta))
        return *tokenwise, da_log, ddt_bias.reshape_as(dt_bias), None, None


def rank_part(t: dict, seed: Tensor, piece: Piece, gather) -> dict[str, Tensor]:
    """Output and gradients of one rank, from the tensors of the whole call."""
    own = slice(piece.start, piece.stop)
    leaves = {n: (x[:, own] if n in TOKENWISE else x).clone().requires_grad_() for n, x in t.items()}
    out = Exchanged.apply(*(leaves[n] for n in ORDER), piece, gather)
    out.backward(seed[:, own])
    return {"o": out.detach()} | {n: x.grad for n, x in leaves.items()}


def joined(parts: list[dict]) -> dict[str, Tensor]:
    """Tokens end to end, gradients of shared parameters summed in float32."""
    made = {n: torch.cat([p[n] for p in parts], 1) for n in ("o", *TOKENWISE)}
    return made | {n: sum(p[n].float() for p in parts) for n in ("a_log", "dt_bias")}


def in_threads(t: dict, seed: Tensor, lengths, cu) -> dict[str, Tensor]:
    """All ranks in this process."""
    size = len(lengths)
    barrier, box, parts, faults = threading.Barrier(size, timeout=60), [None] * size, [None] * size, []

    def work(rank: int) -> None:
        def gather(x: Tensor) -> Tensor:
            box[rank] = x
            barrier.wait()
            stacked = torch.stack(box)
            barrier.wait()
            return stacked

        try:
            parts[rank] = rank_part(t, seed, cut(lengths, cu, rank), gather)
        except BaseException as error:
            faults.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise next((f for f in faults if not isinstance(f, threading.BrokenBarrierError)), faults[0])
    return joined(parts)


def over_gloo(rank: int, size: int, t: dict, seed: Tensor, lengths, cu) -> dict[str, Tensor]:
    """This process's part; the others' summaries come over torch.distributed."""
    import torch.distributed as dist

    def gather(x: Tensor) -> Tensor:
        box = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(box, x.contiguous())
        return torch.stack(box)

    return rank_part(t, seed, cut(lengths, cu, rank), gather)
