# SPDX-License-Identifier: Apache-2.0
"""Refusals where MindSpore would go on with a gradient of zero and say nothing.

* In graph mode (`mindspore.jit`, GRAPH_MODE) an extension operator runs, but its gradient is zero.
* In PyNative mode the outputs of an extension operator are constants to `mindspore.grad`: so are the
  gradients that npu_chunk_kda returns, when somebody differentiates them once more.
"""

from __future__ import annotations

from collections.abc import Callable

from mindspore import Tensor
from mindspore.common._grad_function import _Function
from mindspore.graph.api import _pynative_executor
from mindspore.graph.jit_context import jit_context
from mindspore.ops.primitive import constexpr

from ..errors import FlaNpuError, GradientUnavailable

__all__ = [
    "GradientUnavailable",
    "GraphModeUnsupported",
    "python_function",
    "recording",
    "refuse_jit",
    "without_derivative",
]


class GraphModeUnsupported(FlaNpuError, RuntimeError):
    """A function of fla_npu.mindspore was traced into a graph."""


def python_function():
    """What `refuse_jit` is called with: to the graph compiler a function is a graph, to Python an object."""
    return 0


@constexpr(check=False)
def refuse_jit(function, name):
    """Raise while `name` is being compiled into a graph; about half a microsecond otherwise.

    The compiler evaluates a constexpr at compile time and hands it None for an argument that is a
    graph, so `function` is None exactly then. The tracing compiler (capture_mode="trace") runs the
    Python code and would freeze our results as constants; it announces itself by a context.
    """
    if function is None or jit_context() is not None:
        raise GraphModeUnsupported(
            f"{name} cannot be compiled into a graph: an extension operator has a gradient of zero there, "
            "without an error. Call it in PyNative mode, outside of mindspore.jit, or compile around it "
            'with mindspore.jit(capture_mode="bytecode"), which leaves it out of the graph'
        )
    return True


def recording() -> bool:
    """Whether MindSpore records operators now because a gradient is wanted."""
    return _pynative_executor.requires_grad()


class _Refusing(_Function):
    """Runs a function whose backward raises. Tensors must be separate arguments: MindSpore does not
    look for them inside a tuple."""

    @staticmethod
    def forward(ctx, what: str, function: Callable[[], tuple], *tensors):
        ctx.what = what
        return function()

    @staticmethod
    def backward(ctx, *gradients):
        raise GradientUnavailable(
            f"{ctx.what} cannot be differentiated again: fla_npu computes first derivatives only. If the "
            "second derivative is not wanted, use mindspore.ops.stop_gradient on the gradient"
        )


def without_derivative(what: str, function: Callable[[], tuple], tensors: tuple[Tensor | None, ...]) -> tuple:
    """function(), which computes from `tensors`; while MindSpore records, a result without derivative."""
    return _Refusing.apply(what, function, *tensors) if recording() else function()
