# SPDX-License-Identifier: Apache-2.0
"""The primitive table for numpy: names of prims.h, arrays in, arrays out."""

from __future__ import annotations

import ctypes as C
from typing import Any

import numpy as np

# Positions in the enumerations of prims.h.
TYPES = {"float": 0, "half": 1, "int32": 2, "int16": 3}
DTYPES: dict[str, Any] = {"float": np.float32, "half": np.float16, "int32": np.int32, "int16": np.int16}
BINARY = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Max",
    "Min",
    "AddRelu",
    "SubRelu",
    "And",
    "Or",
    "MulAddDst",
    "FusedMulAdd",
    "FusedMulAddRelu",
]
UNARY = ["Abs", "Exp", "Ln", "Sqrt", "Rsqrt", "Reciprocal", "Relu", "Not"]
SCALAR = ["Adds", "Muls", "Maxs", "Mins", "LeakyRelu", "Axpy", "ShiftLeft", "ShiftRight", "ShiftRightRound"]
COMPARE = ["LT", "GT", "EQ", "LE", "GE", "NE"]
FOLD = ["Sum", "Max", "Min"]
CASTS = [
    "half_float",
    "bf16_float",
    "float_half",
    "float_bf16",
    "float_float",
    "float_int16",
    "float_int32",
    "float_int64",
    "bf16_int32",
    "int16_float",
    "int16_half",
    "int32_float",
    "int32_int16",
    "int32_int64",
    "int64_float",
    "int64_int32",
    "half_int32",
    "half_int16",
    "half_int8",
    "half_uint8",
    "int8_half",
    "uint8_half",
]
ROUND = ["NONE", "RINT", "FLOOR", "CEIL", "ROUND", "TRUNC", "ODD"]
BF16, F16, F32 = 0, 1, 2  # L0Type
SIDE_A, SIDE_B = 0, 1
OUT_F32, OUT_F16, OUT_BF16 = 0, 1, 2


def _struct(name: str, *fields: tuple[str, Any]) -> type[C.Structure]:
    return type(name, (C.Structure,), {"_fields_": list(fields)})


_u32, _u16, _size = C.c_uint32, C.c_uint16, C.c_size_t
RepShape = _struct(
    "RepShape",
    ("mask", C.c_uint64 * 2),
    ("repeat", _u32),
    ("dBlk", _u16),
    ("aBlk", _u16),
    ("bBlk", _u16),
    ("dRep", _u16),
    ("aRep", _u16),
    ("bRep", _u16),
)
FoldShape = _struct(
    "FoldShape", ("mask", C.c_uint64 * 2), ("repeat", _u32), ("dstStep", _u32), ("aBlk", _u16), ("aRep", _u16)
)
BlockCopy = _struct("BlockCopy", ("blocks", _u32), ("bytes", _u32), ("srcStep", _size), ("dstStep", _size))
BlockPad = _struct("BlockPad", ("elemBytes", _u32), ("left", _u32), ("right", _u32), ("value", C.c_uint64))
Nd2Nz = _struct(
    "Nd2Nz", *((f, _u32) for f in ("ndNum", "n", "d", "srcMatrix", "srcRow", "dstC0", "dstN", "dstMatrix"))
)
Load2d = _struct(
    "Load2d",
    *((f, _u32) for f in ("start", "repeat", "srcStride", "dstStep", "fracStep")),
    ("transpose", C.c_bool),
)
Load3d = _struct(
    "Load3d", *((f, _u32) for f in ("rows", "m", "k", "mSize", "kSize")), ("transpose", C.c_bool)
)
MmadShape = _struct(
    "MmadShape", *((f, _u32) for f in ("m", "n", "k", "depth")), ("accumulate", C.c_bool), ("k16", C.c_bool)
)
Fixpipe = _struct(
    "Fixpipe",
    *((f, _u32) for f in ("m", "n", "srcStrip", "dstStride", "ndNum", "srcNd", "dstNd")),
    ("relu", C.c_bool),
    ("split8", C.c_bool),
)


class Prims:
    """Calls a probe by name; arrays become pointers, structs go by reference."""

    def __init__(self, path: str) -> None:
        self.library = C.CDLL(path)
        self.library.isa_name.restype = C.c_char_p
        self.library.cast_modes.restype = C.c_uint32

    def use(self, isa: str) -> bool:
        """Activates an instruction set; False when this machine lacks it."""
        return bool(self.library.use_isa(isa.encode()))

    @property
    def isa(self) -> str:
        """Name of the active instruction set."""
        return self.library.isa_name().decode()

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.library, name)

        def call(*args: Any) -> Any:
            return function(*(_pass(a) for a in args))

        return call


def _pass(arg: Any) -> Any:
    if isinstance(arg, np.ndarray):
        return C.c_void_p(arg.ctypes.data)
    if isinstance(arg, C.Structure):
        return C.byref(arg)
    if isinstance(arg, (float, np.floating)):
        return C.c_float(float(arg))
    if isinstance(arg, (bool, int, np.integer)):
        value = int(arg)
        return C.c_uint64(value) if value > 0xFFFFFFFF else C.c_uint32(value & 0xFFFFFFFF)
    return arg


def bits(value: Any, dtype: Any) -> int:
    """The raw bits of a scalar, as a tensor-scalar instruction gets them."""
    raw = np.array([value], dtype).tobytes().ljust(4, b"\0")
    return int.from_bytes(raw[:4], "little")


def lanes_mask(n: int) -> Any:
    """Mask with the first n lanes on."""
    return mask_of((1 << n) - 1)


def mask_of(value: int) -> Any:
    """128-bit mask as two words."""
    return (C.c_uint64 * 2)(value & (2**64 - 1), value >> 64)


def to_bf16(x: np.ndarray) -> np.ndarray:
    """fp32 -> bf16 bits, round to nearest even."""
    u = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (u + 0x7FFF + ((u >> 16) & 1)) >> 16
    return np.where((u & 0x7FFFFFFF) > 0x7F800000, (u >> 16) | 0x40, rounded).astype(np.uint16)


def from_bf16(x: np.ndarray) -> np.ndarray:
    """bf16 bits -> fp32."""
    return (np.asarray(x, np.uint16).astype(np.uint32) << 16).view(np.float32)
