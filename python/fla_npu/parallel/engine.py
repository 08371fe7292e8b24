# SPDX-License-Identifier: Apache-2.0
"""Runs a rank's program: an adapter computes, a transport communicates.

    exchange = Exchange(plan.forward(rank), adapter, transport, shape=(HV, K, V), like=k)
    exchange.begin(own)            # posts; then do the work that needs no incoming state
    state = exchange.finish()      # waits, folds, hands on

Every rank of the group runs its program, also one with nothing to give. Whatever goes wrong between
ranks is a ParallelError with this rank, its peers, the step and the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..chunk_kda import Adapter, stages
from ..errors import ArgumentError, ParallelError
from .halo import Piece
from .program import (
    INCOMING,
    MAP,
    OWN,
    STATE,
    Compose,
    Fold,
    Gather,
    Program,
    Receive,
    Send,
    Step,
    Term,
    Wait,
)

__all__ = ["Exchange", "Handle", "RowExchange", "Transport"]

# Summaries and heads that one launch of the merge operator takes.
MOST_SUMMARIES, MOST_HEADS = 1024, 256


class Handle(Protocol):
    """A posted operation."""

    def wait(self) -> Any:
        """Returns when it is done: what arrived, or None for a send."""


class Transport(Protocol):
    """A process group of a framework. Peers and members are ranks in the group.

    Posting must not wait for other ranks. Tensors are dense; what is sent may not be changed by anyone
    before its handle was waited for.
    """

    rank: int
    size: int

    def send(self, tensor: Any, peer: int) -> Handle:
        """Posts a tensor to a peer."""

    def receive(self, shape: tuple[int, ...], dtype: str, like: Any, peer: int) -> Handle:
        """Posts the receipt of such a tensor, on the device of `like`."""

    def gather(self, tensor: Any, members: Sequence[int]) -> Handle:
        """Posts an AllGather among members (all ranks, or one group of consecutive ones); wait()
        returns [len(members), *tensor.shape], in order of members."""


class _Posting:
    """Operations that were posted, and errors that say whom they were for."""

    def __init__(self, transport: Transport, name: str, label: str):
        self.transport, self.name, self.label = transport, name, label
        self._arriving: dict[Any, tuple[Handle, str, tuple[int, ...]]] = {}
        self._leaving: list[tuple[Handle, str, tuple[int, ...]]] = []

    def gather(self, slot, tensor, members: tuple[int, ...]) -> None:
        text = f"the gather over ranks {members[0]} to {members[-1]}"
        handle = self._try(text, members, lambda: self.transport.gather(tensor, members))
        self._arriving[slot] = handle, text, members

    def receive(self, slot, shape, dtype: str, like, peer: int, what: str) -> None:
        text = f"receiving {what} from rank {peer}"
        handle = self._try(text, (peer,), lambda: self.transport.receive(shape, dtype, like, peer))
        self._arriving[slot] = handle, text, (peer,)

    def send(self, tensor, peer: int, what: str) -> None:
        text = f"sending {what} to rank {peer}"
        handle = self._try(text, (peer,), lambda: self.transport.send(tensor, peer))
        self._leaving.append((handle, text, (peer,)))

    def arrived(self, slot):
        """Waits for what was posted under this slot and returns it."""
        handle, text, peers = self._arriving.pop(slot)
        return self._try(text, peers, handle.wait)

    def settle(self) -> None:
        """Waits until everything that was sent may be changed again."""
        while self._leaving:
            handle, text, peers = self._leaving.pop(0)
            self._try(text, peers, handle.wait)

    def _try(self, text: str, peers: tuple[int, ...], call: Callable[[], Any]):
        try:
            return call()
        except ParallelError:
            raise  # the transport knows better
        except Exception as cause:
            raise ParallelError(
                f"{self.label}: rank {self.transport.rank} of {self.transport.size}, {self.name}: {text} "
                f"failed: {type(cause).__name__}: {cause}",
                rank=self.transport.rank, peers=peers, step=text,
            ) from cause  # fmt: skip


class Exchange:
    """One run of a program. States are float32 [HV, K, V] = `shape`, maps [HV, K, V + K].

    `like` is any tensor on the device to use. Slots are freed as soon as no later step reads them;
    nothing of the exchange but the returned state outlives `finish`.
    """

    def __init__(
        self, program: Program, adapter: Adapter, transport: Transport, *, shape: tuple[int, int, int],
        like, label: str = "exchange",
    ):  # fmt: skip
        if transport.rank != program.rank:
            raise ArgumentError(
                f"{label}: a program of rank {program.rank} on rank {transport.rank}; each rank runs its own"
            )
        heads, keys, values = shape
        self.program, self.adapter, self.like, self.label = program, adapter, like, label
        self.shapes = {STATE: tuple(shape), MAP: (heads, keys, values + keys)}
        self._posting = _Posting(transport, program.name, label)
        self._slots: dict[str, Any] = {}
        self._releases = iter(program.releases)

    def begin(self, own=None) -> Exchange:
        """Posts what needs no other rank. `own` is float32 and of the kind that `program.gives` says."""
        wanted, kind = self.shapes.get(self.program.gives), self.program.gives
        given = None if own is None else tuple(own.shape)
        if given != wanted:
            raise ArgumentError(
                f"{self.label}: rank {self.program.rank} gives {kind or 'nothing'} {wanted or ''}, but own "
                f"has shape {given}"
            )
        if own is not None:
            self._slots[OWN] = self.adapter.dense(own)
        self._run(self.program.begin)
        return self

    def finish(self):
        """The state that enters this rank [HV, K, V], or None; returns when all is received and sent.

        A rank may put it off until after its own work if its program neither takes nor serves.
        """
        state = self.arrive()
        self.settle()
        return state

    def arrive(self):
        """The first half of `finish`: all is received and what others wait for is on its way."""
        self._run(self.program.finish)
        return self._slots.pop(INCOMING, None)

    def settle(self) -> None:
        """The second half: all is sent. Work on the state that came in can go before."""
        self._posting.settle()

    def _run(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._take(step)
            for slot in next(self._releases):
                self._slots.pop(slot, None)

    def _take(self, step: Step) -> None:
        slots, post = self._slots, self._posting
        if isinstance(step, Gather):
            post.gather(step.into, self._as_map(slots.get(step.source)), step.members)
        elif isinstance(step, Receive):
            shape = self.shapes[step.kind]
            post.receive(step.into, shape, "float32", self.like, step.peer, f"a {step.kind}")
        elif isinstance(step, Send):
            post.send(slots[step.source], step.peer, f"a {step.kind}")
        elif isinstance(step, Wait):
            slots[step.slot] = post.arrived(step.slot)
        elif isinstance(step, Fold):
            slots[step.into] = self._fold(step.terms)
        elif isinstance(step, Compose):
            slots[step.into] = self._compose(slots[step.later], slots[step.earlier])

    # arithmetic: everything is one operator, which folds a row of maps into a state

    def _as_map(self, tensor):
        """A state, or nothing, in the form of a map that no one multiplies by."""
        if tensor is None:
            return self.adapter.zeros(self.shapes[MAP], "float32", self.like)
        heads, keys, width = tensor.shape
        if width == self.shapes[MAP][2]:
            return tensor
        return self.adapter.join((tensor, self.adapter.zeros((heads, keys, keys), "float32", self.like)), 2)

    def _fold(self, terms: tuple[Term, ...]):
        first, rows = self._slots[terms[0].slot], [term.row for term in terms]
        one_slot = len({term.slot for term in terms}) == 1 and rows[0] is not None
        if one_slot and 1 < len(terms) and first.shape[0] <= MOST_SUMMARIES:
            # Neighbours in a gathered slot are merged where they lie.
            step = rows[1] - rows[0]
            after = rows[-1] + step
            if abs(step) == 1 and 0 <= after < first.shape[0] and rows == list(range(rows[0], after, step)):
                return self._merge(first, len(rows), after, step == 1)
        return self._fold_maps([self._operand(term) for term in terms])

    def _operand(self, term: Term):
        tensor = self._slots[term.slot]
        if term.row is None:
            return tensor
        row = self.adapter.part(tensor, 0, term.row, 1)
        return self.adapter.reshape(row, tuple(tensor.shape)[1:])

    def _fold_maps(self, maps: list):
        """E of the first, then M acc + E for each other one."""
        a = self.adapter
        if len(maps) == 1:
            return a.dense(a.part(maps[0], 2, 0, self.shapes[STATE][2]))
        if len(maps) >= MOST_SUMMARIES:
            most = MOST_SUMMARIES - 1
            return self._fold_maps([self._fold_maps(maps[:most]), *maps[most:]])
        # The operator computes what enters a row after the last one, so there must be one.
        maps = [self._as_map(maps[0]), *maps[1:], maps[-1]]
        return self._merge(self._rows(maps, len(maps)), len(maps) - 1, len(maps) - 1, True)

    def _rows(self, maps: list, count: int):
        """Maps one after another as `count` rows of summaries."""
        joined = self.adapter.join(maps, 0)
        heads, keys, width = joined.shape
        return self.adapter.reshape(joined, (count, heads // count, keys, width))

    def _merge(self, summaries, count: int, rank: int, forward: bool):
        a, (_, heads, keys, width) = self.adapter, summaries.shape
        if heads > MOST_HEADS:
            cuts = range(0, heads, MOST_HEADS)
            parts = [a.dense(a.part(summaries, 1, cut, min(MOST_HEADS, heads - cut))) for cut in cuts]
            return a.join([self._merge(part, count, rank, forward) for part in parts], 0)
        state = a.zeros((heads, keys, width - keys), "float32", self.like)
        return stages.merge(a, state, summaries, count, rank, forward=forward, label=f"{self.label}: merge")

    def _compose(self, later, earlier):
        """[Ml Ee + El | Ml Me]: both blocks of `earlier` go through `later` as states, as twice the heads."""
        a, (heads, keys, values) = self.adapter, self.shapes[STATE]
        from_earlier, from_later = a.part(earlier, 2, values, keys), a.part(later, 2, values, keys)
        # The M of the first row is not read, so what stands there does not matter.
        moved = a.join((from_earlier, from_earlier), 2)
        linear = a.join((a.zeros((heads, keys, values), "float32", self.like), from_later), 2)
        both = self._merge(self._rows([earlier, moved, later, linear, later, linear], 3), 2, 2, True)
        return a.join([a.part(both, 0, 0, heads), a.part(both, 0, heads, heads)], 2)


class RowExchange:
    """Rows of a tensor [T, ...] to and from peers, as a halo needs them.

    Posts at once; `finish` returns one tensor per piece of `incoming`, in its order.
    """

    def __init__(
        self, adapter: Adapter, transport: Transport, tensor, outgoing: Sequence[Piece],
        incoming: Sequence[Piece], *, label: str = "halo",
    ):  # fmt: skip
        self._posting, self._incoming = _Posting(transport, "halo", label), tuple(incoming)
        desc = adapter.describe(label, "rows", tensor)
        for slot, piece in enumerate(self._incoming):
            shape = (piece.stop - piece.start, *desc.shape[1:])
            self._posting.receive(slot, shape, desc.dtype, tensor, piece.peer, f"{shape[0]} rows")
        for piece in outgoing:
            count = piece.stop - piece.start
            rows = adapter.dense(adapter.part(tensor, 0, piece.start, count))
            self._posting.send(rows, piece.peer, f"{count} rows")

    def finish(self) -> list:
        """What arrived."""
        rows = [self._posting.arrived(slot) for slot in range(len(self._incoming))]
        self._posting.settle()
        return rows
