# SPDX-License-Identifier: Apache-2.0
"""Calls to processes that stay for a module of tests, over one pipe per rank; a pool starts and ends them."""

from __future__ import annotations

import importlib
import pickle
import traceback
from collections.abc import Callable, Sequence

__all__ = ["RankFailed", "call", "serve"]


class RankFailed(AssertionError):
    """What ranks raised, each with its traceback."""


def call(
    pipes: Sequence, function: Callable, arguments: tuple, ending: tuple[int, ...], patience: float
) -> tuple[list, list[str]]:
    """(results in the order of ranks, what went wrong). None, and nothing wrong, of those in `ending` that end."""
    request = pickle.dumps((function.__module__, function.__name__, arguments))
    for pipe in pipes:
        pipe.send_bytes(request)
    results, failed = [], []
    for rank, pipe in enumerate(pipes):
        try:
            good, value = pickle.loads(pipe.recv_bytes()) if pipe.poll(patience) else (False, "no answer")
        except (EOFError, ConnectionResetError):
            good, value = rank in ending, "the process ended" if rank not in ending else None
        results.append(value)
        if not good:
            failed.append(f"rank {rank}: {value}")
    return results, failed


def serve(pipe, rank: int, size: int) -> None:
    """A rank's side: does what it is told until the pipe is empty or closed."""
    while request := _receive(pipe):
        try:
            module, name, arguments = pickle.loads(request)
            answer = True, getattr(importlib.import_module(module), name)(rank, size, *arguments)
        except BaseException:
            answer = False, traceback.format_exc()
        pipe.send_bytes(pickle.dumps(answer))


def _receive(pipe) -> bytes:
    try:
        return pipe.recv_bytes()
    except (EOFError, OSError):
        return b""
