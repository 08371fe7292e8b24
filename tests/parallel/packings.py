# SPDX-License-Identifier: Apache-2.0
"""Packings that cross ranks in every way."""

from __future__ import annotations

from fla_npu.parallel import make_plan

NAMED = {
    "one sequence over all": ((3, 3, 3, 3), (0, 12)),
    "borders at ranks": ((4, 4, 4), (0, 4, 8, 12)),
    "over a rank without tokens": ((3, 0, 0, 4), (0, 7)),
    "ends without tokens": ((0, 3, 4, 0), (0, 7)),
    "many on one rank": ((2, 20, 2), (0, 1, 5, 5, 6, 12, 20, 24)),
    "empty at borders": ((4, 4, 4), (0, 0, 4, 4, 4, 8, 12, 12)),
    "ten on three": ((4, 3, 3), (0, 10)),
    "two on three": ((1, 1, 0), (0, 2)),
    "five and seven": ((4, 4, 4), (0, 5, 12)),
    "sink is source": ((5, 5, 5, 5), (0, 7, 13, 20)),
    "through and through": ((1,) * 9, (0, 4, 9)),
    "one rank": ((9,), (0, 4, 9)),
}


def transports(ranks):
    """Every transport, grouped with every group size that divides the ranks."""
    yield from (("gather", None), ("relay", None), ("doubling", None))
    yield from (("grouped", size) for size in range(1, ranks + 1) if ranks % size == 0)


def plans(lengths, cu):
    for transport, size in transports(len(lengths)):
        yield make_plan(lengths, cu, transport=transport, group_size=size)


def draw(rng, ranks=None):
    """Lengths and cu_seqlens; a fifth of the ranks and some sequences are empty, some borders coincide."""
    ranks = ranks or rng.randint(1, 9)
    lengths = [0 if rng.random() < 0.2 else rng.randint(1, 6) for _ in range(ranks)]
    lengths[rng.randrange(ranks)] += 1
    total = sum(lengths)
    edges = [sum(lengths[:r]) for r in range(ranks)]
    cuts = [
        rng.choice(edges) if rng.random() < 0.3 else rng.randint(0, total) for _ in range(rng.randint(0, 6))
    ]
    return tuple(lengths), (0, *sorted(cuts), total)
