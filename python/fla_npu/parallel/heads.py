# SPDX-License-Identifier: Apache-2.0
"""Sequence <-> heads: which rows of a tensor go to which rank. Shapes only; a front end moves the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..chunk_kda.compose import HEAD_AXIS
from ..errors import ArgumentError, ArgumentTypeError
from .scan import TOKEN_AXIS

__all__ = ["LABEL", "Way", "check_heads", "check_layout", "ways", "way_back", "wrong_output"]

LABEL = "parallel.ulysses"
RANK_4 = ("BNSD", "BSND")


@dataclass(frozen=True)
class Way:
    """Where the rows of one tensor go: [tokens, heads, ...] here, some of the heads of all tokens there.

    tokens: of every rank. heads: (first, count) of every rank; where ranks share a head each gets it, and
    on the way back their parts are summed. total: heads of the whole tensor. rest: its further axes.
    """

    tokens: tuple[int, ...]
    heads: tuple[tuple[int, int], ...]
    total: int
    rest: tuple[int, ...]

    @property
    def shared(self) -> bool:
        """Whether several ranks have the same head."""
        return sum(count for _, count in self.heads) > self.total

    def volume(self, tokens: int, heads: int) -> int:
        """Elements of that many rows and heads."""
        return tokens * heads * math.prod(self.rest)

    def starts(self) -> list[int]:
        """First token of every rank."""
        return [0, *accumulate(self.tokens)][:-1]


def axes_of(layout: str) -> tuple[int, int]:
    """(axis of tokens, axis of heads)."""
    return TOKEN_AXIS[layout], HEAD_AXIS[layout]


def rest_of(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    return tuple(n for i, n in enumerate(shape) if i not in axes_of(layout))


def check_layout(layout: str, output_layout: str | None) -> str:
    """The layout of the first output: token-major when None."""
    for name, value in (("layout", layout), ("output_layout", output_layout)):
        if value is not None and value not in TOKEN_AXIS:
            raise ArgumentError(f"{LABEL}: {name} = {value!r}; it must be one of {list(TOKEN_AXIS)}")
    return output_layout or ("BSND" if layout in RANK_4 else "TND")


def check_heads(shapes: Sequence[tuple[int, ...]], layout: str, ranks: int) -> None:
    """Whether tensors of these shapes can be shared out by heads."""
    rank, (token, head) = (4 if layout in RANK_4 else 3), axes_of(layout)
    if not shapes:
        raise ArgumentTypeError(f"{LABEL}: no positional tensor; the ones to exchange are positional")
    for i, shape in enumerate(shapes):
        if len(shape) not in (rank - 1, rank):
            raise ArgumentError(
                f"{LABEL}: positional argument {i} has shape {tuple(shape)}, but layout '{layout}' has {rank} "
                f"axes, or {rank - 1} without the last"
            )
        if shape[token] != shapes[0][token]:
            raise ArgumentError(
                f"{LABEL}: positional argument {i} has {shape[token]} tokens, the first one "
                f"{shapes[0][token]}; all have this rank's tokens"
            )
    heads = [shape[head] for shape in shapes]
    most = max(heads)
    if most % ranks or not most:
        raise ArgumentError(
            f"{LABEL}: positional argument {heads.index(most)} has {most} heads, which {ranks} ranks cannot "
            "share; the largest number of heads must be a multiple of the ranks"
        )
    for i, count in enumerate(heads):
        if not count or most % count or (count % ranks and ranks % count):
            raise ArgumentError(
                f"{LABEL}: positional argument {i} has {count} heads beside {most} of another one; it must be a "
                f"divisor of {most}, and a multiple or a divisor of the {ranks} ranks"
            )


def ways(shapes: Sequence[tuple[int, ...]], layout: str, tokens: Sequence[int], ranks: int) -> list[Way]:
    """One per tensor."""
    out = []
    for shape in shapes:
        total = shape[axes_of(layout)[1]]
        step = max(1, total // ranks)
        heads = tuple((r * total // ranks, step) for r in range(ranks))
        out.append(Way(tuple(tokens), heads, total, rest_of(shape, layout)))
    return out


def wrong_output(shape: Sequence[int] | None, kind: str, layout: str, tokens: int) -> ArgumentError | None:
    """What is wrong with the first output of the function between the exchanges, which is a `kind`; a tensor
    where it has a shape."""
    token, head = axes_of(layout)
    if shape is not None and len(shape) > max(token, head) and shape[token] == tokens:
        return None
    return ArgumentError(
        f"{LABEL}: the first output of fn is {kind if shape is None else tuple(shape)}; it must be a tensor of "
        f"layout {layout} with all {tokens} tokens"
    )


def way_back(shape: Sequence[int], layout: str, tokens: Sequence[int], ranks: int) -> Way:
    """Of an output of this shape, all tokens and some heads, that every rank has."""
    heads = shape[axes_of(layout)[1]]
    spans = tuple((r * heads, heads) for r in range(ranks))
    return Way(tuple(tokens), spans, heads * ranks, rest_of(shape, layout))
