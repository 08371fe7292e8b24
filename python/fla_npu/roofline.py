# SPDX-License-Identifier: Apache-2.0
"""Roofline of the kernels on a chip that is not here: what the checked twin counted against peak rates.

The checked twin counts bytes, multiplications and vector lanes of a launch, and simulates the time of
every pipe with the published rates. The floors divide the counts by the chip's peaks; the largest of
the three bounds the launch. All traffic to GM counts at the HBM rate, workspace that would stay in L2
included; the simulation has no limit shared by the cores, so the floor may exceed it, and the estimate
is the larger of the two. These are a model's times, never a measurement on a device.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

__all__ = ["Bound", "measure", "table"]

# Ascend 910B3, the chip that the checked twin simulates unless told otherwise.
CUBE_CORES, VECTOR_CORES, CLOCK_HZ = 20, 40, 1.8e9
HBM_BYTES_PER_SECOND = 1.6e12
MACS_PER_CYCLE = 16 * 16 * 16  # bf16, per cube core
LANES_PER_CYCLE = 64  # fp32, per vector core


@dataclass(frozen=True)
class Bound:
    """One launch; times in microseconds."""

    op: str
    simulated: float
    memory: float
    cube: float
    vector: float

    @property
    def floor(self) -> float:
        return max(self.memory, self.cube, self.vector)

    @property
    def estimate(self) -> float:
        return max(self.simulated, self.floor)

    @property
    def by(self) -> str:
        """Which peak sets the floor: 'HBM', 'cube' or 'vector'."""
        return {self.memory: "HBM", self.cube: "cube", self.vector: "vector"}[self.floor]


def measure(call: Callable[[], object]) -> list[Bound]:
    """Run `call` on the checked twin; one Bound per kernel launch, in order.

    The twin's environment is set for the call and put back after it.
    """
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        wanted = {"FLA_NPU_TWIN": "checked", "FLA_NPU_TWIN_TRACE": str(trace)}
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            call()
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        events = json.loads(trace.read_text())["traceEvents"]
    # Process 0 of the trace holds one bar per launch, with its counters as arguments.
    return [_bound(event) for event in events if event["pid"] == 0 and event["ph"] == "X"]


def _bound(launch: dict) -> Bound:
    counts = launch["args"]
    crossing = [n for route, n in counts.items() if route.endswith(" bytes") and "GM" in route]
    micro = 1e6
    return Bound(
        op=launch["name"],
        simulated=launch["dur"],
        memory=sum(crossing) / HBM_BYTES_PER_SECOND * micro,
        cube=counts["MACs"] / (CUBE_CORES * MACS_PER_CYCLE * CLOCK_HZ) * micro,
        vector=counts["lanes"] / (VECTOR_CORES * LANES_PER_CYCLE * CLOCK_HZ) * micro,
    )


def table(bounds: list[Bound]) -> Table:
    """The bounds as a table for people."""
    result = Table(title="Model of an Ascend 910B3 (20 AIC, 40 AIV); not a device measurement")
    for head in (
        "kernel",
        "estimate us",
        "simulated us",
        "HBM us",
        "cube us",
        "vector us",
        "bound by",
        "x floor",
    ):
        result.add_column(head, justify="right")
    for b in bounds:
        times = (f"{x:.1f}" for x in (b.estimate, b.simulated, b.memory, b.cube, b.vector))
        result.add_row(b.op, *times, b.by, f"{b.estimate / b.floor:.1f}")
    return result
