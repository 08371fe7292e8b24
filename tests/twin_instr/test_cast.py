# SPDX-License-Identifier: Apache-2.0
"""Every conversion and rounding mode against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from in_step import in_step
from prims_bindings import CASTS, ROUND, Prims, RepShape, from_bf16, lanes_mask, to_bf16

INTS = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
# mantissa bits, smallest exponent of a unit, largest finite value
FLOATS = {
    "half": (10, -24, Fraction(65504)),
    "bf16": (7, -133, Fraction(np.float64(3.3895314e38))),
    "float": (23, -149, Fraction(np.float64(np.finfo(np.float32).max))),
}


def storage(name: str) -> type:
    """numpy type that holds it; bf16 travels as uint16."""
    return {"half": np.float16, "bf16": np.uint16, "float": np.float32}.get(name) or getattr(np, name)


def integral(x: Fraction, mode: str) -> int:
    """x rounded to an integer."""
    low = math.floor(x)
    rest = x - low
    if mode == "FLOOR" or rest == 0:
        return low
    if mode == "CEIL":
        return low + 1
    if mode == "TRUNC":
        return low if x > 0 else low + 1
    if mode == "ODD":
        return low if low % 2 else low + 1
    if rest != Fraction(1, 2):
        return low + (rest > Fraction(1, 2))
    if mode == "ROUND":
        return low + (x > 0)
    return low + low % 2


def to_float(x: Fraction, name: str, mode: str) -> float:
    """x rounded to a binary format; infinity past its largest value."""
    mantissa, smallest, largest = FLOATS[name]
    if x == 0:
        return 0.0
    exponent = math.floor(math.log2(abs(x)))
    while Fraction(2) ** exponent > abs(x):
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= abs(x):
        exponent += 1
    unit = Fraction(2) ** max(exponent - mantissa, smallest)
    r = integral(x / unit, mode) * unit
    return float(r) if abs(r) <= largest else math.inf * (1 if r > 0 else -1)


def samples(name: str, rng: np.random.Generator) -> np.ndarray:
    """Values around every edge a conversion has."""
    if name in INTS:
        low, high = INTS[name]
        edges = [
            low,
            high,
            0,
            1,
            -1,
            2**24 - 1,
            2**24 + 1,
            2**24 + 3,
            2**25 + 2,
            -(2**24) - 1,
            2**31,
            -(2**31) - 1,
            32767,
            32768,
            -32769,
            2**63 - 2**38,
            2**53 + 1,
            2049,
            2051,
            4097,
        ]
        picks = [v for v in edges if low <= v <= high] + rng.integers(low, high, 60, endpoint=True).tolist()
        return np.array(picks, storage(name))
    x = np.concatenate(
        [
            rng.normal(size=60) * 10.0 ** rng.integers(-3, 6, 60),
            2.0 ** rng.uniform(-40, 40, 40),
            [
                0.0,
                -0.0,
                0.5,
                1.5,
                2.5,
                -0.5,
                -1.5,
                0.49999997,
                65504,
                65519,
                65520,
                65535,
                6e-8,
                3e-8,
                2.9e-8,
                1e-6,
                -5.97e-8,
                127.5,
                -128.5,
                255.5,
                2147483520.0,
                2147483648.0,
                -2147483648.0,
                9.3e18,
                32767.5,
                -32768.5,
                1 + 2**-8,
                1 + 3 * 2**-8,
                1 + 2**-11,
                1 + 2**-9 + 2**-20,
            ],
        ]
    ).astype(np.float32)
    if name == "half":
        with np.errstate(over="ignore"):
            x = x.astype(np.float16)
        return x[np.isfinite(x)]
    return to_bf16(x) if name == "bf16" else x


def value(name: str, raw: object) -> Fraction:
    """Exact value of one stored element."""
    if name in INTS:
        return Fraction(int(raw))  # type: ignore[call-overload]
    x = from_bf16(np.array([raw], np.uint16))[0] if name == "bf16" else raw
    return Fraction(float(x))  # type: ignore[arg-type]


@pytest.mark.parametrize("pair", range(len(CASTS)), ids=CASTS)
def test_cast(prims: Prims, rng: np.random.Generator, pair: int) -> None:
    source, target = CASTS[pair].split("_")
    x = samples(source, rng)
    modes = prims.cast_modes(pair)
    integral_float = source == target == "float"
    for m, mode in enumerate(ROUND):
        if not modes >> m & 1:
            continue
        d = np.zeros(x.size, storage(target))
        prims.cast(pair, m, d, x, x.size)
        for raw, got in in_step(x, d):
            exact = value(source, raw)
            if integral_float:
                want: float = float(integral(exact, mode))
            elif target in INTS:
                low, high = INTS[target]
                want = min(max(integral(exact, mode), low), high)
            else:
                want = to_float(exact, target, mode)
            have = float(from_bf16(np.array([got], np.uint16))[0]) if target == "bf16" else got
            assert have == want or (integral_float and want == have), (
                f"{source} {raw!r} -> {target} {mode}: {have}, want {want}"
            )


def test_nearest_bf16_of_every_kind(prims: Prims, rng: np.random.Generator) -> None:
    x = rng.integers(0, 2**32, 100_000, np.uint32).view(np.float32)
    d = np.empty(x.size, np.uint16)
    prims.cast(CASTS.index("float_bf16"), ROUND.index("RINT"), d, x, x.size)
    np.testing.assert_array_equal(d, to_bf16(x))


def test_nearest_half_of_every_kind(prims: Prims, rng: np.random.Generator) -> None:
    x = np.concatenate(
        [
            rng.integers(0, 2**32, 50_000, np.uint32).view(np.float32),
            rng.normal(size=50_000).astype(np.float32),
            (2.0 ** rng.uniform(-26, 17, 50_000)).astype(np.float32),
        ]
    )
    d = np.empty(x.size, np.float16)
    prims.cast(CASTS.index("float_half"), ROUND.index("RINT"), d, x, x.size)
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    nan = np.isnan(x)
    assert np.isnan(d[nan]).all()
    np.testing.assert_array_equal(d[~nan].view(np.uint16), want[~nan].view(np.uint16))
    back = np.empty(x.size, np.float32)
    prims.cast(CASTS.index("half_float"), 0, back, want, x.size)
    np.testing.assert_array_equal(back[~nan], want[~nan].astype(np.float32))


def test_nan_and_infinity(prims: Prims) -> None:
    x = np.array([np.nan, np.inf, -np.inf], np.float32)
    i = np.empty(3, np.int32)
    prims.cast(CASTS.index("float_int32"), ROUND.index("TRUNC"), i, x, 3)
    assert i.tolist() == [0, 2**31 - 1, -(2**31)]
    for m in range(1, 6):
        b = np.empty(3, np.uint16)
        prims.cast(CASTS.index("float_bf16"), m, b, x, 3)
        f = from_bf16(b)
        assert np.isnan(f[0]) and f[1] == np.inf and f[2] == -np.inf


def test_repeat_strides_of_unlike_widths(prims: Prims, rng: np.random.Generator) -> None:
    """64 lanes a repeat: 8 blocks of float, 4 of bf16."""
    x = rng.normal(size=(5, 64)).astype(np.float32)
    d = np.full((5, 96), 7, np.uint16)
    s = RepShape(lanes_mask(64), 5, 1, 1, 0, 6, 8, 0)
    prims.cast_rep(CASTS.index("float_bf16"), ROUND.index("RINT"), d, x, s)
    np.testing.assert_array_equal(d[:, :64], to_bf16(x))
    assert (d[:, 64:] == 7).all()
    s = RepShape(lanes_mask(40), 5, 1, 1, 0, 8, 6, 0)
    y = np.zeros((5, 64), np.float32)
    prims.cast_rep(CASTS.index("bf16_float"), 0, y, d, s)
    np.testing.assert_array_equal(y[:, :40], from_bf16(to_bf16(x))[:, :40])
    assert (y[:, 40:] == 0).all()
