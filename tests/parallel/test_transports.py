# SPDX-License-Identifier: Apache-2.0
"""Every transport, forward and backward, against a scan of the whole stream in one process."""

from __future__ import annotations

import random

import numpy as np
import pytest
from fla_npu.parallel import make_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from in_step import in_step
from interpreter import Machine
from packings import NAMED, draw, plans
from whole_scan import Scan

SHAPE = (3, 2)


def run(plan, scan, backward, seed=0, blocking=False):
    """Runs all ranks; returns the machine and the incoming states."""
    programs = [(plan.backward if backward else plan.forward)(r) for r in range(plan.size)]
    shards = [plan.shard(r) for r in range(plan.size)]
    gifts = [scan.gift(s, p.gives, backward) for s, p in in_step(shards, programs)]
    machine = Machine(programs, gifts, SHAPE, seed, blocking)
    found = machine.run()
    for program, state in in_step(programs, found):
        assert program.takes == (state is not None)
    return machine, found


def check(lengths, cu, seed=0):
    scan = Scan(cu, SHAPE, seed)
    for plan in plans(lengths, cu):
        for backward in (False, True):
            for blocking in (False, True):
                _, found = run(plan, scan, backward, seed, blocking)
                for rank, state in enumerate(found):
                    want = scan.want(plan.shard(rank), backward)
                    assert (state is None) == (want is None), (plan, backward, rank)
                    if want is not None:
                        np.testing.assert_allclose(state, want, rtol=0, atol=1e-10, err_msg=f"{plan} {rank}")


@pytest.mark.parametrize("name", NAMED)
def test_named(name):
    check(*NAMED[name])


@pytest.mark.parametrize("seed", range(100))
def test_random(seed):
    check(*draw(random.Random(seed)), seed)


@pytest.mark.parametrize("ranks", [16, 33])
def test_many_ranks(ranks):
    rng = random.Random(ranks)
    check((1,) * ranks, (0, ranks))
    check(*draw(rng, ranks))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=7).filter(any), st.lists(st.integers(0, 28), max_size=6)
)
def test_any_packing(lengths, cuts):
    total = sum(lengths)
    check(tuple(lengths), (0, *sorted(min(cut, total) for cut in cuts), total))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("transport", ["gather", "relay", "doubling"])
def test_order_matters(transport, backward):
    """The maps do not commute: folded the other way round, the answer is another one."""
    plan = make_plan((2,) * 4, transport=transport)
    scan = Scan(plan.cu_seqlens, SHAPE, 1)
    last = 0 if backward else 3
    _, found = run(plan, scan, backward)
    maps = [scan.gift(plan.shard(r), "map", backward) for r in ((1, 2, 3) if backward else (2, 1, 0))]
    reversed_order = Machine([], [], SHAPE).fold([np.hstack([np.zeros(SHAPE), np.eye(3)]), *maps])
    assert np.abs(reversed_order - found[last]).max() > 0.5
