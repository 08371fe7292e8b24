# SPDX-License-Identifier: Apache-2.0
"""npu_chunk_kda for autograd, called eagerly.

A `torch.autograd.Function` costs a tenth of what a custom operator with a registered gradient does.
So only who traces instead of computing gets those: see `traced`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import chunk_kda
from ..chunk_kda import TENSORS
from ..errors import GradientUnavailable
from .adapter import TorchAdapter

__all__ = ["call", "keep", "kept", "needed", "refuse", "run_backward", "run_forward", "spread"]

_FORWARD = TorchAdapter(chunk_kda.STAGES)
_TRAINING = TorchAdapter(chunk_kda.BACKWARD_STAGES)
_COUNT = len(TENSORS)


def call(tensors: tuple, options: dict[str, Any], wanted: bool) -> tuple[Tensor, Tensor | None]:
    """npu_chunk_kda. `tensors` in the order of TENSORS; `wanted`: a gradient may be asked for."""
    if not wanted:
        return run_forward(tensors, options, train=False)[:2]
    return _ChunkKda.apply(chunk_kda.settled(options), *tensors)[:2]


def run_forward(tensors: tuple, options: dict[str, Any], train: bool) -> tuple:
    """(attn_out, final_state or None, saved)."""
    named = dict(zip(TENSORS, tensors))
    if train:
        return chunk_kda.save_forward(_TRAINING, named, options)
    return *chunk_kda.forward(_FORWARD, **named, **options), ()


def keep(ctx, tensors: tuple, saved: Sequence[Tensor], extra: Sequence[Tensor | None] = ()) -> None:
    """Saves for backward. Where q_hat and k_hat are kept, of q and k only the shape is needed.

    What is saved stays an output that requires grad: it ties a gradient of first order to this call,
    so that a second one finds something to refuse.
    """
    ctx.shapes = None
    if saved:
        q, k, *rest = tensors
        ctx.shapes = [(x.shape, x.dtype, x.device) for x in (q, k)]
        tensors = (None, None, *rest)
    ctx.save_for_backward(*tensors, *saved, *extra)


def kept(ctx) -> tuple[tuple, tuple]:
    """(tensors, saved and extra); a tensor of which only the shape was kept has one element."""
    everything = ctx.saved_tensors  # read once: a checkpoint unpacks at every access
    tensors, saved = everything[:_COUNT], everything[_COUNT:]
    if ctx.shapes:
        shaped = (torch.empty((), dtype=t, device=d).expand(s) for s, t, d in ctx.shapes)
        tensors = (*shaped, *tensors[2:])
    return tensors, saved


def run_backward(tensors, saved, options, d_out, d_state, needs: Sequence[str]) -> tuple[Tensor, ...]:
    named = dict(zip(TENSORS, tensors))
    with torch.no_grad():
        grads = chunk_kda.backward(_TRAINING, named, options, saved, d_out, d_state, needs)
    return tuple(grads[name] for name in needs)


def needed(flags: Sequence[bool]) -> list[str]:
    return [name for name, flag in zip(TENSORS, flags) if flag]


def spread(needs: list[str], grads: Sequence[Tensor]) -> list[Tensor | None]:
    found = dict(zip(needs, grads))
    return [found.get(name) for name in TENSORS]


class _ChunkKda(torch.autograd.Function):
    """Eager mode. The tensors kept for backward are outputs too, so that function transforms see them."""

    @staticmethod
    def forward(options, *tensors):
        out, final, saved = run_forward(tensors, options, train=True)
        return out, final, *saved

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.options, *tensors = inputs
        ctx.set_materialize_grads(False)
        keep(ctx, tuple(tensors), output[2:])

    @staticmethod
    def backward(ctx, d_out, d_state, *_):
        needs = needed(ctx.needs_input_grad[1:])
        if d_out is None and d_state is None:
            return (None,) * (1 + _COUNT)
        tensors, saved = kept(ctx)
        # Under create_graph autograd records this, too; _FirstDerivative then refuses to go on.
        run = _FirstDerivative.apply if torch.is_grad_enabled() else _FirstDerivative.forward
        grads = run(ctx.options, needs, *tensors, d_out, d_state, *saved)
        return None, *spread(needs, grads)


def refuse(*_):
    raise GradientUnavailable(
        "the gradient of npu_chunk_kda cannot be differentiated again: fla_npu computes first derivatives "
        "only. If the second one is not wanted, detach the gradient"
    )


class _FirstDerivative(torch.autograd.Function):
    """The gradient as a function that has no derivative."""

    @staticmethod
    def forward(options, needs, *arguments):
        tensors, (d_out, d_state, *saved) = arguments[:_COUNT], arguments[_COUNT:]
        return run_backward(tensors, saved, options, d_out, d_state, needs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        refuse()
