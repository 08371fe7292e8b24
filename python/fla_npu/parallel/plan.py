# SPDX-License-Identifier: Apache-2.0
"""Which rank owns which tokens of which sequence, and where states cross from rank to rank.

Tokens are in one contiguous order over the ranks: rank r owns [offsets[r], offsets[r + 1]) of the
packed stream. Lengths may differ and may be 0; sequences may start, end and cross ranks anywhere and
may be empty. Pure data: every rank computes the same plan from the same arguments.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ..checks.common import one_of
from ..checks.metadata import host_ints, read_cu_seqlens
from ..errors import ArgumentError, ArgumentTypeError
from .program import Program

__all__ = ["TRANSPORTS", "Plan", "Shard", "make_plan"]

TRANSPORTS = ("gather", "relay", "grouped", "doubling")


@dataclass(frozen=True)
class Shard:
    """One rank's part of the stream: fragments of sequences, in order.

    An empty sequence is a fragment of the rank that owns the token at its place, or the last token
    before it at the end of the stream. A rank without tokens has no fragments. Only the first fragment
    can have a state coming in from earlier ranks, only the last one can hand a state on.
    """

    rank: int
    start: int  # global tokens [start, stop)
    stop: int
    before: int  # tokens of the first fragment's sequence on earlier ranks
    cu_seqlens: tuple[int, ...]  # of the fragments, local: first 0, last stop - start
    sequences: tuple[int, ...]  # global index of each fragment's sequence
    begins: tuple[bool, ...]  # whether the fragment has its sequence's beginning
    ends: tuple[bool, ...]  # and its end

    @property
    def tokens(self) -> int:
        return self.stop - self.start

    @property
    def starts(self) -> tuple[int, ...]:
        """Fragments whose sequence begins here: they may have an initial state."""
        return tuple(i for i, begins in enumerate(self.begins) if begins)

    @property
    def finishes(self) -> tuple[int, ...]:
        """Fragments whose sequence ends here: they have the final state."""
        return tuple(i for i, ends in enumerate(self.ends) if ends)

    @property
    def continues(self) -> bool:
        """Whether a state enters the first fragment."""
        return bool(self.begins) and not self.begins[0]

    @property
    def goes_on(self) -> bool:
        """Whether a state leaves the last fragment."""
        return bool(self.ends) and not self.ends[-1]


@dataclass(frozen=True)
class Plan:
    """A checked packing and the transport of its states; made by `make_plan`.

    Equal plans are equal objects, so ranks can compare theirs by value.
    """

    lengths: tuple[int, ...]
    cu_seqlens: tuple[int, ...]
    transport: str = "gather"
    group_size: int | None = None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.lengths)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """First token of each rank, and the total."""
        return (0, *accumulate(self.lengths))

    @cached_property
    def workers(self) -> tuple[int, ...]:
        """Ranks with tokens."""
        return tuple(r for r, length in enumerate(self.lengths) if length)

    @cached_property
    def spans(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each sequence that lies on more than one, in order of tokens.

        Two spans have at most one rank in common, the last of one and the first of the other. Ranks
        without tokens are in none: a state passes over them.
        """
        holders: dict[int, list[int]] = {}
        for rank in self.workers:
            first, last = self.offsets[rank], self.offsets[rank + 1] - 1
            for sequence in sorted({self._sequence_at(first), self._sequence_at(last)}):
                holders.setdefault(sequence, []).append(rank)
        return tuple(tuple(ranks) for ranks in holders.values() if len(ranks) > 1)

    def flow(self, backward: bool) -> tuple[tuple[int, ...], ...]:
        """The spans in the direction in which states, or their gradients, pass through them."""
        return tuple(span[::-1] for span in reversed(self.spans)) if backward else self.spans

    def _sequence_at(self, token: int) -> int:
        """The sequence that has this token."""
        return bisect_right(self.cu_seqlens, token) - 1

    def shard(self, rank: int) -> Shard:
        """What `rank` owns."""
        self._check_rank("shard", rank)
        start, stop, cu = self.offsets[rank], self.offsets[rank + 1], self.cu_seqlens
        if start == stop:
            return Shard(rank, start, stop, 0, (0,), (), (), ())
        low = bisect_left(cu, start)
        low -= cu[low] > start  # the sequence before goes on here
        high = len(cu) - 1 if stop == cu[-1] else bisect_left(cu, stop)
        sequences = tuple(range(low, high))
        return Shard(
            rank, start, stop,
            before=max(0, start - cu[low]),
            cu_seqlens=(0, *(min(cu[s + 1], stop) - start for s in sequences)),
            sequences=sequences,
            begins=tuple(cu[s] >= start for s in sequences),
            ends=tuple(cu[s + 1] <= stop for s in sequences),
        )  # fmt: skip

    def forward(self, rank: int) -> Program:
        """The exchange after which the state that enters the first fragment is known.

        The rank gives the map of its last fragment, or, where that begins here, the state after it.
        """
        return self._program(rank, backward=False)

    def backward(self, rank: int) -> Program:
        """The mirror: the gradient of the state that leaves the last fragment.

        The rank gives the map of its first fragment from the gradient at its end to that at its start,
        or, where the sequence ends here, the gradient at the start.
        """
        return self._program(rank, backward=True)

    def _program(self, rank: int, backward: bool) -> Program:
        from .transports import compile_program

        self._check_rank("backward" if backward else "forward", rank)
        return compile_program(self, rank, backward)

    def _check_rank(self, label: str, rank: int) -> None:
        if isinstance(rank, bool) or not hasattr(rank, "__index__"):
            raise ArgumentTypeError(
                f"Plan.{label}: rank = {rank!r} is a {type(rank).__name__}; it is an integer"
            )
        if not 0 <= rank < self.size:
            raise ArgumentError(f"Plan.{label}: rank = {rank}; the plan has ranks 0 to {self.size - 1}")


def make_plan(
    lengths, cu_seqlens=None, *, transport: str = "gather", group_size: int | None = None,
    label: str = "make_plan",
) -> Plan:  # fmt: skip
    """Checks a packing and returns its plan.

    `lengths` are the tokens of each rank, `cu_seqlens` the offsets of the sequences in the stream of
    all ranks (None: one sequence). `transport` is one of

        gather     AllGather of all contributions, then one fold on every rank
        relay      from rank to rank, only where a sequence crosses
        grouped    gather inside groups of `group_size` consecutive ranks, relay between them
        doubling   recursive doubling: log2 of the ranks of a sequence

    The same on every rank, in both directions. Errors: ArgumentError, ArgumentTypeError.
    """
    lengths = host_ints(label, "lengths", lengths)
    if not lengths:
        raise ArgumentError(f"{label}: lengths is empty; pass the number of tokens of every rank")
    for rank, length in enumerate(lengths):
        if length < 0:
            raise ArgumentError(f"{label}: lengths[{rank}] = {length}; a rank has 0 tokens or more")
    total = sum(lengths)
    if not total:
        raise ArgumentError(f"{label}: lengths = {list(lengths)}: no rank has a token; at least one must")
    cu = (0, total) if cu_seqlens is None else host_ints(label, "cu_seqlens", cu_seqlens)
    if cu and cu[-1] != total:
        raise ArgumentError(
            f"{label}: lengths of {len(lengths)} ranks add up to {total} tokens, but cu_seqlens[-1] = "
            f"{cu[-1]}; cu_seqlens are the global offsets, the same on every rank"
        )
    cu = read_cu_seqlens(label, cu, total, None)
    one_of(label, "transport", transport, TRANSPORTS)
    return Plan(lengths, cu, transport, _check_group(label, transport, group_size, len(lengths)))


def _check_group(label: str, transport: str, group_size, ranks: int) -> int | None:
    if transport != "grouped":
        if group_size is not None:
            raise ArgumentError(
                f"{label}: group_size = {group_size} with transport = '{transport}'; only 'grouped' has "
                "groups, leave it out"
            )
        return None
    if isinstance(group_size, bool) or not hasattr(group_size, "__index__"):
        raise ArgumentTypeError(
            f"{label}: group_size = {group_size!r} with transport = 'grouped'; pass the number of ranks "
            "of a group, such as the NPUs of a node"
        )
    size = int(group_size)
    if size < 1 or ranks % size:
        raise ArgumentError(
            f"{label}: group_size = {size} does not divide {ranks} ranks; groups are of one size"
        )
    return size
