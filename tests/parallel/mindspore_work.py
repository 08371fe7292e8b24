# SPDX-License-Identifier: Apache-2.0
"""What MindSpore ranks do in the tests. Tensors come and go as (values in float32, dtype): no torch here.

Every function is called on all ranks with one list of jobs, its own at the place of its rank; None for
a rank that has nothing to do with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from in_step import in_step


@dataclass
class Job:
    """One rank's part of a call: arguments of the context, tensors, cotangents of both results, options."""

    context: dict[str, Any]
    tensors: dict[str, tuple]
    seeds: tuple = (None, None)
    options: dict[str, Any] = field(default_factory=dict)
    wanted: tuple[str, ...] | None = None  # None: a gradient of everything
    group: Any = None
    how: dict[str, Any] = field(default_factory=dict)


def to_ms(given):
    import mindspore as ms

    if given is None:
        return None
    values, dtype = given
    return ms.Tensor(np.ascontiguousarray(values)).astype(getattr(ms, dtype))


def from_ms(x) -> np.ndarray | None:
    return None if x is None else x.astype("float32").asnumpy()


def carried(x) -> tuple | None:
    """A result, as jobs carry tensors."""
    return None if x is None else (from_ms(x), str(x.dtype).lower())


def tensors_of(job: Job) -> dict:
    return {n: to_ms(x) for n, x in job.tensors.items()}


def context_of(job: Job):
    from fla_npu.mindspore.parallel import ContextParallel

    return ContextParallel(job.group, **job.context)


def differentiate(tensors: dict, seeds: tuple, wanted, call: Callable) -> dict:
    """Results of `call(**tensors)` by name; gradients as 'd' and the name of the input."""
    import mindspore as ms

    names = [n for n in tensors if wanted is None or n in wanted]
    seeds = [to_ms((x, "float32")) if x is not None else None for x in seeds]

    def loss(*values):
        results = call(**{**tensors, **dict(in_step(names, values))})
        total = ms.Tensor(0.0)
        for x, seed in in_step(results, seeds):
            if x is not None and seed is not None:
                total = total + (x.astype(ms.float32) * seed).sum()
        return (total, *results)

    leaves = tuple(tensors[n] for n in names)
    if not names:
        out, final = loss()[1:]
        return {"o": carried(out), "final_state": carried(final)}
    derive = ms.value_and_grad(loss, tuple(range(len(names))), has_aux=True)
    (_, out, final), grads = derive(*leaves)
    for n, grad in in_step(names, grads):
        assert (grad.shape, grad.dtype) == (tensors[n].shape, tensors[n].dtype), n
    found = {"o": carried(out), "final_state": carried(final)}
    return found | {f"d{n}": carried(x) for n, x in in_step(names, grads)}


def run(rank: int, size: int, jobs: list[Job | None]) -> dict | None:
    """npu_chunk_kda over a context."""
    from fla_npu.mindspore.parallel import npu_chunk_kda

    job = jobs[rank]
    if job is None:
        return None
    context = context_of(job)
    return differentiate(
        tensors_of(job), job.seeds, job.wanted, lambda **t: npu_chunk_kda(**t, **job.options, context=context)
    )


def told(call: Callable) -> tuple[str, str, float]:
    """What `call` raises: (type, message, seconds); ('', '', seconds) when it does not."""
    begin = time.monotonic()
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return "", "", time.monotonic() - begin
