# SPDX-License-Identifier: Apache-2.0
"""Orders of tokens over ranks, and the way from one to another.

An order is, per rank, the spans [first, last) of global tokens that it holds, in its own order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ArgumentError

__all__ = ["Route", "contiguous", "route", "zigzag"]

Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Route:
    """One rank's part of a change of order: rows [start, stop) to and from each rank, both in global order."""

    tokens: int  # rows here afterwards
    sends: tuple[Spans, ...]
    receives: tuple[Spans, ...]

    def reversed(self, tokens: int) -> Route:
        """The way back; `tokens` is the number of rows before."""
        return Route(tokens, self.receives, self.sends)


def zigzag(ranks: int, cu_seqlens: Sequence[int], label: str = "zigzag") -> tuple[Spans, ...]:
    """Every sequence in 2 n equal blocks: rank r holds blocks r and 2 n - 1 - r of each, n ranks.

    Errors: ArgumentError when a sequence does not divide.
    """
    held: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for s, (a, b) in enumerate(zip(cu_seqlens, cu_seqlens[1:])):
        block, rest = divmod(b - a, 2 * ranks)
        if rest:
            raise ArgumentError(
                f"{label}: sequence {s} has {b - a} tokens; zigzag order over {ranks} ranks cuts it into "
                f"{2 * ranks} equal blocks: pad it to a multiple of {2 * ranks}"
            )
        if block:
            for r in range(ranks):
                for i in (r, 2 * ranks - 1 - r):
                    held[r].append((a + i * block, a + (i + 1) * block))
    return tuple(tuple(spans) for spans in held)


def contiguous(lengths: Sequence[int]) -> tuple[Spans, ...]:
    """Rank after rank, the order of plans."""
    out, at = [], 0
    for length in lengths:
        out.append(((at, at + length),))
        at += length
    return tuple(out)


def route(source: Sequence[Spans], target: Sequence[Spans], rank: int) -> Route:
    """What `rank` sends and receives so that `source` becomes `target`."""
    sends = tuple(_common(source[rank], other) for other in target)
    receives = tuple(_common(target[rank], other) for other in source)
    return Route(sum(b - a for a, b in target[rank]), sends, receives)


def _common(mine: Spans, theirs: Spans) -> Spans:
    """Local rows of `mine` that `theirs` has, too, in global order."""
    found, at = [], 0
    for a, b in mine:
        for c, d in theirs:
            low, high = max(a, c), min(b, d)
            if low < high:
                found.append((low, at + low - a, at + high - a))
        at += b - a
    return tuple((start, stop) for _, start, stop in sorted(found))
