# SPDX-License-Identifier: Apache-2.0
"""What ranks do in the tests of failures: each returns what it was told, (type, message, seconds)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
from torch_work import Case, local_inputs


def told(call: Callable) -> tuple[str, str, float]:
    """What `call` raises; ('', '', seconds) when it does not."""
    begin = time.monotonic()
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return "", "", time.monotonic() - begin


def step(case: Case, context, changes: dict | None = None, backward: bool = True, **options) -> None:
    """A whole step; `changes` replace tensors."""
    from fla_npu.torch.parallel import npu_chunk_kda

    mine, (seed, _) = local_inputs(case, context)
    leaves = {n: x.requires_grad_() for n, x in mine.items()} | (changes or {})
    out, _ = npu_chunk_kda(**leaves, **{**case.all_options(), **options}, context=context)
    if backward and out.requires_grad:
        out.backward(seed)


def context_of(case: Case):
    from fla_npu.torch.parallel import ContextParallel

    return ContextParallel(cu_seqlens=case.cu, lengths=case.lengths, transport=case.transport)


def packing(rank: int, size: int, arguments: list[dict]) -> tuple[str, str, float]:
    """A context made from other arguments on every rank; then one that works."""
    from fla_npu.torch.parallel import ContextParallel

    answer = told(lambda: ContextParallel(**arguments[rank]))
    ContextParallel(lengths=rank + 1)
    return answer


def even_shard(rank: int, size: int, cu: tuple[int, ...]):
    from fla_npu.torch.parallel import ContextParallel

    shard = ContextParallel(cu_seqlens=torch.tensor(cu)).shard
    return shard.cu_seqlens, shard.before, shard.tokens


def refused(rank: int, size: int, case: Case, guilty: int, how: str) -> tuple[str, str, float]:
    """One rank's arguments are bad; afterwards the group still works."""
    context = context_of(case)
    mine, _ = local_inputs(case, context)
    bad = {
        "dtype": {"q": mine["q"].half()},
        "tokens": {n: mine[n][:-1] for n in ("q", "k", "v", "g", "beta")},
        "none": {"k": None},
        "state": {"initial_state": torch.zeros(3, case.hv, 128, 128)},
    }[how]
    answer = told(lambda: step(case, context, bad if rank == guilty else None))
    step(case, context)
    return answer


def chunk_size(rank: int, size: int, case: Case) -> tuple[str, str, float]:
    context = context_of(case)
    return told(lambda: step(case, context, chunk_size=32))


def differing(rank: int, size: int, case: Case, how: str) -> tuple[str, str, float]:
    """Rank 1 does something else than the others; afterwards the group still works."""
    from fla_npu.torch.parallel import causal_conv1d

    context = context_of(case)

    def work():
        if rank == 1 and how == "call":
            return causal_conv1d(torch.randn(context.shard.tokens, 3), torch.randn(3, 4), context=context)
        if rank == 1 and how == "no_grad":
            with torch.no_grad():
                return step(case, context)
        odd = {"scale": {"scale": 0.5}, "dt_bias": {"changes": {"dt_bias": None}}}
        return step(case, context, **(odd.get(how, {}) if rank == 1 else {}))

    answer = told(work)
    step(case, context)
    return answer


def convolutions_that_differ(rank: int, size: int) -> list[tuple[str, str, float]]:
    """Rank 1 leaves something out, one thing after the other."""
    from fla_npu.torch.parallel import ContextParallel, causal_conv1d

    context, answers = ContextParallel(lengths=2), []
    for name in ("activation", "bias", "residual"):
        given = {"activation": "silu", "bias": torch.ones(3), "residual": torch.ones(2, 3)}
        if rank == 1:
            del given[name]
        answers.append(
            told(lambda g=given: causal_conv1d(torch.ones(2, 3), torch.ones(3, 4), **g, context=context))
        )
    return answers


def backwards_that_differ(rank: int, size: int, case: Case, how: str) -> tuple[str, str, float]:
    """Rank 1 runs the backwards of two calls in another order, or leaves one out; then the group still works."""
    from fla_npu.torch.parallel import ContextParallel, causal_conv1d, npu_chunk_kda, to_zigzag, ulysses

    context, x = context_of(case), torch.ones(2 * size, 3, requires_grad=True)
    mine, _ = local_inputs(case, context)
    leaves = {n: t.requires_grad_() for n, t in mine.items()}
    even = ContextParallel(lengths=2 * size)
    calls = {
        "conv": lambda: causal_conv1d(x, torch.ones(3, 4), context=even),
        "order": lambda: to_zigzag(x, axis=0),
        "heads": lambda: ulysses(lambda y: 2.0 * y, None, layout="TND")(x[..., None]),
    }
    call = calls.get(how, lambda: npu_chunk_kda(**leaves, **case.all_options(), context=context)[0])
    first, second = call(), call()

    def work():
        if rank == 1 and how == "left out":
            return call()
        for y in (second, first) if rank == 1 else (first, second):
            y.sum().backward()

    answer = told(work)
    step(case, context)
    return answer


def needing_nothing(rank: int, size: int, case: Case, idle: int) -> list[torch.Tensor]:
    """A rank whose inputs need no gradient, and whose loss does not use its output."""
    from fla_npu.torch.parallel import npu_chunk_kda

    context = context_of(case)
    mine, (seed, _) = local_inputs(case, context)
    leaves = {n: x.requires_grad_(rank != idle) for n, x in mine.items()}
    out, _ = npu_chunk_kda(**leaves, **case.all_options(), context=context)
    assert out.requires_grad
    (0.0 * out.sum() if rank == idle else (out.float() * seed.float()).sum()).backward()
    assert rank != idle or all(x.grad is None for x in leaves.values())
    return [] if rank == idle else [leaves[n].grad for n in ("q", "k", "v", "g", "beta")]


def dying(rank: int, size: int, case: Case, victim: int, when: str) -> tuple[str, str, float]:
    """One rank ends before the forward, or between forward and backward."""
    from fla_npu.torch.parallel import npu_chunk_kda

    context = context_of(case)
    step(case, context)  # all connections are there
    mine, (seed, _) = local_inputs(case, context)
    leaves = {n: x.requires_grad_() for n, x in mine.items()}

    def work():
        if rank == victim and when == "forward":
            os._exit(3)
        out, _ = npu_chunk_kda(**leaves, **case.all_options(), context=context)
        if rank == victim:
            os._exit(3)
        out.backward(seed)

    return told(work)


def silent(rank: int, size: int, case: Case, guilty: int, sleep: float) -> tuple[str, str, float]:
    """One rank never runs its backward."""
    from fla_npu.torch.parallel import npu_chunk_kda

    context = context_of(case)
    mine, (seed, _) = local_inputs(case, context)
    leaves = {n: x.requires_grad_() for n, x in mine.items()}
    out, _ = npu_chunk_kda(**leaves, **case.all_options(), context=context)
    if rank == guilty:
        time.sleep(sleep)
        return "", "", sleep
    return told(lambda: out.backward(seed))


def failing_function(rank: int, size: int) -> tuple[str, str, float]:
    """`ulysses` around a function that raises on rank 1; afterwards the group still works."""
    from fla_npu.torch.parallel import ulysses

    def fn(x):
        if rank == 1 and x.shape[1] > 3 * size:
            raise KeyError("no such layer")
        return x

    call = ulysses(fn, None)
    answer = told(lambda: call(torch.randn(1, 4, size, 2)))
    assert call(torch.randn(1, 2, size, 2)).shape == (1, 2, size, 2)
    return answer


def heads_refused(rank: int, size: int) -> list[tuple[str, str, float]]:
    """`ulysses` and `head_slice` with numbers of heads that three ranks cannot share."""
    from fla_npu.torch.parallel import head_slice, ulysses

    call = ulysses(lambda q, v: v, None)
    q = torch.randn(1, 4, 3, 2)
    return [
        told(lambda: call(q, torch.randn(1, 4, 4, 2))),
        told(lambda: call(torch.randn(1, 4, 2, 2), torch.randn(1, 4, 6, 2))),
        told(lambda: call(q, torch.randn(1, 5, 3, 2))),
        told(lambda: call(q, 3)),
        told(lambda: call()),
        told(lambda: ulysses(lambda q: q[:, :2], None)(q)),
        told(lambda: head_slice(torch.zeros(4), None)),
    ]


def mesh_of_two_dimensions(rank: int, size: int) -> tuple[str, str, float]:
    from fla_npu.torch.parallel import ContextParallel
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (1, size), mesh_dim_names=("data", "sequence"))
    answer = told(lambda: ContextParallel(mesh, lengths=1))
    ContextParallel(mesh["sequence"], lengths=1)
    return answer


def failing_alone(rank: int, size: int, case: Case, guilty: int, op: str) -> tuple[str, str, float]:
    """A kernel fails on one rank, after all have agreed to go on."""
    from fla_npu import aclnn, errors

    context, call = context_of(case), aclnn.call

    def broken(name, *arguments, **keywords):
        if rank == guilty and name == op:
            raise errors.LaunchError("out of memory", 207001)
        return call(name, *arguments, **keywords)

    aclnn.call = broken
    try:
        return told(lambda: step(case, context))
    finally:
        aclnn.call = call
        time.sleep(3.0 if rank == guilty else 0.0)  # it lives on
