# SPDX-License-Identifier: Apache-2.0
"""The interpreter finds what it is there to find."""

from __future__ import annotations

import numpy as np
import pytest
from fla_npu.parallel import MAP, STATE, Program
from fla_npu.parallel.program import OWN, Fold, Gather, Receive, Send, Term, Wait
from interpreter import Deadlock, Machine

SHAPE = (3, 2)
STATE_OF = np.zeros(SHAPE)
MAP_OF = np.zeros((3, 5))


def machine(*steps, gifts=None, blocking=False):
    programs = [Program(r, "test", None, False, finish=tuple(own)) for r, own in enumerate(steps)]
    return Machine(programs, gifts or [STATE_OF] * len(steps), SHAPE, blocking=blocking)


def test_a_ring_of_waits():
    ring = [[Receive("x", 1 - r, STATE), Wait("x"), Send("x", 1 - r, STATE)] for r in (0, 1)]
    with pytest.raises(Deadlock) as caught:
        machine(*ring).run()
    assert "rank 0 waits for [1]" in str(caught.value) and "rank 1 waits for [0]" in str(caught.value)


def test_sends_that_meet_head_on():
    """Harmless where posting does not block, a deadlock where it does."""
    steps = [[Send(OWN, 1 - r, STATE), Receive("x", 1 - r, STATE), Wait("x")] for r in (0, 1)]
    machine(*steps).run()
    with pytest.raises(Deadlock):
        machine(*steps, blocking=True).run()


def test_a_rank_that_skips_a_collective():
    with pytest.raises(Deadlock, match=r"rank 0 waits for \[1\] at Gather"):
        machine([Gather(OWN, "all", (0, 1)), Wait("all")], []).run()


def test_members_that_disagree():
    with pytest.raises(Deadlock, match="Gather"):
        machine([Gather(OWN, "all", (0, 1)), Wait("all")], [Gather(OWN, "all", (1, 0)), Wait("all")]).run()


def test_a_message_without_counterpart():
    with pytest.raises(AssertionError, match="has no counterpart"):
        machine([Send(OWN, 1, STATE)], []).run()
    with pytest.raises(Deadlock, match=r"rank 1 waits for \[0\]"):
        machine([], [Receive("x", 0, STATE), Wait("x")]).run()
    with pytest.raises(AssertionError, match="never received"):
        machine([Send(OWN, 1, STATE)], [Receive("x", 0, STATE)]).run()


def test_kinds_must_agree():
    with pytest.raises(AssertionError, match="has no counterpart"):
        machine([Send(OWN, 1, STATE)], [Receive("x", 0, MAP), Wait("x")]).run()
    with pytest.raises(AssertionError):
        machine([Send(OWN, 1, STATE)], [Receive("x", 0, STATE), Wait("x")], gifts=[MAP_OF, None]).run()
    with pytest.raises(AssertionError, match="a state where a map is needed"):
        machine([Fold("x", (Term(OWN), Term(OWN)))]).run()
