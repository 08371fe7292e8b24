# SPDX-License-Identifier: Apache-2.0
"""Binary, unary and tensor-scalar families against numpy: values, masks, strides, splits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from prims_bindings import BINARY, DTYPES, SCALAR, TYPES, UNARY, Prims, RepShape, bits, lanes_mask, mask_of

SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, -3e38, 65504.0, 6e-8], np.float32
)


# The type table (rules 4.3): what each column has.
REAL = {"float", "half"}
ALL = set(TYPES)
LEGAL: dict[str, set[str]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Max", "Min", "Adds", "Muls", "Maxs", "Mins"), ALL),
    **dict.fromkeys(("Div", "MulAddDst", "FusedMulAdd", "FusedMulAddRelu", "Axpy", "LeakyRelu"), REAL),
    **dict.fromkeys(("Abs", "Exp", "Ln", "Sqrt", "Rsqrt", "Reciprocal"), REAL),
    **dict.fromkeys(("AddRelu", "SubRelu"), REAL | {"int16"}),
    **dict.fromkeys(("And", "Or", "Not"), {"int16"}),
    **dict.fromkeys(("ShiftLeft", "ShiftRight", "ShiftRightRound"), {"int16", "int32"}),
    "Relu": REAL | {"int32"},
}


def legal(names: list[str]) -> list[tuple[str, str]]:
    """Every (type, operation) the chip has."""
    return [(ty, name) for name in names for ty in TYPES if ty in LEGAL[name]]


def test_table_has_exactly_the_legal_entries(prims: Prims) -> None:
    for names, has in ((BINARY, prims.has_binary), (UNARY, prims.has_unary), (SCALAR, prims.has_scalar)):
        for op, name in enumerate(names):
            for ty, column in TYPES.items():
                assert bool(has(op, column)) == (ty in LEGAL[name]), (name, ty)


def operand(rng: np.random.Generator, ty: str, n: int) -> np.ndarray:
    """Random values; the floats start with every special one."""
    if ty in ("int32", "int16"):
        info = np.iinfo(DTYPES[ty])
        return rng.integers(info.min, info.max, n, DTYPES[ty], endpoint=True)
    x = rng.normal(size=n).astype(np.float32) * 3
    k = min(len(SPECIAL), n)
    x[:k] = SPECIAL[:k]
    with np.errstate(over="ignore"):
        return rng.permutation(x).astype(DTYPES[ty])


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0) that keeps nan."""
    return np.where((x > 0) | (x != x), x, x.dtype.type(0))


def work(x: np.ndarray) -> np.ndarray:
    """half is computed in float and rounded once at the end."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def expect_binary(op: str, d: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """numpy's answer in the storage type; fused forms rounded once, in float64."""
    out = a.dtype
    d, a, b = work(d), work(a), work(b)
    if op in ("MulAddDst", "FusedMulAdd", "FusedMulAddRelu"):
        d64, a64, b64 = (x.astype(np.float64) for x in (d, a, b))
        r = d64 + a64 * b64 if op == "MulAddDst" else a64 * d64 + b64
        r = r.astype(np.float32)
        return (relu(r) if op.endswith("Relu") else r).astype(out)
    plain = {
        "Add": lambda: a + b,
        "Sub": lambda: a - b,
        "Mul": lambda: a * b,
        "Div": lambda: a / b,
        "Max": lambda: np.maximum(a, b),
        "Min": lambda: np.minimum(a, b),
        "AddRelu": lambda: relu(a + b),
        "SubRelu": lambda: relu(a - b),
        "And": lambda: a & b,
        "Or": lambda: a | b,
    }
    return plain[op]().astype(out)


def assert_same(got: np.ndarray, want: np.ndarray, ulps: int = 0) -> None:
    """Equal bits up to `ulps` and up to which nan it is; zeros of either sign are equal."""
    both_nan = (got != got) & (want != want)
    equal = both_nan | (got == want)
    if ulps and not equal.all():
        with np.errstate(over="ignore", invalid="ignore"):
            near = np.abs(got.astype(np.float64) - want.astype(np.float64)) <= ulps * np.spacing(
                np.maximum(np.abs(want), np.abs(got)).astype(want.dtype)
            ).astype(np.float64)
        equal |= near
    where = np.flatnonzero(~equal)
    assert where.size == 0, f"{where.size} differ, first at {where[0]}: {got[where[0]]} != {want[where[0]]}"


@pytest.mark.parametrize("ty, name", legal(BINARY))
def test_binary_count(prims: Prims, rng: np.random.Generator, ty: str, name: str) -> None:
    op = BINARY.index(name)
    for n in (1, 7, 64, 129, 1000):
        a, b, d = (operand(rng, ty, n) for _ in range(3))
        with np.errstate(all="ignore"):
            want = expect_binary(name, d, a, b)
        prims.binary(op, TYPES[ty], d, a, b, n)
        # Multiply-adds may round the product too (baseline): compare to a few units of the operands.
        fused = name in ("MulAddDst", "FusedMulAdd", "FusedMulAddRelu")
        if fused:
            np.testing.assert_allclose(d, want, rtol=1e-5 if ty == "float" else 2e-3, atol=1e-5)
        else:
            assert_same(d, want)


@pytest.mark.parametrize("ty, name", legal(UNARY))
def test_unary_count(prims: Prims, rng: np.random.Generator, ty: str, name: str) -> None:
    if name in ("Exp", "Ln"):
        return  # test_math
    op = UNARY.index(name)
    a = operand(rng, ty, 777)
    d = np.empty_like(a)
    prims.unary(op, TYPES[ty], d, a, a.size)
    w = work(a)
    with np.errstate(all="ignore"):
        want = {
            "Abs": lambda: np.abs(w),
            "Sqrt": lambda: np.sqrt(w),
            "Rsqrt": lambda: 1 / np.sqrt(w),
            "Reciprocal": lambda: 1 / w,
            "Relu": lambda: relu(w),
            "Not": lambda: ~w,
        }[name]().astype(a.dtype)
    if name in ("Rsqrt", "Reciprocal"):
        finite = np.isfinite(want) & (np.abs(want) > 1e-30)
        error = np.abs(d[finite].astype(np.float64) / want[finite] - 1)
        # Coarse on purpose: never better than the chip's 1e-4 class, never worse than a bad unit.
        assert error.max() < (2.0**-11 if ty == "float" else 2e-3)
        assert ty == "half" or error.max() > 1e-4
        assert_same(d[~np.isfinite(want)], want[~np.isfinite(want)])
    else:
        assert_same(d, want)


def expect_scalar(op: str, d: np.ndarray, a: np.ndarray, s: object) -> np.ndarray:
    """numpy's answer for a tensor-scalar form."""
    out = a.dtype
    width = out.itemsize * 8
    if op.startswith("Shift"):
        u = a.view(f"uint{width}").astype(np.uint64)
        by = int(s)  # type: ignore[call-overload]
        if op == "ShiftLeft":
            r = (u << np.uint64(by)) & np.uint64(2**width - 1)
        else:
            half = (u >> np.uint64(by - 1)) & np.uint64(1) if op == "ShiftRightRound" and by else np.uint64(0)
            r = (u >> np.uint64(by)) + half
        return r.astype(f"uint{width}").view(out)
    w, s = work(a), work(np.array([s], out))[0]
    r = {
        "Adds": lambda: w + s,
        "Muls": lambda: w * s,
        "Maxs": lambda: np.maximum(w, s),
        "Mins": lambda: np.minimum(w, s),
        "LeakyRelu": lambda: np.where(w >= 0, w, w * s),
        "Axpy": lambda: (work(d).astype(np.float64) + w.astype(np.float64) * s).astype(np.float32),
    }[op]()
    return r.astype(out)


@pytest.mark.parametrize("ty, name", legal(SCALAR))
def test_scalar_count(prims: Prims, rng: np.random.Generator, ty: str, name: str) -> None:
    op = SCALAR.index(name)
    a, d = operand(rng, ty, 300), operand(rng, ty, 300)
    values = (
        [0, 3, 9] if name.startswith("Shift") else [-2, 0, 3] if ty.startswith("int") else [0.37, -2.5, 0.0]
    )
    for s in values:
        got = d.copy()
        with np.errstate(all="ignore"):
            want = expect_scalar(name, d, a, s)
        prims.scalar(op, TYPES[ty], got, a, bits(s, DTYPES[ty]), a.size)
        if name == "Axpy":
            np.testing.assert_allclose(got, want, rtol=1e-5 if ty == "float" else 2e-3, atol=1e-5)
        else:
            assert_same(got, want)


def test_half_sources_into_float(prims: Prims, rng: np.random.Generator) -> None:
    a, b = rng.normal(size=200).astype(np.float16), rng.normal(size=200).astype(np.float16)
    d = rng.normal(size=200).astype(np.float32)
    got = d.copy()
    prims.mixed(0, got, a, b, 0, 200)
    np.testing.assert_allclose(got, d + a.astype(np.float32) * b.astype(np.float32), rtol=1e-6, atol=1e-6)
    got = d.copy()
    prims.mixed(1, got, a, a, bits(1.5, np.float16), 200)
    np.testing.assert_allclose(got, d + 1.5 * a.astype(np.float32), rtol=1e-6, atol=1e-6)


def place(lane: int, size: int, r: int, blk: int, rep: int) -> int:
    """Element index of a lane of repeat r (rules 4.1)."""
    per = 32 // size
    return r * rep * per + (lane // per) * blk * per + lane % per


# mask, repeat, dst/src0/src1 block strides, repeat strides
SHAPES = {
    "full": ((1 << 128) - 1, 3, (1, 1, 1), (8, 8, 8)),
    "gaps_between_repeats": ((1 << 128) - 1, 4, (1, 1, 1), (9, 10, 8)),
    "prefix": ((1 << 37) - 1, 3, (1, 1, 1), (8, 9, 8)),
    "short_prefix": (1, 5, (1, 1, 1), (1, 1, 1)),
    "row_broadcast": ((1 << 128) - 1, 4, (1, 1, 0), (8, 8, 1)),
    "strided_blocks": ((1 << 128) - 1, 3, (2, 3, 1), (16, 24, 8)),
    "strided_prefix": ((1 << 27) - 1, 3, (2, 1, 2), (16, 8, 16)),
    "bits": (0b1011_0000_1111_0001 << 13, 3, (1, 1, 1), (8, 8, 8)),
    "bits_strided": (0x5A5A_00FF_F00F_8001, 2, (2, 1, 0), (16, 8, 1)),
    "one_row": ((1 << 128) - 1, 4, (1, 1, 1), (8, 0, 8)),
    "nothing": (0, 3, (1, 1, 1), (8, 8, 8)),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ty", TYPES)
def test_repeat_form_walks_as_documented(prims: Prims, rng: np.random.Generator, ty: str, shape: str) -> None:
    mask, repeat, blk, rep = SHAPES[shape]
    size = np.dtype(DTYPES[ty]).itemsize
    lanes = 256 // size
    a, b, d = (rng.integers(-50, 50, 6000).astype(DTYPES[ty]) for _ in range(3))
    want = d.copy()
    for r in range(repeat):
        for lane in (i for i in range(lanes) if mask >> i & 1):
            want[place(lane, size, r, blk[0], rep[0])] = (
                a[place(lane, size, r, blk[1], rep[1])] + b[place(lane, size, r, blk[2], rep[2])]
            )
    s = RepShape(mask_of(mask & ((1 << lanes) - 1)), repeat, *blk, *rep)
    prims.binary_rep(BINARY.index("Add"), TYPES[ty], d, a, b, s)
    np.testing.assert_array_equal(d, want)


def test_repeat_stride_zero_accumulates_rows(prims: Prims, rng: np.random.Generator) -> None:
    """dst == src1 with repeat strides 0: the rows are added one after the other into one register row."""
    rows = rng.normal(size=(9, 64)).astype(np.float32)
    d = rng.normal(size=64).astype(np.float32)
    want = d.copy()
    for row in rows:
        want = row + want
    prims.binary_rep(BINARY.index("Add"), 0, d, rows, d, RepShape(lanes_mask(64), 9, 1, 1, 1, 0, 8, 0))
    np.testing.assert_array_equal(d, want)


@pytest.mark.parametrize("shape", ["prefix", "strided_blocks", "bits_strided"])
def test_unary_and_scalar_repeat_form(prims: Prims, rng: np.random.Generator, shape: str) -> None:
    mask, repeat, blk, rep = SHAPES[shape]
    a, d = (rng.normal(size=4000).astype(np.float32) for _ in range(2))
    exp, axpy = d.copy(), d.copy()
    s = RepShape(mask_of(mask & (2**64 - 1)), repeat, blk[0], blk[1], 0, rep[0], rep[1], 0)
    prims.unary_rep(UNARY.index("Exp"), 0, exp, a, s)
    prims.scalar_rep(SCALAR.index("Axpy"), 0, axpy, a, bits(2.0, np.float32), s)
    touched = np.zeros(4000, bool)
    for r in range(repeat):
        for lane in (i for i in range(64) if mask >> i & 1):
            to, at = place(lane, 4, r, blk[0], rep[0]), place(lane, 4, r, blk[1], rep[1])
            touched[to] = True
            assert abs(exp[to] - np.exp(np.float64(a[at]))) <= 3e-7 * abs(exp[to])
            assert abs(axpy[to] - (d[to] + 2 * a[at])) <= 1e-6
    np.testing.assert_array_equal(exp[~touched], d[~touched])
    np.testing.assert_array_equal(axpy[~touched], d[~touched])


@pytest.mark.parametrize("kind", ["MulAddDst", "Mul", "Axpy", "Exp", "Ln", "Sqrt"])
def test_result_does_not_depend_on_the_cut(prims: Prims, rng: np.random.Generator, kind: str) -> None:
    """Any split and any 4-byte alignment give the same bits as one long call."""
    n = 517
    base = np.zeros(2 * n, np.float32)
    a, b, d = (np.abs(rng.normal(size=n)).astype(np.float32) * 20 for _ in range(3))

    def run(to: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
        if kind in UNARY:
            prims.unary(UNARY.index(kind), 0, to, x, x.size)
        elif kind in BINARY:
            prims.binary(BINARY.index(kind), 0, to, x, y, x.size)
        else:
            prims.scalar(SCALAR.index(kind), 0, to, x, bits(0.3, np.float32), x.size)

    whole = d.copy()
    run(whole, a, b)
    for step, shift in itertools.product((1, 3, 8, 17, 100), (0, 1, 5)):
        parts = base[shift : shift + n]
        parts[:] = d
        for i in range(0, n, step):
            run(parts[i : i + step], a[i : i + step], b[i : i + step])
        np.testing.assert_array_equal(parts.view(np.uint32), whole.view(np.uint32))


def test_in_place(prims: Prims, rng: np.random.Generator) -> None:
    """dst may be a source."""
    a, b = rng.normal(size=300).astype(np.float32), rng.normal(size=300).astype(np.float32)
    x = a.copy()
    prims.binary(BINARY.index("Mul"), 0, x, x, b, 300)
    np.testing.assert_array_equal(x, a * b)
    x = a.copy()
    prims.unary(UNARY.index("Exp"), 0, x, x, 300)
    y = np.empty_like(a)
    prims.unary(UNARY.index("Exp"), 0, y, a, 300)
    np.testing.assert_array_equal(x, y)
