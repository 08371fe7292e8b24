# SPDX-License-Identifier: Apache-2.0
"""Which ranks share a stream of tokens, and how it is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...errors import ArgumentTypeError
from ...parallel import context
from ...parallel.context import Context, meet_backward
from ...parallel.handshake import Record
from .group import Group

__all__ = ["ContextParallel", "meet", "meet_backward", "need"]


class ContextParallel(Context):
    """A packing of tokens over the ranks of a group, agreed on by all of them when it is made.

    Tokens are in one contiguous order: rank 0 has the first ones, rank 1 the next, and so on. The zigzag
    order that balances causal attention is another one: see `from_zigzag`. Sequences may begin, end and
    cross ranks anywhere.

    Args:
        group: ProcessGroup or one-dimensional DeviceMesh; None is all processes, or this one alone where
            torch.distributed is not initialised. Ranks are those in the group, which PyTorch counts upwards:
            a list or a mesh in another order gives the same ranks.
        cu_seqlens: offsets of the sequences in the tokens of all ranks, the same on every rank; a list, a
            tuple or a 1-D CPU integer tensor. None: one sequence (or, with B > 1, one per row).
        lengths: tokens of every rank, or the number of this rank's, or None: `cu_seqlens[-1]` tokens in
            parts as equal as they can be, the longer ones first. A rank may have 0.
        transport: how states cross: gather, relay, grouped, doubling (docs/scaling.md says which when).
        group_size: ranks of a group of `grouped`, such as the NPUs of a node; they must be consecutive. Their
            gather is made of messages, since PyTorch makes process groups only where all processes ask.

    Attributes: rank, size; plan (`fla_npu.parallel.Plan`); shard, what this rank owns.

    Raises:
        ArgumentError, ArgumentTypeError: on the rank whose arguments are refused.
        ParallelError: on the others then, and on all when ranks disagree or one does not answer.

    Making one is a collective, once per packing; it can be used for any number of layers and steps.
    Calls begin with a short gather that the host reads. Where the group has a backend for CPU tensors
    (`init_process_group("cpu:gloo,npu:hccl")`) it takes that and the device's queue runs on.
    """

    def __init__(
        self,
        group: Any = None,
        *,
        cu_seqlens: Sequence[int] | torch.Tensor | None = None,
        lengths: int | Sequence[int] | torch.Tensor | None = None,
        transport: str = "gather",
        group_size: int | None = None,
    ) -> None:
        super().__init__(
            Group(group), cu_seqlens=cu_seqlens, lengths=lengths, transport=transport, group_size=group_size
        )


def need(given: Any) -> ContextParallel:
    """The context, or an error that says how to make one."""
    if not isinstance(given, ContextParallel):
        raise ArgumentTypeError(
            f"context is a {type(given).__name__}; pass a fla_npu.torch.parallel.ContextParallel"
        )
    return given


def meet(
    group: Group, call: str, facts: Mapping[str, object], error: Exception | None, wanted: bool,
    own: Sequence[int] = (),
) -> list[Record]:  # fmt: skip
    """`parallel.context.meet`. `wanted`: this rank may ask for a gradient of the call."""
    return context.meet(group, call, facts, error, wanted=wanted, able=torch.is_grad_enabled(), own=own)
