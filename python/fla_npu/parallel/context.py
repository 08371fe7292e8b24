# SPDX-License-Identifier: Apache-2.0
"""A packing of tokens over the ranks of a group, as both front ends have it; and how a call begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Protocol

from .handshake import Record, exchange
from .packing import agreed_plan, plan_digest
from .plan import Plan, Shard

__all__ = ["Context", "Members", "meet", "meet_backward"]

_CALLS = count(1)


class Members(Protocol):
    """What a front end's group must do here; `fla_npu.parallel.Transport` is the rest of it."""

    rank: int
    size: int

    def share(self, data: bytes) -> list[bytes]:
        """Everybody's bytes, equally many on every rank, in the order of ranks."""


class Context:
    """Base of the front ends' ContextParallel. Making one is a collective of the group.

    Attributes: group; rank, size; plan; packed, whether there are cu_seqlens; digest, a short name of the
    plan's value.
    """

    def __init__(
        self, group: Members, *, cu_seqlens, lengths, transport: str, group_size: int | None
    ) -> None:
        self.group, self.rank, self.size = group, group.rank, group.size
        self.plan: Plan = agreed_plan(
            group.share, self.rank, self.size, cu_seqlens=cu_seqlens, lengths=lengths,
            transport=transport, group_size=group_size,
        )  # fmt: skip
        self.packed = cu_seqlens is not None
        self.digest = plan_digest(self.plan)

    @property
    def shard(self) -> Shard:
        """What this rank owns: its tokens, its fragments of sequences, which of them begin and end here."""
        return self.plan.shard(self.rank)

    def __repr__(self) -> str:
        shard = self.shard
        return (
            f"ContextParallel(rank {self.rank} of {self.size}, tokens [{shard.start}, {shard.stop}) of "
            f"{self.plan.cu_seqlens[-1]}, {len(shard.sequences)} sequences, {self.plan.transport})"
        )

    def gathering(self) -> list[tuple[int, ...]]:
        """The groups of collectives that this rank is in, in an order that is the same on all ranks."""
        if self.size == 1:
            return []
        wanted = {
            step.members
            for way in (self.plan.forward, self.plan.backward)
            for step in way(self.rank).begin
            if hasattr(step, "members")
        }
        return sorted(members for members in wanted if len(members) > 1)


def meet(
    group: Members, call: str, facts: Mapping[str, object], error: Exception | None, *, wanted: bool = False,
    able: bool = True, own: Sequence[int] = (),
) -> list[Record]:  # fmt: skip
    """Tells the group of a call that is about to begin, and gives what everybody says.

    `error`: why this rank refuses its arguments; it is raised here, after the others know. `wanted`, `able`:
    see `Record`.
    """
    record = Record(
        call,
        facts=facts if error is None else {},
        refused="" if error is None else f"{type(error).__name__}: {error}",
        wanted=wanted,
        able=able,
        own=tuple(own),
        number=next(_CALLS),
    )
    records = exchange(group.share, group.rank, record)
    if error is not None:
        raise error
    return records


def meet_backward(group: Members, call: str, number: int) -> None:
    """Before the messages of a backward: is it that of the same call on every rank?

    `number`: what rank 0 gave the call in its `meet`. Without this, two backwards in different orders would
    swap their messages, and one that a rank leaves out would meet that rank's next call.
    """
    meet(group, f"the backward of {call}", {"forward": f"call {number}"}, None)
