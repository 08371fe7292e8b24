# SPDX-License-Identifier: Apache-2.0
"""The operators that carry states from rank to rank; part of `fla_npu.ops.ascendc`, see there.

A summary [E | M] is an affine map: what the tokens of a rank make of any state that enters. Ranks
gather theirs, and each one merges those it needs. Nothing here communicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import chunk_kda
from .frontends import adapter_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["merge_fwd_bwd_kernel", "pre_process_bwd_kernel_merged", "pre_process_fwd_kernel_merged"]


def pre_process_fwd_kernel_merged(
    k: Tensor,
    w: Tensor,
    u: Tensor,
    g: Tensor | None = None,
    *,
    gk: Tensor | None = None,
    bg: Tensor | None = None,
    v: Tensor | None = None,
    cu_seqlens: Sequence[int] | Tensor | None = None,
    chunk_size: int = 64,
) -> Tensor:
    """What windows of tokens do to a state: state after the window = M @ state before it + E.

    Args:
        k: bfloat16 `[1,HK,T,128]`: the prepared kg; HV is a multiple of HK.
        w: bfloat16 `[1,HV,T,128]`, from prepare.
        u: bfloat16 or float32 `[1,HV,T,128]`, from prepare.
        g: not accepted (the scalar gate belongs to the gated delta rule); pass gk.
        gk: float32 or bfloat16 `[1,HV,T,128]`: cumulative decay inside the chunk, in powers of 2.
        bg, v: not accepted (NotServed, a NotImplementedError).
        cu_seqlens: required: edges of the windows in tokens of these tensors, strictly increasing, the
            first 0 or more, the last T or less. The chunks of a window begin at its edge, so it must be
            the first token of a sequence of prepare.
        chunk_size: 64.

    Returns:
        hm float32 `[N,HV,K,V+K]`, N windows: E in columns 0 to V - 1, M in the rest.

    Source: ascendc/ops/pre_process_fwd_kernel_merged; aclnnPreProcessFwdKernelMerged.
    """
    adapter = adapter_of("pre_process_fwd_kernel_merged", "k", k)
    return chunk_kda.summarize(
        adapter, k, w, u, g=g, gk=gk, bg=bg, v=v, cu_seqlens=cu_seqlens, chunk_size=chunk_size
    )


def pre_process_bwd_kernel_merged(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    d_o: Tensor,
    dv: Tensor,
    scale: float,
    chunk_size: int,
    *,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    cu_seqlens: Sequence[int] | Tensor | None = None,
) -> Tensor:
    """What a window of tokens does to the gradient of a state: before it = M @ after it + E.

    Args:
        q, k: bfloat16 `[1,HK,T,128]`: qg (without scale) and kg of prepare; HV is a multiple of HK.
        w: bfloat16 `[1,HV,T,128]`, from prepare.
        d_o: bfloat16 `[1,HV,T,128]`, gradient of the attention output.
        dv: bfloat16 `[1,HV,T,128]`, dv_local of chunk_kda_bwd_prepare.
        scale: the scale of prepare.
        chunk_size: 64.
        g: not accepted (the scalar gate belongs to the gated delta rule); pass gk.
        gk: float32 or bfloat16 `[1,HV,T,128]`: cumulative decay inside the chunk, in powers of 2; None is
            no decay.
        cu_seqlens: the window is [cu_seqlens[0], cu_seqlens[1]); further entries do not count. None is all
            of T.

    Returns:
        dhm float32 `[HV,K,V+K]`: E in columns 0 to V - 1, M in the rest, a left multiplier as it stands.

    Source: ascendc/ops/pre_process_bwd_kernel_merged; aclnnPreProcessBwdKernelMerged.
    """
    adapter = adapter_of("pre_process_bwd_kernel_merged", "q", q)
    return chunk_kda.summarize_backward(
        adapter, q, k, w, d_o, dv, scale=scale, chunk_size=chunk_size, g=g, gk=gk, cu_seqlens=cu_seqlens
    )


def merge_fwd_bwd_kernel(
    h: Tensor,
    ag_hm: Tensor,
    pre_or_post_num_ranks: int,
    rank: int,
    *,
    forward: bool = True,
    state_v_first: bool = False,
) -> Tensor:
    """The summaries of several ranks, one after another, onto a state of zeros; h is overwritten.

    Args:
        h: float32 or bfloat16 `[HV,K,V]`, contiguous, without requires_grad (GradientUnavailable, a
            RuntimeError); what it holds is not read.
        ag_hm: `[S,HV,K,V+K]` in the dtype of h: hm or dhm of every rank. S up to 1024, HV up to 256.
        pre_or_post_num_ranks: N: ranks rank - N to rank - 1 in this order (forward), or rank + N to
            rank + 1. All of them must be there; 0 makes zeros. A rank alone (S = 1) may pass 1.
        rank: 0 to S - 1.
        forward: which of the two.
        state_v_first: store the result as `[HV,V,K]`.

    Returns:
        h itself: the state that enters `rank`, or the gradient that enters it from behind.

    Source: ascendc/ops/merge_fwd_bwd_kernel; aclnnMergeFwdBwdKernel.
    """
    adapter = adapter_of("merge_fwd_bwd_kernel", "h", h)
    return chunk_kda.merge(
        adapter, h, ag_hm, pre_or_post_num_ranks, rank, forward=forward, state_v_first=state_v_first
    )
