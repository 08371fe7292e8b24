# SPDX-License-Identifier: Apache-2.0
"""npu_chunk_kda under context parallelism: the differentiable call on one rank's tokens."""

from __future__ import annotations

from typing import Any

import mindspore
from mindspore import Tensor, mint
from mindspore.common._grad_function import _Function

from ...chunk_kda import TENSORS
from ...parallel.context import meet, meet_backward
from ...parallel.scan import LABEL, Scan
from .. import kda
from ..adapter import MindSporeAdapter, plain
from ..guard import python_function, recording, refuse_jit, without_derivative
from .context import ContextParallel, need

__all__ = ["npu_chunk_kda"]

ADAPTER = MindSporeAdapter()

# As in mindspore/kda.py: `refuse_jit` is the first statement, the rest within the syntax of the graph compiler.


def npu_chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    chunk_size: int = 64,
    *,
    context: ContextParallel,
    layout: str = "BNSD",
    output_final_state: bool = False,
    safe_gate: bool = False,
    lower_bound: float = -5.0,
    use_gate_in_kernel: bool = True,
    a_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    disable_recompute: bool = True,
    state_v_first: bool = False,
    epsilon: float = 1e-6,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    use_exp2: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """`fla_npu.mindspore.npu_chunk_kda` on sequences that lie across the ranks of a context.

    Every rank calls it with its own tokens, at the same place of its program and with the same options;
    the results are those of one call with the tokens of all ranks. Arguments as there, except:

    Args:
        q, k, v, g, beta: this rank's tokens, `context.shard.tokens` of them, possibly 0. With
            cu_seqlens in the context a packed layout, or B = 1. Without, B rows may be given: each is a
            sequence, all cut at the same places.
        context: says which tokens are whose; also has the offsets of the sequences.
        a_log, dt_bias: the same on every rank.
        initial_state: one per sequence that begins on this rank, in their order:
            `[len(context.shard.starts), HV, K, V]`; None for zeros. Elsewhere it comes from the rank before.
        use_exp2: without effect on more than one rank.

    Returns:
        (attn_out, final_state): of this rank's tokens; final_state has one row per sequence that ends on
        this rank, `[len(context.shard.finishes), HV, K, V]`, perhaps none.

    Raises:
        ArgumentError, ArgumentTypeError: on the rank that refuses its arguments, before anything is launched.
        ParallelError: on the other ranks then; on all when ranks disagree; on those that are left when a
            rank ends or does not answer in the time that MindSpore waits (30 s on CPU).
        GradientUnavailable, GraphModeUnsupported: as the plain call.

    Gradients reach all inputs. Those of a_log and dt_bias are this rank's part of a sum over ranks:
    `reduce_gradients`. Gradients flow through other ranks, so either all ranks differentiate the call or
    none does, and every rank's loss must use the output: one that has no use for it adds
    `0 * attn_out.float().sum()`, which MindSpore may give any value, but the right gradient, where there are
    no tokens. Where the others' tensors come from parameters, so must the empty ones of such a rank.
    Works with recompute. On one rank it is the plain call, and nothing is sent.
    """
    refuse_jit(python_function, "parallel.npu_chunk_kda")
    return _call(
        context,
        (q, k, v, g, beta, a_log, dt_bias, initial_state),
        {
            "scale": scale,
            "chunk_size": chunk_size,
            "layout": layout,
            "output_final_state": output_final_state,
            "safe_gate": safe_gate,
            "lower_bound": lower_bound,
            "use_gate_in_kernel": use_gate_in_kernel,
            "disable_recompute": disable_recompute,
            "state_v_first": state_v_first,
            "epsilon": epsilon,
            "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
            "use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel,
            "allow_neg_eigval": allow_neg_eigval,
            "use_exp2": use_exp2,
        },
    )


def _call(context: Any, tensors: tuple, options: dict) -> tuple[Tensor, Tensor | None]:
    context = need(context)
    if context.size == 1:
        named = dict(zip(TENSORS, tensors))
        cu = context.plan.cu_seqlens if context.packed else None
        return kda.npu_chunk_kda(**named, **options, cu_seqlens=cu)
    if recording():
        return _Scan.apply(context, options, *tensors)
    scan, _ = _begin(context, tensors, options, wanted=False)
    return _run(scan, tensors, train=False)[:2]


def _begin(context: ContextParallel, tensors: tuple, options: dict, wanted: bool) -> tuple[Scan, int]:
    """The call and its number, once all ranks take part in it, with a gradient or without."""
    named = dict(zip(TENSORS, tensors))
    scan = Scan(ADAPTER, context.group, context.plan, context.packed, named, options)
    facts = {} if scan.error else {"context": context.digest, "gradient": wanted, **scan.facts()}
    records = meet(context.group, LABEL, facts, scan.error)
    return scan, records[0].number


def _run(scan: Scan, tensors: tuple, train: bool) -> tuple:
    """(attn_out, final_state, saved, incoming), results without elements included."""
    named = dict(zip(TENSORS, tensors))
    out, final, saved, incoming = scan.forward(named, train)
    if out is None:  # token-major, like every attn_out
        *batch, a, b, width = named["v"].shape
        order = (a, b) if scan.given["layout"] in ("BSND", "TND") else (b, a)
        out = mint.zeros((*batch, *order, width), dtype=mindspore.bfloat16)
    if final is None and scan.given["output_final_state"]:
        final = mint.zeros((0, scan.heads, 128, 128), dtype=mindspore.float32)
    return plain(out), plain(final), saved, incoming


class _Scan(_Function):
    """Forward and backward as MindSpore's autograd calls them: the tensors in the order of TENSORS.

    The ranks meet in `forward`, since only there MindSpore says whether a gradient is wanted.
    """

    @staticmethod
    def forward(ctx, context: ContextParallel, options: dict, *tensors):
        ctx.needs = [
            name
            for name, tensor, needed in zip(TENSORS, tensors, ctx.needs_input_grad[2:])
            if needed and tensor is not None
        ]
        ctx.scan, ctx.number = _begin(context, tensors, options, wanted=bool(ctx.needs))
        if not ctx.needs:
            return _run(ctx.scan, tensors, train=False)[:2]
        ctx.set_materialize_grads(False)  # an unused output: its share of the backward is left out
        out, final, ctx.relay, ctx.incoming = _run(ctx.scan, tensors, train=True)
        ctx.save_for_backward(*tensors)
        return out, final

    @staticmethod
    def backward(ctx, d_out, d_state):
        """One entry per argument of forward, None where no gradient is wanted."""
        tensors = ctx.saved_tensors

        def gradients() -> tuple:
            named = dict(zip(TENSORS, tensors))
            meet_backward(ctx.scan.transport, LABEL, ctx.number)
            made = ctx.scan.backward(named, ctx.relay, ctx.incoming, d_out, d_state, ctx.needs)
            return tuple(
                mint.zeros(tuple(named[n].shape), dtype=named[n].dtype)
                if n in made and made[n] is None
                else plain(made.get(n))
                for n in TENSORS
            )

        return (
            None,
            None,
            *without_derivative(
                "the gradient of parallel.npu_chunk_kda", gradients, (*tensors, d_out, d_state)
            ),
        )
