# SPDX-License-Identifier: Apache-2.0
"""From the load-balanced order of tokens to the contiguous one of this package, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...errors import ArgumentTypeError
from ...parallel.order import Route
from ...parallel.reorder import Volumes, reorder_facts, reorder_route
from .context import meet, meet_backward
from .group import Group, between_graphs
from .shared import as_group

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
    return _reordered("from_zigzag", x, group, axis, cu_seqlens, forward=True)


def to_zigzag(
    x: Tensor, group: Any = None, *, axis: int, cu_seqlens: Sequence[int] | Tensor | None = None
) -> Tensor:
    """The inverse of `from_zigzag`: from the contiguous order, n equal parts, to zigzag order."""
    return _reordered("to_zigzag", x, group, axis, cu_seqlens, forward=False)


@between_graphs
def _reordered(name: str, x: Tensor, group: Any, axis: int, cu_seqlens, forward: bool) -> Tensor:
    group, label = as_group(group), f"parallel.{name}"
    error, facts, way = None, {}, None
    try:
        if not isinstance(x, Tensor):
            raise ArgumentTypeError(f"{label}: x is a {type(x).__name__}; it must be a torch.Tensor")
        way = reorder_route(label, x.shape, axis, group.size, group.rank, cu_seqlens, forward)
        facts = reorder_facts(label, x.shape, str(x.dtype), axis, cu_seqlens)
    except Exception as refusal:  # whatever it is, the others must hear of it
        error = refusal
    if group.size == 1:
        if error:
            raise error
        return x
    wanted = torch.is_grad_enabled() and error is None and x.requires_grad
    records = meet(group, label, facts, error, wanted)
    rows = x.movedim(axis, 0)
    if any(r.wanted for r in records):
        out = _Reorder.apply(
            (group, label, records[0].number), way, torch.zeros((), requires_grad=True), rows
        )
    else:
        out = _moved(group, way, rows)
    return out.movedim(0, axis)


def _moved(group: Group, way: Route, rows: Tensor) -> Tensor:
    """[tokens, ...] in the new order."""
    volumes = Volumes(way, rows.shape[1:])
    pieces = [rows[a:b] for spans in way.sends for a, b in spans]
    flat = (torch.cat(pieces) if pieces else rows).reshape(-1)
    arrived = group.scatter(flat, volumes.sizes, volumes.counts).wait().reshape(way.tokens, *rows.shape[1:])
    return torch.cat([arrived[:0], *(arrived[at : at + count] for at, count in volumes.places)])


class _Reorder(torch.autograd.Function):
    """A permutation over ranks; its gradient is the inverse."""

    @staticmethod
    def forward(ctx, call, way, anchor, rows):
        ctx.call, ctx.way = call, way.reversed(rows.shape[0])
        ctx.save_for_backward(anchor)  # so that a checkpoint's replay gets as far as this
        return _moved(call[0], way, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        assert ctx.saved_tensors
        meet_backward(*ctx.call)
        return None, None, None, _moved(ctx.call[0], ctx.way, grad)
