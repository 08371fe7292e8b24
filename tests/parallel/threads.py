# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads: an adapter over float64 arrays, a transport over queues, and the merge operator.

The merge keeps to the limits of the operator's ABI, so a program that only works beyond them fails.
"""

from __future__ import annotations

import queue
import threading

import numpy as np
from fla_npu.checks import Desc

TIMEOUT = 20.0


class ArrayAdapter:
    """What the engine uses of an adapter; float64 stands for float32."""

    dtype = np.float64

    def describe(self, label, name, value):
        return Desc(value.shape, "float32", "cpu")

    def reshape(self, tensor, shape):
        return tensor.reshape(shape)

    def part(self, tensor, axis, start, length):
        assert 0 <= start and start + length <= tensor.shape[axis]
        return tensor[(slice(None),) * axis + (slice(start, start + length),)]

    def join(self, parts, axis):
        assert len(parts) > 1
        return np.concatenate(parts, axis)

    def dense(self, tensor):
        return np.ascontiguousarray(tensor)

    def zeros(self, shape, dtype, like):
        assert dtype == "float32"
        return np.zeros(shape, self.dtype)

    def run(self, plan, tensors):
        """The operator's golden, after the operator's own checks."""
        from goldens import golden_module

        made = golden_module(plan.op).golden(ag_hm=tensors["ag_hm"], **plan.attrs)
        tensors["h"][...] = made["h"] if isinstance(made, dict) else made
        return (tensors["h"],)


def merge(adapter, h, summaries, count, rank, *, forward=True, state_v_first=False, label):
    """acc = E of the source farthest away, then acc = M acc + E up to the one next to `rank`."""
    sources, heads, keys, width = summaries.shape
    assert 1 <= sources <= 1024 and 1 <= heads <= 256 and width == 2 * keys, (label, summaries.shape)
    assert h.shape == (heads, keys, width - keys) and h.flags.c_contiguous and summaries.flags.c_contiguous
    assert 1 <= count <= sources and 0 <= rank < sources
    assert rank >= count if forward else rank + count < sources
    rows = range(rank - count, rank) if forward else range(rank + count, rank, -1)
    values = width - keys
    acc = summaries[rows[0], :, :, :values]
    for row in rows[1:]:
        acc = summaries[row, :, :, values:] @ acc + summaries[row, :, :, :values]
    h[...] = acc
    return h


class Done:
    """A handle that has its result, or a way to get it."""

    def __init__(self, result=lambda: None):
        self.wait = result


class Group:
    """Mail between threads. A rank in `broken` fails in everything it is asked to do."""

    def __init__(self, size, broken=()):
        self.size, self.broken = size, broken
        self.mail = {(a, b): queue.Queue() for a in range(size) for b in range(size)}
        self.bytes = [0] * size

    def rank(self, rank):
        return ThreadTransport(self, rank)

    def run(self, function):
        """function(transport) on every rank; its results, or its exceptions."""
        results: list = [None] * self.size

        def work(rank):
            try:
                results[rank] = function(self.rank(rank))
            except Exception as error:
                results[rank] = error

        workers = [threading.Thread(target=work, args=(r,), daemon=True) for r in range(self.size)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(2 * TIMEOUT)
        assert not any(worker.is_alive() for worker in workers), "a rank hangs"
        return results


class ThreadTransport:
    """Copies on sending, so a tensor changed too early is not noticed here; shapes are compared."""

    timeout = TIMEOUT

    def __init__(self, group, rank):
        self.group, self.rank, self.size = group, rank, group.size

    def _check(self):
        if self.rank in self.group.broken:
            raise ConnectionError("link down")

    def send(self, tensor, peer):
        self._check()
        assert tensor.flags.c_contiguous
        self.group.mail[self.rank, peer].put(np.array(tensor))
        return Done()

    def receive(self, shape, dtype, like, peer):
        self._check()

        def wait():
            try:
                arrived = self.group.mail[peer, self.rank].get(timeout=self.timeout)
            except queue.Empty:
                raise TimeoutError(f"nothing within {self.timeout} s") from None
            assert arrived.shape == tuple(shape)
            self.group.bytes[self.rank] += 4 * arrived.size
            return arrived

        return Done(wait)

    def gather(self, tensor, members):
        for peer in members:
            if peer != self.rank:
                self.send(tensor, peer)
        posted = {p: self.receive(tensor.shape, "float32", tensor, p) for p in members if p != self.rank}
        return Done(lambda: np.stack([tensor if p == self.rank else posted[p].wait() for p in members]))
