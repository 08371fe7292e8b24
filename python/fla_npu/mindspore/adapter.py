# SPDX-License-Identifier: Apache-2.0
"""How MindSpore tensors are described, converted and launched (see fla_npu.chunk_kda.Adapter)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import mindspore
from mindspore import Tensor, mint
from mindspore._c_expression import MSContext, ms_ctx_param

from .. import aclnn, loader
from ..checks import Desc, Plan
from ..errors import ArgumentError, ArgumentTypeError
from ..spec import names, spec
from . import bridge

__all__ = ["DTYPES", "MindSporeAdapter", "on_device", "plain", "plain_all", "resolve"]

# Order of the addresses in AclApi (csrc/acl_call.h).
_ACL = (
    "aclCreateTensor",
    "aclDestroyTensor",
    "aclCreateIntArray",
    "aclDestroyIntArray",
    "aclGetRecentErrMsg",
    "aclDestroyAclOpExecutor",
    "aclrtSynchronizeStream",
)
DTYPES = {
    mindspore.float32: "float32",
    mindspore.bfloat16: "bfloat16",
    mindspore.float16: "float16",
    mindspore.float64: "float64",
    mindspore.int32: "int32",
    mindspore.int64: "int64",
}
# What AclCall::Fail throws: operator, C function, status, ACL's text.
_FAILURE = re.compile(r"^\w+: (aclnn\w+) returned (\d+): (.*)", re.DOTALL)


class _Reshaped(NamedTuple):
    """A tensor with the shape it is to be presented with; costs no operator."""

    tensor: Tensor
    shape: tuple[int, ...]

    @property
    def dtype(self):
        return self.tensor.dtype


def plain(value):
    """A tensor in the shape it is presented with; results that leave this package are plain."""
    return value.tensor.reshape(value.shape) if isinstance(value, _Reshaped) else value


def plain_all(values: tuple) -> tuple:
    return tuple(plain(value) for value in values)


class _Target(NamedTuple):
    """An operator resolved in the OPP and made known to the bridge."""

    number: int
    binding: loader.Binding
    inputs: tuple[tuple[str, str, object], ...]  # kind, name and default of all that is not written


def on_device() -> bool:
    # What mindspore.get_context("device_target") returns after 20 us.
    return MSContext.get_instance().get_param(ms_ctx_param.device_target) == "Ascend"


_targets: dict[str, _Target] = {}


def resolve(op: str) -> _Target:
    """Looks both symbols up (SymbolMissing if the OPP lacks them) before the bridge hears of it."""
    binding = loader.bind(op)
    found = _targets.get(op)
    if found is None or found.binding is not binding:  # another OPP since the last call
        found = _targets[op] = _resolve(binding)
    return found


def _resolve(binding: loader.Binding) -> _Target:
    ascend = on_device()
    if ascend is not (binding.backend == "cann"):
        raise ArgumentError(
            f"{binding.op.name}: MindSpore runs on {'Ascend' if ascend else 'CPU'}, but the OPP in use "
            f"is a {binding.backend} build ({binding.library.path}); a cann build needs "
            'mindspore.set_device("Ascend"), a twin build mindspore.set_device("CPU")'
        )
    at = binding.addresses()
    number = bridge.load().bind(
        binding.op.name, at["workspace"], at["execute"], [at.get(name, 0) for name in _ACL], ascend
    )
    op = binding.op
    inputs = tuple(
        (p.kind, p.name, p.default) for p in op.params if p.kind != "out" and p.name not in op.mutated
    )
    return _Target(number, binding, inputs)


def _check_writable(op: str, tensor) -> None:
    """Refuses a view of a part of another tensor: on the CPU MindSpore's copy_ does not write through it."""
    tensor = plain(tensor)
    whole = on_device() or tensor.untyped_storage().nbytes() == tensor.nbytes
    if not whole or not tensor.is_contiguous():
        raise ArgumentError(
            f"{op}: the tensor to be written is a view of a part of another one; it must have memory of its "
            "own: pass a dense tensor and copy from it"
        )


class MindSporeAdapter:
    """Serves every call. `stages`: operators that must all be there before the first is launched."""

    def __init__(self, stages: tuple[str, ...] = ()) -> None:
        self.stages = stages

    def describe(self, label: str, name: str, value) -> Desc | None:
        """Shape, dtype and device of a tensor; None for None; ArgumentTypeError for the rest."""
        if value is None:
            return None
        if not isinstance(value, (Tensor, _Reshaped)):
            raise ArgumentTypeError(
                f"{label}: {name} is a {type(value).__module__}.{type(value).__name__}; it must be a "
                "mindspore.Tensor"
            )
        dtype = DTYPES.get(value.dtype) or str(value.dtype).lower()
        return Desc(tuple(value.shape), dtype, "npu" if on_device() else "cpu")

    def cast(self, tensor, dtype: str):
        target = getattr(mindspore, dtype)
        return tensor if tensor.dtype == target else plain(tensor).astype(target)

    def reshape(self, tensor, shape: tuple[int, ...]):
        return _Reshaped(tensor.tensor if isinstance(tensor, _Reshaped) else tensor, tuple(shape))

    # The operators below are the ones MindSpore's CPU backend has for bfloat16 and float32 alike;
    # of the sigmoid it has float32 only.

    def zeros(self, shape: tuple[int, ...], dtype: str, like) -> Tensor:
        """A zero tensor; MindSpore has one device, so `like` says nothing more."""
        return mint.zeros(tuple(shape), dtype=getattr(mindspore, dtype))

    def swap(self, tensor, a: int, b: int) -> Tensor:
        """A view with two axes exchanged."""
        return mint.transpose(plain(tensor), a, b)

    def part(self, tensor, axis: int, start: int, length: int) -> Tensor:
        """A view of a slice of one axis."""
        return mint.narrow(plain(tensor), axis, start, length)

    def join(self, parts: list, axis: int) -> Tensor:
        return mint.cat([plain(part) for part in parts], axis)

    def dense(self, tensor) -> Tensor:
        return plain(tensor).contiguous()

    def sigmoid(self, tensor, factor: float) -> Tensor:
        """factor * sigmoid(tensor), float32."""
        return mint.sigmoid(plain(self.cast(tensor, "float32"))) * factor

    def sigmoid_grad(self, grad, tensor, factor: float) -> Tensor:
        """Gradient of `sigmoid` under the cotangent `grad`, float32; s(-t) is 1 - s(t) without rounding."""
        logit = plain(self.cast(tensor, "float32"))
        return plain(grad) * factor * mint.sigmoid(logit) * mint.sigmoid(-logit)

    def run(self, plan: Plan, tensors: Mapping[str, object]) -> tuple:
        """Queues one operator. A failure of an earlier one may surface here, too."""
        for stage in self.stages:
            resolve(stage)
        target = resolve(plan.op)
        values = []
        for kind, name, default in target.inputs:
            if kind == "in":
                value = tensors.get(name)
                values.append(tuple(value) if isinstance(value, _Reshaped) else value)
            elif kind == "ints":
                values.append(plan.ints.get(name))
            else:
                values.append(plan.attrs.get(name, default))
        written = target.binding.op.mutated
        for name in written:
            _check_writable(plan.op, tensors[name])
        slots = [None if out is None else (out.dtype, out.shape) for out in plan.outputs]
        try:
            made = bridge.load().call(target.number, values, slots)
        except RuntimeError as error:
            raise self.named(error) from error
        # A built-in operator puts the values where they belong, so that all that MindSpore knows about a
        # tensor (its host copy, its history) stays true.
        for out, x in zip(plan.outputs, made):
            if out is not None and out.name in written:
                plain(tensors[out.name]).copy_(x)
        return tuple(
            tensors[out.name] if out is not None and out.name in written else x
            for out, x in zip(plan.outputs, made)
        )

    @staticmethod
    def named(error: RuntimeError) -> Exception:
        """The bridge's failure as the exception of fla_npu it stands for."""
        found = _FAILURE.match(str(error))
        if found is None:
            return error
        symbol, status, text = found.groups()
        # The text names the failed operator, which need not be the one being called.
        op = next(name for name in names() if symbol in spec(name).symbols)
        return aclnn.failure(loader.bind(op), symbol, int(status), text.strip())
