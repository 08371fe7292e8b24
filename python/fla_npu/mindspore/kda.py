# SPDX-License-Identifier: Apache-2.0
"""The public MindSpore functions: three forward stages and npu_chunk_kda.

Tensors are MindSpore tensors or Parameters, on the CPU (the twin) or on an Ascend device. Every
function validates first (`fla_npu.checks`, the same rules and words as the PyTorch front end) and
then queues its launches; nothing waits for a result.

The stages are local tensor functions without autograd: their outputs are constants to `mindspore.grad`.
"""

from __future__ import annotations

from mindspore import Tensor

from .. import chunk_kda
from .adapter import MindSporeAdapter
from .guard import python_function, refuse_jit, with_refused_gradient

__all__ = [
    "npu_chunk_kda",
    "npu_chunk_kda_fwd_finalize",
    "npu_chunk_kda_fwd_h",
    "npu_chunk_kda_fwd_prepare",
]

ADAPTER = MindSporeAdapter()
# A stage that the OPP lacks is found out before the first one runs.
COMPOSED = MindSporeAdapter(chunk_kda.STAGES)

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


def npu_chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    chunk_size: int = 64,
    *,
    layout: str = "BNSD",
    output_final_state: bool = False,
    safe_gate: bool = False,
    lower_bound: float = -5.0,
    use_gate_in_kernel: bool = True,
    a_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    cu_seqlens=None,
    chunk_indices=None,
    initial_state: Tensor | None = None,
    disable_recompute: bool = True,
    state_v_first: bool = False,
    epsilon: float = 1e-6,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    use_exp2: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Chunk KDA (Kimi Delta Attention), forward.

    Runs the three stages on whole sequences. Grouped value heads (HV = n * HK) are read with their
    key head inside the kernels; q and k are never repeated.

    Args:
        q, k, v, g, beta, scale, a_log, dt_bias, cu_seqlens, chunk_indices, and the options of the
            gate: see npu_chunk_kda_fwd_prepare.
        initial_state: float32 or bfloat16 [N, HV, K, V], one per batch entry or packed sequence.
        output_final_state: return the state after the last token of each sequence.
        disable_recompute: what a backward pass would keep; the forward results do not depend on it.
        state_v_first: initial and final state are [N, HV, V, K].

    Returns:
        (attn_out, final_state). attn_out is bfloat16 and token-major for every layout, [B, T, HV, V]
        or [T, HV, V]. final_state is float32, or None unless output_final_state.

    Raises:
        As npu_chunk_kda_fwd_prepare. GradientUnavailable, when a gradient is asked for: the backward
        pass is not part of this version. GraphModeUnsupported, when traced by `mindspore.jit`.
    """
    refuse_jit(python_function, "npu_chunk_kda")
    return with_refused_gradient(
        "npu_chunk_kda",
        _forward,
        (q, k, v, g, beta, a_log, dt_bias, initial_state),
        {
            "scale": scale,
            "chunk_size": chunk_size,
            "layout": layout,
            "output_final_state": output_final_state,
            "safe_gate": safe_gate,
            "lower_bound": lower_bound,
            "use_gate_in_kernel": use_gate_in_kernel,
            "cu_seqlens": cu_seqlens,
            "chunk_indices": chunk_indices,
            "disable_recompute": disable_recompute,
            "state_v_first": state_v_first,
            "epsilon": epsilon,
            "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
            "use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel,
            "allow_neg_eigval": allow_neg_eigval,
            "use_exp2": use_exp2,
        },
    )


def _forward(tensors: tuple, options: dict) -> tuple[Tensor, Tensor | None]:
    q, k, v, g, beta, a_log, dt_bias, initial_state = tensors
    return chunk_kda.forward(
        COMPOSED, q, k, v, g, beta, a_log=a_log, dt_bias=dt_bias, initial_state=initial_state, **options
    )
