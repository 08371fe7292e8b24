# SPDX-License-Identifier: Apache-2.0
"""Parameters that every rank has a copy of: their parts by heads, and the sum of their partial gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ...errors import ArgumentError, ArgumentTypeError
from .context import ContextParallel, meet
from .group import Group, between_graphs

__all__ = ["as_group", "head_slice", "reduce_gradients"]


def head_slice(parameter: torch.Tensor, group: Any) -> torch.Tensor:
    """This rank's heads of a parameter whose first axis is heads, or heads times width laid out flat.

    `[HV]`, `[HV, K]` and `[HV * K]` of a_log and dt_bias become those of HV / n heads, as a function called
    inside `ulysses` over n ranks needs them. Differentiable: the gradient of the whole parameter is zero
    outside of the slice, so it is a partial one, see `reduce_gradients`.

    Raises ArgumentError when the first axis is no multiple of the number of ranks.
    """
    if not isinstance(parameter, torch.Tensor):
        raise ArgumentTypeError(
            f"head_slice: parameter is a {type(parameter).__name__}; it must be a torch.Tensor"
        )
    group = as_group(group)
    if parameter.dim() < 1 or parameter.shape[0] % group.size:
        raise ArgumentError(
            f"head_slice: parameter has shape {tuple(parameter.shape)}; its first axis must be a multiple of "
            f"the {group.size} ranks that share the heads"
        )
    step = parameter.shape[0] // group.size
    return parameter.narrow(0, group.rank * step, step)


@between_graphs
@torch.no_grad()
def reduce_gradients(parameters: torch.Tensor | Iterable[torch.Tensor], group: Any = None) -> None:
    """Sums the `.grad` of shared parameters over the ranks of a group, in float32, in place.

    Under context parallelism a rank's gradient of a_log, dt_bias, a convolution's weight or any other
    parameter that all ranks share covers its own tokens only. Call this once after backward, with the
    same parameters in the same order on every rank. `group`: as for `ContextParallel`, or a context. A
    rank without a gradient counts as zero; every rank has one afterwards, unless none had. Each gradient
    keeps its dtype: the sum is rounded once.

    Raises ParallelError on every rank when the parameters differ between ranks.
    """
    group = as_group(group)
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    error: Exception | None = None
    for p in parameters:
        if not (isinstance(p, torch.Tensor) and p.is_floating_point() and p.is_leaf):
            error = ArgumentTypeError(
                f"reduce_gradients: {type(p).__name__} among the parameters; they must be leaf tensors of a "
                "floating-point dtype"
            )
    if group.size == 1:
        if error:
            raise error
        return
    facts = {}
    if error is None:
        sizes = [tuple(p.shape) for p in parameters]
        facts = {"parameters": len(sizes), "elements": sum(p.numel() for p in parameters)}
        facts["shapes"] = str(sizes)[:300]
    meet(group, "reduce_gradients", facts, error, wanted=False)
    if not parameters:
        return
    # One message: the gradients one after another, and behind them how many ranks had each.
    device = parameters[0].device
    pieces = [_flat(p) for p in parameters]
    pieces.append(torch.tensor([p.grad is not None for p in parameters], dtype=torch.float32, device=device))
    total = group.total(torch.cat([x.to(device) for x in pieces]))
    sums = total.split([x.numel() for x in pieces])
    had = sums[-1].tolist()
    for p, x, count in zip(parameters, sums[:-1], had):
        if count:
            p.grad = x.reshape(p.shape).to(device=p.device, dtype=p.dtype)


def _flat(p: torch.Tensor) -> torch.Tensor:
    if p.grad is None:
        return torch.zeros(p.numel(), dtype=torch.float32, device=p.device)
    return p.grad.detach().to(torch.float32).flatten()


def as_group(group: Any) -> Group:
    """A Group of whatever names one: that of a context, or what `ContextParallel` takes."""
    if isinstance(group, ContextParallel):
        return group.group
    return group if isinstance(group, Group) else Group(group)
