# SPDX-License-Identifier: Apache-2.0
"""The engine on threads: results, bytes, what it holds, and errors that name rank, peer and cause."""

from __future__ import annotations

import random

import numpy as np
import pytest
from fla_npu.chunk_kda import stages
from fla_npu.errors import ArgumentError, ParallelError
from fla_npu.parallel import MAP, STATE, Exchange, Piece, RowExchange, cost, make_plan
from fla_npu.parallel import engine as engine_module
from packings import NAMED, draw, plans
from threads import ArrayAdapter, Group, ThreadTransport, merge
from whole_scan import Scan

HEADS, KEYS = 2, 4  # K = V, as in the kernels
SHAPE = (HEADS, KEYS, KEYS)


STAGE = stages.merge


@pytest.fixture(autouse=True)
def merge_of_any_size(monkeypatch):
    monkeypatch.setattr(stages, "merge", merge)


def gift(scans, shard, kind, backward):
    return None if kind is None else np.stack([scan.gift(shard, kind, backward) for scan in scans])


def exchange(transport, plan, scans, backward=False, shape=SHAPE):
    """One rank's exchange; returns (incoming, what its engine still holds)."""
    program = (plan.backward if backward else plan.forward)(transport.rank)
    own = gift(scans, plan.shard(transport.rank), program.gives, backward)
    run = Exchange(program, ArrayAdapter(), transport, shape=shape, like=np.zeros(1), label="test")
    incoming = run.begin(own).finish()
    assert not run._slots and not run._posting._arriving and not run._posting._leaving
    return incoming


def check(lengths, cu, seed=0, shape=SHAPE):
    scans = [Scan(cu, shape[1:], seed + head) for head in range(shape[0])]
    for plan in plans(lengths, cu):
        for backward in (False, True):
            group = Group(plan.size)
            found = group.run(lambda t, p=plan, b=backward: exchange(t, p, scans, b, shape))
            for rank, state in enumerate(found):
                want = scans[0].want(plan.shard(rank), backward)
                if want is None:
                    assert state is None, (plan, rank)
                    continue
                want = np.stack([scan.want(plan.shard(rank), backward) for scan in scans])
                assert not isinstance(state, Exception), state
                np.testing.assert_allclose(state, want, rtol=0, atol=1e-10, err_msg=f"{plan} {rank}")
            assert sum(group.bytes) == cost(plan, *shape, backward=backward).total, plan


@pytest.mark.parametrize("name", NAMED)
def test_named(name):
    check(*NAMED[name])


@pytest.mark.parametrize("seed", range(25))
def test_random(seed):
    check(*draw(random.Random(seed)), seed)


@pytest.mark.parametrize("name", ["one sequence over all", "sink is source", "over a rank without tokens"])
def test_within_the_rules_of_the_operator(name, monkeypatch):
    """The stage's own checks, and the golden of the operator in place of its kernel."""
    monkeypatch.setattr(stages, "merge", STAGE)
    check(*NAMED[name], shape=(1, 128, 128))


def test_many_summaries_and_heads(monkeypatch):
    """What one launch does not take goes in parts, of maps or of heads."""
    most = []

    def small(adapter, h, summaries, *args, **options):
        most.append(summaries.shape[:2])
        return merge(adapter, h, summaries, *args, **options)

    monkeypatch.setattr(stages, "merge", small)
    monkeypatch.setattr(engine_module, "MOST_SUMMARIES", 4)
    monkeypatch.setattr(engine_module, "MOST_HEADS", 3)
    check((1,) * 9, (0, 9))
    assert max(count for count, _ in most) == 4 and max(heads for _, heads in most) == 3


def test_a_gathered_row_is_merged_where_it_lies(monkeypatch):
    """No copy of what was gathered: the operator is handed the very buffer."""
    seen = []

    def spy(adapter, h, summaries, count, rank, **options):
        seen.append((summaries.shape[0], count, rank, options["forward"]))
        return merge(adapter, h, summaries, count, rank, **options)

    monkeypatch.setattr(stages, "merge", spy)
    plan, scans = make_plan((1, 0, 1, 1, 1)), [Scan((0, 4), SHAPE[1:], head) for head in range(HEADS)]
    Group(5).run(lambda t: exchange(t, plan, scans))
    # Rank 3 folds rows 0 and 2, which are no neighbours, by copy; rank 2 and rank 1 need no merge.
    assert sorted(seen) == [(3, 2, 2, True), (4, 3, 3, True)]
    seen.clear()
    plan = make_plan((1,) * 4)
    Group(4).run(lambda t: exchange(t, plan, scans))
    Group(4).run(lambda t: exchange(t, plan, scans, True))
    assert sorted(seen) == [(4, 2, 1, False), (4, 2, 2, True), (4, 3, 0, False), (4, 3, 3, True)]


# errors


def test_a_broken_link_names_rank_peer_step_and_cause(monkeypatch):
    monkeypatch.setattr(ThreadTransport, "timeout", 0.2)
    plan = make_plan((2, 2, 2), transport="relay")
    scans = [Scan((0, 6), SHAPE[1:], head) for head in range(HEADS)]
    first, second, third = Group(3, broken=(1,)).run(lambda t: exchange(t, plan, scans))
    assert first is None  # its state was taken; who was to have it failed
    assert isinstance(second, ParallelError) and isinstance(second.__cause__, ConnectionError)
    assert (second.rank, second.peers, second.step) == (1, (0,), "receiving a state from rank 0")
    assert isinstance(third, ParallelError) and isinstance(third.__cause__, TimeoutError)
    assert str(third) == (
        "test: rank 2 of 3, relay forward: receiving a state from rank 1 failed: TimeoutError: nothing "
        "within 0.2 s"
    )


def test_a_gather_without_one_of_its_members(monkeypatch):
    monkeypatch.setattr(ThreadTransport, "timeout", 0.2)
    plan = make_plan((2, 2))
    scans = [Scan((0, 4), SHAPE[1:], head) for head in range(HEADS)]
    for error in Group(2, broken=(1,)).run(lambda t: exchange(t, plan, scans, True)):
        assert isinstance(error, ParallelError) and error.peers == (0, 1)
        assert "gather backward: the gather over ranks 0 to 1" in str(error)


def test_a_transport_that_knows_better_is_not_overruled(monkeypatch):
    known = ParallelError("rank 1 refused its input", rank=0, peers=(1,))
    monkeypatch.setattr(ThreadTransport, "gather", lambda *a: (_ for _ in ()).throw(known))
    plan, scans = make_plan((2, 2)), [Scan((0, 4), SHAPE[1:], head) for head in range(HEADS)]
    assert Group(2).run(lambda t: exchange(t, plan, scans)) == [known, known]


def test_contributions_of_the_wrong_kind_are_refused():
    plan = make_plan((2, 2, 2), transport="relay")
    assert [plan.forward(r).gives for r in range(3)] == [STATE, MAP, None]
    assert [plan.backward(r).gives for r in range(3)] == [None, MAP, STATE]
    for rank, own in ((0, None), (1, np.zeros(SHAPE)), (2, np.zeros(SHAPE))):
        run = Exchange(
            plan.forward(rank), ArrayAdapter(), Group(3).rank(rank), shape=SHAPE, like=None, label="call"
        )
        with pytest.raises(ArgumentError, match=f"call: rank {rank} gives "):
            run.begin(own)
    with pytest.raises(ArgumentError, match="a program of rank 0 on rank 1"):
        Exchange(plan.forward(0), ArrayAdapter(), Group(3).rank(1), shape=SHAPE, like=None)


# rows


def test_rows_go_where_their_pieces_say():
    tokens = np.arange(12.0).reshape(6, 2)

    def work(transport):
        if transport.rank == 0:
            run = RowExchange(ArrayAdapter(), transport, tokens, [Piece(1, 4, 6)], [])
        else:
            run = RowExchange(ArrayAdapter(), transport, tokens, [], [Piece(0, 0, 2)])
        return run.finish()

    sent, got = Group(2).run(work)
    assert sent == [] and np.array_equal(got[0], tokens[4:6])


def test_rows_that_do_not_come(monkeypatch):
    monkeypatch.setattr(ThreadTransport, "timeout", 0.2)
    error = Group(2).run(
        lambda t: RowExchange(
            ArrayAdapter(), t, np.zeros((2, 3)), [], [Piece(1 - t.rank, 0, 2)], label="conv"
        ).finish()
    )[0]
    assert isinstance(error, ParallelError)
    assert str(error).startswith("conv: rank 0 of 2, halo: receiving 2 rows from rank 1 failed: TimeoutError")
