# SPDX-License-Identifier: Apache-2.0
"""npu_chunk_kda for MindSpore: Chunk KDA on whole sequences, differentiable.

Gradients come from our backward operators through `_Function`, MindSpore's custom autograd function
of PyNative mode. The neutral layer (`fla_npu.chunk_kda`) says which operators run; here is only what
MindSpore asks for: tensors as separate arguments, and a refusal where a gradient would be lost.
"""

from __future__ import annotations

from mindspore import Tensor
from mindspore.common._grad_function import _Function

from .. import chunk_kda
from .adapter import MindSporeAdapter, plain, plain_all
from .guard import python_function, recording, refuse_jit, without_derivative

__all__ = ["npu_chunk_kda"]

# An operator that the OPP lacks is found out before the first one runs: for training, already at the
# forward call.
_FORWARD = MindSporeAdapter(chunk_kda.STAGES)
_TRAINING = MindSporeAdapter(chunk_kda.BACKWARD_STAGES)

# The graph compiler parses the bodies of the public functions: `refuse_jit` must be their first
# statement, and what follows must stay within the syntax it knows.


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
    """Chunk KDA (Kimi Delta Attention) on whole sequences, differentiable.

    Grouped value heads (HV = n * HK) are read with their key head inside the kernels; q and k are
    never repeated. `explain_route` says which operators a call runs.

    Args:
        q, k, v, g, beta, scale, a_log, dt_bias, cu_seqlens, chunk_indices, and the options of the
            gate: see npu_chunk_kda_fwd_prepare.
        initial_state: float32 or bfloat16 [N, HV, K, V], one per batch entry or packed sequence.
        output_final_state: return the state after the last token of each sequence.
        disable_recompute: what the backward reads. True: kept from the forward. False: made again
            from the inputs, for a part of the heads at a time. The gradients are the same bits.
        state_v_first: initial and final state are [N, HV, V, K].

    Returns:
        (attn_out, final_state). attn_out is bfloat16 and token-major for every layout, [B, T, HV, V]
        or [T, HV, V]. final_state is float32, or None unless output_final_state.

    Gradients of both results reach q, k, v, g, beta, a_log, dt_bias and initial_state, each in the
    shape, layout and dtype of its input. Inputs behind `stop_gradient`, or Parameters with
    requires_grad=False, get none. Works under mindspore.grad, value_and_grad, vjp, in an nn.Cell and
    with recompute.

    Raises:
        As npu_chunk_kda_fwd_prepare. GradientUnavailable, when a gradient is differentiated again.
        GraphModeUnsupported, when traced by `mindspore.jit`: see fla_npu.mindspore.graph.
    """
    refuse_jit(python_function, "npu_chunk_kda")
    return _run(
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


def _run(tensors: tuple, options: dict) -> tuple[Tensor, Tensor | None]:
    """The call, with a gradient when MindSpore records for one."""
    if recording():
        return _ChunkKda.apply(options, *tensors)
    return _forward(tensors, options)


def _forward(tensors: tuple, options: dict) -> tuple[Tensor, Tensor | None]:
    q, k, v, g, beta, a_log, dt_bias, initial_state = tensors
    return plain_all(
        chunk_kda.forward(
            _FORWARD, q, k, v, g, beta, a_log=a_log, dt_bias=dt_bias, initial_state=initial_state, **options
        )
    )


class _ChunkKda(_Function):
    """Forward and backward as MindSpore's autograd calls them: the tensors in the order of TENSORS,
    each an argument of its own, because MindSpore does not look for tensors inside a tuple."""

    @staticmethod
    def forward(ctx, options: dict, *tensors):
        ctx.needs = {
            name
            for name, tensor, needed in zip(chunk_kda.TENSORS, tensors, ctx.needs_input_grad[1:])
            if needed and tensor is not None
        }
        if not ctx.needs:
            return _forward(tensors, options)
        ctx.set_materialize_grads(False)  # an unused output: its share of the backward is left out
        named = dict(zip(chunk_kda.TENSORS, tensors))
        attn_out, final_state, saved = chunk_kda.save_forward(_TRAINING, named, options)
        ctx.options = chunk_kda.settled(options)  # the offsets may be refilled before the backward
        ctx.save_for_backward(*tensors)
        ctx.relay = saved
        return plain(attn_out), plain(final_state)

    @staticmethod
    def backward(ctx, d_out, d_state):
        """One entry per argument of forward, None where no gradient is wanted."""
        tensors = ctx.saved_tensors

        def gradients() -> tuple:
            named = dict(zip(chunk_kda.TENSORS, tensors))
            made = chunk_kda.backward(_TRAINING, named, ctx.options, ctx.relay, d_out, d_state, ctx.needs)
            return tuple(plain(made.get(name)) for name in chunk_kda.TENSORS)

        return None, *without_derivative(
            "the gradient of npu_chunk_kda", gradients, (*tensors, d_out, d_state)
        )
