# SPDX-License-Identifier: Apache-2.0
"""Rate of the twin's Mmad on fractal operands beside torch.mm, one thread, for tools/bench."""

from __future__ import annotations

import ctypes
import statistics
import time
from functools import partial

from fla_npu import info, loader

TILES = ((64, 128, 128), (64, 256, 64), (32, 16, 128), (32, 32, 32))
ROUNDS, FLOP_PER_SAMPLE = 9, 4e8


def measure(torch) -> dict:
    """{"isa": path, "sgemm": GF/s of a 1024^3 product, "gflops": {"MxNxK": GF/s}}."""
    library = ctypes.CDLL(str(loader.current().twin_library))
    torch.set_num_threads(1)
    square = [torch.randn(1024, 1024) for _ in range(2)]
    calls = {"sgemm": (partial(torch.mm, *square), 2 * 1024**3)}
    for tile in TILES:
        m, n, k = tile
        repeat = int(FLOP_PER_SAMPLE / (2 * m * n * k))
        run = partial(library.fla_twin_repeat_mmad, *tile, repeat)
        calls["x".join(map(str, tile))] = (run, 2 * m * n * k * repeat)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, (run, _) in calls.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    rates = {name: flop / statistics.median(times[name]) / 1e9 for name, (_, flop) in calls.items()}
    return {"isa": info.isa_name(), "sgemm": rates.pop("sgemm"), "gflops": rates}
