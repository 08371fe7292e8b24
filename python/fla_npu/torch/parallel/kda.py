# SPDX-License-Identifier: Apache-2.0
"""npu_chunk_kda under context parallelism: the differentiable call on one rank's tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...chunk_kda import TENSORS
from ...parallel.scan import LABEL, Scan
from .. import autograd, kda
from ..adapter import ADAPTER
from .context import ContextParallel, meet, meet_backward, need
from .group import between_graphs

__all__ = ["npu_chunk_kda"]

_COUNT = len(TENSORS)


@between_graphs
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
    lower_bound: float | None = -5.0,
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
    """`fla_npu.torch.npu_chunk_kda` on sequences that lie across the ranks of a context.

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
            rank ends or does not answer within the group's timeout.

    Gradients reach all inputs. Those of a_log and dt_bias are this rank's part of a sum over ranks:
    `reduce_gradients`. Gradients flow through other ranks, so when any rank wants one, every rank's outputs
    require one, and every rank must run its backward: a rank whose loss does not use the output adds
    `0 * attn_out.sum()`. Works inside torch.utils.checkpoint; torch.compile runs it eagerly. On one rank
    it is the plain call, and nothing is sent.
    """
    tensors = (q, k, v, g, beta, a_log, dt_bias, initial_state)
    options = {
        "scale": scale, "chunk_size": chunk_size, "layout": layout, "output_final_state": output_final_state,
        "safe_gate": safe_gate, "lower_bound": lower_bound, "use_gate_in_kernel": use_gate_in_kernel,
        "disable_recompute": disable_recompute, "state_v_first": state_v_first, "epsilon": epsilon,
        "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
        "use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel, "allow_neg_eigval": allow_neg_eigval,
        "use_exp2": use_exp2,
    }  # fmt: skip
    return _call(need(context), tensors, options)


def _call(context: ContextParallel, tensors: tuple, options: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    named = dict(zip(TENSORS, tensors))
    if context.size == 1:
        cu = context.plan.cu_seqlens if context.packed else None
        return kda.npu_chunk_kda(**named, **options, cu_seqlens=cu)
    wanted = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors)
    scan = Scan(ADAPTER, context.group, context.plan, context.packed, named, options)
    facts = {} if scan.error else {"context": context.digest, **scan.facts()}
    records = meet(context.group, LABEL, facts, scan.error, wanted)
    if not any(r.wanted for r in records):
        return _run(scan, tensors, train=False)[:2]
    # An output of a rank that needs no gradient itself still leads to its backward: others wait for it.
    anchor = torch.zeros((), requires_grad=True)
    return _Scan.apply(scan, records[0].number, anchor, *tensors)


def _run(scan: Scan, tensors: tuple, train: bool) -> tuple:
    """(attn_out, final_state, saved, incoming), results without elements included."""
    named = dict(zip(TENSORS, tensors))
    with scan.transport.awaited():
        out, final, saved, incoming = scan.forward(named, train)
    v = tensors[2]
    if out is None:  # token-major, like every attn_out
        out = v.new_empty(v.shape if scan.given["layout"] in ("BSND", "TND") else v.transpose(-3, -2).shape)
    if final is None and scan.given["output_final_state"]:
        final = v.new_empty((0, scan.heads, 128, 128), dtype=torch.float32)
    return out, final, saved, incoming


class _Scan(torch.autograd.Function):
    """The call for autograd. The anchor is saved last, so that a checkpoint's replay gets as far as this."""

    @staticmethod
    def forward(ctx, scan, number, anchor, *tensors):
        out, final, saved, incoming = _run(scan, tensors, train=True)
        ctx.scan, ctx.number = scan, number
        ctx.set_materialize_grads(False)
        autograd.keep(ctx, tensors, saved, (incoming, anchor))
        return out, final

    @staticmethod
    def backward(ctx, d_out, d_state):
        needs = autograd.needed(ctx.needs_input_grad[3:])
        tensors, (*saved, incoming, anchor) = autograd.kept(ctx)
        # Under create_graph autograd records this, too; then nothing goes on from there.
        run = _FirstDerivative.apply if torch.is_grad_enabled() else _FirstDerivative.forward
        call = ctx.scan, ctx.number, needs, anchor
        grads = run(*call, *tensors, d_out, d_state, incoming, *saved)
        return None, None, None, *autograd.spread(needs, grads)


class _FirstDerivative(torch.autograd.Function):
    """The gradient as a function that has no derivative."""

    @staticmethod
    def forward(scan: Scan, number: int, needs: list[str], anchor: Any, *arguments):
        tensors, (d_out, d_state, incoming, *saved) = arguments[:_COUNT], arguments[_COUNT:]
        named = dict(zip(TENSORS, tensors))
        with torch.no_grad(), scan.transport.awaited():
            meet_backward(scan.transport, LABEL, number)
            grads = scan.backward(named, saved, incoming, d_out, d_state, needs)
        return tuple(torch.zeros_like(named[n]) if grads[n] is None else grads[n] for n in needs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        autograd.refuse()
