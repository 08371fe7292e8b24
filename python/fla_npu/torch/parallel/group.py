# SPDX-License-Identifier: Apache-2.0
"""A process group of torch.distributed as the parallel layer needs it: rank, size, messages, and who failed.

On CPU tensors this is gloo. The hccl branch follows torch_npu's rules (collectives on the device of
the tensors, `wait` orders streams and not the host) and has not been run on an NPU yet.
"""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ...errors import ArgumentError, ArgumentTypeError, ParallelError
from ..adapter import DTYPES

__all__ = ["Group", "between_graphs"]

# How long a rank that lost a message waits for the others' accounts, in seconds.
GRACE = 2.0

# How often a message of a group was lost here: accounts of one failure are not taken for another's.
_FAILURES: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def between_graphs(function: Callable) -> Callable:
    """Under torch.compile the function runs eagerly: a compiler cannot look into messages."""

    @functools.wraps(function)
    def call(*arguments, **keywords):
        if torch.compiler.is_compiling():
            return torch.compiler.disable(function)(*arguments, **keywords)
        return function(*arguments, **keywords)

    return call


# How the account of a rank begins that failed in its own work.
_ALONE = "failed by itself"


class _Done:
    """The handle of something that needed no message."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def wait(self) -> Any:
        return self.result


class _All:
    """Several messages that make up one result."""

    def __init__(self, handles: list, result: Any) -> None:
        self.handles, self.result = handles, result

    def wait(self) -> Any:
        for handle in self.handles:
            handle.wait()
        return self.result


class _Pending:
    """A message under way. `kept`: buffers that must live until it has arrived."""

    def __init__(self, group: Group, work, doing: str, result: Any, kept: Any = None) -> None:
        self.group, self.work, self.doing, self.result, self.kept = group, work, doing, result, kept

    def wait(self) -> Any:
        try:
            self.work.wait()
        except RuntimeError as error:
            raise self.group.lost(error, self.doing) from error
        self.kept = None
        return self.result


class Group:
    """`group`: a ProcessGroup, a DeviceMesh of one dimension, or None for all processes.

    Without an initialised torch.distributed, None is a group of this process alone. Ranks are ranks
    in the group. Implements `fla_npu.parallel.Transport`.
    """

    def __init__(self, group: Any = None) -> None:
        self.handle = _resolve(group)
        self.rank = 0 if self.handle is None else dist.get_rank(self.handle)
        self.size = 1 if self.handle is None else dist.get_world_size(self.handle)

    # messages

    def send(self, tensor: torch.Tensor, peer: int) -> _Pending:
        """Sends to one rank. Messages between two ranks arrive in the order in which they are sent."""
        dense = tensor.contiguous()
        doing = f"a message to rank {peer}"
        work = self._start(doing, lambda: dist.isend(dense, group=self.handle, group_dst=peer))
        return _Pending(self, work, doing, None, dense)

    def receive(self, shape: tuple[int, ...], dtype: str, like: torch.Tensor, peer: int) -> _Pending:
        """A tensor of that shape from one rank, on the device of `like`."""
        return self._receive(torch.empty(shape, dtype=DTYPES[dtype], device=like.device), peer)

    def _receive(self, out: torch.Tensor, peer: int) -> _Pending:
        doing = f"a message from rank {peer}"
        work = self._start(doing, lambda: dist.irecv(out, group=self.handle, group_src=peer))
        return _Pending(self, work, doing, out)

    def gather(self, tensor: torch.Tensor, members: Sequence[int] | None = None) -> Any:
        """Everybody's tensor, in the order of `members` (None: all), stacked along a new first axis.

        Among all ranks it is the native collective. Among some of them it is messages: PyTorch makes a new
        group only where all processes of the job ask for it, and they are not all here.
        """
        members = tuple(range(self.size) if members is None else members)
        if members == (self.rank,):
            return _Done(tensor[None])
        dense = tensor.contiguous()
        out = torch.empty((len(members), *dense.shape), dtype=dense.dtype, device=dense.device)
        doing = f"a gather of ranks {list(members)}"
        if len(members) < self.size:
            return self._gather_some(dense, out, members)
        collective = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        # gloo takes the concatenated shape only.
        flat = out.view(-1), dense.view(-1)
        work = self._start(doing, lambda: collective(*flat, group=self.handle, async_op=True))
        return _Pending(self, work, doing, out, dense)

    def _gather_some(self, dense: torch.Tensor, out: torch.Tensor, members: tuple[int, ...]) -> _All:
        handles = []
        for row, peer in enumerate(members):
            if peer != self.rank:
                handles.append(self._receive(out[row], peer))
        for peer in members:
            if peer != self.rank:
                handles.append(self.send(dense, peer))
        out[members.index(self.rank)].copy_(dense)
        return _All(handles, out)

    def scatter(self, flat: torch.Tensor, sizes: Sequence[int], counts: Sequence[int]) -> _Pending:
        """All to all: of `flat` the next sizes[r] elements go to rank r; counts[r] of them come from rank r."""
        out = torch.empty(sum(counts), dtype=flat.dtype, device=flat.device)
        doing = f"an all-to-all of {self.size} ranks"
        work = self._start(
            doing,
            lambda: dist.all_to_all_single(
                out, flat, list(counts), list(sizes), group=self.handle, async_op=True
            ),
        )
        return _Pending(self, work, doing, out, flat)

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, in place."""
        if self.size > 1:
            doing = f"a sum over {self.size} ranks"
            work = self._start(doing, lambda: dist.all_reduce(tensor, group=self.handle, async_op=True))
            _Pending(self, work, doing, tensor).wait()
        return tensor

    def share(self, data: bytes) -> list[bytes]:
        """Everybody's bytes, equally many on every rank; read on the host."""
        if self.size == 1:
            return [data]
        mine = torch.frombuffer(bytearray(data), dtype=torch.int32).to(self._small_device())
        rows = self.gather(mine).wait().cpu()
        return [row.numpy().tobytes() for row in rows]

    def _small_device(self) -> torch.device:
        """Where short messages live: on the host when the group has a backend for it."""
        kinds = {str(kind).split(":")[0] for kind in self.handle._device_types}
        return torch.device("cpu" if "cpu" in kinds else "npu")

    # failures

    def _start(self, doing: str, launch):
        try:
            return launch()
        except RuntimeError as error:
            raise self.lost(error, doing) from error

    def lost(self, error: Exception, doing: str) -> ParallelError:
        """The error of a message that did not come through: what was going on, and which ranks are silent."""
        cause = str(error).strip().split("\n")[0].removesuffix(" GLHF! 🏖️")
        silent, found = self._accounts(f"{doing}: {cause}")
        text = f"rank {self.rank} of {self.size} lost {doing}. {found} Cause here: {cause}"
        return ParallelError(text, rank=self.rank, peers=silent, step=doing)

    @contextlib.contextmanager
    def awaited(self):
        """Around work of this rank that others wait for: why it failed is told to them."""
        try:
            yield
        except ParallelError:
            raise
        except Exception as error:
            with contextlib.suppress(RuntimeError):
                self._tell(f"{_ALONE} with {type(error).__name__}: {error}")
            raise

    def _tell(self, text: str) -> tuple[Any, str]:
        """Leaves an account for the others; the store, and the prefix of the accounts of this failure."""
        turn = _FAILURES[self.handle] = _FAILURES.get(self.handle, -1) + 1
        store, key = self.handle.get_group_store(), f"fla_npu/lost/{turn}/"
        store.set(f"{key}{self.rank}", text[:400])
        return store, key

    def _accounts(self, mine: str) -> tuple[tuple[int, ...], str]:
        """Tells the others what happened here; who of them is silent, and what the rest tell.

        A rank that is alive fails in the same exchange and says so; one that ended, or that never came
        to the exchange, is silent.
        """
        heard: dict[int, str] = {}
        try:
            store, key = self._tell(mine)
            end = time.monotonic() + GRACE
            while len(heard) < self.size - 1 and time.monotonic() < end:
                for rank in set(range(self.size)) - {self.rank} - heard.keys():
                    if store.check([f"{key}{rank}"]):
                        heard[rank] = store.get(f"{key}{rank}").decode()
                time.sleep(0.02)
        except RuntimeError:
            return (
                (),
                "The store of the job does not answer: the process that hosts it (rank 0 as a rule) ended.",
            )
        guilty = tuple(r for r, text in sorted(heard.items()) if text.startswith(_ALONE))
        if guilty:
            return guilty, " ".join(f"rank {r} {heard[r]}." for r in guilty)
        silent = tuple(sorted(set(range(self.size)) - {self.rank} - heard.keys()))
        if not silent:
            told = "; ".join(f"rank {r}: {text}" for r, text in sorted(heard.items()))
            return (), f"No rank is missing. They tell: {told}."
        names = ", ".join(f"rank {r}" for r in silent)
        text = f"No sign of {names}: ended, or not in this exchange (a call or a backward left out there)."
        return silent, text


def _resolve(group: Any):
    """The ProcessGroup, or None for this process alone."""
    if group is None:
        if not (dist.is_available() and dist.is_initialized()):
            return None
        return dist.group.WORLD
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ArgumentError("group: this process is not a member of it; make the context on the members only")
    if isinstance(group, dist.ProcessGroup):
        return group
    if hasattr(group, "get_group") and hasattr(group, "ndim"):  # a DeviceMesh
        if group.ndim != 1:
            raise ArgumentError(
                f"group: the mesh has {group.ndim} dimensions {group.mesh_dim_names}; pass one of them, "
                "such as mesh['sequence']"
            )
        return group.get_group()
    raise ArgumentTypeError(
        f"group is a {type(group).__name__}; it must be a ProcessGroup, a DeviceMesh of one dimension, or None"
    )
