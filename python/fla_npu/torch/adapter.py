# SPDX-License-Identifier: Apache-2.0
"""PyTorch tensors for the framework-neutral layers: describe, convert, allocate, launch.

CPU tensors run on the twin, synchronously. The NPU branch follows torch_npu's rules (device guard,
current stream, workspace from the caching allocator) and has not been run on an NPU yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .. import aclnn, loader
from ..checks import Desc, Plan
from ..errors import ArgumentError, ArgumentTypeError, GradientUnavailable

__all__ = ["ADAPTER", "DTYPES", "TorchAdapter"]

_NAMES = {
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.float64: "float64",
    torch.int32: "int32",
    torch.int64: "int64",
}
DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_CPU = torch.device("cpu")


class TorchAdapter:
    """See `chunk_kda.Adapter`. `stages`: operators that must all be there before one is launched."""

    def __init__(self, stages: tuple[str, ...] = ()) -> None:
        self.stages = stages

    def describe(self, label: str, name: str, value: Any) -> Desc | None:
        if value is None:
            return None
        if not isinstance(value, torch.Tensor):
            raise ArgumentTypeError(f"{label}: {name} is a {type(value).__name__}; it must be a torch.Tensor")
        if value.is_nested:
            raise ArgumentTypeError(
                f"{label}: {name} is a nested tensor; it must be dense: lay the sequences one after "
                "another along T and pass cu_seqlens"
            )
        if value.layout is not torch.strided:
            raise ArgumentTypeError(
                f"{label}: {name} has layout {value.layout}; it must be dense: {name}.to_dense()"
            )
        dtype = value.dtype
        device = value.device
        return Desc(
            tuple(value.shape),
            _NAMES.get(dtype) or str(dtype).removeprefix("torch."),
            "cpu" if device == _CPU else str(device),
        )

    def cast(self, tensor: torch.Tensor, dtype: str) -> torch.Tensor:
        return tensor.detach().to(DTYPES[dtype])

    def reshape(self, tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        return tensor.detach().reshape(shape)

    def swap(self, tensor: torch.Tensor, a: int, b: int) -> torch.Tensor:
        return tensor.transpose(a, b)

    def part(self, tensor: torch.Tensor, axis: int, start: int, length: int) -> torch.Tensor:
        return tensor.narrow(axis, start, length)

    def join(self, parts: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
        return torch.cat(parts, axis)

    def dense(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous()

    def zeros(self, shape: tuple[int, ...], dtype: str, like: torch.Tensor) -> torch.Tensor:
        return torch.zeros(shape, dtype=DTYPES[dtype], device=like.device)

    # In float64, rounded once: torch's float32 sigmoid gives an element other last bits at the end of
    # a tensor than in the middle.

    def sigmoid(self, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        return tensor.detach().double().sigmoid_().mul_(factor).float()

    def sigmoid_grad(self, grad: torch.Tensor, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        x = tensor.detach().double().contiguous()
        return x.sigmoid().mul_(x.neg_().sigmoid_()).mul_(factor).mul_(grad).float()

    def run(self, plan: Plan, tensors: Mapping[str, torch.Tensor | None]) -> tuple:
        for stage in self.stages:
            loader.bind(stage)
        given = {name: _plain(t) for name, t in tensors.items() if t is not None}
        values: dict[str, object] = {**plan.attrs, **plan.ints}
        for name, t in given.items():
            # A view is passed with its strides; the operator's host code copies it where it must.
            strides = None if t.is_contiguous() else t.stride()
            values[name] = (t.data_ptr(), _NAMES[t.dtype], tuple(t.shape), strides)
        like = next(iter(given.values()))
        device, empty = like.device, torch.empty
        outputs: list[torch.Tensor | None] = []
        written: list[torch.Tensor] = []
        for slot in plan.outputs:
            if slot is None:
                outputs.append(None)
                continue
            name, dtype, shape = slot
            if name in given:
                written.append(_writable(plan.op, name, tensors[name]))
                outputs.append(tensors[name])
                continue
            out = empty(shape, dtype=DTYPES[dtype], device=device)
            values[name] = (out.data_ptr(), dtype, shape, None)
            outputs.append(out)
        if device == _CPU:
            _require(plan.op, "twin", device)
            aclnn.call(plan.op, values)
        else:
            _require(plan.op, "cann", device)
            _call_on_npu(plan.op, values, device)
        for tensor in written:
            if not tensor.is_inference():  # those have no version
                torch.autograd.graph.increment_version(tensor)
        return tuple(outputs)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its values in memory: a lazy negation (of an imaginary part) is carried out."""
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def _writable(op: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, if an operator may write it where it is."""
    if tensor.requires_grad:
        raise GradientUnavailable(
            f"{op}: {name} requires grad, but it is written in place, which has no gradient; pass a tensor that "
            f"does not require one, or {name}.detach()"
        )
    if not tensor.is_contiguous() or tensor.is_neg():
        raise ArgumentError(
            f"{op}: {name} is a view with strides {tuple(tensor.stride())}; it is written in place, so it must be "
            "contiguous: pass a dense tensor and copy from it"
        )
    return tensor


def _require(op: str, backend: str, device: torch.device) -> None:
    """Tensors and OPP must be of one world; a mismatch would read device memory on the host."""
    found = loader.bind(op).backend
    if found == backend:
        return
    if found == "twin":
        raise ArgumentError(
            f"{op}: tensors are on '{device}', but the OPP in use is a twin build, which computes on the "
            "CPU; move the tensors with .cpu(), or install a CANN build"
        )
    raise ArgumentError(
        f"{op}: tensors are on the CPU, but the OPP in use is a CANN build; move them with .npu(), or "
        "install a twin build (FLA_NPU_BACKEND=twin)"
    )


def _call_on_npu(op: str, values: dict[str, object], device: torch.device) -> None:
    """Issues the call on torch_npu's current stream. Written to its documented rules; untested."""
    with torch.npu.device(device):
        current = torch.npu.current_stream(device)

        def allocate(size: int) -> tuple[int, object]:
            block = torch.empty(size, dtype=torch.uint8, device=device)
            # The host drops the block before the kernel ran; the allocator must know its stream.
            block.record_stream(current)
            return block.data_ptr(), block

        # Reading `npu_stream` also drains torch_npu's task queue, so earlier operators come first.
        aclnn.call(op, values, stream=current.npu_stream, allocate=allocate)


ADAPTER = TorchAdapter()
