# SPDX-License-Identifier: Apache-2.0
"""What an exchange of states costs: bytes, steps and memory by formula, time by a model.

Units: a state is S = 4 HV K V bytes, a map A = 4 HV K (V + K). Bytes and steps are exact for any
plan and are tested against what the programs send. Times are a model over stated link figures; none
of them was measured on a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from .plan import Plan, make_plan
from .transports import Groups

__all__ = ["A2", "A3", "Cost", "Machine", "cost", "even_plan", "seconds"]


@dataclass(frozen=True)
class Cost:
    """One direction of one layer."""

    total: int  # bytes received by all ranks together
    busiest: int  # bytes received by the rank that receives most
    steps: int  # messages that must follow one another
    memory: int  # bytes of slots that a rank holds at most, beside its own contribution


def even_plan(transport: str, ranks: int, sequences: int = 1, group_size: int | None = None) -> Plan:
    """Ranks of equal length and sequences of equal length."""
    cuts = range(0, ranks * sequences + 1, ranks)
    return make_plan((sequences,) * ranks, tuple(cuts), transport=transport, group_size=group_size)


def cost(plan: Plan, heads: int, keys: int = 128, values: int = 128, *, backward: bool = False) -> Cost:
    """Counts of a plan with `heads` value heads, from its spans (a span of m ranks is one sequence's).

    The backward pass differs in 'grouped' only, where a sequence need not fill its first and last group.
    """
    state, full = 4 * heads * keys * values, 4 * heads * keys * (values + keys)
    spans = [len(span) for span in plan.spans]
    if not spans:
        return Cost(0, 0, 0, 0)
    if plan.transport == "gather":
        others = (plan.size - 1) * full
        return Cost(plan.size * others, others, 1, (plan.size + 1) * full + state)
    if plan.transport == "relay":
        return Cost(sum(m - 1 for m in spans) * state, state, max(spans) - 1, 2 * state)
    if plan.transport == "grouped":
        return _grouped(plan, plan.flow(backward), state, full)
    longest = max(spans)
    rounds = (longest - 1).bit_length()  # distances 1, 2, 4, ... below the span
    return Cost(
        sum(_doubled(m, state, full) for m in spans),
        (rounds - 1) * full + state,
        longest.bit_length() - 1,  # complete windows go out at once, so one round fewer between powers of 2
        min(2 * rounds - 2, rounds + 2) * full + 2 * state,
    )


def _grouped(plan: Plan, flow, state: int, full: int) -> Cost:
    groups = Groups(plan, flow)
    legs = [groups.legs(span) for span in flow]
    others = (groups.size - 1) * full if groups.gathering else 0
    entered = sum(len(leg) for span in legs for leg in span[1:])
    first_gathers = [groups.of(span[0][0]) in groups.gathering for span in legs]
    return Cost(
        len(groups.gathering) * groups.size * others + entered * state,
        others + (state if entered else 0),
        max(len(span) - 1 + first for span, first in zip(legs, first_gathers)),
        ((groups.size + 1) * full if groups.gathering else 0) + 3 * state,
    )


def _doubled(count: int, state: int, full: int) -> int:
    """Bytes of a span: in the round of distance d, count - d ranks send, the first d of them states."""
    distances = [2**i for i in range((count - 1).bit_length())]
    states = [min(d, count - d) for d in distances]
    return sum(s * state + (count - d - s) * full for d, s in zip(distances, states))


@dataclass(frozen=True)
class Machine:
    """Figures of links and memory, in bytes per second and direction; see docs/scaling.md for sources.

    `inside` is between two NPUs of a node, `fan` how many such links an NPU drives at once, `between`
    what an NPU has out of its node. `latency` is of one message or collective, `launch` of one merge.
    """

    name: str
    node: int
    inside: float
    fan: int
    between: float
    latency: float = 20e-6
    launch: float = 10e-6
    memory: float = 1.6e12


A2 = Machine("A2 node", node=8, inside=28e9, fan=7, between=25e9)
A3 = Machine("A3 supernode", node=768, inside=196e9, fan=1, between=25e9)


def seconds(plan: Plan, machine: Machine, heads: int, keys: int = 128, values: int = 128) -> float:
    """Modelled time of one exchange in one direction with nothing to hide it behind.

    For a plan of one span over all ranks; groups, if any, are taken as nodes.
    """
    state, full = 4 * heads * keys * values, 4 * heads * keys * (values + keys)
    ranks, m = plan.size, machine
    node = plan.group_size or m.node
    nodes = ceil(ranks / node)
    if ranks == 1:
        return 0.0
    link = m.inside if ranks <= m.node else m.between
    if plan.transport == "gather":
        return _gather_seconds(m, min(ranks, node), nodes, full) + _fold(m, ranks, full)
    if plan.transport == "grouped":
        hop = m.latency + state / link + _fold(m, node + 1, full)
        return _gather_seconds(m, min(ranks, node), 1, full) + (nodes - 1) * hop + _fold(m, node, full)
    if plan.transport == "relay":
        far = ceil(ranks / m.node) - 1
        flight = (ranks - 1 - far) * state / m.inside + far * state / m.between
        return flight + (ranks - 1) * (m.latency + _fold(m, 2, full))
    # Maps in all steps but the last; a composition is a fold of twice the heads. From the first step on
    # some pair is in two nodes, and later steps wait for it.
    rounds = cost(plan, heads, keys, values).steps - 1
    last = m.latency + state / link + _fold(m, 2, full)
    return rounds * (m.latency + full / link + 2 * _fold(m, 4, full)) + last


def _gather_seconds(m: Machine, inside: int, nodes: int, full: int) -> float:
    """Across nodes first, every NPU with its counterparts, then within each node."""
    across = ceil(log2(nodes)) * m.latency + (nodes - 1) * full / m.between
    return across + m.latency + (inside - 1) * nodes * full / (m.inside * min(m.fan, max(1, inside - 1)))


def _fold(m: Machine, terms: int, full: int) -> float:
    """One merge: its maps are read once."""
    return m.launch + terms * full / m.memory
