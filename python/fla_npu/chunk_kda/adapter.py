# SPDX-License-Identifier: Apache-2.0
"""What a framework must provide: its tensors described, a few rearrangements, and the launch.

Every method may be handed the result of another one. Where a view will do, operators take its
strides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..checks import Desc, Plan

__all__ = ["Adapter", "launch"]


class Adapter(Protocol):
    """A front end's side of the neutral layer. T is its tensor type."""

    def describe(self, label: str, name: str, value: Any) -> Desc | None:
        """Shape, dtype and device of a tensor; None for None; ArgumentTypeError for the rest."""

    def run(self, plan: Plan, tensors: Mapping[str, Any]) -> tuple:
        """Allocates `plan.outputs`, launches, and returns one entry per output slot.

        An output that is among `tensors` is written where it is, and is itself the entry.
        """

    def cast(self, tensor: Any, dtype: str) -> Any:
        """The tensor converted to `dtype` (a contract dtype name); itself when it has it."""

    def reshape(self, tensor: Any, shape: tuple[int, ...]) -> Any:
        """The tensor with another shape; a view where the framework can."""

    def swap(self, tensor: Any, a: int, b: int) -> Any:
        """Axes a and b exchanged; a view will do."""

    def part(self, tensor: Any, axis: int, start: int, length: int) -> Any:
        """`length` entries of one axis; a view will do."""

    def join(self, parts: Sequence[Any], axis: int) -> Any:
        """Two tensors or more, one after another along an axis."""

    def dense(self, tensor: Any) -> Any:
        """The tensor in row-major order; itself when it is."""

    def zeros(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        """A zero tensor on the device of `like`."""

    def sigmoid(self, tensor: Any, factor: float) -> Any:
        """float32: factor * sigmoid(tensor)."""

    def sigmoid_grad(self, grad: Any, tensor: Any, factor: float) -> Any:
        """float32: grad * factor * s(tensor) * s(-tensor) with s = sigmoid, exact at saturation."""


def launch(adapter: Adapter, plan: Plan, tensors: dict[str, Any]) -> tuple:
    """Applies the conversions a plan asks for, then runs it."""
    for name, dtype in plan.casts.items():
        tensors[name] = adapter.cast(tensors[name], dtype)
    for name, shape in plan.reshapes.items():
        tensors[name] = adapter.reshape(tensors[name], shape)
    return adapter.run(plan, tensors)
