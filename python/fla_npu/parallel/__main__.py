# SPDX-License-Identifier: Apache-2.0
"""`python -m fla_npu.parallel`: the tables of docs/scaling.md, in Markdown."""

from __future__ import annotations

import argparse

from .plan import TRANSPORTS
from .scaling import A2, A3, cost, even_plan, seconds

RANKS = (2, 8, 64, 512, 4096)
SCALE = (1, 2, 4, 8, 16, 64, 256, 1024, 4096)
SEQUENCES = (1, 2, 4, 8, 12, 16)
GROUP = 8
MIB = 2.0**20


def plan_of(transport: str, ranks: int, sequences: int = 1):
    """The packing of a row: equal ranks, equal sequences, groups of a node."""
    size = min(GROUP, ranks) if transport == "grouped" else None
    return even_plan(transport, ranks, sequences, size)


def row(*cells) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def header(*cells) -> list[str]:
    return [row(*cells), row(*["---"] * len(cells))]


def number(value: float) -> str:
    """Three figures, no exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def by_ranks(heads: int) -> list[str]:
    """Bytes, steps and memory of one sequence over all ranks."""
    lines = header("ranks", "transport", "MiB in all", "MiB, busiest rank", "steps", "MiB held")
    for ranks in RANKS:
        for transport in TRANSPORTS:
            c = cost(plan_of(transport, ranks), heads)
            sizes = [number(b / MIB) for b in (c.total, c.busiest)]
            lines.append(row(ranks, transport, *sizes, c.steps, number(c.memory / MIB)))
    return lines


def by_sequences(heads: int, ranks: int = 8) -> list[str]:
    """The same ranks with more, shorter sequences."""
    lines = header(f"sequences on {ranks} ranks", *(f"{t}: MiB, steps" for t in TRANSPORTS))
    for sequences in SEQUENCES:
        costs = [cost(plan_of(transport, ranks, sequences), heads) for transport in TRANSPORTS]
        lines.append(row(sequences, *(f"{number(c.total / MIB)}, {c.steps}" for c in costs)))
    return lines


def modelled(machine, heads: int) -> list[str]:
    """Milliseconds of one exchange."""
    lines = header(f"ranks, {machine.name}", *(f"{t} ms" for t in TRANSPORTS))
    for ranks in SCALE:
        times = [seconds(plan_of(transport, ranks), machine, heads) for transport in TRANSPORTS]
        lines.append(row(ranks, *(number(1e3 * t) for t in times)))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fla_npu.parallel", description=__doc__)
    parser.add_argument("--heads", type=int, default=32, help="value heads on a rank (default 32)")
    heads = parser.parse_args().heads
    for table in (by_ranks(heads), by_sequences(heads), modelled(A2, heads), modelled(A3, heads)):
        print(*table, "", sep="\n")


if __name__ == "__main__":
    main()
