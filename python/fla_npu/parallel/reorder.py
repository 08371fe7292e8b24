# SPDX-License-Identifier: Apache-2.0
"""From the shapes of a call that changes the order of tokens to this rank's part of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod

from ..checks.metadata import host_ints
from ..errors import ArgumentError
from .order import Route, contiguous, route, zigzag

__all__ = ["Volumes", "reorder_facts", "reorder_route"]


def reorder_route(
    label: str, shape: Sequence[int], axis: int, ranks: int, rank: int, cu_seqlens, forward: bool
) -> Route:
    """Zigzag to contiguous order (`forward`), or back. Raises what the functions around it must refuse."""
    if isinstance(axis, bool) or not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        raise ArgumentError(f"{label}: axis = {axis!r} of a tensor of shape {tuple(shape)}")
    tokens = shape[axis]
    cu = (0, tokens * ranks)
    if cu_seqlens is not None:
        cu = host_ints(label, "cu_seqlens", cu_seqlens)
    if not cu or cu[-1] != tokens * ranks:
        raise ArgumentError(
            f"{label}: x has {tokens} tokens on each of {ranks} ranks, {tokens * ranks} in all, but "
            f"cu_seqlens = {list(cu)[-4:]} ends elsewhere"
        )
    orders = zigzag(ranks, cu, label), contiguous([tokens] * ranks)
    return route(*(orders if forward else orders[::-1]), rank)


def reorder_facts(label: str, shape: Sequence[int], dtype: str, axis: int, cu_seqlens) -> dict[str, object]:
    """What must be the same on every rank."""
    rest = [n for i, n in enumerate(shape) if i != axis % len(shape)]
    offsets = None if cu_seqlens is None else hash(host_ints(label, "cu_seqlens", cu_seqlens))
    return {"tokens": shape[axis], "shape beside them": str(rest), "dtype": dtype, "cu_seqlens": offsets}


class Volumes:
    """Elements of a route's messages, for rows of this shape, and where what arrives belongs."""

    def __init__(self, way: Route, row: Sequence[int]) -> None:
        self.sizes, self.counts = (
            [sum(b - a for a, b in spans) * prod(row) for spans in side] for side in (way.sends, way.receives)
        )
        spans = [span for part in way.receives for span in part]
        starts = [0, *accumulate(b - a for a, b in spans)]
        # (first row of what arrived, number of rows), in the order in which they are put together.
        self.places = [(at, b - a) for (a, b), at in sorted(zip(spans, starts))]
