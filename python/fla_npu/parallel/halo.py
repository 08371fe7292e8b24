# SPDX-License-Identifier: Apache-2.0
"""Which tokens a causal convolution needs from earlier ranks, and where their gradients go back."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from numbers import Integral

from ..errors import ArgumentError, ArgumentTypeError
from .plan import Plan

__all__ = ["Halo", "Piece", "conv_halo"]

WIDEST = 4


@dataclass(frozen=True)
class Piece:
    """Rows [start, stop) shared with a peer."""

    peer: int
    start: int
    stop: int


@dataclass(frozen=True)
class Halo:
    """One rank's side of a halo of width - 1 tokens.

    The first fragment is preceded by `length` tokens of its own sequence, on one earlier rank or several
    (a rank may have fewer tokens than the halo). Pieces of `sends` are local rows of this rank's tokens,
    pieces of `receives` rows of the halo; together they are [0, length), in order. The gradient goes the
    other way: rows of the halo's gradient per piece of `receives`, and what arrives is added to the rows
    of each piece of `sends`. Rows may be in several pieces of `sends`.
    """

    length: int
    sends: tuple[Piece, ...]
    receives: tuple[Piece, ...]


def conv_halo(plan: Plan, rank: int, width: int) -> Halo:
    """The halo of `rank` for a causal convolution of `width` taps, 2 to 4; never over a sequence's start."""
    if isinstance(width, bool) or not isinstance(width, Integral):
        raise ArgumentTypeError(f"conv_halo: width = {width!r} is a {type(width).__name__}; it is an integer")
    if not 2 <= width <= WIDEST:
        raise ArgumentError(f"conv_halo: width = {width}; it must be 2 to {WIDEST}")
    shard = plan.shard(rank)
    length = _length(plan, rank, width)
    first = shard.start - length  # global token of the halo's row 0
    receives = [
        Piece(peer, low - first, high - first)
        for peer in plan.workers
        for low, high in [_overlap(plan, peer, first, shard.start)]
        if low < high
    ]
    sends = []
    for peer in plan.workers[bisect_right(plan.workers, rank) :]:
        start = plan.offsets[peer]
        if start - (width - 1) >= shard.stop:
            break
        low, high = _overlap(plan, rank, start - _length(plan, peer, width), start)
        if low < high:
            sends.append(Piece(peer, low - shard.start, high - shard.start))
    return Halo(length, tuple(sends), tuple(receives))


def _length(plan: Plan, rank: int, width: int) -> int:
    return min(width - 1, plan.shard(rank).before)


def _overlap(plan: Plan, rank: int, low: int, high: int) -> tuple[int, int]:
    """The part of global tokens [low, high) that a rank owns."""
    return max(low, plan.offsets[rank]), min(high, plan.offsets[rank + 1])
