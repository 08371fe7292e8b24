# SPDX-License-Identifier: Apache-2.0
"""Which ranks share a stream of tokens, and how it is cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindspore import Tensor

from ...errors import ArgumentTypeError
from ...parallel.context import Context
from .group import Group

__all__ = ["ContextParallel", "need"]


class ContextParallel(Context):
    """A packing of tokens over the ranks of a group, agreed on by all of them when it is made.

    Tokens are in one contiguous order: rank 0 has the first ones, rank 1 the next, and so on. The zigzag
    order that balances causal attention is another one: see `from_zigzag`. Sequences may begin, end and
    cross ranks anywhere.

    Args:
        group: name of a MindSpore group, list of world ranks (their order is that of the tokens), or a
            device mesh of one dimension; None is all processes, or this one alone where
            mindspore.communication is not initialised. Only the members make the context.
        cu_seqlens: offsets of the sequences in the tokens of all ranks, the same on every rank; a list, a
            tuple or a 1-D integer tensor. None: one sequence (or, with B > 1, one per row).
        lengths: tokens of every rank, or the number of this rank's, or None: `cu_seqlens[-1]` tokens in
            parts as equal as they can be, the longer ones first. A rank may have 0.
        transport: how states cross: gather, relay, grouped, doubling (docs/scaling.md says which when).
        group_size: ranks of a group of `grouped`, such as the NPUs of a node; they must be consecutive.

    Attributes: rank, size; plan (`fla_npu.parallel.Plan`); shard, what this rank owns.

    Raises:
        ArgumentError, ArgumentTypeError: on the rank whose arguments are refused.
        ParallelError: on the others then, and on all when ranks disagree or one does not answer.

    Making one is a collective, once per packing; it can be used for any number of layers and steps.
    """

    def __init__(
        self,
        group: Any = None,
        *,
        cu_seqlens: Sequence[int] | Tensor | None = None,
        lengths: int | Sequence[int] | Tensor | None = None,
        transport: str = "gather",
        group_size: int | None = None,
    ) -> None:
        super().__init__(
            Group(group), cu_seqlens=cu_seqlens, lengths=lengths, transport=transport, group_size=group_size
        )
        for members in self.gathering():
            self.group.subgroup(members)


def need(context: Any) -> ContextParallel:
    """The context, or an error that says how to make one."""
    if not isinstance(context, ContextParallel):
        raise ArgumentTypeError(
            f"context is a {type(context).__name__}; pass a fla_npu.mindspore.parallel.ContextParallel"
        )
    return context
