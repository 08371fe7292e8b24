# SPDX-License-Identifier: Apache-2.0
"""Reductions (tree order included), compares and selects."""

from __future__ import annotations

import numpy as np
import pytest
from prims_bindings import COMPARE, DTYPES, FOLD, TYPES, FoldShape, Prims, bits, mask_of

COLUMN = {"float": 0, "half": 1}


def tree(x: np.ndarray) -> np.ndarray:
    """Sum by a binary tree of neighbours in float32."""
    while len(x) > 1:
        x = (x[0::2] + x[1::2]).astype(np.float32)
    return x[0]


def lanes_of(a: np.ndarray, r: int, blk: int, rep: int) -> np.ndarray:
    """The lanes of repeat r."""
    per = 32 // a.itemsize
    n = 256 // a.itemsize
    return np.array([a[r * rep * per + (i // per) * blk * per + i % per] for i in range(n)])


@pytest.mark.parametrize("mask", [(1 << 128) - 1, (1 << 45) - 1, 0b1011 << 20 | 1 << 63, 0xFF00FF00FF])
@pytest.mark.parametrize("ty", COLUMN)
def test_sums_follow_the_tree(prims: Prims, rng: np.random.Generator, ty: str, mask: int) -> None:
    a = rng.normal(size=4000).astype(DTYPES[ty])
    n = 256 // a.itemsize
    on = np.array([mask >> i & 1 for i in range(n)], bool)
    for name, group, step in (
        ("whole", n, 1),
        ("block", 32 // a.itemsize, 8),
        ("pair", 2, 128 // a.itemsize),
    ):
        d = np.full(2000, -77, a.dtype)
        want = d.copy()
        for r in range(5):
            x = np.where(on, lanes_of(a, r, 1, 9).astype(np.float32), np.float32(0))
            for g in range(n // group):
                if on[g * group : (g + 1) * group].any():
                    want[r * step + g] = tree(x[g * group : (g + 1) * group])
        s = FoldShape(mask_of(mask & ((1 << n) - 1)), 5, step, 1, 9)
        if name == "whole":
            prims.whole_sum(COLUMN[ty], d, a, s)
        elif name == "pair":
            prims.pair_sum(COLUMN[ty], d, a, s)
        else:
            prims.block_fold(FOLD.index("Sum"), COLUMN[ty], d, a, s)
        np.testing.assert_array_equal(d, want, err_msg=name)


@pytest.mark.parametrize("ty", COLUMN)
@pytest.mark.parametrize("op", ["Max", "Min"])
def test_extremes(prims: Prims, rng: np.random.Generator, ty: str, op: str) -> None:
    a = rng.integers(-40, 40, 4000).astype(DTYPES[ty])
    n, best, arg = 256 // a.itemsize, getattr(np, op.lower()), getattr(np, "arg" + op.lower())
    word = np.uint32 if ty == "float" else np.uint16
    s = FoldShape(mask_of((1 << n) - 1), 4, 8, 2, 16)
    d = np.zeros(64, a.dtype)
    prims.block_fold(FOLD.index(op), COLUMN[ty], d, a, s)
    for r in range(4):
        np.testing.assert_array_equal(
            d[r * 8 : r * 8 + 8], best(lanes_of(a, r, 2, 16).reshape(8, -1), axis=1)
        )
    both = np.zeros(64, a.dtype)
    prims.whole_index(FOLD.index(op), COLUMN[ty], both, a, FoldShape(mask_of((1 << n) - 1), 4, 2, 2, 16), 0)
    for r in range(4):
        x = lanes_of(a, r, 2, 16)
        assert both[2 * r] == best(x)
        assert both.view(word)[2 * r + 1] == arg(x)  # the first of equals


@pytest.mark.parametrize("ty", COLUMN)
def test_reduce_all(prims: Prims, rng: np.random.Generator, ty: str) -> None:
    word = np.uint32 if ty == "float" else np.uint16
    for n in (1, 5, 64, 200, 1000):
        a = rng.normal(size=n).astype(DTYPES[ty])
        lanes = 256 // a.itemsize
        total = None
        for i in range(0, n, lanes):
            x = np.zeros(lanes, np.float32)
            x[: len(a[i : i + lanes])] = a[i : i + lanes]
            total = tree(x) if total is None else np.float32(total + tree(x))
        d = np.zeros(4, a.dtype)
        prims.fold_all(FOLD.index("Sum"), COLUMN[ty], d, a, n, 0)
        assert d[0] == np.float32(total).astype(a.dtype)
        prims.fold_all(FOLD.index("Max"), COLUMN[ty], d, a, n, 1)
        assert d[0] == a.max() and d.view(word)[1] == a.argmax()
        prims.fold_all(FOLD.index("Min"), COLUMN[ty], d, a, n, 1)
        assert d[0] == a.min() and d.view(word)[1] == a.argmin()


COMPARES = [
    (ty, name) for ty in ("float", "half", "int32") for name in COMPARE if ty != "int32" or name == "EQ"
]


@pytest.mark.parametrize("ty, name", COMPARES)
def test_compare(prims: Prims, rng: np.random.Generator, ty: str, name: str) -> None:
    op = COMPARE.index(name)
    a, b = (rng.integers(-3, 4, 512).astype(DTYPES[ty]) for _ in range(2))
    if ty != "int32":
        a[::50], b[::75] = np.nan, np.nan
    test = {
        "LT": np.less,
        "GT": np.greater,
        "EQ": np.equal,
        "LE": np.less_equal,
        "GE": np.greater_equal,
        "NE": np.not_equal,
    }[name]
    d = np.zeros(64, np.uint8)
    prims.compare(op, TYPES[ty], d, a, b, 512)
    np.testing.assert_array_equal(d, np.packbits(test(a, b), bitorder="little"))
    prims.compare_scalar(op, TYPES[ty], d, a, bits(1, a.dtype), 512)
    np.testing.assert_array_equal(d, np.packbits(test(a, a.dtype.type(1)), bitorder="little"))


@pytest.mark.parametrize("dtype", [np.uint32, np.uint16])
def test_select(prims: Prims, rng: np.random.Generator, dtype: type) -> None:
    for n in (1, 31, 64, 200, 513):
        a, b = (rng.integers(0, 2**16, n).astype(dtype) for _ in range(2))
        mask = rng.integers(0, 256, 80).astype(np.uint8)
        on = np.unpackbits(mask, bitorder="little").astype(bool)
        d = np.zeros(n, dtype)
        prims.select(d, mask, a, b, n, d.itemsize, 0)
        np.testing.assert_array_equal(d, np.where(on[:n], a, b))
        prims.select_scalar(d, mask, a, 7, n, d.itemsize)
        np.testing.assert_array_equal(d, np.where(on[:n], a, 7))
        period = 256 // d.itemsize  # the same bits for every repeat
        prims.select(d, mask, a, b, n, d.itemsize, period)
        np.testing.assert_array_equal(d, np.where(np.resize(on[:period], n), a, b))
