# SPDX-License-Identifier: Apache-2.0
"""All ranks' programs in one process, in float64, with the strictest reading of what a group does.

An operation completes when its counterpart was posted too: a receive needs its send, a send its
receive, a gather all its members, in the same order on each. With `blocking`, posting itself waits for
that. When no rank can move on, the error says who waits for whom.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from fla_npu.parallel.program import INCOMING, MAP, OWN, Compose, Fold, Gather, Receive, Send, Wait
from in_step import in_step


class Deadlock(Exception):
    """No rank can move on."""


@dataclass
class Rank:
    """Where one rank is. `depth` counts the messages that had to follow one another before now."""

    steps: list
    slots: dict
    at: int = 0
    depth: int = 0
    received: int = 0
    arriving: dict = field(default_factory=dict)
    gathers: int = 0

    @property
    def step(self):
        return self.steps[self.at] if self.at < len(self.steps) else None


class Machine:
    """`shape` = (K, V); a state is [K, V], a map [K, V + K]. Numbers on the wire are counted."""

    def __init__(self, programs, gifts, shape, seed=0, blocking=False):
        self.keys, self.values = shape
        self.ranks = [Rank(list(p), {} if g is None else {OWN: g}) for p, g in in_step(programs, gifts)]
        self.random, self.blocking = random.Random(seed), blocking
        self.sent: dict[tuple[int, int], list] = defaultdict(list)  # (from, to) -> (value, depth)
        self.gathered: dict[tuple, dict] = defaultdict(dict)  # (members, how many before) -> rank -> value
        self.numbers = [0] * len(programs)  # received by each rank
        self.messages = 0

    def run(self):
        """Incoming states, None where there is none."""
        while any(rank.step is not None for rank in self.ranks):
            order = list(range(len(self.ranks)))
            self.random.shuffle(order)
            if not any([self.advance(r) for r in order]):
                raise Deadlock("; ".join(self.waits_for(r) for r in order if self.ranks[r].step is not None))
        leftover = {pair for pair, queue in self.sent.items() if queue}
        assert not leftover, f"sent and never received: {leftover}"
        return [rank.slots.get(INCOMING) for rank in self.ranks]

    def waits_for(self, r):
        step = self.ranks[r].step
        if isinstance(step, Wait):
            step = self.ranks[r].arriving[step.slot][0]
        whom = step.members if isinstance(step, Gather) else (step.peer,)
        return f"rank {r} waits for {[p for p in whom if p != r]} at {step}"

    def advance(self, r) -> bool:
        """Takes as many steps of a rank as it can; False when it could take none."""
        taken = 0
        while self.ranks[r].step is not None and self.take(r, self.ranks[r].step):
            taken += 1
        return taken > 0

    def take(self, r, step) -> bool:
        rank = self.ranks[r]
        if isinstance(step, Gather):
            moved = self.post_gather(r, step)
        elif isinstance(step, Send):
            moved = self.post_send(r, step)
        elif isinstance(step, Receive):
            rank.arriving[step.into] = step, None
            moved = not self.blocking or self.counterpart(r, step)
        elif isinstance(step, Wait):
            moved = self.complete(r, *rank.arriving[step.slot])
        elif isinstance(step, Fold):
            rank.slots[step.into] = self.fold([self.operand(rank, t) for t in step.terms])
            moved = True
        elif isinstance(step, Compose):
            rank.slots[step.into] = self.compose(rank.slots[step.later], rank.slots[step.earlier])
            moved = True
        rank.at += bool(moved)
        return bool(moved)

    # communication

    def post_send(self, r, step) -> bool:
        value = self.ranks[r].slots[step.source]
        assert value.shape == (self.keys, self.values + (self.keys if step.kind == MAP else 0)), step
        # A rendezvous: the peer is at its receive, or, when posting does not block, has it in its program.
        expected = [s for s in self.ranks[step.peer].steps if isinstance(s, Receive) and s.peer == r]
        assert len(expected) == 1 and expected[0].kind == step.kind, f"{step} of rank {r} has no counterpart"
        if self.blocking and self.ranks[step.peer].step != expected[0]:
            return False
        self.sent[r, step.peer].append((value, self.ranks[r].depth))
        self.messages += 1
        return True

    def counterpart(self, r, step) -> bool:
        """Blocking: whether the peer has got to its send. It is taken there first, then here."""
        return bool(self.sent[step.peer, r])

    def post_gather(self, r, step) -> bool:
        rank = self.ranks[r]
        assert r in step.members
        key = step.members, rank.gathers
        value = rank.slots.get(step.source, np.zeros((self.keys, 0)))
        padded = np.zeros((self.keys, self.values + self.keys))
        padded[:, : value.shape[1]] = value
        self.gathered[key].setdefault(r, (padded, rank.depth))
        if self.blocking and len(self.gathered[key]) < len(step.members):
            return False
        rank.arriving[step.into] = step, key
        rank.gathers += 1
        return True

    def complete(self, r, step, key) -> bool:
        rank = self.ranks[r]
        if isinstance(step, Gather):
            there = self.gathered[key]
            if len(there) < len(step.members):
                return False
            arrived, depth = np.stack([there[m][0] for m in step.members]), max(d for _, d in there.values())
            self.numbers[r] += arrived[1:].size
        else:
            queue = self.sent[step.peer, r]
            if not queue:
                return False
            arrived, depth = queue.pop(0)
            self.numbers[r] += arrived.size
        rank.slots[step.into] = arrived
        rank.depth = max(rank.depth, depth + 1)
        return True

    # arithmetic

    def operand(self, rank, term):
        value = rank.slots[term.slot]
        return value if term.row is None else value[term.row]

    def fold(self, maps):
        acc = maps[0][:, : self.values]
        for m in maps[1:]:
            assert m.shape[1] == self.values + self.keys, "a state where a map is needed"
            acc = m[:, self.values :] @ acc + m[:, : self.values]
        return acc

    def compose(self, later, earlier):
        moved = later[:, self.values :] @ earlier
        moved[:, : self.values] += later[:, : self.values]
        return moved
