# SPDX-License-Identifier: Apache-2.0
"""Exp and Ln: error against float64, special values, no double rounding surprises near the limits."""

from __future__ import annotations

import numpy as np
from prims_bindings import CASTS, ROUND, UNARY, Prims

EXP, LN = UNARY.index("Exp"), UNARY.index("Ln")


def run(prims: Prims, op: int, x: np.ndarray) -> np.ndarray:
    """One call over all of x."""
    d = np.empty_like(x)
    prims.unary(op, 1 if x.dtype == np.float16 else 0, d, x, x.size)
    return d


def test_exp_is_accurate(prims: Prims, rng: np.random.Generator) -> None:
    x = np.concatenate(
        [rng.uniform(-87, 88.7, 200_000), rng.normal(size=100_000), rng.uniform(-1e-3, 1e-3, 50_000)]
    )
    x = x.astype(np.float32)
    want = np.exp(x.astype(np.float64))
    assert np.max(np.abs(run(prims, EXP, x) / want - 1)) <= 2e-7


def test_exp_underflows_gradually(prims: Prims) -> None:
    x = np.linspace(-110, -86, 5000).astype(np.float32)
    want = np.exp(x.astype(np.float64))
    got = run(prims, EXP, x).astype(np.float64)
    assert np.max(np.abs(got - want) / np.maximum(want, 2.0**-126)) <= 3e-7  # subnormals: absolute half units
    assert got[0] == 0.0


def test_exp_special(prims: Prims) -> None:
    x = np.array(
        [-np.inf, np.inf, np.nan, 0.0, -0.0, 89.0, 88.73, -104.0, -200.0, 1e30, -1e30, 88.72], np.float32
    )
    got = run(prims, EXP, np.concatenate([x, np.zeros(80, np.float32)]))[:12]
    with np.errstate(over="ignore"):
        want = np.exp(x.astype(np.float64))
    assert got[0] == 0 and got[1] == np.inf and np.isnan(got[2]) and got[3] == 1 and got[4] == 1
    assert got[5] == np.inf and got[6] == np.inf and got[7] == 0 and got[8] == 0
    assert got[9] == np.inf and got[10] == 0 and abs(got[11] / want[11] - 1) < 3e-7


def test_exp_paths_agree(prims: Prims, rng: np.random.Generator) -> None:
    """A group with one far lane takes the full path; its other lanes keep their bits."""
    x = rng.uniform(-80, 80, 4096).astype(np.float32)
    plain = run(prims, EXP, x)
    y = x.copy()
    y[::32] = -np.inf
    mixed = run(prims, EXP, y)
    keep = np.ones(4096, bool)
    keep[::32] = False
    np.testing.assert_array_equal(mixed[keep].view(np.uint32), plain[keep].view(np.uint32))


def test_ln_is_accurate(prims: Prims, rng: np.random.Generator) -> None:
    x = np.concatenate(
        [
            10 ** rng.uniform(-37, 38, 200_000),
            rng.uniform(0.5, 2, 200_000),
            1 + rng.uniform(-1e-3, 1e-3, 9999),
            10 ** rng.uniform(-44, -38, 5000),
        ]
    ).astype(np.float32)
    x = x[x > 0]
    want = np.log(x.astype(np.float64))
    ok = want != 0
    assert np.max(np.abs(run(prims, LN, x)[ok] / want[ok] - 1)) <= 3e-7
    assert np.all(run(prims, LN, x)[~ok] == 0)


def test_ln_special(prims: Prims) -> None:
    got = run(prims, LN, np.array([0.0, -0.0, -1.0, np.inf, -np.inf, np.nan, 1.0], np.float32))
    assert got[0] == -np.inf and got[1] == -np.inf and np.isnan(got[2]) and got[3] == np.inf
    assert np.isnan(got[4]) and np.isnan(got[5]) and got[6] == 0


def test_half_forms(prims: Prims) -> None:
    x = np.arange(0, 0x7C00, 7, dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        exp = np.exp(x.astype(np.float64)).astype(np.float16)
        ln = np.log(x.astype(np.float64)).astype(np.float16)
    for op, want in ((EXP, exp), (LN, ln)):
        got = run(prims, op, x)
        finite = np.isfinite(want)
        np.testing.assert_array_equal(got[~finite], want[~finite])
        np.testing.assert_allclose(
            got[finite].astype(np.float64), want[finite].astype(np.float64), rtol=1e-3, atol=1e-7
        )


def test_a_kernel_reads_subnormal_halves(prims: Prims) -> None:
    """Inside a kernel subnormal results are flushed, but a half's subnormal is a normal float."""
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    x = x[~np.isnan(x)]
    d = np.empty(x.size, np.float32)
    prims.cast_in_kernel(CASTS.index("half_float"), 0, d, x, x.size)
    np.testing.assert_array_equal(d.view(np.uint32), x.astype(np.float32).view(np.uint32))
    back = np.empty(x.size, np.float16)
    prims.cast_in_kernel(CASTS.index("float_half"), ROUND.index("RINT"), back, d, x.size)
    np.testing.assert_array_equal(back.view(np.uint16), x.view(np.uint16))
