# SPDX-License-Identifier: Apache-2.0
"""The operators of Chunk KDA on PyTorch tensors, under their FLA-NPU names.

Six stages, two aggregates, and three operators that carry states from rank to rank.

Each function is exported twice, as `name` and `npu_name`. They launch one kernel each, compute on
the tensors' device (CPU: the twin) and have no autograd: outputs are detached, also when an input
requires grad. Inputs may be views with any strides; outputs are dense. merge_fwd_bwd_kernel writes
its first argument; none of the others writes an input.

Errors, all raised before the launch: ArgumentTypeError (a TypeError) for a wrong type or dtype,
ArgumentError (a ValueError) for a wrong value, shape or combination; then OppNotFound or
SymbolMissing when the operator cannot be reached, TwinFault and LaunchError when it fails.

Letters: B batch, T tokens, HK key heads, HV value heads, K = V = 128, N sequences (B, or
len(cu_seqlens) - 1), NT chunks of 64 tokens (of all sequences when packed).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import chunk_kda
from ..checks.common import one_of
from .frontends import adapter_of
from .summaries import merge_fwd_bwd_kernel, pre_process_bwd_kernel_merged, pre_process_fwd_kernel_merged

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "chunk_fwd_h",
    "chunk_gated_delta_rule_bwd_dhu",
    "chunk_kda_bwd",
    "chunk_kda_bwd_finalize",
    "chunk_kda_bwd_prepare",
    "chunk_kda_fwd",
    "chunk_kda_fwd_finalize",
    "chunk_kda_fwd_prepare",
    "merge_fwd_bwd_kernel",
    "npu_chunk_fwd_h",
    "npu_chunk_gated_delta_rule_bwd_dhu",
    "npu_chunk_kda_bwd",
    "npu_chunk_kda_bwd_finalize",
    "npu_chunk_kda_bwd_prepare",
    "npu_chunk_kda_fwd",
    "npu_chunk_kda_fwd_finalize",
    "npu_chunk_kda_fwd_prepare",
    "npu_merge_fwd_bwd_kernel",
    "npu_pre_process_bwd_kernel_merged",
    "npu_pre_process_fwd_kernel_merged",
    "pre_process_bwd_kernel_merged",
    "pre_process_fwd_kernel_merged",
]


def chunk_kda_fwd_prepare(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    chunk_size: int = 64,
    *,
    layout: str = "BSND",
    cu_seqlens: Sequence[int] | Tensor | None = None,
    chunk_indices: Sequence[int] | Tensor | None = None,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    epsilon: float = 1e-6,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    use_exp2: bool = True,
    backward_mode: str = "save",
) -> tuple[Tensor | None, ...]:
    """Gate, norms, chunk scores and WY operands, chunk by chunk.

    Args:
        q, k: bfloat16, `[B,T,HK,128]` for BSND, `[B,HK,T,128]` BNSD, `[T,HK,128]` TND,
            `[HK,T,128]` NTD.
        v: bfloat16, as q with HV heads; HV is a multiple of HK.
        g: float32 or bfloat16, as v: raw gate input with `use_gate_in_kernel`, else the
            natural-log decay of the step.
        beta: float32 or bfloat16, as v without the last axis.
        scale: any finite float; inside Aqk and qg_scaled.
        chunk_size: 64.
        cu_seqlens: host offsets of packed sequences (needs B = 1), first 0, last T, not
            decreasing; list, tuple, or 1-D CPU integer tensor.
        chunk_indices: canonical (sequence, chunk) pairs, flat or `[NC, 2]`; made when left out.
        safe_gate: lower_bound * sigmoid(exp(A_log) * (g + dt_bias)); otherwise
            -exp(A_log) * softplus(g + dt_bias). Both need `use_gate_in_kernel`.
        lower_bound: in [-5, 0); None is -5.
        A_log: `[HV]`, float32 or bfloat16 (widened to float32).
        dt_bias: `[HV, 128]` or flat, float32 or bfloat16 (widened to float32); None is zero.
        epsilon: added to the squared row norms of q and k, a normal float32 above 0.
        allow_neg_eigval: beta is 2 * sigmoid; needs `use_beta_sigmoid_in_kernel`.
        use_exp2: gk in powers of 2 (True) or of e (False).
        backward_mode: which slots are produced; 'none' 0 1 3 4 6 7, 'forward' + 2,
            'recompute' + 2 8..12, 'save' all.

    Returns:
        13 slots, head-major for every layout (`[B,H,T,D]`, or `[H,T,D]` for TND and NTD), None
        where not produced: gk (float32), Aqk, Akk (`[...,64]`), w, u, qg, kg, qg_scaled, q_hat,
        k_hat (bfloat16), q_rstd, k_rstd, beta_eff (float32, without the last axis).

    Source: ascendc/ops/chunk_kda_fwd_prepare; aclnnChunkKdaFwdPrepare.
    """
    adapter = adapter_of("chunk_kda_fwd_prepare", "q", q)
    return chunk_kda.prepare(
        adapter, q, k, v, g, beta,
        scale=scale, chunk_size=chunk_size, layout=layout, cu_seqlens=cu_seqlens,
        chunk_indices=chunk_indices, safe_gate=safe_gate, lower_bound=lower_bound,
        use_gate_in_kernel=use_gate_in_kernel, a_log=A_log, dt_bias=dt_bias, epsilon=epsilon,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval, use_exp2=use_exp2, backward_mode=backward_mode,
    )  # fmt: skip


def chunk_fwd_h(
    k: Tensor,
    w: Tensor,
    u: Tensor,
    *,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    chunk_size: int = 64,
    save_new_value: bool = True,
    cu_seqlens: Sequence[int] | Tensor | None = None,
    chunk_indices: Sequence[int] | Tensor | None = None,
    use_exp2: bool = False,
    state_v_first: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """State recurrence over the chunks of each sequence.

    Args:
        k: bfloat16 `[B,HV,T,128]`: the prepared kg. Packed input is `[1,HV,T,128]` + cu_seqlens.
        w, u: bfloat16 `[B,HV,T,128]`, from prepare.
        g: not accepted (the scalar gate belongs to the gated delta rule); pass gk.
        gk: float32 or bfloat16 `[B,HV,T,128]`: cumulative decay inside the chunk.
        initial_state: float32 or bfloat16 `[N,HV,K,V]`; zeros when None.
        output_final_state: also return the state after each sequence.
        save_new_value: True; v_new is always written.
        use_exp2: base of gk; note the default False, Chunk KDA passes True.
        state_v_first: h and the states have V before K.
        chunk_size, cu_seqlens, chunk_indices: as chunk_kda_fwd_prepare.

    Returns:
        h bfloat16 `[B,NT,HV,K,V]` (state on entry of each chunk), v_new bfloat16 `[B,HV,T,V]`,
        final_state `[N,HV,K,V]` in the dtype of initial_state (float32 without one) or None.

    Source: ascendc/ops/chunk_fwd_h; aclnnChunkFwdH.
    """
    adapter = adapter_of("chunk_fwd_h", "k", k)
    return chunk_kda.fwd_h(
        adapter, k, w, u,
        g=g, gk=gk, initial_state=initial_state, output_final_state=output_final_state,
        chunk_size=chunk_size, save_new_value=save_new_value, cu_seqlens=cu_seqlens,
        chunk_indices=chunk_indices, use_exp2=use_exp2, state_v_first=state_v_first,
    )  # fmt: skip


def chunk_kda_fwd_finalize(
    qg_scaled: Tensor,
    aqk: Tensor,
    v_new: Tensor,
    h: Tensor,
    *,
    output_layout: str = "BSND",
    state_v_first: bool = False,
    cu_seqlens: Sequence[int] | Tensor | None = None,
    chunk_indices: Sequence[int] | Tensor | None = None,
) -> Tensor:
    """Attention output of every chunk: qg_scaled @ h + tril(aqk) @ v_new.

    Args:
        qg_scaled, v_new: bfloat16, head-major `[B,HV,T,128]`; `[HV,T,128]` for TND and NTD
            (v_new also `[1,HV,T,128]`).
        aqk: bfloat16 `[B,HV,T,64]` or `[HV,T,64]`.
        h: bfloat16 `[B,NT,HV,K,V]`, `[1,NT,HV,K,V]` when packed or rank-3.
        output_layout: BSND or BNSD with rank-4 inputs, TND or NTD with rank-3 ones.
        state_v_first: h has V before K.
        cu_seqlens, chunk_indices: as chunk_kda_fwd_prepare.

    Returns:
        attn_out bfloat16 in `output_layout`. The scale is already inside qg_scaled and aqk.

    Source: ascendc/ops/chunk_kda_fwd_finalize; aclnnChunkKdaFwdFinalize.
    """
    adapter = adapter_of("chunk_kda_fwd_finalize", "qg_scaled", qg_scaled)
    return chunk_kda.finalize(
        adapter, qg_scaled, aqk, v_new, h,
        output_layout=output_layout, state_v_first=state_v_first, cu_seqlens=cu_seqlens,
        chunk_indices=chunk_indices,
    )  # fmt: skip


def chunk_kda_bwd_prepare(
    aqk: Tensor,
    v_new: Tensor,
    d_o: Tensor,
    h: Tensor,
    *,
    scale: float,
    layout: str = "BNSD",
    chunk_size: int = 64,
    state_v_first: bool = False,
    cu_seqlens: Sequence[int] | Tensor | None = None,
    chunk_indices: Sequence[int] | Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the attention output of every chunk.

    Args:
        aqk: bfloat16 `[B,HV,T,64]` for BNSD, `[HV,T,64]` for NTD, from prepare; only the causal part of
            each chunk is read.
        v_new, d_o: bfloat16 `[B,HV,T,128]` or `[HV,T,128]`.
        h: bfloat16 `[B,NT,HV,K,V]` or `[NT,HV,K,V]`.
        scale: the scale of prepare.
        layout: BNSD, also with cu_seqlens (then B = 1), or NTD.
        state_v_first: h has V before K.
        chunk_size, cu_seqlens, chunk_indices: as chunk_kda_fwd_prepare.

    Returns:
        dAqk float32 like aqk, scale * tril(d_o @ v_new^T), zero elsewhere; dv_local bfloat16 like
        v_new, tril(aqk)^T @ d_o; dq_raw float32 like d_o, d_o @ h^T.

    Source: ascendc/ops/chunk_kda_bwd_prepare; aclnnChunkKdaBwdPrepare.
    """
    adapter = adapter_of("chunk_kda_bwd_prepare", "aqk", aqk)
    return chunk_kda.backward_prepare(
        adapter, aqk, v_new, d_o, h,
        scale=scale, layout=layout, chunk_size=chunk_size, state_v_first=state_v_first,
        cu_seqlens=cu_seqlens, chunk_indices=chunk_indices,
    )  # fmt: skip


def chunk_gated_delta_rule_bwd_dhu(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    d_o: Tensor,
    dv: Tensor,
    scale: float,
    chunk_size: int,
    *,
    g: Tensor | None = None,
    gK: Tensor | None = None,
    h0: Tensor | None = None,
    dht: Tensor | None = None,
    cu_seqlens: Sequence[int] | Tensor | None = None,
    chunk_indices: Sequence[int] | Tensor | None = None,
    use_exp2: bool = False,
    transpose_state_layout: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """State recurrence over the chunks of each sequence, backwards.

    Args:
        q, k, w: bfloat16 `[B,HV,T,128]`: qg (without scale), kg and w of prepare. Packed input is
            `[1,HV,T,128]` + cu_seqlens.
        d_o: bfloat16 `[B,HV,T,128]`, gradient of the attention output.
        dv: bfloat16 `[B,HV,T,128]`, dv_local of chunk_kda_bwd_prepare.
        scale: the scale of prepare.
        g: not accepted (the scalar gate belongs to the gated delta rule); pass gK.
        gK: float32 or bfloat16 `[B,HV,T,128]`: cumulative decay inside the chunk, gk of prepare.
        h0: float32 or bfloat16 `[N,HV,K,V]`: asks for dh0; its values are not read.
        dht: float32 or bfloat16 `[N,HV,K,V]`, gradient of the final state; zeros when None.
        use_exp2: base of gK; note the default False, Chunk KDA passes True.
        transpose_state_layout: h0, dht and dh0 have V before K.
        chunk_size, cu_seqlens, chunk_indices: as chunk_kda_fwd_prepare.

    Returns:
        dh bfloat16 `[B,NT,HV,K,V]`, gradient of the state on exit of each chunk, K before V always;
        dh0 like h0 (None without it); dv_scan bfloat16 `[B,HV,T,V]`, gradient of v_new.

    Source: ascendc/ops/chunk_gated_delta_rule_bwd_dhu; aclnnChunkGatedDeltaRuleBwdDhu.
    """
    adapter = adapter_of("chunk_gated_delta_rule_bwd_dhu", "q", q)
    return chunk_kda.dhu(
        adapter, q, k, w, d_o, dv,
        scale=scale, chunk_size=chunk_size, g=g, gk=gK, h0=h0, dht=dht, cu_seqlens=cu_seqlens,
        chunk_indices=chunk_indices, use_exp2=use_exp2, state_v_first=transpose_state_layout,
        gk_name="gK", state_flag="transpose_state_layout",
    )  # fmt: skip


def chunk_kda_bwd_finalize(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gk: Tensor,
    raw_g: Tensor,
    beta: Tensor,
    a_log: Tensor | None,
    dt_bias: Tensor | None,
    akk: Tensor,
    v_new: Tensor,
    h: Tensor,
    dh: Tensor,
    dv_scan: Tensor,
    d_aqk: Tensor,
    dq_raw: Tensor,
    *,
    scale: float,
    lower_bound: float | None = -5.0,
    chunk_size: int = 64,
    safe_gate: bool = True,
    use_gate_in_kernel: bool = True,
    use_exp2: bool = True,
    state_v_first: bool = False,
    q_rstd: Tensor | None = None,
    k_rstd: Tensor | None = None,
    cu_seqlens: Sequence[int] | Tensor | None = None,
    chunk_indices: Sequence[int] | Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    output_layout: str = "BNSD",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of what prepare read, from the gradients that the two other backward stages made.

    Args:
        q, k: bfloat16 `[B,HK,T,128]` (`[HK,T,128]` for NTD and TND): q_hat and k_hat of prepare.
        v: bfloat16 `[B,HV,T,128]`, HV a multiple of HK; the other tensors have HV heads, too.
        gk: float32, gk of prepare. Only its shape matters: decays are made again from raw_g.
        raw_g: float32 or bfloat16, g of prepare.
        beta: float32 or bfloat16 `[B,HV,T]`: beta_eff of prepare; the logit with
            use_beta_sigmoid_in_kernel.
        a_log: `[HV]`, float32 or bfloat16; dt_bias: `[HV,128]` or flat, float32 or bfloat16 (widened).
            None without the gate in the kernel; dt_bias may be None with it, too.
        akk: bfloat16 `[B,HV,T,64]`, from prepare.
        v_new, h: bfloat16, from chunk_fwd_h; v_new also `[2,B,HV,T,128]`, the sum of two planes.
        dh, dv_scan: bfloat16, from chunk_gated_delta_rule_bwd_dhu. h and dh are `[B,NT,HV,128,128]`, or
            `[NT,HV,128,128]` with rank-3 tokens.
        d_aqk, dq_raw: float32, from chunk_kda_bwd_prepare.
        scale, lower_bound, safe_gate, use_gate_in_kernel, use_exp2: as in prepare.
        state_v_first: h has V before K; dh never has.
        q_rstd, k_rstd: float32 `[B,HK,T]`, from prepare: dq and dk are then those of the q and k before
            the norm. Both or neither.
        allow_neg_eigval: beta is 2 * sigmoid; needs use_beta_sigmoid_in_kernel.
        output_layout: BNSD or BSND with rank-4 inputs, NTD or TND with rank-3 ones.
        chunk_size, cu_seqlens, chunk_indices: as chunk_kda_fwd_prepare.

    Returns:
        dq, dk (summed over the value heads of a key head), dv bfloat16; dbeta in the dtype of beta; dg
        float32, all in output_layout; dA_log float32 `[HV]` and ddt_bias float32 in the shape of dt_bias,
        None without the gate in the kernel or without dt_bias.

    Source: ascendc/ops/chunk_kda_bwd_finalize; aclnnChunkKdaBwdFinalize.
    """
    adapter = adapter_of("chunk_kda_bwd_finalize", "q", q)
    return chunk_kda.backward_finalize(
        adapter, q, k, v, gk, raw_g, beta, a_log, dt_bias, akk, v_new, h, dh, dv_scan, d_aqk, dq_raw,
        scale=scale, lower_bound=lower_bound, chunk_size=chunk_size, safe_gate=safe_gate,
        use_gate_in_kernel=use_gate_in_kernel, use_exp2=use_exp2, state_v_first=state_v_first, q_rstd=q_rstd,
        k_rstd=k_rstd, cu_seqlens=cu_seqlens, chunk_indices=chunk_indices,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel, allow_neg_eigval=allow_neg_eigval,
        output_layout=output_layout,
    )  # fmt: skip


def chunk_kda_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    chunk_size: int = 64,
    *,
    layout: str = "BSND",
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Sequence[int] | Tensor | None = None,
    chunk_indices: Sequence[int] | Tensor | None = None,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    epsilon: float = 1e-6,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    use_exp2: bool = True,
    q_hat_out: Tensor | None = None,
    k_hat_out: Tensor | None = None,
    q_rstd_out: Tensor | None = None,
    k_rstd_out: Tensor | None = None,
    beta_eff_out: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """Chunk KDA forward in one launch; without autograd (fla_npu.torch.npu_chunk_kda has it).

    Args:
        q, k, v, g, beta, scale, and the options that chunk_kda_fwd_prepare has: see there.
        initial_state, output_final_state, state_v_first: as chunk_fwd_h.
        disable_recompute: also return what chunk_kda_bwd would have to make again.
        return_intermediate_states: also return h.
        q_hat_out, k_hat_out, q_rstd_out, k_rstd_out, beta_eff_out: tensors to be written with these
            outputs of chunk_kda_fwd_prepare, in its shapes.

    Returns:
        (attn_out, final_state, gk, Aqk, Akk, w, u, qg, kg, v_new, h, initial_state). attn_out bfloat16,
        token-major for every layout; final_state float32 or None; gk None with the gate in the kernel and
        without disable_recompute; w, u, qg, kg, v_new None without disable_recompute; h, `[B,NT,HV,K,V]` or
        `[NT,HV,K,V]`, None without it and return_intermediate_states; initial_state as it was given.

    Source: ascendc/ops/chunk_kda_fwd_v2; aclnnChunkKdaFwdV2.
    """
    given = {
        "q_hat": q_hat_out, "k_hat": k_hat_out, "q_rstd": q_rstd_out, "k_rstd": k_rstd_out,
        "beta_eff": beta_eff_out,
    }  # fmt: skip
    wanted = ["akk", *(name for name, out in given.items() if out is not None)]
    wanted += ["final_state"] if output_final_state else []
    wanted += ["gk"] if disable_recompute or not use_gate_in_kernel else []
    wanted += ["w", "u", "qg", "kg", "v_new"] if disable_recompute else []
    wanted += ["h"] if disable_recompute or return_intermediate_states else []
    made = chunk_kda.whole_forward(
        adapter_of("chunk_kda_fwd", "q", q),
        {
            "q": q, "k": k, "v": v, "g": g, "beta": beta, "a_log": A_log, "dt_bias": dt_bias,
            "initial_state": initial_state,
        },
        wanted=tuple(wanted), scale=scale, chunk_size=chunk_size, layout=layout, cu_seqlens=cu_seqlens,
        chunk_indices=chunk_indices, safe_gate=safe_gate, lower_bound=lower_bound,
        use_gate_in_kernel=use_gate_in_kernel, state_v_first=state_v_first, epsilon=epsilon,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel, allow_neg_eigval=allow_neg_eigval,
        use_exp2=use_exp2,
    )  # fmt: skip
    for name, out in given.items():
        if out is not None:
            out.copy_(made[name])
    names = ("attn_out", "final_state", "gk", "aqk", "akk", "w", "u", "qg", "kg", "v_new", "h")
    return *(made.get(name) for name in names), initial_state


def chunk_kda_bwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    gk: Tensor | None,
    Aqk: Tensor | None,
    Akk: Tensor | None,
    w: Tensor | None,
    qg: Tensor | None,
    kg: Tensor | None,
    v_new: Tensor | None,
    h: Tensor | None,
    d_o: Tensor,
    scale: float,
    *,
    raw_g: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    dht: Tensor | None = None,
    cu_seqlens: Sequence[int] | Tensor | None = None,
    chunk_indices: Sequence[int] | Tensor | None = None,
    chunk_size: int = 64,
    safe_gate: bool = True,
    lower_bound: float | None = -5.0,
    use_gate_in_kernel: bool = False,
    disable_recompute: bool = True,
    use_exp2: bool = True,
    state_v_first: bool = False,
    implementation: str = "auto",
    q_rstd: Tensor | None = None,
    k_rstd: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """Chunk KDA backward in one launch.

    Args:
        q, k: bfloat16, head-major (as all tensors here): q_hat and k_hat of the forward.
        v, raw_g: as the forward took them, head-major; raw_g is always needed.
        beta: beta_eff of the forward, float32 (or bfloat16 where V2 runs).
        gk, Aqk, Akk, w, qg, kg, v_new, h: from the forward; the last five None without
            disable_recompute, and the first three are not read then.
        d_o: bfloat16 `[B,HV,T,128]` or `[HV,T,128]`.
        A_log, dt_bias, safe_gate, lower_bound: with use_gate_in_kernel, as in the forward.
        initial_state, dht: float32 or bfloat16 `[N,HV,K,V]` (`[N,HV,V,K]` with state_v_first).
        implementation: 'legacy' (V1), 'optimized' (V2), or 'auto': V2 when the rstds are given or there is
            something to recompute.
        q_rstd, k_rstd: float32, from the forward: dq and dk are then those of the q and k before the norm.

    Returns:
        (dq, dk, dv, db, dg, dh0, dA, dbias). V1: dq, dk, db float32; V2: dq, dk bfloat16, db in the dtype of
        beta. dv bfloat16, dg float32; dh0 like initial_state, None without it; dA float32 `[HV]` and dbias
        float32 like dt_bias, None without the gate in the kernel or without dt_bias.

    Source: ascendc/ops/chunk_kda_bwd, chunk_kda_bwd_v2; aclnnChunkKdaBwd, aclnnChunkKdaBwdV2.
    """
    one_of("chunk_kda_bwd", "implementation", implementation, ("auto", "legacy", "optimized"))
    normalised = q_rstd is not None or k_rstd is not None
    if implementation == "auto":
        implementation = "optimized" if normalised or not disable_recompute else "legacy"
    tensors = {
        "q": q, "k": k, "v": v, "beta": beta, "gk": gk, "aqk": Aqk, "akk": Akk, "w": w, "qg": qg, "kg": kg,
        "v_new": v_new, "h": h, "d_o": d_o, "raw_g": raw_g, "a_log": A_log, "dt_bias": dt_bias,
        "initial_state": initial_state, "dht": dht, "q_rstd": q_rstd, "k_rstd": k_rstd,
    }  # fmt: skip
    return chunk_kda.whole_backward(
        adapter_of("chunk_kda_bwd", "q", q), tensors,
        implementation=implementation, scale=scale, chunk_size=chunk_size, safe_gate=safe_gate,
        lower_bound=lower_bound, use_gate_in_kernel=use_gate_in_kernel, disable_recompute=disable_recompute,
        use_exp2=use_exp2, state_v_first=state_v_first, cu_seqlens=cu_seqlens, chunk_indices=chunk_indices,
    )  # fmt: skip


npu_chunk_kda_fwd = chunk_kda_fwd
npu_chunk_kda_bwd = chunk_kda_bwd
npu_chunk_kda_fwd_prepare = chunk_kda_fwd_prepare
npu_chunk_fwd_h = chunk_fwd_h
npu_chunk_kda_fwd_finalize = chunk_kda_fwd_finalize
npu_chunk_kda_bwd_prepare = chunk_kda_bwd_prepare
npu_chunk_gated_delta_rule_bwd_dhu = chunk_gated_delta_rule_bwd_dhu
npu_chunk_kda_bwd_finalize = chunk_kda_bwd_finalize
npu_pre_process_fwd_kernel_merged = pre_process_fwd_kernel_merged
npu_pre_process_bwd_kernel_merged = pre_process_bwd_kernel_merged
npu_merge_fwd_bwd_kernel = merge_fwd_bwd_kernel
