# SPDX-License-Identifier: Apache-2.0
"""What MindSpore ranks do around the state scan: convolution, heads, a mesh, replays, refusals, messages."""

from __future__ import annotations

import os

import numpy as np
from in_step import in_step
from mindspore_work import Job, carried, context_of, differentiate, from_ms, tensors_of, to_ms, told

PARAMETERS = ("a_log", "dt_bias", "initial_state")


def conv(rank: int, size: int, jobs: list[Job | None]) -> dict | None:
    from fla_npu.mindspore.parallel import causal_conv1d

    job = jobs[rank]
    if job is None:
        return None
    context = context_of(job)

    def call(**t):
        return causal_conv1d(**t, **job.options, context=context), None

    found = differentiate(tensors_of(job), job.seeds, job.wanted, call)
    return {"y" if n == "o" else n: x for n, x in found.items() if n != "final_state"}


def _summed(found: dict, group) -> dict:
    """The gradients of what all ranks share, summed."""
    from fla_npu.mindspore.parallel import reduce_gradients

    names = [f"d{n}" for n in PARAMETERS if f"d{n}" in found]
    sums = reduce_gradients([to_ms(found[n]) for n in names], group)
    return found | {n: carried(x) for n, x in in_step(names, sums)}


def heads(rank: int, size: int, jobs: list[Job | None]) -> dict | None:
    """npu_chunk_kda inside `ulysses`: gradients of parameters are summed over the ranks."""
    from fla_npu.mindspore import npu_chunk_kda
    from fla_npu.mindspore.parallel import head_slice, ulysses
    from mindspore import mint

    job = jobs[rank]
    if job is None:
        return None
    first, count = job.how["heads"]

    def call(q, k, v, g, beta, initial_state=None, **parameters):
        small = {n: head_slice(x, job.group) for n, x in parameters.items()}
        if initial_state is not None:
            small["initial_state"] = mint.narrow(initial_state, 1, first, count)

        def attend(*rows):
            return npu_chunk_kda(*rows, **job.options, **small, cu_seqlens=job.how["cu"])

        return ulysses(attend, job.group, layout=job.options["layout"])(q, k, v, g, beta)

    return _summed(differentiate(tensors_of(job), job.seeds, job.wanted, call), job.group)


def mesh(rank: int, size: int, jobs: list[Job]) -> dict:
    """Heads x sequence on four ranks: rank (s, h) has block s * 2 + h of the tokens."""
    from fla_npu.mindspore.parallel import head_slice, npu_chunk_kda, ulysses

    job, row = jobs[rank], [rank // 2 * 2, rank // 2 * 2 + 1]
    context = context_of(job)  # of the ranks with the same heads

    def call(q, k, v, g, beta, **parameters):
        small = {n: head_slice(x, row) for n, x in parameters.items()}

        def attend(*rows):
            return npu_chunk_kda(*rows, **job.options, **small, context=context)[0]

        return ulysses(attend, row, layout="TND")(q, k, v, g, beta), None

    return _summed(differentiate(tensors_of(job), job.seeds, job.wanted, call), None)


def zigzag(rank: int, size: int, jobs: list[Job], cu) -> dict:
    """Tokens in zigzag order go through the scan and come back in it."""
    from fla_npu.mindspore.parallel import from_zigzag, npu_chunk_kda, to_zigzag

    job = jobs[rank]
    context = context_of(job)

    def call(a_log, dt_bias, **rows):
        straight = {n: from_zigzag(x, axis=0, cu_seqlens=cu) for n, x in rows.items()}
        out, _ = npu_chunk_kda(**straight, a_log=a_log, dt_bias=dt_bias, **job.options, context=context)
        return to_zigzag(out, context, axis=0, cu_seqlens=cu), None

    return _summed(differentiate(tensors_of(job), job.seeds, job.wanted, call), None)


def replays(rank: int, size: int, jobs: list[Job | None], again: bool) -> dict | None:
    """Two layers in a row, made again in the backward or not: gradients of values and of a parameter."""
    import mindspore as ms
    from fla_npu.mindspore.parallel import npu_chunk_kda

    job = jobs[rank]
    if job is None:
        return None
    context, t = context_of(job), tensors_of(job)
    a_log = ms.Parameter(t.pop("a_log"), name="a_log")

    class Layer(ms.nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.a_log = a_log

        def construct(self, v):
            return npu_chunk_kda(**{**t, "v": v}, a_log=self.a_log, **job.options, context=context)[0]

    layers = [Layer(), Layer()]
    for layer in layers if again else []:
        layer.recompute()
    seed = to_ms((job.seeds[0], "float32"))

    def loss(v):
        return (layers[1](layers[0](v)).astype(ms.float32) * seed).sum()

    # Not the value: MindSpore's sum of a tensor without elements is any number.
    d_v, d_a = ms.grad(loss, 0, [a_log])(t["v"])
    return {"dv": from_ms(d_v), "da_log": from_ms(d_a[0])}


def refused(rank: int, size: int, jobs: list[Job], guilty: int, how: str) -> tuple[str, str, float]:
    """One rank's arguments are bad, or its call is another one; afterwards the group still works."""
    import mindspore as ms
    from fla_npu.mindspore.parallel import causal_conv1d, npu_chunk_kda, ulysses

    job = jobs[rank]
    context, t = context_of(job), tensors_of(job)

    def step(changes=None, **options):
        def call(**given):
            return npu_chunk_kda(
                **{**given, **(changes or {})}, **{**job.options, **options}, context=context
            )

        return differentiate(t, job.seeds, job.wanted, call)

    def work():
        if rank != guilty:
            return ulysses(lambda x: x, None)(t["v"][None]) if how == "function" else step()
        if how == "call":
            return causal_conv1d(
                ms.mint.zeros((context.shard.tokens, 3)), ms.mint.zeros((3, 4)), context=context
            )
        if how == "function":
            return ulysses(lambda x: {}["no such layer"], None)(t["v"][None])
        if how == "scale":
            return step(scale=0.5)
        if how == "gradient":
            return step({n: ms.ops.stop_gradient(x) for n, x in t.items()})
        if how == "tokens":
            return step(
                {
                    n: ms.mint.narrow(t[n], 0, 0, context.shard.tokens - 1)
                    for n in ("q", "k", "v", "g", "beta")
                }
            )
        return step(
            {
                "dtype": {"q": t["q"].astype(ms.float32)},
                "none": {"k": None},
                "state": {"initial_state": ms.mint.zeros((3, 2, 128, 128))},
            }[how]
        )

    answer = told(work)
    step()
    return answer


def packing(rank: int, size: int, arguments: list[dict]) -> tuple[str, str, float]:
    """A context made from other arguments on every rank; then one that works."""
    from fla_npu.mindspore.parallel import ContextParallel

    answer = told(lambda: ContextParallel(**arguments[rank]))
    ContextParallel(lengths=rank + 1)
    return answer


def wrong_groups(rank: int, size: int, groups: list) -> list[tuple[str, str, float]]:
    from fla_npu.mindspore.parallel import ContextParallel

    return [told(lambda group=group: ContextParallel(group, lengths=1)) for group in groups]


def messages(rank: int, size: int, rounds: int) -> int:
    """How many messages did not carry what the operators before them made, none of which was waited for."""
    import mindspore as ms
    from fla_npu.mindspore import npu_chunk_kda_merge_fwd_bwd
    from fla_npu.mindspore.parallel.group import Group
    from mindspore import mint

    group, wrong = Group(), 0

    def made(of: int, number: int) -> np.ndarray:
        return np.random.default_rng((of, number)).standard_normal((3, 2, 128, 256)).astype(np.float32)

    def state(of: int, number: int):
        given = ms.Tensor(made(of, number)) * 1.5
        return npu_chunk_kda_merge_fwd_bwd(mint.zeros((2, 128, 128)), given, 2, 2)

    for number in range(rounds):
        others = [r for r in range(size) if r != rank]
        first = {r: group.receive((1, 128, 128), "float32", None, r) for r in others}
        second = {r: group.receive((2, 128, 128), "float32", None, r) for r in others}
        h = state(rank, number)
        leaving = [group.send(mint.narrow(h, 0, 1, 1), r) for r in others]
        leaving += [group.send(h + 1, r) for r in others]
        rows = group.gather(h * 2).wait()
        later = {r: second[r].wait() for r in others}  # the second before the first
        for r in range(size):
            want = from_ms(state(r, number))
            wrong += not np.array_equal(rows[r].asnumpy(), want * 2)
            if r != rank:
                wrong += not np.array_equal(later[r].asnumpy(), want + 1)
                wrong += not np.array_equal(first[r].wait().asnumpy(), want[1:])
        for handle in leaving:
            handle.wait()
    return wrong


def left_out(rank: int, size: int, jobs: list[Job], guilty: int) -> tuple[str, str, float]:
    """One rank's loss does not use the output, so that it has no backward, and goes on to the next call."""
    import mindspore as ms
    from fla_npu.mindspore.parallel import npu_chunk_kda

    job = jobs[rank]
    context, t = context_of(job), tensors_of(job)

    def loss(v):
        out = npu_chunk_kda(**{**t, "v": v}, **job.options, context=context)[0]
        used = v if rank == guilty else out
        return (used.astype(ms.float32) ** 2).sum()

    def call():
        for _ in range(2):
            from_ms(ms.grad(loss)(t["v"]))

    return told(call)


def dying(rank: int, size: int, jobs: list[Job], victim: int, when: str) -> tuple[str, str, float]:
    """One rank ends before the forward, or between forward and backward."""
    from fla_npu.mindspore.parallel import npu_chunk_kda

    job = jobs[rank]
    context, t = context_of(job), tensors_of(job)

    def call(**given):
        results = npu_chunk_kda(**given, **job.options, context=context)
        if rank == victim and step == when == "backward":
            os._exit(3)
        return results

    step = "first"
    differentiate(t, job.seeds, job.wanted, call)  # all connections are there
    step = "backward"
    if rank == victim and when == "forward":
        os._exit(3)
    return told(lambda: differentiate(t, job.seeds, job.wanted, call))


def traffic(rank: int, size: int, jobs: list[Job | None]) -> dict | None:
    """Bytes of the state exchange that this rank gets in the forward, and in a whole step."""
    from fla_npu.mindspore.parallel import npu_chunk_kda
    from fla_npu.mindspore.parallel.group import Group

    job = jobs[rank]
    if job is None:
        return None
    context, t = context_of(job), tensors_of(job)
    gather, receive, count = Group.gather, Group.receive, []

    def volume(shape) -> int:
        return 4 * int(np.prod(shape))

    def noted_gather(self, tensor, members=None):
        count.append(volume(tensor.shape) * (len(members or range(self.size)) - 1))
        return gather(self, tensor, members)

    def noted_receive(self, shape, dtype, like, peer):
        count.append(volume(shape) if dtype == "float32" else 0)  # handshakes are integers
        return receive(self, shape, dtype, like, peer)

    forward = []

    def call(**given):
        results = npu_chunk_kda(**given, **job.options, context=context)
        forward.append(sum(count))
        return results

    Group.gather, Group.receive = noted_gather, noted_receive
    try:
        differentiate(t, job.seeds, job.wanted, call)
    finally:
        Group.gather, Group.receive = gather, receive
    return {"forward": forward[0], "both": sum(count)}
