# SPDX-License-Identifier: Apache-2.0
"""Four ways for a state to get from rank to rank, each a compiler from a plan to a rank's program.

All work on spans in the direction of the flow: the first rank of a span is the source and has a state,
the ranks between have maps, every rank but the first needs the state that enters it. The backward
pass is the same with the spans reversed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from .plan import Plan
from .program import (
    INCOMING,
    MAP,
    OWN,
    STATE,
    Compose,
    Fold,
    Gather,
    Program,
    Receive,
    Send,
    Step,
    Term,
    Wait,
)

__all__ = ["Groups", "compile_program"]

Spans = Sequence[tuple[int, ...]]


@dataclass
class _Draft:
    """A program while its steps are collected.

    What a rank begins with is posted by kind: collectives, which all members have first, then receipts,
    then what it sends.
    """

    rank: int
    spans: Spans  # those the rank is in
    gathers: list[Step] = field(default_factory=list)
    receives: list[Step] = field(default_factory=list)
    sends: list[Step] = field(default_factory=list)
    finish: list[Step] = field(default_factory=list)

    def receive(self, into: str, peer: int, kind: str) -> None:
        self.receives.append(Receive(into, peer, kind))

    def send(self, source: str, peer: int, kind: str) -> None:
        """What is known at the start goes out at once, all else in its turn."""
        (self.sends if source == OWN else self.finish).append(Send(source, peer, kind))

    def then(self, step: Step) -> None:
        self.finish.append(step)

    def compose(self, into: str, later: str, earlier: str, kind: str) -> str:
        """`later` after `earlier`, which is of this kind; returns `into`."""
        state = Fold(into, (Term(earlier), Term(later)))
        self.then(state if kind == STATE else Compose(into, later, earlier))
        return into


def compile_program(plan: Plan, rank: int, backward: bool) -> Program:
    """The steps of `rank` under the plan's transport."""
    flow = plan.flow(backward)
    draft = _Draft(rank, [span for span in flow if rank in span])
    _COMPILERS[plan.transport](draft, flow, plan)
    gives = {STATE if span[0] == rank else MAP for span in draft.spans if span[-1] != rank}
    return Program(
        rank,
        f"{plan.transport} {'backward' if backward else 'forward'}",
        gives=gives.pop() if gives else None,
        takes=any(span[0] != rank for span in draft.spans),
        begin=(*draft.gathers, *draft.receives, *draft.sends),
        finish=tuple(draft.finish),
    )


def _gather(draft: _Draft, flow: Spans, plan: Plan) -> None:
    """Everybody gets everything: one collective, one fold."""
    if not flow:
        return
    draft.gathers.append(Gather(OWN, "all", tuple(range(plan.size))))
    draft.then(Wait("all"))
    for span in draft.spans:
        upstream = span[: span.index(draft.rank)]
        if upstream:
            draft.then(Fold(INCOMING, tuple(Term("all", r) for r in upstream)))


def _relay(draft: _Draft, flow: Spans, plan: Plan) -> None:
    """One state per edge: wait, apply the own map, hand on."""
    for span in draft.spans:
        at = span.index(draft.rank)
        if at > 0:
            draft.receive(INCOMING, span[at - 1], STATE)
            draft.then(Wait(INCOMING))
        if at + 1 < len(span):
            if at > 0:
                draft.then(Fold("outgoing", (Term(INCOMING), Term(OWN))))
            draft.send("outgoing" if at > 0 else OWN, span[at + 1], STATE)


def _grouped(draft: _Draft, flow: Spans, plan: Plan) -> None:
    """Gather in groups of consecutive ranks, states from group to group.

    All ranks that know what leaves their group share in sending it, each to its own receivers in the
    next one, so that a hop between groups is as many links wide as the group.
    """
    groups = Groups(plan, flow)
    mine = groups.of(draft.rank)
    if mine in groups.gathering:
        first = mine * groups.size
        draft.gathers.append(Gather(OWN, "all", tuple(range(first, first + groups.size))))
        draft.then(Wait("all"))
    # What leaves the group does not wait for what enters another sequence.
    for span in reversed(flow):
        legs = groups.legs(span)
        at = next((i for i, leg in enumerate(legs) if groups.of(leg[0]) == mine), None)
        if at is not None:
            _cross_groups(draft, groups, legs, at)


def _cross_groups(draft: _Draft, groups: Groups, legs: list[tuple[int, ...]], at: int) -> None:
    """The part of one span in the rank's own group, which is leg `at`. What others wait for goes first."""
    leg, after = legs[at], legs[at + 1] if at + 1 < len(legs) else ()
    member, entry = draft.rank in leg, ()
    if member and at > 0:
        entry = (Term("entry"),)
        draft.receive("entry", groups.sender(legs[at - 1], leg.index(draft.rank)), STATE)
        draft.then(Wait("entry"))
    receivers = [peer for i, peer in enumerate(after) if groups.sender(leg, i) == draft.rank]
    if receivers:
        leaving = entry + groups.terms(leg)
        source = OWN if leaving == (Term(OWN),) else "outgoing"
        if source != OWN:
            draft.then(Fold(source, leaving))
        for peer in receivers:
            draft.send(source, peer, STATE)
    upstream = entry + groups.terms(leg[: leg.index(draft.rank)]) if member else ()
    if upstream:
        draft.then(Fold(INCOMING, upstream))


class Groups:
    """Groups of consecutive ranks, and what each knows of the spans that cross it."""

    def __init__(self, plan: Plan, flow: Spans):
        self.size = plan.group_size
        backward = any(span[0] > span[-1] for span in flow)
        self.workers = plan.workers[::-1] if backward else plan.workers
        # A group gathers when a rank of it needs the contribution of another one.
        self.gathering = {self.of(leg[0]) for span in flow for leg in self.legs(span) if len(leg) > 1}

    def of(self, rank: int) -> int:
        return rank // self.size

    def legs(self, span: tuple[int, ...]) -> list[tuple[int, ...]]:
        """A span cut by groups."""
        return [tuple(leg) for _, leg in groupby(span, key=self.of)]

    def terms(self, ranks: Sequence[int]) -> tuple[Term, ...]:
        """Contributions as the group's members have them: gathered, or the rank's own."""
        return tuple(
            Term("all", rank % self.size) if self.of(rank) in self.gathering else Term(OWN) for rank in ranks
        )

    def sender(self, leg: tuple[int, ...], index: int) -> int:
        """Who of a leg's group sends to the receiver of this index in the next leg."""
        group = self.of(leg[0])
        able = [r for r in self.workers if self.of(r) == group] if group in self.gathering else leg
        return able[index % len(able)]


def _doubling(draft: _Draft, flow: Spans, plan: Plan) -> None:
    """Each round doubles how many ranks back a rank's windows reach.

    Two windows end at the rank: `through` with its own map, which later ranks get, and `back` without
    it, which becomes the result. A window that reaches the source is a state, and grows no more.
    """
    for span in draft.spans:
        at, count = span.index(draft.rank), len(span)
        through, kind, back, distance = OWN, MAP if at > 0 else STATE, None, 1
        if at + 1 < count:
            draft.send(through, span[at + 1], kind)
        while distance < count:
            if receives := at >= distance:
                got_kind = STATE if at < 2 * distance else MAP
                got = INCOMING if at == 1 else f"{distance} back"
                draft.receive(got, span[at - distance], got_kind)
                draft.then(Wait(got))
            if at + 2 * distance < count:
                if receives:
                    through, kind = draft.compose(f"through {2 * distance}", through, got, got_kind), got_kind
                draft.send(through, span[at + 2 * distance], kind)
            if receives and back is not None:
                into = INCOMING if got_kind == STATE else f"{2 * distance - 1} together"
                back = draft.compose(into, back, got, got_kind)
            elif receives:
                back = got
            distance *= 2


_COMPILERS: dict[str, Callable[[_Draft, Spans, Plan], None]] = {
    "gather": _gather,
    "relay": _relay,
    "grouped": _grouped,
    "doubling": _doubling,
}
