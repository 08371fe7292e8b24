# SPDX-License-Identifier: Apache-2.0
"""Fills, shuffles, DMA blocks and the Nd2Nz layout: bit-exact by construction."""

from __future__ import annotations

import ctypes as C

import numpy as np
import pytest
from prims_bindings import (
    TYPES,
    BlockCopy,
    BlockPad,
    Nd2Nz,
    Prims,
    RepShape,
    bits,
    from_bf16,
    lanes_mask,
    to_bf16,
)


def test_duplicate(prims: Prims) -> None:
    for dtype in (np.uint16, np.uint32):
        d = np.zeros(300, dtype)
        prims.duplicate(d, 0x1234, 299, d.itemsize)
        assert (d[:299] == 0x1234).all() and d[299] == 0
        d[:] = 0
        prims.duplicate_rep(d, 5, RepShape(lanes_mask(10), 3, 1, 0, 0, 4, 0, 0), d.itemsize)
        step = 4 * 32 // d.itemsize
        want = np.zeros(300, dtype)
        for r in range(3):
            want[r * step : r * step + 10] = 5
        np.testing.assert_array_equal(d, want)


def test_copy_with_wide_strides(prims: Prims, rng: np.random.Generator) -> None:
    a = rng.integers(0, 99, 9000).astype(np.uint32)
    d = np.zeros(9000, np.uint32)
    prims.copy_rep(d, a, RepShape(lanes_mask(64), 2, 1, 2, 0, 8, 300, 0), 4)
    for r in range(2):
        for blk in range(8):
            np.testing.assert_array_equal(d[r * 64 + blk * 8 :][:8], a[r * 2400 + blk * 16 :][:8])


def test_brcb_makes_blocks_of_one_value(prims: Prims, rng: np.random.Generator) -> None:
    for dtype in (np.uint16, np.uint32):
        a = rng.integers(0, 999, 24).astype(dtype)
        per = 32 // a.itemsize
        d = np.zeros(24 * per * 2, dtype)
        prims.brcb(d, a, 3, 2, 16, a.itemsize)
        for i, v in enumerate(a):
            assert (d[i * 2 * per :][:per] == v).all() and (d[(i * 2 + 1) * per :][:per] == 0).all()


def test_gather(prims: Prims, rng: np.random.Generator) -> None:
    a = rng.integers(0, 9999, 500).astype(np.uint32)
    index = rng.integers(0, 400, 77).astype(np.uint32)
    d = np.zeros(77, np.uint32)
    prims.gather(d, a, index * 4, 40, 77, 4)
    np.testing.assert_array_equal(d, a[index + 10])


def test_gather_mask(prims: Prims, rng: np.random.Generator) -> None:
    a = rng.integers(0, 9999, 256).astype(np.uint32)
    mask = rng.integers(0, 256, 16).astype(np.uint8)
    d = np.zeros(256, np.uint32)
    kept = prims.gather_mask(d, a, mask, 8, 64, 2, 1, 8, 4)
    want = a[:128][np.unpackbits(mask, bitorder="little").astype(bool)]
    assert kept == want.size
    np.testing.assert_array_equal(d[:kept], want)


def test_arithmetic_progression(prims: Prims) -> None:
    for ty, dtype in (("float", np.float32), ("half", np.float16), ("int32", np.int32), ("int16", np.int16)):
        d = np.zeros(100, dtype)
        prims.arith(TYPES[ty], d, bits(3, dtype), bits(2, dtype), 100)
        np.testing.assert_array_equal(d, 3 + 2 * np.arange(100))


def test_transposes(prims: Prims, rng: np.random.Generator) -> None:
    a = rng.integers(0, 999, (16, 16)).astype(np.uint16)
    d = np.zeros_like(a)
    prims.transpose16(d, a)
    np.testing.assert_array_equal(d, a.T)
    for dtype in (np.uint8, np.uint16, np.uint32):
        src = rng.integers(0, 250, (16, 32 // np.dtype(dtype).itemsize)).astype(dtype)
        dst = np.zeros_like(src)
        froms = (C.c_void_p * 16)(*(row.ctypes.data for row in src))
        tos = (C.c_void_p * 16)(*(row.ctypes.data for row in dst))
        prims.trans_data(tos, froms, src.itemsize, 1, 0)
        if dtype == np.uint8:
            np.testing.assert_array_equal(dst[:, 16:], src[:, :16].T)
            assert (dst[:, :16] == 0).all()
        elif dtype == np.uint16:
            np.testing.assert_array_equal(dst, src.T)
        else:
            np.testing.assert_array_equal(dst.reshape(8, 16), src.T)  # column i fills blocks 2i and 2i + 1


def test_strided_blocks(prims: Prims, rng: np.random.Generator) -> None:
    a = rng.integers(0, 255, 4096).astype(np.uint8)
    d = np.zeros(4096, np.uint8)
    prims.copy_blocks(d, a, BlockCopy(5, 96, 128, 160))
    for i in range(5):
        np.testing.assert_array_equal(d[i * 160 :][:96], a[i * 128 :][:96])
        assert (d[i * 160 + 96 :][:64] == 0).all()


def test_pad(prims: Prims, rng: np.random.Generator) -> None:
    a = rng.normal(size=300).astype(np.float32)
    d = np.full(300, 9, np.float32)
    prims.copy_pad(d, a, BlockCopy(3, 20, 40, 64), BlockPad(4, 2, 1, bits(-1.5, np.float32)))
    for i in range(3):
        np.testing.assert_array_equal(d[i * 16 :][:8], [-1.5, -1.5, *a[i * 10 :][:5], -1.5])
        assert (d[i * 16 + 8 :][:8] == 9).all()


def test_atomic_add(prims: Prims, rng: np.random.Generator) -> None:
    for ty, dtype in (("float", np.float32), ("half", np.float16), ("int32", np.int32), ("int16", np.int16)):
        a, d = (rng.integers(-9, 9, 64).astype(dtype) for _ in range(2))
        want = d + a
        prims.add_blocks(TYPES[ty], d, a, BlockCopy(1, a.nbytes, a.nbytes, a.nbytes))
        np.testing.assert_array_equal(d, want)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_nd2nz_by_its_formula(prims: Prims, rng: np.random.Generator, dtype: type) -> None:
    """dst[(d/C0) c0Stride C0 + n nStride C0 + d % C0 + i matrix]; tail columns zero, other rows untouched."""
    c0 = 32 // np.dtype(dtype).itemsize
    nd, n, cols, row = 2, 13, 3 * c0 + 5, 4 * c0 + 3
    strip, matrix = 16, 4 * 16 * c0 + 32
    a = rng.integers(1, 250, 2 * 16 * row + 77).astype(dtype)
    d = np.full(nd * matrix, 251, dtype)
    want = d.copy()
    for i in range(nd):
        for r in range(n):
            for x in range(4 * c0):
                at = (x // c0) * strip * c0 + r * c0 + x % c0 + i * matrix
                want[at] = a[i * 16 * row + r * row + x] if x < cols else 0
    prims.nd2nz(d, a, Nd2Nz(nd, n, cols, 16 * row, row, strip, 1, matrix), d.itemsize)
    np.testing.assert_array_equal(d, want)


def test_bf16_helpers_of_this_suite() -> None:
    x = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, np.inf], np.float32)
    np.testing.assert_array_equal(from_bf16(to_bf16(x)), [1.0, 1.0, 1 + 2**-6, np.inf])
