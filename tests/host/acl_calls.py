# SPDX-License-Identifier: Apache-2.0
"""aclnn calls as a C program makes them, through ctypes: no check of ours stands in front."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import numpy as np
from fla_npu import opp, spec

DTYPES = {"float32": 0, "float16": 1, "int32": 3, "int64": 9, "bfloat16": 27}
NUMPY = {
    "float32": np.float32,
    "float16": np.float16,
    "int32": np.int32,
    "int64": np.int64,
    "bfloat16": np.uint16,
}
VENDOR = "op_api/lib"


@dataclass
class Tensor:
    """An argument: data and how aclCreateTensor is told about it."""

    array: np.ndarray
    dtype: str
    strides: tuple[int, ...] = ()  # in elements; () means those of the array
    null_data: bool = False

    @classmethod
    def zeros(cls, shape: tuple[int, ...], dtype: str) -> Tensor:
        return cls(np.zeros(shape, NUMPY[dtype]), dtype)


@dataclass
class Call:
    """Arguments by contract name; what is left out is null (tensors, arrays) or the contract's default."""

    op: str
    arguments: dict = field(default_factory=dict)


class Acl:
    """The two libraries of the OPP in use."""

    def __init__(self) -> None:
        folder = opp.find().vendors[0] / VENDOR
        self.twin = ctypes.CDLL(str(folder / "libfla_twin.so"))
        self.api = ctypes.CDLL(str(folder / "libcust_opapi.so"))
        for name in ("aclCreateTensor", "aclCreateIntArray"):
            getattr(self.twin, name).restype = ctypes.c_void_p
        self.twin.aclGetRecentErrMsg.restype = ctypes.c_char_p

    def error(self) -> str:
        return (self.twin.aclGetRecentErrMsg() or b"").decode()

    def tensor(self, tensor: Tensor) -> ctypes.c_void_p:
        array = tensor.array
        strides = tensor.strides or tuple(s // array.itemsize for s in array.strides)
        dims = (ctypes.c_int64 * array.ndim)(*array.shape)
        steps = (ctypes.c_int64 * array.ndim)(*strides)
        count = ctypes.c_uint64(array.ndim)
        address = None if tensor.null_data else ctypes.c_void_p(array.ctypes.data)
        made = self.twin.aclCreateTensor(
            dims, count, DTYPES[tensor.dtype], steps, ctypes.c_int64(0), 2, dims, count, address
        )
        return ctypes.c_void_p(made)

    def ints(self, values: list[int]) -> ctypes.c_void_p:
        array = (ctypes.c_int64 * len(values))(*values)
        return ctypes.c_void_p(self.twin.aclCreateIntArray(array, ctypes.c_uint64(len(values))))

    def words(self, call: Call) -> list:
        """C arguments of phase 1, without the last two."""
        words = []
        for param in spec.spec(call.op).params:
            value = call.arguments.get(param.name, param.default if param.kind == "attr" else None)
            if param.kind in ("in", "out"):
                words.append(None if value is None else self.tensor(value))
            elif param.kind == "ints":
                words.append(None if value is None else self.ints(value))
            elif param.type == "string":
                words.append(None if value is None else ctypes.c_char_p(value.encode()))
            else:
                kind = {"bool": ctypes.c_bool, "int": ctypes.c_int64, "double": ctypes.c_double}[param.type]
                words.append(kind(value))
        return words

    def phase_one(self, call: Call) -> tuple[int, int, ctypes.c_void_p]:
        """(status, workspace bytes, executor)."""
        size, executor = ctypes.c_uint64(), ctypes.c_void_p()
        function = getattr(self.api, spec.spec(call.op).symbols[0])
        status = function(*self.words(call), ctypes.byref(size), ctypes.byref(executor))
        return status, size.value, executor

    def phase_two(self, op: str, workspace: np.ndarray | None, size: int, executor: ctypes.c_void_p) -> int:
        address = None if workspace is None else ctypes.c_void_p(workspace.ctypes.data)
        return getattr(self.api, spec.spec(op).symbols[1])(address, ctypes.c_uint64(size), executor, None)

    def run(self, call: Call) -> int:
        """Both phases; the status of the first that fails, else 0."""
        status, size, executor = self.phase_one(call)
        return status or self.phase_two(call.op, np.empty(max(size, 1), np.uint8), size, executor)


def finalize(
    T: int = 64, HV: int = 1, B: int = 1, NT: int | None = None, layout: str = "BSND", **changes
) -> Call:
    """A right call of chunk_kda_fwd_finalize with `changes` put over it (None removes an argument)."""
    NT = -(-T // 64) if NT is None else NT
    lead = (B, HV, T) if layout in ("BSND", "BNSD") else (HV, T)
    out = {"BSND": (B, T, HV, 128), "BNSD": (B, HV, T, 128), "TND": (T, HV, 128), "NTD": (HV, T, 128)}[layout]
    arguments = {
        "qg_scaled": Tensor.zeros((*lead, 128), "bfloat16"),
        "aqk": Tensor.zeros((*lead, 64), "bfloat16"),
        "v_new": Tensor.zeros((*lead, 128), "bfloat16"),
        "h": Tensor.zeros((B, NT, HV, 128, 128), "bfloat16"),
        "output_layout": layout,
        "attn_out": Tensor.zeros(out, "bfloat16"),
    }
    return Call("chunk_kda_fwd_finalize", arguments | changes)


def fwd_h(
    T: int = 64, HV: int = 1, B: int = 1, N: int | None = None, NT: int | None = None, **changes
) -> Call:
    N, NT = N or B, NT or -(-T // 64)
    lead = (B, HV, T)
    arguments = {
        **{name: Tensor.zeros((*lead, 128), "bfloat16") for name in ("k", "w", "u", "v_new")},
        "gk": Tensor.zeros((*lead, 128), "float32"),
        "h": Tensor.zeros((B, NT, HV, 128, 128), "bfloat16"),
    }
    return Call("chunk_fwd_h", arguments | changes)


def prepare(T: int = 64, HK: int = 1, HV: int = 1, mode: str = "none", **changes) -> Call:
    """BNSD, B = 1."""
    contract = spec.spec("chunk_kda_fwd_prepare")
    sizes = {"B": 1, "T": T, "HK": HK, "HV": HV, "K": 128, "V": 128, "C": 64}
    arguments: dict = {"layout": "BNSD"}
    for param in contract.params:
        wanted = not param.optional or param.name in contract.modes[mode]
        if param.kind in ("in", "out") and wanted:
            axes = param.shapes("BNSD")[0]
            arguments[param.name] = Tensor.zeros(tuple(sizes[axis[0]] for axis in axes), param.dtypes[0])
    return Call("chunk_kda_fwd_prepare", arguments | changes)


def bwd_prepare(T: int = 64, HV: int = 1, rank: int = 4, **changes) -> Call:
    lead = (1,) * (rank - 3)
    arguments = {
        **{name: Tensor.zeros((*lead, HV, T, 128), "bfloat16") for name in ("v_new", "d_o", "dv_local")},
        "aqk": Tensor.zeros((*lead, HV, T, 64), "bfloat16"),
        "h": Tensor.zeros((*lead, -(-T // 64), HV, 128, 128), "bfloat16"),
        "d_aqk": Tensor.zeros((*lead, HV, T, 64), "float32"),
        "dq_raw": Tensor.zeros((*lead, HV, T, 128), "float32"),
    }
    return Call("chunk_kda_bwd_prepare", arguments | changes)


def bwd_dhu(T: int = 64, HV: int = 1, **changes) -> Call:
    names = ("q", "k", "w", "d_o", "dv", "dv2")
    arguments = {
        **{name: Tensor.zeros((1, HV, T, 128), "bfloat16") for name in names},
        "gk": Tensor.zeros((1, HV, T, 128), "float32"),
        "dh": Tensor.zeros((1, -(-T // 64), HV, 128, 128), "bfloat16"),
    }
    return Call("chunk_gated_delta_rule_bwd_dhu", arguments | changes)
