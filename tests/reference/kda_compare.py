# SPDX-License-Identifier: Apache-2.0
"""How a result is judged: against what the published types alone must cost.

A kernel may add at most half of the error that rounding the published slots has anyway (relative L2 at
most 1.5 x floor). So that a single bad row cannot hide in a large tensor, each row is held to the worst
row of the floor model as well.
"""

from __future__ import annotations

import numpy as np
from goldens import relative_l2

FACTOR = 1.5
ROW_FACTOR = 3.0
#: Allowed beside the floor: fp32 arithmetic and the function approximations of the vector unit.
GUARD = {"float32": 3e-6, "bfloat16": 2e-5}

#: (quantity, error, floor) of everything judged in this session, for the summary.
SCORES: list[tuple[str, float, float]] = []


def chunk_rows(tokens: int, cu_seqlens=None) -> np.ndarray:
    """Row of each token inside its chunk, [T]."""
    cu = [0, tokens] if cu_seqlens is None else cu_seqlens
    rows = [np.arange(b - a) % 64 for a, b in zip(cu, cu[1:])]
    return np.concatenate(rows) if rows else np.zeros(0, int)


def below_diagonal(akk: np.ndarray, cu_seqlens=None) -> np.ndarray:
    """`akk` [..., T, 64] with all but the strictly lower part of each chunk zeroed.

    The unit diagonal would dominate any score of the whole tensor.
    """
    rows = chunk_rows(akk.shape[-2], cu_seqlens)
    return np.where(np.arange(64)[None, :] < rows[:, None], akk, 0.0)


def check_triangle(name: str, x: np.ndarray, cu_seqlens=None, unit=False) -> None:
    """Above the diagonal every column is exactly zero; with `unit` the diagonal is exactly one."""
    rows, columns = chunk_rows(x.shape[-2], cu_seqlens)[:, None], np.arange(64)[None, :]
    above = np.where(columns > rows, x, 0.0)
    assert not above.any(), f"{name}: {np.count_nonzero(above)} non-zero entries above the diagonal"
    if unit:
        diagonal = np.where(columns == rows, x, 1.0)
        assert (diagonal == 1.0).all(), f"{name}: the diagonal is not exactly one"


def row_errors(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """L2 error of each row over the last axis."""
    return np.linalg.norm(got - want, axis=-1)


def judge(
    name: str, got, want, rounded, dtype: str = "bfloat16", factor: float = FACTOR, noise: float = 0.0
) -> float:
    """Assert that `got` is as close to `want` as its published types allow; returns the relative L2.

    `want` is exact, `rounded` the slot-rounded model; -inf is allowed where `want` has it (gk after a reset).
    `noise` is an absolute error allowed beside, for results that are small differences of large terms.
    """
    got, want, rounded = (np.asarray(x, np.float64) for x in (got, want, rounded))
    assert got.shape == want.shape, f"{name}: shape {got.shape}, expected {want.shape}"
    lost = np.isneginf(want)
    if lost.any():
        assert (got[lost] < -1e30).all(), f"{name}: not -inf where the reference is"
        got, want, rounded = (np.where(lost, 0.0, x) for x in (got, want, rounded))
    assert np.isfinite(want).all(), f"{name}: the reference itself is not finite"
    bad = ~np.isfinite(got)
    assert not bad.any(), f"{name}: {bad.sum()} non-finite values, first at {np.argwhere(bad)[:1].tolist()}"
    guard, floor, error = GUARD[dtype], relative_l2(rounded, want), relative_l2(got, want)
    SCORES.append((name, error, floor))
    size, own, model = (float(np.linalg.norm(x)) for x in (want, got - want, rounded - want))
    assert own <= factor * model + guard * size + noise, (
        f"{name}: relative L2 {error:.3e}, more than {factor} x the floor {floor:.3e} (+ {guard:g})"
    )
    if want.ndim and want.size:
        mine, theirs = row_errors(got, want), row_errors(rounded, want)
        limit = ROW_FACTOR * theirs.max() + 10 * guard * np.linalg.norm(want, axis=-1).max() + noise
        worst = np.unravel_index(np.argmax(mine), mine.shape)
        assert mine[worst] <= limit, (
            f"{name}: row {tuple(map(int, worst))} is off by {mine[worst]:.3e}, rows may by {limit:.3e}"
        )
    return error


def score_table() -> list[str]:
    """Worst error and worst error / floor per quantity, for the end of a session."""
    lines = []
    for name in sorted({s[0] for s in SCORES}):
        errors = [(e, f) for n, e, f in SCORES if n == name]
        ratios = sorted(e / f for e, f in errors if f > 1e-9)
        ratio = f"median {ratios[len(ratios) // 2]:6.3f}, worst {ratios[-1]:6.3f}" if ratios else "exact slot"
        lines.append(
            f"{name:12s} worst error {max(e for e, _ in errors):.2e}; error / floor {ratio}  n={len(errors)}"
        )
    return lines
