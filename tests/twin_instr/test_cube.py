# SPDX-License-Identifier: Apache-2.0
"""The way through the cube: Nd2Nz, every load recipe, Mmad, Fixpipe, against plain matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from in_step import in_step
from prims_bindings import (
    BF16,
    F16,
    F32,
    OUT_BF16,
    OUT_F16,
    OUT_F32,
    SIDE_A,
    SIDE_B,
    Fixpipe,
    Load2d,
    Load3d,
    MmadShape,
    Nd2Nz,
    Prims,
    from_bf16,
    to_bf16,
)

SLOT = 256
NAN = np.float32("nan")


def up(n: int, m: int = 16) -> int:
    """n rounded up to a multiple of m."""
    return (n + m - 1) // m * m


def store(x: np.ndarray, kind: int) -> np.ndarray:
    """A float matrix as the operand type."""
    return {BF16: to_bf16, F16: lambda v: v.astype(np.float16), F32: lambda v: v.astype(np.float32)}[kind](x)


def load_back(x: np.ndarray, kind: int) -> np.ndarray:
    """The operand as float."""
    return from_bf16(x) if kind == BF16 else x.astype(np.float32)


def to_l1(prims: Prims, x: np.ndarray) -> np.ndarray:
    """Row-major [r, c] to Nz in L1, rows padded to 16 with a marker nobody may use."""
    r, c = x.shape
    c0 = 32 // x.itemsize
    l1 = np.full(up(r) * up(c, c0), 0x7FC1 if x.dtype == np.uint16 else 99, x.dtype)
    prims.nd2nz(l1, x, Nd2Nz(1, r, c, 0, c, up(r), 1, 0), x.itemsize)
    return l1


def l0() -> np.ndarray:
    """An empty 64 KB L0 store in its host form."""
    return np.full(32768, NAN, np.float32)


def depth(kind: int) -> int:
    """C0 of an operand."""
    return 8 if kind == F32 else 16


def load_a(prims: Prims, x: np.ndarray, kind: int, how: str) -> np.ndarray:
    """A [m, k] into L0A: from [m, k] or, for the transposed ways, from [k, m] in L1."""
    m, k = x.shape
    c0 = depth(kind)
    a, k1, m1 = l0(), up(k, c0) // c0, up(m) // 16
    if how == "2d":
        l1 = to_l1(prims, x)
        for i in range(m1):
            prims.load2d(a[i * k1 * SLOT :], l1, Load2d(i, k1, m1, 1, 0, False), SIDE_A, kind)
    elif how == "2d_transposed":
        l1, rows = to_l1(prims, np.ascontiguousarray(x.T)), up(k) // 16
        for i in range(m1):
            prims.load2d(a[i * k1 * SLOT :], l1, Load2d(i * rows, k1, 1, 1, 0, True), SIDE_A, kind)
    elif how == "3d":
        prims.load3d(a, to_l1(prims, x), Load3d(up(m), 0, 0, up(m), up(k, c0), False), SIDE_A, kind)
    else:
        l1 = to_l1(prims, np.ascontiguousarray(x.T))
        prims.load3d(a, l1, Load3d(up(k), 0, 0, up(k), up(m, c0), True), SIDE_A, kind)
    return a


def load_b(prims: Prims, x: np.ndarray, kind: int, how: str) -> np.ndarray:
    """B [k, n] into L0B."""
    k, n = x.shape
    c0 = depth(kind)
    b, k1, n1 = l0(), up(k, c0) // c0, up(n) // 16
    if how == "2d":  # stored as B^T
        prims.load2d(
            b, to_l1(prims, np.ascontiguousarray(x.T)), Load2d(0, n1 * k1, 1, 1, 0, False), SIDE_B, kind
        )
    elif how == "2d_transposed":
        l1 = to_l1(prims, x)
        for i in range(k1):
            prims.load2d(b[i * n1 * SLOT :], l1, Load2d(i, n1, up(k) // 16, 1, 0, True), SIDE_B, kind)
    else:
        prims.load3d(b, to_l1(prims, x), Load3d(up(k), 0, 0, up(k), up(n, c0), False), SIDE_B, kind)
    return b


def product(
    prims: Prims,
    a: np.ndarray,
    b: np.ndarray,
    m: int,
    n: int,
    k: int,
    kind: int,
    k16: bool = False,
    c: np.ndarray | None = None,
) -> np.ndarray:
    """Mmad; returns C unpacked, [m, n]."""
    c0 = np.full(up(m) * up(n), NAN, np.float32) if c is None else c
    prims.mmad(c0, a, b, MmadShape(m, n, k, depth(kind), c is not None, k16))
    return c0.reshape(up(n) // 16, up(m), 16).transpose(1, 0, 2).reshape(up(m), up(n))[:m, :n]


WAYS_A = ["2d", "2d_transposed", "3d", "3d_transposed"]
WAYS_B = ["2d", "2d_transposed", "3d"]
SIZES = [
    (64, 128, 128),
    (64, 64, 64),
    (16, 16, 16),
    (32, 48, 128),
    (17, 33, 40),
    (63, 100, 31),
    (9, 130, 5),
    (2, 1, 1),
]


# 2D transposition is 16-bit only.
PATHS = [
    pytest.param(kind, a, b, id=f"{('bf16', 'half', 'float')[kind]}-{a}-{b}")
    for kind in (BF16, F16, F32)
    for a in WAYS_A
    for b in WAYS_B
    if kind != F32 or "2d_transposed" not in (a, b)
]


@pytest.mark.parametrize("kind, way_a, way_b", PATHS)
def test_product_through_every_load(
    prims: Prims, rng: np.random.Generator, kind: int, way_a: str, way_b: str
) -> None:
    for m, n, k in SIZES:
        a, b = store(rng.normal(size=(m, k)), kind), store(rng.normal(size=(k, n)), kind)
        # The transposed 3D load of fp32 delivers k in groups of 16.
        k16 = kind == F32 and way_a == "3d_transposed"
        got = product(prims, load_a(prims, a, kind, way_a), load_b(prims, b, kind, way_b), m, n, k, kind, k16)
        want = load_back(a, kind).astype(np.float64) @ load_back(b, kind).astype(np.float64)
        np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * k, err_msg=str((m, n, k)))


def test_load_with_transpose_of_float_squares(prims: Prims, rng: np.random.Generator) -> None:
    """16 rows: both halves of a square are neighbours in L1. A^T of [16, 32] as two squares."""
    x = rng.normal(size=(16, 32)).astype(np.float32)
    l1 = to_l1(prims, x)
    a = l0()
    # m = 32 in two squares, k = 16 in two fractals each
    prims.load2d(a, l1, Load2d(0, 2, 1, 2, 1, True), SIDE_A, F32)
    eye = np.eye(16, dtype=np.float32)
    np.testing.assert_array_equal(product(prims, a, load_b(prims, eye, F32, "3d"), 32, 16, 16, F32), x.T)
    # On side B a square is [16 k, 16 n]: k fractal j of square i at (j n1 + i) slots.
    b = l0()
    prims.load2d(b, l1, Load2d(0, 2, 1, 1, 2, True), SIDE_B, F32)
    np.testing.assert_array_equal(product(prims, load_a(prims, eye, F32, "3d"), b, 16, 32, 16, F32), x)


def test_block_of_a_larger_matrix(prims: Prims, rng: np.random.Generator) -> None:
    """mStartPt and kStartPt cut a block out of L1, for both sides."""
    x = to_bf16(rng.normal(size=(96, 64)))
    l1, eye = to_l1(prims, x), to_bf16(np.eye(32))
    a, b = l0(), l0()
    prims.load3d(a, l1, Load3d(96, 48, 16, 32, 32, False), SIDE_A, BF16)
    np.testing.assert_array_equal(
        product(prims, a, load_b(prims, eye, BF16, "3d"), 32, 32, 32, BF16), from_bf16(x)[48:80, 16:48]
    )
    prims.load3d(b, l1, Load3d(96, 48, 16, 32, 32, False), SIDE_B, BF16)
    np.testing.assert_array_equal(
        product(prims, load_a(prims, eye, BF16, "3d"), b, 32, 32, 32, BF16), from_bf16(x)[48:80, 16:48]
    )


@pytest.mark.parametrize("kind", [BF16, F32], ids=["bf16", "float"])
def test_one_row_reads_a_contiguously(prims: Prims, rng: np.random.Generator, kind: int) -> None:
    """GEMV: k elements in a row of L0A, whatever fractals they cross."""
    k, n = 300, 48
    row, b = store(rng.normal(size=(1, k)), kind), store(rng.normal(size=(k, n)), kind)
    a = l0()
    per = depth(kind) * 16
    flat = load_back(row, kind)[0]
    for i in range(0, k, per):
        a[i // per * SLOT :][: len(flat[i : i + per])] = flat[i : i + per]
    got = product(prims, a, load_b(prims, b, kind, "3d"), 1, n, k, kind)
    want = flat.astype(np.float64) @ load_back(b, kind).astype(np.float64)
    np.testing.assert_allclose(got[0], want, atol=1e-4)


def test_accumulation_and_bias(prims: Prims, rng: np.random.Generator) -> None:
    a, b = to_bf16(rng.normal(size=(40, 64))), to_bf16(rng.normal(size=(64, 80)))
    la, lb = load_a(prims, a, BF16, "2d"), load_b(prims, b, BF16, "3d")
    exact = from_bf16(a).astype(np.float64) @ from_bf16(b)
    c = np.zeros(up(40) * up(80), np.float32)
    bias = rng.normal(size=80).astype(np.float32)
    prims.bias_rows(c, bias, 40, 80)
    once = product(prims, la, lb, 40, 80, 64, BF16, c=c)
    np.testing.assert_allclose(once, exact + bias, atol=1e-4)
    twice = product(prims, la, lb, 40, 80, 64, BF16, c=c)
    np.testing.assert_allclose(twice, 2 * exact + bias, atol=2e-4)


def test_an_element_does_not_depend_on_its_tile(prims: Prims, rng: np.random.Generator) -> None:
    """The same row and column give the same bits wherever they stand and however large the product is."""
    a, b = to_bf16(rng.normal(size=(64, 96))), to_bf16(rng.normal(size=(96, 80)))
    whole = product(prims, load_a(prims, a, BF16, "2d"), load_b(prims, b, BF16, "3d"), 64, 80, 96, BF16)
    for m0, m1, n0, n1 in (
        (0, 16, 0, 16),
        (16, 64, 32, 80),
        (3, 30, 5, 70),
        (63, 64, 79, 80),
        (0, 64, 16, 32),
    ):
        if m1 - m0 == 1:
            continue  # one row is GEMV
        part = product(
            prims,
            load_a(prims, np.ascontiguousarray(a[m0:m1]), BF16, "2d"),
            load_b(prims, np.ascontiguousarray(b[:, n0:n1]), BF16, "3d"),
            m1 - m0,
            n1 - n0,
            96,
            BF16,
        )
        np.testing.assert_array_equal(
            part.view(np.uint32), np.ascontiguousarray(whole[m0:m1, n0:n1]).view(np.uint32)
        )


def test_fill(prims: Prims) -> None:
    a = l0()
    prims.fill_l0(a, 0.5, 2, 3, 1)
    assert (a[: 3 * SLOT] == 0.5).all() and np.isnan(a[3 * SLOT : 4 * SLOT]).all()
    assert (a[4 * SLOT : 7 * SLOT] == 0.5).all() and np.isnan(a[7 * SLOT :]).all()


def l0c(x: np.ndarray) -> np.ndarray:
    """[m, n] as L0C strips, lanes beyond it marked."""
    m, n = x.shape
    c = np.full((up(m), up(n)), NAN, np.float32)
    c[:m, :n] = x
    return np.ascontiguousarray(c.reshape(up(m), up(n) // 16, 16).transpose(1, 0, 2)).ravel()


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("out, dtype", [(OUT_F32, np.float32), (OUT_F16, np.float16), (OUT_BF16, np.uint16)])
def test_fixpipe_rows(prims: Prims, rng: np.random.Generator, out: int, dtype: Any, relu: bool) -> None:
    for m, n in ((64, 128), (17, 37), (1, 1), (16, 16)):
        x = rng.normal(size=(m, n)).astype(np.float32)
        d = np.full((m, n + 5), 3, dtype)
        prims.fixpipe(1, out, d, l0c(x), Fixpipe(m, n, up(m) * 16, n + 5, 1, 0, 0, relu, False))
        y = np.maximum(x, 0) if relu else x
        want = to_bf16(y) if out == OUT_BF16 else y.astype(dtype)
        np.testing.assert_array_equal(d[:, :n], want)
        assert (d[:, n:] == 3).all()


def test_fixpipe_of_several_matrices(prims: Prims, rng: np.random.Generator) -> None:
    x = rng.normal(size=(3, 32, 48)).astype(np.float32)
    c = np.concatenate([l0c(m) for m in x])
    d = np.zeros((3, 32, 48), np.float32)
    prims.fixpipe(1, OUT_F32, d, c, Fixpipe(32, 48, 512, 48, 3, 32 * 48, 32 * 48, False, False))
    np.testing.assert_array_equal(d, x)


def test_fixpipe_nz_is_ready_as_an_operand(prims: Prims, rng: np.random.Generator) -> None:
    x = rng.normal(size=(48, 64)).astype(np.float32)
    l1 = np.zeros(48 * 64, np.uint16)
    prims.fixpipe(0, OUT_BF16, l1, l0c(x), Fixpipe(48, 64, 48 * 16, 48 * 16, 1, 0, 0, False, False))
    np.testing.assert_array_equal(l1, to_l1(prims, to_bf16(x)))
    split = np.zeros(48 * 64, np.float32)
    prims.fixpipe(0, OUT_F32, split, l0c(x), Fixpipe(48, 64, 48 * 16, 48 * 8, 1, 0, 0, False, True))
    np.testing.assert_array_equal(split, to_l1(prims, x))  # 8-wide strips: the fp32 Nz of L1


def test_instruction_sets_agree(library: Prims, available: list[str], rng: np.random.Generator) -> None:
    """Mmad within a few ulps (FMA or not); moves and conversions bit for bit."""
    a, b = to_bf16(rng.normal(size=(64, 128))), to_bf16(rng.normal(size=(128, 96)))
    loads, products, stores = [], [], []
    for isa in available:
        library.use(isa)
        la, lb = load_a(library, a, BF16, "2d_transposed"), load_b(library, b, BF16, "2d")
        loads.append((la, lb))
        products.append(product(library, la, lb, 64, 96, 128, BF16))
        d = np.zeros((64, 96), np.uint16)
        library.fixpipe(1, OUT_BF16, d, l0c(products[0]), Fixpipe(64, 96, 1024, 96, 1, 0, 0, False, False))
        stores.append(d)
    for other in range(1, len(available)):
        for x, y in in_step(loads[0], loads[other]):
            np.testing.assert_array_equal(x.view(np.uint32), y.view(np.uint32))
        np.testing.assert_allclose(products[0], products[other], atol=2e-4)
        np.testing.assert_array_equal(stores[0], stores[other])
