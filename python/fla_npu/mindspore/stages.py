# SPDX-License-Identifier: Apache-2.0
"""The stages of Chunk KDA as MindSpore functions: three forward, three backward.

Tensors are MindSpore tensors or Parameters, on the CPU (the twin) or on an Ascend device. Every
function validates first (`fla_npu.checks`, the same rules and words as the PyTorch front end) and
then queues one launch; nothing waits for a result.

They are local tensor functions without autograd: their outputs are constants to `mindspore.grad`.
Who communicates between stages composes forward and backward from them; everybody else calls
npu_chunk_kda, which is differentiable.
"""

from __future__ import annotations

from mindspore import Tensor

from .. import chunk_kda
from .adapter import MindSporeAdapter, plain_all
from .guard import python_function, refuse_jit

__all__ = [
    "npu_chunk_kda_bwd_dhu",
    "npu_chunk_kda_bwd_finalize",
    "npu_chunk_kda_bwd_prepare",
    "npu_chunk_kda_fwd_finalize",
    "npu_chunk_kda_fwd_h",
    "npu_chunk_kda_fwd_prepare",
]

ADAPTER = MindSporeAdapter()

# The graph compiler parses the bodies of these functions: `refuse_jit` must be their first statement,
# and what follows must stay within the syntax it knows (no try, with, lambda or comprehension).


def npu_chunk_kda_fwd_prepare(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    chunk_size: int = 64,
    *,
    layout: str = "BNSD",
    a_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    cu_seqlens=None,
    chunk_indices=None,
    epsilon: float = 1e-6,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float = -5.0,
    use_exp2: bool = True,
    backward_mode: str = "save",
) -> tuple:
    """First stage: gate, norms, scores inside each chunk of 64 rows, and the WY operands.

    Args:
        q, k: bfloat16, [B, HK, T, 128] (BNSD), [B, T, HK, 128] (BSND), [HK, T, 128] (NTD) or
            [T, HK, 128] (TND).
        v: bfloat16, HV value heads in the same layout; HV is a multiple of HK.
        g: float32 or bfloat16, as v: the raw gate, or with use_gate_in_kernel=False the natural-log
            decay step itself (0 or below).
        beta: float32 or bfloat16, as v without its last axis.
        scale: factor on q, usually 128 ** -0.5.
        a_log: float32 [HV]; required with use_gate_in_kernel, else None.
        dt_bias: float32 [HV, 128] or [HV * 128], or None.
        cu_seqlens: offsets of packed sequences on the host (list, tuple, 1-D integer tensor), first 0,
            last T; rank-4 layouts then need B = 1.
        chunk_indices: flat (sequence, chunk) pairs in canonical order, or None.
        safe_gate: lower_bound * sigmoid(exp(a_log) * (g + dt_bias)) in place of
            -exp(a_log) * softplus(g + dt_bias).
        use_exp2: gk in powers of 2 (True) or of e.
        backward_mode: 'none', 'forward', 'recompute' or 'save': which outputs are made.

    Returns:
        (gk, aqk, akk, w, u, qg, kg, qg_scaled, q_hat, k_hat, q_rstd, k_rstd, beta_eff), head-major
        whatever the layout, None in the slots that backward_mode leaves out.

    Raises:
        ArgumentError, ArgumentTypeError: before anything is launched; SymbolMissing: the OPP lacks
        the operator. A failure inside the kernel arrives at the call after
        `mindspore.runtime.launch_blocking()`, otherwise as RuntimeError at the next synchronisation.
    """
    refuse_jit(python_function, "npu_chunk_kda_fwd_prepare")
    return chunk_kda.prepare(
        ADAPTER,
        q,
        k,
        v,
        g,
        beta,
        a_log=a_log,
        dt_bias=dt_bias,
        scale=scale,
        chunk_size=chunk_size,
        layout=layout,
        cu_seqlens=cu_seqlens,
        chunk_indices=chunk_indices,
        epsilon=epsilon,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_gate_in_kernel=use_gate_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        safe_gate=safe_gate,
        lower_bound=lower_bound,
        use_exp2=use_exp2,
        backward_mode=backward_mode,
        label="npu_chunk_kda_fwd_prepare",
    )


def npu_chunk_kda_fwd_h(
    k: Tensor,
    w: Tensor,
    u: Tensor,
    *,
    gk: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    chunk_size: int = 64,
    cu_seqlens=None,
    chunk_indices=None,
    use_exp2: bool = True,
    state_v_first: bool = False,
) -> tuple:
    """Second stage: the state recurrence over chunks.

    Args:
        k: kg of the first stage, bfloat16 [B, HV, T, 128]; packed input is [1, HV, T, 128].
        w, u: from the first stage, bfloat16 [B, HV, T, 128].
        gk: from the first stage, float32 or bfloat16 [B, HV, T, 128].
        initial_state: float32 or bfloat16 [N, HV, K, V], one per sequence; None is zero.
        state_v_first: the last two axes of h and of the states are [V, K].

    Returns:
        (h, v_new, final_state): h bfloat16 [B, NT, HV, K, V], the state on entry of each chunk; v_new
        bfloat16 [B, HV, T, V]; final_state in the dtype of initial_state (float32 without one), None
        unless output_final_state.

    Raises:
        As npu_chunk_kda_fwd_prepare.
    """
    refuse_jit(python_function, "npu_chunk_kda_fwd_h")
    return chunk_kda.fwd_h(
        ADAPTER,
        k,
        w,
        u,
        gk=gk,
        initial_state=initial_state,
        output_final_state=output_final_state,
        chunk_size=chunk_size,
        cu_seqlens=cu_seqlens,
        chunk_indices=chunk_indices,
        use_exp2=use_exp2,
        state_v_first=state_v_first,
        label="npu_chunk_kda_fwd_h",
    )


def npu_chunk_kda_fwd_finalize(
    qg_scaled: Tensor,
    aqk: Tensor,
    v_new: Tensor,
    h: Tensor,
    *,
    output_layout: str = "BSND",
    state_v_first: bool = False,
    cu_seqlens=None,
    chunk_indices=None,
) -> Tensor:
    """Third stage: attn_out = qg_scaled @ h + tril(aqk) @ v_new, chunk by chunk.

    Args:
        qg_scaled, aqk: from the first stage, bfloat16 [B, HV, T, 128] and [B, HV, T, 64]; rank 3 for
            the output layouts TND and NTD.
        v_new, h: from the second stage.
        output_layout: BSND, BNSD, TND or NTD.

    Returns:
        attn_out, bfloat16, in output_layout.

    Raises:
        As npu_chunk_kda_fwd_prepare.
    """
    refuse_jit(python_function, "npu_chunk_kda_fwd_finalize")
    return chunk_kda.finalize(
        ADAPTER,
        qg_scaled,
        aqk,
        v_new,
        h,
        output_layout=output_layout,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        chunk_indices=chunk_indices,
        label="npu_chunk_kda_fwd_finalize",
    )


def npu_chunk_kda_bwd_prepare(
    aqk: Tensor,
    v_new: Tensor,
    d_o: Tensor,
    h: Tensor,
    *,
    scale: float,
    layout: str = "BNSD",
    chunk_size: int = 64,
    state_v_first: bool = False,
    cu_seqlens=None,
    chunk_indices=None,
) -> tuple[Tensor, Tensor, Tensor]:
    """First backward stage: the gradients that follow from attn_out alone, chunk by chunk.

        dAqk = scale * tril(d_o @ v_new^T),  dv_local = tril(aqk)^T @ d_o,  dq_raw = d_o @ h^T

    Args:
        aqk, v_new, h: from the forward stages: bfloat16 [B, HV, T, 64], [B, HV, T, 128] and
            [B, NT, HV, K, V]; rank 3 (h rank 4) with layout NTD.
        d_o: gradient of attn_out, bfloat16, head-major as v_new.
        scale: the scale of npu_chunk_kda_fwd_prepare (aqk contains it, dAqk does not).
        layout: BNSD or NTD: the rank of the tensors.
        state_v_first: h is [..., V, K].

    Returns:
        (dAqk, dv_local, dq_raw): float32 as aqk, bfloat16 as v_new, float32 as d_o with K channels;
        dq_raw has neither scale nor decay in it.

    Raises:
        As npu_chunk_kda_fwd_prepare.
    """
    refuse_jit(python_function, "npu_chunk_kda_bwd_prepare")
    return chunk_kda.backward_prepare(
        ADAPTER,
        aqk,
        v_new,
        d_o,
        h,
        scale=scale,
        layout=layout,
        chunk_size=chunk_size,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        chunk_indices=chunk_indices,
        label="npu_chunk_kda_bwd_prepare",
    )


def npu_chunk_kda_bwd_dhu(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    d_o: Tensor,
    dv: Tensor,
    scale: float,
    chunk_size: int = 64,
    *,
    gk: Tensor,
    h0: Tensor | None = None,
    dht: Tensor | None = None,
    cu_seqlens=None,
    chunk_indices=None,
    use_exp2: bool = True,
    state_v_first: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Second backward stage: the gradient of the state, from the last chunk to the first.

    Args:
        q, k: qg (without scale) and kg of the first forward stage, bfloat16 [B, HV, T, 128]; packed
            input is [1, HV, T, 128].
        w: from the first forward stage.
        d_o: gradient of attn_out, head-major.
        dv: dv_local of the first backward stage.
        gk: from the first forward stage, float32 or bfloat16.
        h0: the initial state of the forward; it decides only whether dh0 is made, and its dtype.
        dht: gradient of the final state, float32 or bfloat16 [N, HV, K, V]; None is zero.
        state_v_first: h0, dht and dh0 are [N, HV, V, K]; dh is K before V always.

    Returns:
        (dh, dh0, dv_scan): dh bfloat16 [B, NT, HV, K, V], the gradient of the state on exit of each
        chunk; dh0 as h0, None without it; dv_scan bfloat16 [B, HV, T, V], the gradient of v_new.

    Raises:
        As npu_chunk_kda_fwd_prepare.
    """
    refuse_jit(python_function, "npu_chunk_kda_bwd_dhu")
    return chunk_kda.dhu(
        ADAPTER,
        q,
        k,
        w,
        d_o,
        dv,
        gk=gk,
        h0=h0,
        dht=dht,
        scale=scale,
        chunk_size=chunk_size,
        cu_seqlens=cu_seqlens,
        chunk_indices=chunk_indices,
        use_exp2=use_exp2,
        state_v_first=state_v_first,
        label="npu_chunk_kda_bwd_dhu",
    )


def npu_chunk_kda_bwd_finalize(
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
    lower_bound: float = -5.0,
    chunk_size: int = 64,
    safe_gate: bool = True,
    use_gate_in_kernel: bool = True,
    use_exp2: bool = True,
    state_v_first: bool = False,
    q_rstd: Tensor | None = None,
    k_rstd: Tensor | None = None,
    cu_seqlens=None,
    chunk_indices=None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    output_layout: str = "BNSD",
) -> tuple:
    """Third backward stage: gradients of the inputs and of the gate's parameters.

    Args:
        q, k: q_hat and k_hat of the first forward stage (HK heads), or q and k themselves when there
            was no norm; bfloat16 [B, HK, T, 128], rank 3 when packed.
        v: the values, bfloat16, HV heads, head-major.
        gk, akk: from the first forward stage. The decays are made again from raw_g, so a reset (a
            step of -inf) keeps its gradient; gk is not read.
        raw_g: the gate input of the first forward stage, float32 or bfloat16, head-major.
        beta: beta_eff; with use_beta_sigmoid_in_kernel the raw logit.
        a_log: float32 [HV]; None with use_gate_in_kernel=False.
        dt_bias: float32 [HV, 128] or [HV * 128], or None for zeros.
        v_new, h: from the second forward stage.
        dh, dv_scan: from the second backward stage.
        d_aqk, dq_raw: from the first backward stage.
        q_rstd, k_rstd: from the first forward stage, float32: dq and dk are then those of q and k
            before the norm. Both or neither.
        output_layout: BNSD, BSND, NTD or TND: of dq, dk, dv, dbeta and dg.

    Returns:
        (dq, dk, dv, dbeta, dg, dA_log, ddt_bias): dq, dk, dv bfloat16 (dq and dk summed over the
        value heads of their group); dbeta in the dtype of beta; dg float32; dA_log and ddt_bias
        float32 as a_log and dt_bias, None with use_gate_in_kernel=False.

    Raises:
        As npu_chunk_kda_fwd_prepare.
    """
    refuse_jit(python_function, "npu_chunk_kda_bwd_finalize")
    results = chunk_kda.backward_finalize(
        ADAPTER,
        q,
        k,
        v,
        gk,
        raw_g,
        beta,
        a_log,
        dt_bias,
        akk,
        v_new,
        h,
        dh,
        dv_scan,
        d_aqk,
        dq_raw,
        scale=scale,
        lower_bound=lower_bound,
        chunk_size=chunk_size,
        safe_gate=safe_gate,
        use_gate_in_kernel=use_gate_in_kernel,
        use_exp2=use_exp2,
        state_v_first=state_v_first,
        q_rstd=q_rstd,
        k_rstd=k_rstd,
        cu_seqlens=cu_seqlens,
        chunk_indices=chunk_indices,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        output_layout=output_layout,
        label="npu_chunk_kda_bwd_finalize",
    )
    return plain_all(results)
