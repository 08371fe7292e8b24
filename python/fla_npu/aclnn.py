# SPDX-License-Identifier: Apache-2.0
"""The two-phase aclnn call through ctypes, built from the operator's contract.

    phase 1   aclnnXGetWorkspaceSize(params in contract order..., &bytes, &executor)
    phase 2   aclnnX(workspace, bytes, executor, stream)

The cost per call matters (a stage on one chunk takes tens of microseconds), so what can be
prepared once is: the converter of each parameter, argtypes, and the C arrays of shapes.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from . import loader
from .errors import ArgumentError, LaunchError, TwinFault
from .spec import ACL_DTYPE, OpSpec

__all__ = ["TensorArg", "call", "failure"]

FORMAT_ND = 2
TWIN_FAULT = 507015
INVALID = range(161000, 162000)
# Workspaces up to this size stay with their thread; the 16 MiB system part is never touched.
KEEP_BYTES = 256 << 20

_NO_KERNEL = (
    "CANN found no kernel for this chip and dtype; is the OPP on ASCEND_CUSTOM_OPP_PATH since before the "
    "process started? 'fla-npu opp env' prints the line"
)
_HINTS = {
    561000: "CANN's inner error: pieces of different builds do this; run 'fla-npu check-symbols'",
    561003: _NO_KERNEL,
    561101: "CANN could not make an executor; its log (ASCEND_GLOBAL_LOG_LEVEL=1) says why",
    561103: _NO_KERNEL,
    561107: "CANN found no OPP; source the toolkit's set_env.sh",
    561112: "CANN's kernel package for this chip is not installed",
}


class TensorArg(NamedTuple):
    """A tensor as aclnn needs it. `strides` (in elements) is None for a dense row-major tensor."""

    ptr: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None


@lru_cache(maxsize=1024)
def _shape(shape: tuple[int, ...], strides: tuple[int, ...] | None):
    """A view for aclCreateTensor: addresses of dims, strides and storage dims, both ranks, the owner.

    Addresses because ctypes passes an int faster than an array.
    """
    rank = len(shape)
    dims = (ctypes.c_int64 * rank)(*shape)
    if strides is None:
        steps, step = [], 1
        for length in reversed(shape):
            steps.append(step)
            step *= length
        dense = (ctypes.c_int64 * rank)(*reversed(steps))
        at = ctypes.addressof(dims)
        return at, ctypes.addressof(dense), at, rank, rank, (dims, dense)
    # The storage behind a strided view is described as one flat run that just contains it.
    reach = 1 + sum((length - 1) * step for length, step in zip(shape, strides))
    steps, run = (ctypes.c_int64 * rank)(*strides), (ctypes.c_int64 * 1)(reach)
    return *map(ctypes.addressof, (dims, steps, run)), rank, 1, (dims, steps, run)


class _Workspace(threading.local):
    """Host scratch of one thread, kept between calls up to KEEP_BYTES."""

    block: mmap.mmap | None = None
    address = 0

    def get(self, size: int) -> tuple[int, object]:
        if self.block is not None and len(self.block) >= size:
            return self.address, self.block
        # Anonymous pages cost nothing until a kernel touches them. Private ones, because the default
        # is shared: a forked child would compute in its parent's scratch.
        block = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        if size <= KEEP_BYTES:
            self.block, self.address = block, address
        return address, block


_workspace = _Workspace()


def host_workspace(size: int) -> tuple[int, object]:
    """(address, owner) of host scratch memory; the default allocator of `call`."""
    return _workspace.get(size)


class _AclApi:
    """The few ACL functions a call needs, with their prototypes set."""

    def __init__(self, acl: loader.Acl) -> None:
        p, i64 = ctypes.c_void_p, ctypes.c_int64
        dims_rank_dtype = (p, ctypes.c_uint64, ctypes.c_int)
        storage_data = (p, ctypes.c_uint64, p)
        create = (*dims_rank_dtype, p, i64, ctypes.c_int, *storage_data)  # strides, offset, format
        self.create_tensor = self._get(acl, "aclCreateTensor", p, create)
        self.destroy_tensor = self._get(acl, "aclDestroyTensor", ctypes.c_int, (p,))
        self.create_ints = self._get(acl, "aclCreateIntArray", p, (p, ctypes.c_uint64))
        self.destroy_ints = self._get(acl, "aclDestroyIntArray", ctypes.c_int, (p,))
        self.recent = self._get(acl, "aclGetRecentErrMsg", ctypes.c_char_p, ())
        self.destroy_executor = self._get(acl, "aclDestroyAclOpExecutor", ctypes.c_int, (p,))

    @staticmethod
    def _get(acl: loader.Acl, name: str, restype, argtypes):
        # A prototype object per use: attributes set on the shared symbol would leak to other users.
        address = ctypes.cast(acl.find(name), ctypes.c_void_p).value
        return ctypes.PYFUNCTYPE(restype, *argtypes)(address)


_C_TYPES = {
    "bool": ctypes.c_bool,
    "int": ctypes.c_int64,
    "double": ctypes.c_double,
    "string": ctypes.c_char_p,
}


class _Caller:
    """One bound operator: knows the order of its arguments and how to make each."""

    def __init__(self, binding: loader.Binding) -> None:
        self.op: OpSpec = binding.op
        self.binding = binding
        self.acl = _acl_api(binding.acl)
        first, second = self.op.symbols
        p = ctypes.c_void_p
        types = [_C_TYPES[x.type] if x.kind == "attr" else p for x in self.op.params]
        # CFUNCTYPE releases the GIL while the C function runs, so other threads go on.
        self.phase1 = ctypes.CFUNCTYPE(ctypes.c_int, *types, p, p)(_addr(binding, first))
        self.phase2 = ctypes.CFUNCTYPE(ctypes.c_int, p, ctypes.c_uint64, p, p)(_addr(binding, second))
        places = list(enumerate(self.op.params))
        self.attrs = [(i, x.name, x.default, x.type == "string") for i, x in places if x.kind == "attr"]
        self.ints = [(i, x.name) for i, x in places if x.kind == "ints"]
        self.tensors = [(i, x.name) for i, x in places if x.kind in ("in", "out")]

    def __call__(self, values: Mapping[str, object], stream, allocate, owner) -> None:
        tensors: list[int] = []
        arrays: list[int] = []
        acl = self.acl
        try:
            arguments = self._arguments(values, tensors, arrays)
            size, executor = ctypes.c_uint64(), ctypes.c_void_p()
            status = self.phase1(*arguments, ctypes.addressof(size), ctypes.addressof(executor))
            if status:
                raise self._failure(status, self.op.symbols[0])
            workspace, keep = (None, owner)
            if size.value:
                try:
                    workspace, keep = allocate(size.value)
                except BaseException:
                    acl.destroy_executor(executor)
                    raise
            status = self.phase2(workspace, size.value, executor, stream)
            if status:
                raise self._failure(status, self.op.symbols[1])
            del keep
        finally:
            for handle in tensors:
                acl.destroy_tensor(handle)
            for handle in arrays:
                acl.destroy_ints(handle)

    def _arguments(self, values, tensors: list[int], arrays: list[int]) -> list:
        """The C arguments in order; handles that must be freed are added to the two lists."""
        get = values.get
        arguments: list = [None] * len(self.op.params)
        for index, name, default, is_text in self.attrs:
            value = get(name)
            value = default if value is None else value
            arguments[index] = value.encode() if is_text else value
        for index, name in self.ints:
            value = get(name)
            if value is not None:
                handle = self.acl.create_ints((ctypes.c_int64 * len(value))(*value), len(value))
                arrays.append(self._made(handle, name))
                arguments[index] = handle
        create = self.acl.create_tensor
        for index, name in self.tensors:
            value = get(name)
            if value is not None:
                ptr, dtype, shape, strides = value
                dims, steps, storage, rank, storage_rank, _owner = _shape(shape, strides)
                handle = create(dims, rank, ACL_DTYPE[dtype], steps, 0, FORMAT_ND, storage, storage_rank, ptr)
                if not handle:
                    self._made(handle, name)
                tensors.append(handle)
                arguments[index] = handle
        return arguments

    def _made(self, handle, name: str) -> int:
        if not handle:
            raise LaunchError(f"{self.op.name}: ACL could not describe {name}: {self._recent()}")
        return handle

    def _recent(self) -> str:
        text = self.acl.recent()
        return text.decode(errors="replace").strip() if text else "ACL gave no message"

    def _failure(self, status: int, symbol: str) -> Exception:
        return failure(self.binding, symbol, status, self._recent())


def failure(binding: loader.Binding, symbol: str, status: int, text: str) -> Exception:
    """The exception for a status code: what failed, where, and ACL's own words."""
    if status in INVALID:
        return ArgumentError(f"{binding.op.name}: {symbol} refused the call ({status}): {text}")
    where = f"{symbol} in {binding.library.path} returned {status}"
    if status == TWIN_FAULT and binding.backend == "twin":
        return TwinFault(f"{text} ({where})", status)
    hint = f". {_HINTS[status]}" if status in _HINTS else ""
    return LaunchError(f"{binding.op.name}: {where}: {text}{hint}", status)


def _addr(binding: loader.Binding, symbol: str) -> int:
    return ctypes.cast(getattr(binding.library.cdll, symbol), ctypes.c_void_p).value


@lru_cache(maxsize=8)
def _acl_api(acl: loader.Acl) -> _AclApi:
    return _AclApi(acl)


_callers: dict[str, _Caller] = {}


def _caller(op: str) -> _Caller:
    """The prepared caller; made anew when the loader was reset and bound the op again."""
    binding = loader.bind(op)
    caller = _callers.get(op)
    if caller is None or caller.binding is not binding:
        caller = _callers[op] = _Caller(binding)
    return caller


def call(
    op: str,
    values: Mapping[str, object],
    *,
    stream: int | None = None,
    allocate: Callable[[int], tuple[int, object]] = host_workspace,
    owner: object = None,
) -> None:
    """Runs operator `op` on `values`: contract name -> TensorArg, ints, attribute, or None.

    The caller allocates outputs and keeps every tensor alive until the call (on an NPU: the
    stream's work) is done. `allocate(bytes)` returns (address, owner) of the workspace.
    Raises SymbolMissing, ArgumentError (161xxx), TwinFault (507015) or LaunchError.
    """
    _caller(op)(values, stream, allocate, owner)
