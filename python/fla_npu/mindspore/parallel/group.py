# SPDX-License-Identifier: Apache-2.0
"""A communication group of MindSpore as the parallel layer needs it: rank, size, messages, and who failed.

On CPU one queue runs operators and messages in the order in which Python issued them, so a message sees
finished tensors, and nothing that is issued after a message runs under it. What is sent and gathered
there is therefore complete when posted, and a receipt is issued when somebody waits for it. What is
missing on CPU (all-to-all, gathers into one tensor) is made of what is there. The Ascend branch uses the
native collectives and has not been run on an NPU yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, mint
from mindspore.communication import GlobalComm
from mindspore.mint import distributed as dist
from mindspore.mint.distributed import distributed as dist_module

from ...errors import ArgumentError, ArgumentTypeError, ParallelError
from ...parallel.context import Context
from ..adapter import MindSporeAdapter, on_device, plain

__all__ = ["Group", "as_group"]

# Names of groups by the world ranks of their members, ascending.
_NAMES: dict[tuple[int, ...], str] = {}
# Receipts that nobody has waited for yet, by world rank: CPU messages between two ranks are told apart by
# their order alone, whatever the group.
_POSTED: dict[int, deque[_Arrival]] = {}


class _Done:
    """The handle of something that needed no message."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def wait(self) -> Any:
        return self.result


class _Pending:
    """A message under way. `start` issues it; `read` is a tensor of it, whose arrival shows that it came through."""

    def __init__(
        self, group: Group, doing: str, peers: Sequence[int], read: Tensor, start: Callable, result: Any
    ) -> None:
        self.group, self.doing, self.peers, self.read, self.result = group, doing, peers, read, result
        if not on_device():
            _settle(read)
        self.work = self._try(start)
        if not on_device():
            self._try(self._finish)

    def wait(self) -> Any:
        if on_device():
            self._try(self._finish)
        return self.result() if callable(self.result) else self.result

    def _finish(self) -> None:
        if self.work is not None:
            self.work.wait()
        if not on_device():
            self.read.data_ptr()  # waits for the queue: elsewhere nobody would know whose failure it is

    def _try(self, call: Callable):
        try:
            return call()
        except RuntimeError as error:
            raise self.group.lost(error, self.doing, self.peers) from error


def _settle(tensor: Tensor) -> None:
    """Waits for the queue, so that a failure in this rank's own work is not taken for one of a message."""
    try:
        tensor.data_ptr()
    except RuntimeError as error:
        raise MindSporeAdapter.named(error) from error


class _Arrival:
    """A receipt on CPU: issued, after those posted before it, when it is waited for."""

    def __init__(self, group: Group, shape: tuple[int, ...], dtype, peer: int) -> None:
        self.group, self.peer, self.dtype, self.shape = group, peer, dtype, shape
        self.pending: _Pending | None = None
        self.queue = _POSTED.setdefault(group.ranks[peer], deque())
        self.queue.append(self)

    def issue(self) -> None:
        self.pending = self.group.receipt(self.shape, self.dtype, self.peer)

    def wait(self) -> Tensor:
        while self.pending is None:
            self.queue.popleft().issue()
        return self.pending.wait()


class Group:
    """`group`: the name of a group, a list of world ranks, a mesh of one dimension, or None for all.

    Without an initialised mindspore.communication, None is a group of this process alone. Ranks are
    places in the list, or in the group. Implements `fla_npu.parallel.Transport`.
    """

    def __init__(self, group: Any = None) -> None:
        self.ranks = _members(group)
        world = dist.get_rank() if GlobalComm.INITED else 0
        if world not in self.ranks:
            raise ArgumentError(
                f"group: this process is rank {world}, which is not among the members {list(self.ranks)}; "
                "make contexts and groups on their members only"
            )
        self.rank, self.size = self.ranks.index(world), len(self.ranks)
        if self.size > 1:
            _know_own_rank(world)
        self.name = _name(self.ranks) if self.size > 1 else ""

    # messages

    def send(self, tensor: Tensor, peer: int) -> _Pending | _Done:
        """Sends to one rank. Messages between two ranks arrive in the order in which they are sent."""
        dense = plain(tensor).contiguous()
        if not _volume(dense.shape):
            return _Done(None)

        def start():
            return dist.isend(dense, self.ranks[peer], group=self.name)

        return _Pending(self, f"a message to rank {peer}", (peer,), dense, start, None)

    def receive(self, shape: tuple[int, ...], dtype: Any, like: Any, peer: int) -> Any:
        """A tensor of that shape from one rank. `dtype`: MindSpore's, or its name."""
        kind = getattr(mindspore, dtype) if isinstance(dtype, str) else dtype
        if not _volume(shape):
            return _Done(mint.zeros(tuple(shape), dtype=kind))
        if on_device():
            return self.receipt(shape, kind, peer)
        return _Arrival(self, tuple(shape), kind, peer)

    def receipt(self, shape: tuple[int, ...], dtype, peer: int) -> _Pending:
        """The receipt, issued now."""
        out = mint.zeros(tuple(shape), dtype=dtype)

        def start():
            return dist.irecv(out, self.ranks[peer], group=self.name)

        return _Pending(self, f"a message from rank {peer}", (peer,), out, start, out)

    def gather(self, tensor: Tensor, members: Sequence[int] | None = None) -> Any:
        """Everybody's tensor, in the order of `members` (None: all), stacked along a new first axis."""
        members = tuple(range(self.size) if members is None else members)
        dense = plain(tensor).contiguous()
        one = (1, *dense.shape)
        if members == (self.rank,):
            return _Done(dense.reshape(one))
        world = [self.ranks[r] for r in members]
        name, order = self.subgroup(members), sorted(world)
        for peer in world:
            for arrival in tuple(_POSTED.get(peer, ())):
                arrival.queue.popleft().issue()  # of one pair, a gather's messages and others are one line
        outs = [mint.zeros(tuple(dense.shape), dtype=dense.dtype) for _ in members]

        def start():
            return dist.all_gather(outs, dense, group=name, async_op=True)

        def stacked():
            return mint.cat([outs[order.index(r)].reshape(one) for r in world], 0)

        return _Pending(self, f"a gather of ranks {list(members)}", members, outs[0], start, stacked)

    def scatter(self, flat: Tensor, sizes: Sequence[int], counts: Sequence[int]) -> Any:
        """All to all: of `flat` the next sizes[r] elements go to rank r; counts[r] of them come from rank r."""
        pieces = [
            mint.narrow(flat, 0, at, n) if n else None for at, n in zip([0, *accumulate(sizes)][:-1], sizes)
        ]
        if on_device():
            return self._native_scatter(pieces, flat, counts)
        others = [(self.rank + i) % self.size for i in range(1, self.size)]
        leaving = [self.send(pieces[r], r) for r in others if sizes[r]]
        coming = {r: self.receive((counts[r],), flat.dtype, flat, r) for r in others if counts[r]}
        coming[self.rank] = _Done(pieces[self.rank])
        parts = [coming[r].wait() for r in range(self.size) if counts[r]]
        for handle in leaving:
            handle.wait()
        return _Done(mint.cat(parts, 0) if parts else mint.zeros((0,), dtype=flat.dtype))

    def _native_scatter(self, pieces: list, flat: Tensor, counts: Sequence[int]) -> _Pending:
        """By the backend's own collective; its groups are in ascending order of world ranks."""
        order = sorted(range(self.size), key=lambda r: self.ranks[r])
        given = [pieces[r] for r in order if pieces[r] is not None]
        sent = mint.cat(given, 0) if given else mint.zeros((0,), dtype=flat.dtype)
        sizes = [0 if pieces[r] is None else pieces[r].shape[0] for r in order]
        ordered = [counts[r] for r in order]
        out = mint.zeros((sum(counts),), dtype=flat.dtype)

        def start():
            return dist.all_to_all_single(out, sent, ordered, sizes, group=self.name, async_op=True)

        def arranged():
            starts = dict(zip(order, [0, *accumulate(ordered)][:-1]))
            parts = [mint.narrow(out, 0, starts[r], counts[r]) for r in range(self.size) if counts[r]]
            return mint.cat(parts, 0) if parts else out

        return _Pending(self, f"an all-to-all of {self.size} ranks", range(self.size), out, start, arranged)

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        if self.size > 1:

            def start():
                return dist.all_reduce(tensor, group=self.name, async_op=True)

            _Pending(self, f"a sum over {self.size} ranks", range(self.size), tensor, start, None).wait()
        return tensor

    def share(self, data: bytes) -> list[bytes]:
        """Everybody's bytes, equally many on every rank; read on the host."""
        if self.size == 1:
            return [data]
        mine = Tensor(np.frombuffer(data, np.int32).copy())
        if on_device():
            return [row.tobytes() for row in self.gather(mine).wait().asnumpy()]
        # One by one: whoever does not answer is known by name.
        others = [(self.rank + i) % self.size for i in range(1, self.size)]
        leaving = [self.send(mine, r) for r in others]
        coming = {r: self.receive(mine.shape, "int32", mine, r) for r in others}
        rows = {r: handle.wait().asnumpy().tobytes() for r, handle in coming.items()}
        for handle in leaving:
            handle.wait()
        return [rows.get(r, data) for r in range(self.size)]

    def subgroup(self, members: Sequence[int]) -> str:
        """The name of the group of these ranks. The first time, all of them must ask for it, and no others."""
        return _name(tuple(self.ranks[r] for r in members))

    # failures

    def lost(self, error: Exception, doing: str, peers: Sequence[int]) -> ParallelError:
        """The error of a message that did not come through."""
        cause = str(error).strip().split("\n")[0]
        others = [r for r in peers if r != self.rank]
        named = "rank" if len(others) == 1 else "one of ranks"
        said = f"{named} {', '.join(map(str, others))}"
        return ParallelError(
            f"rank {self.rank} of {self.size} lost {doing}: {said} ended, lost another rank itself, or is not in "
            "this exchange (a call or a backward left out there, or slower than MindSpore waits). Cause here: "
            f"{cause}",
            rank=self.rank, peers=tuple(others), step=doing,
        )  # fmt: skip


def as_group(group: Any) -> Group:
    """A Group of whatever names one: that of a context, or what `ContextParallel` takes."""
    if isinstance(group, Context):
        return group.group
    return group if isinstance(group, Group) else Group(group)


def _volume(shape: Sequence[int]) -> int:
    return prod(shape)


def _members(group: Any) -> tuple[int, ...]:
    """World ranks of the members, in the order of their ranks in the group."""
    if group is None:
        return tuple(dist.get_process_group_ranks()) if GlobalComm.INITED else (0,)
    if hasattr(group, "get_group") and hasattr(group, "ndim"):  # a device mesh
        if group.ndim != 1:
            raise ArgumentError(f"group: the mesh has {group.ndim} dimensions; pass one of them")
        return _members(group.get_group())
    if not GlobalComm.INITED:
        raise ArgumentError(
            f"group = {group!r}, but this process is in no job: call mindspore.communication.init() first, "
            "under msrun or another launcher"
        )
    if isinstance(group, str):
        try:
            return tuple(dist.get_process_group_ranks(group))
        except RuntimeError as error:
            raise ArgumentError(
                f"group = {group!r}: MindSpore has no group of this name on this process; make it with "
                "mindspore.mint.distributed.new_group, or pass the list of its ranks"
            ) from error
    if not isinstance(group, (list, tuple)) or not all(type(r) is int for r in group):
        raise ArgumentTypeError(
            f"group is a {type(group).__name__}; it must be the name of a MindSpore group, a list of ranks, a "
            "device mesh of one dimension, or None"
        )
    world = dist.get_world_size()
    if not group or len(set(group)) != len(group) or not all(0 <= r < world for r in group):
        raise ArgumentError(f"group = {list(group)}: different ranks of 0 to {world - 1} make a group")
    return tuple(group)


def _name(ranks: tuple[int, ...]) -> str:
    """MindSpore's group of these world ranks; the first time a collective of the members."""
    key = tuple(sorted(ranks))
    if key not in _NAMES:
        if len(key) == dist.get_world_size():
            _NAMES[key] = GlobalComm.WORLD_COMM_GROUP
        else:
            made = dist.new_group(list(key), backend="hccl" if on_device() else "mccl")
            if not made:
                raise ParallelError(
                    f"MindSpore could not make a group of ranks {list(key)}; its log says why"
                )
            _NAMES[key] = made
    return _NAMES[key]


def _know_own_rank(rank: int) -> None:
    """send and isend look the rank up under the group name of another backend, which CPU jobs do not have."""
    name = dist_module.get_cache_group_rank.__defaults__[0]
    if not on_device() and name != GlobalComm.WORLD_COMM_GROUP:
        dist_module._GROUP_RANK_CACHE.setdefault(name, rank)
