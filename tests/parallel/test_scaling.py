# SPDX-License-Identifier: Apache-2.0
"""The formulas of cost are what the programs send."""

from __future__ import annotations

import random
import re
from pathlib import Path

import measure
import pytest
from fla_npu.parallel import MAP, TRANSPORTS, cost, even_plan
from fla_npu.parallel.__main__ import by_ranks, by_sequences, modelled
from fla_npu.parallel.program import OWN, Fold, Gather, Receive
from fla_npu.parallel.scaling import A2, A3, seconds
from in_step import in_step
from packings import NAMED, draw, plans
from test_transports import SHAPE, run
from whole_scan import Scan

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"


def held(program, state, full):
    """Most bytes in slots at any step; what is on its way out is held until the end."""
    live, leaving, most = {OWN: 0}, 0, 0
    for step, released in in_step(program, program.releases):
        if isinstance(step, Gather):
            # The own contribution may have to be widened to a map before it leaves.
            live[step.into], leaving = len(step.members) * full, leaving + full
        elif isinstance(step, Receive):
            live[step.into] = full if step.kind == MAP else state
        elif isinstance(step, Fold):
            live[step.into] = state
        elif hasattr(step, "later"):
            live[step.into] = full
        most = max(most, sum(live.values()) + leaving)
        sent = {s.source for s in program if hasattr(s, "kind") and hasattr(s, "source")}
        for slot in released:
            leaving += live.get(slot, 0) if slot in sent else 0
            live.pop(slot, None)
    return most


def compare(lengths, cu, seed=0):
    scan, (keys, values) = Scan(cu, SHAPE, seed), SHAPE
    for plan in plans(lengths, cu):
        for backward in (False, True):
            machine, _ = run(plan, scan, backward, seed)
            want = cost(plan, 1, keys, values, backward=backward)
            assert 4 * sum(machine.numbers) == want.total, plan
            assert 4 * max(machine.numbers) <= want.busiest, plan
            assert max(rank.depth for rank in machine.ranks) == want.steps, (plan, backward)
            way = plan.backward if backward else plan.forward
            most = max(held(way(r), 4 * keys * values, 4 * keys * (keys + values)) for r in range(plan.size))
            assert most <= want.memory, plan


@pytest.mark.parametrize("name", NAMED)
def test_named(name):
    compare(*NAMED[name])


@pytest.mark.parametrize("seed", range(40))
def test_random(seed):
    compare(*draw(random.Random(1000 + seed)), seed)


@pytest.mark.parametrize("ranks", range(1, 34))
def test_one_sequence(ranks):
    compare((1,) * ranks, (0, ranks))


@pytest.mark.parametrize("transport", ["gather", "relay", "doubling"])
def test_busiest_rank_is_met(transport):
    """With one sequence the bound is the figure itself."""
    for ranks in (2, 3, 5, 8, 9, 16):
        plan = even_plan(transport, ranks)
        machine, _ = run(plan, Scan(plan.cu_seqlens, SHAPE, 0), False)
        assert 4 * max(machine.numbers) == cost(plan, 1, *SHAPE).busiest


def test_known_figures():
    """32 heads of 128 x 128: a state is 2 MiB and a map 4 MiB."""
    mib = 2**20
    assert cost(even_plan("gather", 8), 32).total == 8 * 7 * 4 * mib
    assert cost(even_plan("relay", 8), 32).total == 7 * 2 * mib
    assert cost(even_plan("doubling", 8), 32).total == (7 * 2 + 10 * 4) * mib
    assert cost(even_plan("grouped", 8, group_size=4), 32).total == (2 * 4 * 3 * 4 + 4 * 2) * mib
    assert cost(even_plan("relay", 8, sequences=8), 32).total == 0
    # Ranks without a common sequence send nothing, whatever the transport.
    assert cost(even_plan("gather", 4, sequences=8), 32).steps == 0


@pytest.mark.parametrize("machine", [A2, A3])
def test_model_is_monotone(machine):
    for transport in ("gather", "relay", "doubling"):
        times = [seconds(even_plan(transport, ranks), machine, 32) for ranks in (1, 2, 8, 64, 512)]
        assert times == sorted(times) and times[0] == 0


def test_page_has_what_the_command_prints():
    page = {line for line in PAGE.read_text().splitlines() if line.startswith("|")}
    for table in (by_ranks(32), by_sequences(32), modelled(A2, 32), modelled(A3, 32)):
        for line in table[2:]:
            assert line in page, f"docs/scaling.md lacks {line}; python -m fla_npu.parallel prints it"
    assert re.search(r"python -m fla_npu\.parallel", PAGE.read_text())


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ranks", measure.RANKS)
def test_measured_figures(transport, ranks):
    """What was counted is on the page; memory is the slots, and the operands of a composition at most."""
    received, held = measure.measure(transport, ranks)
    want, full = cost(measure.plan_of(transport, ranks), measure.HEADS), 8 * measure.HEADS * measure.KEYS**2
    assert received == want.total
    assert held <= want.memory + 10 * full
    name = re.escape(f"| {ranks} | {transport} | ") + r"(.*) \|"
    cells = [m.group(1).split(" | ") for m in re.finditer(name, PAGE.read_text())]
    page = next(float(c[3]) for c in cells if float(c[0]) == received / 1024 == float(c[1]))
    assert page == pytest.approx(held / 1024, rel=0.1)
