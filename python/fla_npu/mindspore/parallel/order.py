# SPDX-License-Identifier: Apache-2.0
"""From the load-balanced order of tokens to the contiguous one of this package, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindspore import Tensor, mint
from mindspore.common._grad_function import _Function

from ...errors import ArgumentTypeError
from ...parallel.context import meet, meet_backward
from ...parallel.order import Route
from ...parallel.reorder import Volumes, reorder_facts, reorder_route
from ..guard import python_function, recording, refuse_jit
from .group import Group, as_group

__all__ = ["from_zigzag", "to_zigzag"]


def from_zigzag(
    x: Tensor, group: Any = None, *, axis: int, cu_seqlens: Sequence[int] | Tensor | None = None
) -> Tensor:
    """Tokens in zigzag order, brought into the contiguous order that every other function here takes.

    In zigzag order every sequence is cut into 2 n equal blocks, and rank r of n holds blocks r and
    2 n - 1 - r of each, sequence after sequence: causal attention does the same work everywhere then. The
    recurrence has no use for it. Afterwards rank r holds the r-th n-th of all tokens.

    Args:
        x: this rank's tokens along `axis`, of any dtype.
        group: as in `ContextParallel`.
        cu_seqlens: offsets of the sequences in the tokens of all ranks; None is one sequence.

    Differentiable: gradients take the way back. Errors: ArgumentError for sequences that do not divide by
    2 n; ParallelError on the other ranks.
    """
    refuse_jit(python_function, "parallel.from_zigzag")
    return _reordered("from_zigzag", x, group, axis, cu_seqlens, True)


def to_zigzag(
    x: Tensor, group: Any = None, *, axis: int, cu_seqlens: Sequence[int] | Tensor | None = None
) -> Tensor:
    """The inverse of `from_zigzag`: from the contiguous order, n equal parts, to zigzag order."""
    refuse_jit(python_function, "parallel.to_zigzag")
    return _reordered("to_zigzag", x, group, axis, cu_seqlens, False)


def _reordered(name: str, x: Any, group: Any, axis: int, cu_seqlens, forward: bool) -> Tensor:
    group, label = as_group(group), f"parallel.{name}"
    error, facts, way = None, {}, None
    try:
        if not isinstance(x, Tensor):
            raise ArgumentTypeError(f"{label}: x is a {type(x).__name__}; it must be a mindspore.Tensor")
        way = reorder_route(label, x.shape, axis, group.size, group.rank, cu_seqlens, forward)
        facts = reorder_facts(label, x.shape, str(x.dtype), axis, cu_seqlens)
    except Exception as refusal:  # whatever it is, the others must hear of it
        error = refusal
    if group.size == 1:
        if error:
            raise error
        return x
    if recording():
        return _Reorder.apply((group, label, facts, error, way, axis), x)
    meet(group, label, {**facts, "gradient": False} if error is None else {}, error)
    return _moved(group, way, x, axis)


def _moved(group: Group, way: Route, x: Tensor, axis: int) -> Tensor:
    """The tokens in the new order; rows are swapped to the front and back."""
    rows = mint.transpose(x, axis, 0)
    row = tuple(rows.shape[1:])
    volumes = Volumes(way, row)
    pieces = [mint.narrow(rows, 0, a, b - a) for spans in way.sends for a, b in spans]
    flat = (mint.cat(pieces, 0) if len(pieces) > 1 else rows).contiguous().reshape(-1)
    arrived = group.scatter(flat, volumes.sizes, volumes.counts).wait()
    arrived = arrived.reshape((way.tokens, *row))
    parts = [mint.narrow(arrived, 0, at, count) for at, count in volumes.places]
    return mint.transpose(mint.cat(parts, 0) if len(parts) > 1 else arrived, 0, axis).contiguous()


class _Reorder(_Function):
    """A permutation over ranks; its gradient is the inverse. The ranks meet in `forward`, since only there
    MindSpore says whether a gradient is wanted."""

    @staticmethod
    def forward(ctx, call: tuple, x):
        group, label, facts, error, way, axis = call
        wanted = bool(ctx.needs_input_grad[1])
        records = meet(group, label, {**facts, "gradient": wanted} if error is None else {}, error)
        ctx.call = group, label, records[0].number
        ctx.back = group, way.reversed(x.shape[axis]), axis
        return _moved(group, way, x, axis)

    @staticmethod
    def backward(ctx, grad):
        group, way, axis = ctx.back
        meet_backward(*ctx.call)
        return None, _moved(group, way, grad, axis)
