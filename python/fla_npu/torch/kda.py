# SPDX-License-Identifier: Apache-2.0
"""The composed operator for PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import autograd, traced

__all__ = ["npu_chunk_kda"]


def npu_chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float,
    chunk_size: int = 64,
    *,
    layout: str = "BNSD",
    output_final_state: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = -5.0,
    use_gate_in_kernel: bool = True,
    a_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    cu_seqlens: Sequence[int] | torch.Tensor | None = None,
    chunk_indices: Sequence[int] | torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    disable_recompute: bool = True,
    state_v_first: bool = False,
    epsilon: float = 1e-6,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    use_exp2: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Chunk KDA, differentiable: per sequence and value head, over tokens t,

        S <- diag(exp(step_t)) S;   S <- S + beta_t k_t (v_t - S^T k_t)^T;   o_t = scale S^T q_t

    Args:
        q, k: bfloat16, `[B, HK, T, 128]` for BNSD; other layouts permute (see `layout`).
        v: bfloat16, HV heads, HV a multiple of HK; value head h reads key head h // (HV / HK).
        g: float32 or bfloat16, HV heads. With `use_gate_in_kernel` the raw gate input, else the
            natural-log decay of the step itself (any value <= 0, also -inf, which resets).
        beta: float32 or bfloat16, like v without its last axis.
        scale: factor of the scores, usually 128**-0.5; any finite float, 0.0 is 0.0.
        chunk_size: 64.
        layout: BNSD `[B,H,T,D]`, BSND `[B,T,H,D]`, NTD `[H,T,D]`, TND `[T,H,D]`.
        output_final_state: also return the state after the last token.
        safe_gate: step = lower_bound * sigmoid(exp(a_log) * (g + dt_bias)); needs
            `use_gate_in_kernel`. Otherwise step = -exp(a_log) * softplus(g + dt_bias).
        lower_bound: in [-5, 0), natural log per token; None is -5.
        a_log: `[HV]`, float32 or bfloat16 (widened); required with `use_gate_in_kernel`.
        dt_bias: `[HV, 128]` or flat, float32 or bfloat16 (widened); None is zero.
        cu_seqlens: offsets of sequences packed along T (B = 1): list, tuple, or 1-D CPU integer
            tensor; first 0, last T, not decreasing, empty sequences allowed. Read at every call.
        chunk_indices: only the canonical order is accepted; made when left out.
        initial_state: float32 or bfloat16 `[N, HV, K, V]` (`[N, HV, V, K]` with `state_v_first`).
        disable_recompute: keep what a backward pass reads (True), or make it again there (False).
        state_v_first: states have V before K.
        epsilon: added to the squared norm of q and k rows, above 0.
        use_qk_l2norm_in_kernel: normalise q and k rows.
        use_beta_sigmoid_in_kernel: beta is a logit; `allow_neg_eigval` doubles its sigmoid.
        use_exp2: internal base of the decay; the results agree either way.

    Returns:
        (attn_out, final_state): attn_out bfloat16 and token-major for every layout, `[B,T,HV,128]`
        or `[T,HV,128]`; final_state float32 `[N,HV,128,128]`, or None when not asked for.

    Raises:
        ArgumentTypeError (TypeError), ArgumentError (ValueError): before anything is launched.
        OppNotFound, SymbolMissing, TwinFault, LaunchError: see `fla_npu.errors`.

    Gradients: through attn_out and final_state, to q, k, v, g, beta, a_log, dt_bias and initial_state, each
    in the shape, layout and dtype of its argument, and only to those that require one. First derivatives
    only: differentiating a gradient raises GradientUnavailable. With `disable_recompute` the forward keeps
    about 3 KiB per token and value head; without, nothing beside its inputs, and the backward makes it again
    for a quarter of the key heads at a time. The bits of all results are the same either way. Works under
    torch.compile (cu_seqlens as a list or tuple of ints), torch.utils.checkpoint and torch.func.grad; there
    is no rule for vmap and for forward mode.

    Source: Hyper-Parallel's npu_chunk_kda; kernels in ascendc/ops.
    """
    tensors = (q, k, v, g, beta, a_log, dt_bias, initial_state)
    wanted = torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)
    # A transform of torch.func hands in wrappers; only the differentiable form can look inside.
    wanted = wanted or torch._C._are_functorch_transforms_active()
    call = traced.call if torch.compiler.is_compiling() or traced.needed(tensors) else autograd.call
    return call(
        tensors,
        {
            "scale": scale, "chunk_size": chunk_size, "layout": layout,
            "output_final_state": output_final_state, "safe_gate": safe_gate, "lower_bound": lower_bound,
            "use_gate_in_kernel": use_gate_in_kernel, "cu_seqlens": cu_seqlens,
            "chunk_indices": chunk_indices, "disable_recompute": disable_recompute,
            "state_v_first": state_v_first, "epsilon": epsilon,
            "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
            "use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel, "allow_neg_eigval": allow_neg_eigval,
            "use_exp2": use_exp2,
        },
        wanted,
    )  # fmt: skip
