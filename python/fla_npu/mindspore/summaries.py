# SPDX-License-Identifier: Apache-2.0
"""The stages that carry states from rank to rank, as MindSpore functions. Nothing here communicates.

A summary [E | M] is an affine map: what the tokens of a rank make of any state that enters. Ranks
gather theirs, and each one merges those it needs. Like the other stages these are without autograd.
"""

from __future__ import annotations

from mindspore import Tensor

from .. import chunk_kda
from .adapter import MindSporeAdapter
from .guard import python_function, refuse_jit

__all__ = ["npu_chunk_kda_merge_fwd_bwd", "npu_chunk_kda_pre_process_bwd", "npu_chunk_kda_pre_process_fwd"]

ADAPTER = MindSporeAdapter()
_SHOWN = ("state", "summaries")

# As in stages.py: `refuse_jit` is the first statement, the rest within the syntax of the graph compiler.


def npu_chunk_kda_pre_process_fwd(
    k: Tensor, w: Tensor, u: Tensor, *, gk: Tensor, cu_seqlens, chunk_size: int = 64
) -> tuple[Tensor]:
    """What windows of tokens do to a state: state after the window = M @ state before it + E.

    Args:
        k: kg of the first stage, bfloat16 [1, HK, T, 128]; HV is a multiple of HK.
        w: from the first stage, bfloat16 [1, HV, T, 128].
        u: from the first stage, bfloat16 or float32 [1, HV, T, 128].
        gk: from the first stage with use_exp2, float32 or bfloat16 [1, HV, T, 128].
        cu_seqlens: edges of the windows in tokens of these tensors, strictly increasing, the first 0 or
            more, the last T or less. The chunks of a window begin at its edge.

    Returns:
        (summaries,): float32 [N, HV, K, V + K], N windows; E in columns 0 to V - 1, M in the rest.

    Raises:
        As npu_chunk_kda_fwd_prepare.
    """
    refuse_jit(python_function, "npu_chunk_kda_pre_process_fwd")
    made = chunk_kda.summarize(
        ADAPTER,
        k,
        w,
        u,
        gk=gk,
        cu_seqlens=cu_seqlens,
        chunk_size=chunk_size,
        label="npu_chunk_kda_pre_process_fwd",
    )
    return (made,)


def npu_chunk_kda_pre_process_bwd(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    d_o: Tensor,
    dv: Tensor,
    scale: float,
    chunk_size: int = 64,
    *,
    gk: Tensor,
    cu_seqlens=None,
) -> Tensor:
    """What a window of tokens does to the gradient of a state: before it = M @ after it + E.

    Args:
        q, k: qg (without scale) and kg of the first forward stage, bfloat16 [1, HK, T, 128].
        w: from the first forward stage, bfloat16 [1, HV, T, 128].
        d_o: gradient of attn_out, head-major, bfloat16 [1, HV, T, 128].
        dv: dv_local of the first backward stage, bfloat16 [1, HV, T, 128].
        scale: the scale of the first forward stage.
        gk: from the first forward stage with use_exp2, float32 or bfloat16; None is no decay.
        cu_seqlens: the window is [cu_seqlens[0], cu_seqlens[1]); further entries do not count. None is
            all of T.

    Returns:
        float32 [HV, K, V + K]: E in columns 0 to V - 1, M in the rest, a left multiplier as it stands.

    Raises:
        As npu_chunk_kda_fwd_prepare.
    """
    refuse_jit(python_function, "npu_chunk_kda_pre_process_bwd")
    return chunk_kda.summarize_backward(
        ADAPTER,
        q,
        k,
        w,
        d_o,
        dv,
        scale=scale,
        chunk_size=chunk_size,
        gk=gk,
        cu_seqlens=cu_seqlens,
        label="npu_chunk_kda_pre_process_bwd",
    )


def npu_chunk_kda_merge_fwd_bwd(
    state: Tensor,
    summaries: Tensor,
    pre_or_post_num_ranks: int,
    rank: int,
    *,
    forward: bool = True,
    state_v_first: bool = False,
) -> Tensor:
    """The summaries of several ranks, one after another, onto a state of zeros; `state` is overwritten.

    Args:
        state: float32 or bfloat16 [HV, K, V], no view into another tensor; what it holds is not read.
        summaries: [S, HV, K, V + K] in the dtype of state, those of every rank. S up to 1024, HV up
            to 256.
        pre_or_post_num_ranks: N: ranks rank - N to rank - 1 in this order (forward), or rank + N to
            rank + 1. All of them must be there; 0 makes zeros. A rank alone (S = 1) may pass 1.
        rank: 0 to S - 1.
        forward: which of the two.
        state_v_first: store the result as [HV, V, K].

    Returns:
        `state` itself: the state that enters `rank`, or the gradient that enters it from behind.

    Raises:
        As npu_chunk_kda_fwd_prepare.
    """
    refuse_jit(python_function, "npu_chunk_kda_merge_fwd_bwd")
    return chunk_kda.merge(
        ADAPTER,
        state,
        summaries,
        pre_or_post_num_ranks,
        rank,
        forward=forward,
        state_v_first=state_v_first,
        shown=_SHOWN,
        label="npu_chunk_kda_merge_fwd_bwd",
    )
