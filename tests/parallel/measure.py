# SPDX-License-Identifier: Apache-2.0
"""Counts what an exchange really receives and holds: `python tests/parallel/measure.py` prints the table.

Bytes are what the transports of all ranks, run as threads, took in. Memory is the peak of allocations of
the rank that needs most, run alone over a transport that delivers zeros; the buffers of receives and
gathers and the operands of merges are in it, the rank's own contribution is not.
"""

from __future__ import annotations

import tracemalloc
from unittest import mock

import numpy as np
from fla_npu.chunk_kda import stages
from fla_npu.parallel import MAP, TRANSPORTS, Exchange, cost
from fla_npu.parallel.__main__ import header, number, plan_of, row
from threads import ArrayAdapter, Done, Group, merge

HEADS, KEYS = 4, 128
SHAPE = (HEADS, KEYS, KEYS)
RANKS = (2, 4, 8)
KIB = 1024


class Adapter32(ArrayAdapter):
    """Arrays as wide as the operators' tensors."""

    dtype = np.float32


class Zeros:
    """A rank alone: everything it waits for is there, and zero."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def send(self, tensor, peer):
        return Done(lambda: tensor is None)  # keeps the tensor until it is waited for

    def receive(self, shape, dtype, like, peer):
        arrived = np.zeros(shape, np.float32)
        return Done(lambda: arrived)

    def gather(self, tensor, members):
        arrived = np.zeros((len(members), *tensor.shape), np.float32)
        return Done(lambda: arrived)


def exchange(transport, plan):
    program = plan.forward(transport.rank)
    width = {None: None, MAP: 2 * KEYS}.get(program.gives, KEYS)
    own = None if width is None else np.zeros((HEADS, KEYS, width), np.float32)
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    run = Exchange(program, Adapter32(), transport, shape=SHAPE, like=None)
    run.begin(own).finish()
    return tracemalloc.get_traced_memory()[1] - before


def measure(transport: str, ranks: int) -> tuple[int, int]:
    """(bytes received by all ranks, most bytes held by a rank)."""
    plan = plan_of(transport, ranks)
    with mock.patch.object(stages, "merge", merge, create=True):
        group = Group(ranks)
        group.run(lambda t: exchange(t, plan))
        tracemalloc.start()
        held = max(exchange(Zeros(rank, ranks), plan) for rank in range(ranks))
        tracemalloc.stop()
    return sum(group.bytes), held


def table() -> list[str]:
    lines = header(
        "ranks", "transport", "KiB received, formula", "counted", "KiB in slots, formula", "peak measured"
    )
    for ranks in RANKS:
        for transport in TRANSPORTS:
            want, (received, held) = cost(plan_of(transport, ranks), HEADS), measure(transport, ranks)
            cells = [number(x / KIB) for x in (want.total, received, want.memory, held)]
            lines.append(row(ranks, transport, *cells))
    return lines


if __name__ == "__main__":
    print(*table(), sep="\n")
