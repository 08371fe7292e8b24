# SPDX-License-Identifier: Apache-2.0
"""Rates of the primitives beside torch, one thread, every instruction set of this machine.

Run by hand: python tests/twin_instr/bench_prims.py BUILD_DIR (any directory; built on first use).
Only the ratios mean something: absolute rates follow whatever else the machine does.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from prims_bindings import BINARY, CASTS, OUT_BF16, OUT_F32, UNARY, Prims  # noqa: E402

TILES = (
    (64, 128, 128),
    (64, 64, 64),
    (64, 256, 64),
    (32, 48, 128),
    (32, 16, 128),
    (32, 32, 32),
    (16, 16, 16),
)
UB_FLOATS = 24576


def torch_rates() -> tuple[float, float]:
    """GF/s of a 1024^3 product and Gelem/s of exp on a UB-sized tile."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    a, b, c = (torch.rand(1024, 1024) for _ in range(3))
    x, y = torch.rand(UB_FLOATS), torch.empty(UB_FLOATS)

    def best(run: object, calls: int) -> float:
        times = []
        for _ in range(12):
            start = time.process_time()
            for _ in range(calls):
                run()  # type: ignore[operator]
            times.append((time.process_time() - start) / calls)
        return min(times)

    product = best(lambda: torch.mm(a, b, out=c), 1)
    return 2 * 1024**3 / product / 1e9, UB_FLOATS / best(lambda: torch.exp(x, out=y), 200) / 1e9


def report(prims: Prims) -> None:
    """One instruction set beside torch measured just before."""
    mm, exp = torch_rates()
    print(f"{prims.isa}: torch.mm {mm:.0f} GF/s, torch.exp {exp:.2f} Gelem/s")
    for depth, kind in ((16, "bf16"), (8, "fp32")):
        rates = {t: 2 * t[0] * t[1] * t[2] / prims.bench_mmad(*t, depth) / 1e9 for t in TILES}
        line = ", ".join(f"{'x'.join(map(str, t))} {r:.0f} ({r / mm:.2f})" for t, r in rates.items())
        print(f"  Mmad {kind}: {line}")
    rate = UB_FLOATS / prims.bench_unary(UNARY.index("Exp"), UB_FLOATS) / 1e9
    print(f"  Exp {rate:.2f} Gelem/s ({rate / exp:.2f} x torch)")
    others = {
        "Ln": prims.bench_unary(UNARY.index("Ln"), UB_FLOATS),
        "Mul": prims.bench_binary(BINARY.index("Mul"), UB_FLOATS),
        "Div": prims.bench_binary(BINARY.index("Div"), UB_FLOATS),
        "bf16 -> float": prims.bench_cast(CASTS.index("bf16_float"), 0, UB_FLOATS),
        "float -> bf16": prims.bench_cast(CASTS.index("float_bf16"), 1, UB_FLOATS),
    }
    print("  " + ", ".join(f"{name} {UB_FLOATS / t / 1e9:.1f} Gelem/s" for name, t in others.items()))
    moves = {
        "Nd2Nz bf16": prims.bench_nd2nz(2),
        "Nd2Nz fp32": prims.bench_nd2nz(4),
        "LoadData A": prims.bench_load(0, 0),
        "A transposed": prims.bench_load(0, 1),
        "LoadData B": prims.bench_load(1, 0),
        "B transposed": prims.bench_load(1, 1),
        "Fixpipe fp32": prims.bench_fixpipe(OUT_F32),
        "Fixpipe bf16": prims.bench_fixpipe(OUT_BF16),
    }
    print("  64 x 128 tile: " + ", ".join(f"{name} {t * 1e6:.2f} us" for name, t in moves.items()))


def main() -> None:
    """Builds and measures."""
    build = Path(sys.argv[1])
    subprocess.run(["cmake", "-S", HERE, "-B", build], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", build], check=True, stdout=subprocess.DEVNULL)
    prims = Prims(str(build / "libtwin_instr.so"))
    for name in ("mmad", "unary", "binary", "cast", "nd2nz", "load", "fixpipe"):
        getattr(prims.library, f"bench_{name}").restype = ctypes.c_double
    for isa in ("baseline", "avx2", "avx512"):
        if prims.use(isa):
            report(prims)


if __name__ == "__main__":
    main()
