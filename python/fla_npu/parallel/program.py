# SPDX-License-Identifier: Apache-2.0
"""What one rank does to exchange states: steps over named slots, and nothing but data.

A rank's tokens act on the state that flows through them as an affine map H -> M H + E, stored as the
operators have it: [E | M] in [HV, K, V + K]. Where nothing flows in the map is constant and E alone,
a state [HV, K, V], says everything. A program moves these two kinds between ranks:

    begin    Gather, Receive, Send    posts all that needs no other rank; local work can follow
    finish   Wait, Fold, Compose      takes what arrives and makes of it what others still wait for,
                                      until the slot "incoming" holds the state that enters this rank

Posting never blocks by itself, and in every program the order of posting is such that ranks finish
even where it does. No pair of ranks exchanges two messages in one direction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Union

__all__ = [
    "INCOMING", "MAP", "OWN", "STATE", "Compose", "Fold", "Gather", "Program", "Receive", "Send", "Step",
    "Term", "Wait",
]  # fmt: skip

STATE, MAP = "state", "map"
# Slots with a meaning outside of a program: what the rank contributes, and what it gets.
OWN, INCOMING = "own", "incoming"


class Term(NamedTuple):
    """One operand of a fold: a slot, or one row of a gathered slot."""

    slot: str
    row: int | None = None


@dataclass(frozen=True)
class Gather:
    """Posts an AllGather of `source` as a map; `into` becomes [len(members), HV, K, V + K].

    Every member has the step, also one with nothing to contribute (zeros then).
    """

    source: str
    into: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class Send:
    """Posts `source`, which is of this kind, to a peer."""

    source: str
    peer: int
    kind: str


@dataclass(frozen=True)
class Receive:
    """Posts the receipt of a state or map from a peer; `into` is usable after its Wait."""

    into: str
    peer: int
    kind: str


@dataclass(frozen=True)
class Wait:
    """Waits until `slot`, posted by a Gather or Receive, has arrived."""

    slot: str


@dataclass(frozen=True)
class Fold:
    """A state: acc = E of the first term; for each later one acc = M acc + E. The first M is not read."""

    into: str
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Compose:
    """A map: `later` after `earlier`, [Ml Ee + El | Ml Me]."""

    into: str
    later: str
    earlier: str


Step = Union[Gather, Send, Receive, Wait, Fold, Compose]  # evaluated, so without Python 3.10's |


def reads(step: Step) -> frozenset[str]:
    """Slots whose value the step uses."""
    if isinstance(step, (Gather, Send)):
        return frozenset({step.source})
    if isinstance(step, Wait):
        return frozenset({step.slot})
    if isinstance(step, Fold):
        return frozenset(term.slot for term in step.terms)
    if isinstance(step, Compose):
        return frozenset({step.later, step.earlier})
    return frozenset()


@dataclass(frozen=True)
class Program:
    """One rank's steps in one direction.

    `gives` is the kind of `own` that the rank must hand in, or None; `takes` says whether "incoming"
    exists at the end.
    """

    rank: int
    name: str
    gives: str | None
    takes: bool
    begin: tuple[Step, ...] = ()
    finish: tuple[Step, ...] = ()

    def __bool__(self) -> bool:
        """False where there is nothing to exchange."""
        return bool(self.begin or self.finish)

    @property
    def serves(self) -> bool:
        """Whether other ranks wait for what `finish` sends, also where this one takes nothing."""
        return any(isinstance(step, Send) for step in self.finish)

    def __iter__(self) -> Iterator[Step]:
        yield from self.begin
        yield from self.finish

    @cached_property
    def releases(self) -> tuple[frozenset[str], ...]:
        """Per step, the slots that it is the last to use."""
        later = frozenset({INCOMING})
        out = []
        for step in reversed(tuple(self)):
            out.append(reads(step) - later)
            later |= reads(step)
        return tuple(reversed(out))
