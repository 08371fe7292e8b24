# SPDX-License-Identifier: Apache-2.0
"""Parameters that every rank has a copy of: their parts by heads, and the sum of their partial gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore
from mindspore import Tensor, mint

from ...errors import ArgumentError, ArgumentTypeError
from ...parallel.context import meet
from ..guard import python_function, refuse_jit
from .group import as_group

__all__ = ["head_slice", "reduce_gradients"]

_FLOATS = (mindspore.float32, mindspore.bfloat16, mindspore.float16)


def head_slice(parameter: Tensor, group: Any) -> Tensor:
    """This rank's heads of a parameter whose first axis is heads, or heads times width laid out flat.

    `[HV]`, `[HV, K]` and `[HV * K]` of a_log and dt_bias become those of HV / n heads, as a function called
    inside `ulysses` over n ranks needs them. Differentiable: the gradient of the whole parameter is zero
    outside of the slice, so it is a partial one, see `reduce_gradients`.

    Raises ArgumentError when the first axis is no multiple of the number of ranks.
    """
    refuse_jit(python_function, "parallel.head_slice")
    return _head_slice(parameter, group)


def _head_slice(parameter: Any, group: Any) -> Tensor:
    if not isinstance(parameter, Tensor):
        raise ArgumentTypeError(
            f"head_slice: parameter is a {type(parameter).__name__}; it must be a mindspore.Tensor"
        )
    group = as_group(group)
    shape = tuple(parameter.shape)
    if not shape or shape[0] % group.size:
        raise ArgumentError(
            f"head_slice: parameter has shape {shape}; its first axis must be a multiple of "
            f"the {group.size} ranks that share the heads"
        )
    step = shape[0] // group.size
    return mint.narrow(parameter, 0, group.rank * step, step)


def reduce_gradients(gradients: Tensor | Sequence[Tensor | None], group: Any = None) -> Any:
    """The sums of partial gradients over the ranks of a group, added in float32.

    Under context parallelism a rank's gradient of a_log, dt_bias, a convolution's weight or any other
    parameter that all ranks share covers its own tokens only. Call this once after the gradients are
    there, with those of the same parameters in the same order on every rank:

        value, grads = derive(...)                 mindspore.value_and_grad, or grad
        grads = reduce_gradients(grads, group)     a tuple; of one tensor, a tensor

    `group`: as for `ContextParallel`, or a context. MindSpore keeps no gradients in parameters, so nothing is
    changed in place. Each sum has the dtype of its gradient and is rounded once.

    Raises ParallelError on every rank when the gradients differ in shape between ranks.
    """
    refuse_jit(python_function, "parallel.reduce_gradients")
    return _reduce_gradients(gradients, group)


def _reduce_gradients(gradients: Any, group: Any) -> Any:
    group, one = as_group(group), isinstance(gradients, Tensor)
    given = [gradients] if one else list(gradients)
    error: Exception | None = None
    for x in given:
        if not isinstance(x, Tensor) or x.dtype not in _FLOATS:
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            error = ArgumentTypeError(
                f"reduce_gradients: {kind} among the gradients; they must be tensors of a floating-point dtype"
            )
    if group.size == 1:
        if error:
            raise error
        return gradients if one else tuple(given)
    facts = {}
    if error is None:
        shapes = [tuple(x.shape) for x in given]
        facts = {"gradients": len(given), "elements": sum(x.size for x in given), "shapes": str(shapes)[:300]}
    meet(group, "reduce_gradients", facts, error)
    filled = [x for x in given if x.size]
    if filled:
        flat = [x.astype(mindspore.float32).reshape(-1) for x in filled]
        total = group.total(mint.cat(flat, 0) if len(flat) > 1 else flat[0] + 0.0)
    made, at = [], 0
    for x in given:
        if x.size:
            x, at = mint.narrow(total, 0, at, x.size).reshape(x.shape).astype(x.dtype), at + x.size
        made.append(x)
    return made[0] if one else tuple(made)
