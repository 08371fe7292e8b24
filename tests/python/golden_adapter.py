# SPDX-License-Identifier: Apache-2.0
"""An adapter without a framework and without an OPP: float64 arrays, and goldens in place of kernels.

Nothing is rounded, so whatever differs from the adjoint of the recurrence is a fault of the
composition: a wrong argument, layout, slice or sum.
"""

from __future__ import annotations

import inspect
from typing import NamedTuple

import numpy as np
from fla_npu.checks import Desc
from fla_npu.spec import spec
from goldens import golden_module
from recurrence import sigmoid

_UNKNOWN_TO_GOLDENS = {"chunk_size", "cu_seqlens", "chunk_indices"}


class Array(NamedTuple):
    """float64 values, and the dtype they stand for."""

    values: np.ndarray
    dtype: str

    @property
    def shape(self) -> tuple:
        return self.values.shape


class GoldenAdapter:
    """`launched` lists the operators in the order they ran, with the shapes of their inputs."""

    def __init__(self) -> None:
        self.launched: list[tuple[str, dict]] = []

    @property
    def ops(self) -> list[str]:
        return [op for op, _ in self.launched]

    def describe(self, label, name, value):
        return None if value is None else Desc(value.shape, value.dtype, "cpu")

    def cast(self, tensor, dtype):
        return tensor._replace(dtype=dtype)

    def reshape(self, tensor, shape):
        return tensor._replace(values=tensor.values.reshape(shape))

    def swap(self, tensor, a, b):
        return tensor._replace(values=tensor.values.swapaxes(a, b))

    def part(self, tensor, axis, start, length):
        index = (slice(None),) * axis + (slice(start, start + length),)
        return tensor._replace(values=tensor.values[index])

    def join(self, parts, axis):
        assert len(parts) > 1 and len({p.dtype for p in parts}) == 1
        return Array(np.concatenate([p.values for p in parts], axis), parts[0].dtype)

    def dense(self, tensor):
        return tensor._replace(values=np.ascontiguousarray(tensor.values))

    def zeros(self, shape, dtype, like):
        return Array(np.zeros(shape), dtype)

    def sigmoid(self, tensor, factor):
        return Array(factor * sigmoid(tensor.values), "float32")

    def sigmoid_grad(self, grad, tensor, factor):
        assert grad.dtype == "float32"
        return Array(grad.values * factor * sigmoid(tensor.values) * sigmoid(-tensor.values), "float32")

    def run(self, plan, tensors):
        op = spec(plan.op)
        given = {name: t for name, t in tensors.items() if t is not None}
        self.launched.append((plan.op, {name: t.shape for name, t in given.items()}))
        for name, tensor in given.items():
            assert tensor.dtype in op.param(name).dtypes, f"{plan.op}: {name} is {tensor.dtype}"
        golden = golden_module(plan.op).golden
        signature = inspect.signature(golden).parameters
        anything = any(p.kind is p.VAR_KEYWORD for p in signature.values())
        accepted = {p.name for p in op.params if anything or p.name in signature} - _UNKNOWN_TO_GOLDENS
        options = {n: x for n, x in plan.attrs.items() if n in accepted}
        if plan.op == "chunk_kda_bwd_prepare":
            options["layout"] = "NTD" if len(given["aqk"].shape) == 3 else "BNSD"
        made = golden(
            **{n: t.values for n, t in given.items() if n in accepted},
            **options,
            cu_seqlens=plan.ints["cu_seqlens"],
        )
        return tuple(None if slot is None else self._slot(slot, made[slot.name]) for slot in plan.outputs)

    @staticmethod
    def _slot(slot, values) -> Array:
        values = np.asarray(values)
        if slot.name == "v_new" and len(slot.shape) == 5:  # two planes
            values = np.stack([values, np.zeros(values.shape)]).reshape(slot.shape)
        if slot.name == "ddt_bias":
            values = values.reshape(slot.shape)
        assert values.shape == tuple(slot.shape), f"{slot.name}: {values.shape} is not {slot.shape}"
        return Array(values, slot.dtype)
