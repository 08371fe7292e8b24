# SPDX-License-Identifier: Apache-2.0
"""Who owns what, and which plans are refused."""

from __future__ import annotations

import random

import numpy as np
import pytest
from fla_npu.errors import ArgumentError, ArgumentTypeError
from fla_npu.parallel import Plan, make_plan
from in_step import in_step
from packings import NAMED, draw


def shards(lengths, cu=None):
    plan = make_plan(lengths, cu)
    return [plan.shard(r) for r in range(plan.size)]


def test_uneven_shares():
    """Cases that others dropped tokens in."""
    assert [(s.start, s.stop) for s in shards((4, 3, 3))] == [(0, 4), (4, 7), (7, 10)]
    assert [s.cu_seqlens for s in shards((1, 1, 0))] == [(0, 1), (0, 1), (0,)]
    one = shards((4, 4, 4), (0, 5, 12))[1]
    assert (one.cu_seqlens, one.before) == ((0, 1, 4), 4)
    assert (one.sequences, one.begins, one.ends) == ((0, 1), (False, True), (True, False))
    assert (one.starts, one.finishes, one.continues, one.goes_on) == ((1,), (0,), True, True)


def test_ranks_without_tokens():
    plan = make_plan((3, 0, 0, 4), (0, 7))
    idle = plan.shard(1)
    assert (idle.tokens, idle.cu_seqlens, idle.sequences) == (0, (0,), ())
    assert not idle.continues and not idle.goes_on and idle.before == 0
    assert plan.shard(3).before == 3
    assert plan.spans == ((0, 3),)


def test_empty_sequences_have_one_owner():
    found = shards((4, 4, 0), (0, 0, 4, 4, 4, 8, 8))
    assert [s.sequences for s in found] == [(0, 1), (2, 3, 4, 5), ()]
    assert [s.cu_seqlens for s in found] == [(0, 0, 4), (0, 0, 0, 4, 4), (0,)]
    assert all(s.starts == s.finishes for s in found)
    inside = shards((2, 2), (0, 1, 1, 4))
    assert [s.sequences for s in inside] == [(0, 1, 2), (2,)]


@pytest.mark.parametrize("packing", [*NAMED, *range(200)])
def test_every_token_and_sequence_once(packing):
    lengths, cu = NAMED[packing] if packing in NAMED else draw(random.Random(packing))
    found = shards(lengths, cu)
    tokens = [
        (sequence, shard.start + t)
        for shard in found
        for sequence, low, high in zip(shard.sequences, shard.cu_seqlens, shard.cu_seqlens[1:])
        for t in range(low, high)
    ]
    assert tokens == [(s, t) for s in range(len(cu) - 1) for t in range(cu[s], cu[s + 1])]
    for shard in found:
        assert shard.cu_seqlens[-1] == shard.tokens == lengths[shard.rank]
        assert not any(not b for b in shard.begins[1:]) and not any(not e for e in shard.ends[:-1])
        if shard.sequences:
            assert shard.before == max(0, shard.start - cu[shard.sequences[0]])
            assert shard.continues == (shard.before > 0)
    for flags in ("begins", "ends"):
        owned = [s for shard in found for s, f in in_step(shard.sequences, getattr(shard, flags)) if f]
        assert owned == list(range(len(cu) - 1))


def test_spans():
    plan = make_plan((5, 5, 5, 5), (0, 7, 13, 20))
    assert plan.spans == ((0, 1), (1, 2), (2, 3))
    assert plan.flow(backward=True) == ((3, 2), (2, 1), (1, 0))
    assert make_plan((5, 5), (0, 5, 10)).spans == ()


def test_without_crossings_there_is_nothing_to_do():
    for transport in ("gather", "relay", "doubling"):
        plan = make_plan((5, 5), (0, 5, 10), transport=transport)
        assert not any(plan.forward(r) or plan.backward(r) for r in (0, 1))


def test_plans_are_values():
    assert make_plan([4, 4], [0, 8]) == make_plan(np.array([4, 4]), None) == Plan((4, 4), (0, 8))
    assert hash(make_plan((4, 4))) == hash(make_plan((4, 4)))
    assert make_plan((4, 4)) != make_plan((4, 4), transport="relay")


def test_a_rank_without_tokens_is_in_collectives_only():
    plan = make_plan((3, 0, 4))
    assert [step.members for step in plan.forward(1).begin] == [(0, 1, 2)]
    assert not make_plan((3, 0, 4), transport="relay").forward(1)
    assert not make_plan((3, 0, 4), transport="doubling").backward(1)


def test_who_may_finish_late():
    """In the first group of a span all ranks pass on what leaves it, also those that take nothing."""
    plan = make_plan((2,) * 6, (0, 2, 12), transport="grouped", group_size=3)
    programs = [plan.forward(r) for r in range(6)]
    assert [p.takes for p in programs] == [False, False, True, True, True, True]
    assert [p.serves for p in programs] == [True, True, True, False, False, False]
    assert not any(make_plan((2,) * 4).forward(r).serves for r in range(4))


REFUSED = {
    "no ranks": (dict(lengths=()), ArgumentError, "lengths is empty"),
    "no tokens": (dict(lengths=(0, 0)), ArgumentError, "no rank has a token"),
    "negative length": (dict(lengths=(4, -1)), ArgumentError, r"lengths\[1\] = -1"),
    "float length": (dict(lengths=(4, 1.0)), ArgumentTypeError, "float"),
    "lengths a number": (dict(lengths=8), ArgumentTypeError, "pass a list"),
    "sum": (dict(lengths=(4, 4), cu_seqlens=(0, 9)), ArgumentError, r"add up to 8 tokens, but .*\[-1\] = 9"),
    "decreasing": (dict(lengths=(4, 4), cu_seqlens=(0, 5, 3, 8)), ArgumentError, "must not decrease"),
    "first": (dict(lengths=(4, 4), cu_seqlens=(1, 8)), ArgumentError, r"cu_seqlens\[0\] = 1"),
    "one offset": (dict(lengths=(4, 4), cu_seqlens=(8,)), ArgumentError, "at least 2"),
    "no offsets": (dict(lengths=(4, 4), cu_seqlens=()), ArgumentError, "at least 2"),
    "transport": (dict(lengths=(4, 4), transport="ring"), ArgumentError, "'gather', 'relay'"),
    "no group": (dict(lengths=(4, 4), transport="grouped"), ArgumentTypeError, "group_size = None"),
    "group": (dict(lengths=(4,) * 6, transport="grouped", group_size=4), ArgumentError, "does not divide 6"),
    "group of 0": (dict(lengths=(4, 4), transport="grouped", group_size=0), ArgumentError, "does not divide"),
    "stray group": (dict(lengths=(4, 4), transport="relay", group_size=2), ArgumentError, "leave it out"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_plans_are_refused(name):
    arguments, error, message = REFUSED[name]
    with pytest.raises(error, match=message) as caught:
        make_plan(**arguments, label="context")
    assert str(caught.value).startswith("context: ")


@pytest.mark.parametrize("call", ["shard", "forward", "backward"])
def test_wrong_ranks_are_refused(call):
    plan = make_plan((4, 4))
    for rank in (-1, 2):
        with pytest.raises(ArgumentError, match=f"rank = {rank}; the plan has ranks 0 to 1"):
            getattr(plan, call)(rank)
    with pytest.raises(ArgumentTypeError, match="rank = True"):
        getattr(plan, call)(True)
