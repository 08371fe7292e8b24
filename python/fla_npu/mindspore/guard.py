# SPDX-License-Identifier: Apache-2.0
"""Refusals where MindSpore would go on with a gradient of zero and say nothing.

* In graph mode (`mindspore.jit`, GRAPH_MODE) an extension operator runs, but its gradient is zero.
* In PyNative mode the outputs of an extension operator are constants to `mindspore.grad`.
"""

from __future__ import annotations

from collections.abc import Callable

from mindspore import Tensor
from mindspore.common._grad_function import _Function
from mindspore.graph.api import _pynative_executor
from mindspore.graph.jit_context import jit_context
from mindspore.ops.primitive import constexpr

from ..errors import FlaNpuError

__all__ = [
    "GradientUnavailable",
    "GraphModeUnsupported",
    "python_function",
    "refuse_jit",
    "with_refused_gradient",
]


class GraphModeUnsupported(FlaNpuError, RuntimeError):
    """A function of fla_npu.mindspore was traced into a graph."""


class GradientUnavailable(FlaNpuError, RuntimeError):
    """A gradient was asked for that this version does not compute."""


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


class _Refusing(_Function):
    """Runs a function whose backward raises. Tensors must be separate arguments: MindSpore does not
    look for them inside a tuple."""

    @staticmethod
    def forward(ctx, name: str, function: Callable, options: dict, *tensors):
        ctx.name = name
        ctx.gradients = 3 + len(tensors)
        return function(tensors, options)

    @staticmethod
    def backward(ctx, *gradients):
        raise GradientUnavailable(
            f"the gradient of {ctx.name} is not available in this version of fla_npu (forward only); use "
            "mindspore.ops.stop_gradient on its results, or compute them under no-grad, if none is wanted"
        )


def with_refused_gradient(
    name: str, function: Callable, tensors: tuple[Tensor | None, ...], options: dict
) -> tuple:
    """function(tensors, options); while MindSpore records for a gradient, one that cannot be derived."""
    if _pynative_executor.requires_grad():
        return _Refusing.apply(name, function, options, *tensors)
    return function(tensors, options)
