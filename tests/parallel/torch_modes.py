# SPDX-License-Identifier: Apache-2.0
"""What ranks do in the tests of autograd and compilation around a context-parallel call."""

from __future__ import annotations

import torch
from in_step import in_step
from torch_faults import context_of, told
from torch_work import Case, differentiate, local_inputs


def inference(rank: int, size: int, case: Case) -> bool:
    """Without gradients: no graph, and the bits of a training step."""
    from fla_npu.torch.parallel import npu_chunk_kda

    context = context_of(case)
    mine, seeds = local_inputs(case, context)
    want = differentiate(case, mine, seeds, npu_chunk_kda, context=context)
    plain, _ = npu_chunk_kda(**mine, **case.all_options(), context=context)
    with torch.no_grad():
        leaves = {n: x.clone().requires_grad_() for n, x in mine.items()}
        quiet, _ = npu_chunk_kda(**leaves, **case.all_options(), context=context)
    return all(not x.requires_grad and torch.equal(x, want["o"]) for x in (plain, quiet))


def twice(rank: int, size: int, case: Case) -> tuple[str, str, float]:
    """A gradient of a gradient."""
    from fla_npu.torch.parallel import npu_chunk_kda

    context = context_of(case)
    mine, (seed, _) = local_inputs(case, context)
    leaves = {n: x.requires_grad_(n == "k") for n, x in mine.items()}
    out, _ = npu_chunk_kda(**leaves, **case.all_options(), context=context)
    (grad,) = torch.autograd.grad([out], [leaves["k"]], [seed], create_graph=True)
    return told(lambda: grad.float().square().sum().backward())


def compiled(rank: int, size: int, case: Case) -> bool:
    """Inside torch.compile the call runs between two graphs; the values are eager mode's."""
    from fla_npu.torch.parallel import causal_conv1d, npu_chunk_kda

    context = context_of(case)
    mine, (seed, _) = local_inputs(case, context)
    weight = torch.randn(128, 4, generator=torch.Generator().manual_seed(0))
    results = []

    def layer(v, q, k, g, beta, a_log, dt_bias):
        v = causal_conv1d((v * 2.0)[:, 0], weight, context=context)[:, None]
        out, _ = npu_chunk_kda(
            q, k, v, g, beta, a_log=a_log, dt_bias=dt_bias, **case.all_options(), context=context
        )
        return out.float() + 1.0

    for call in (layer, torch.compile(layer, backend="eager")):
        leaves = {n: x.clone().requires_grad_() for n, x in mine.items()}
        out = call(**leaves)
        out.backward(seed.float())
        results.append([out.detach(), *(x.grad for x in leaves.values())])
    return all(torch.equal(a, b) for a, b in in_step(*results))


def repeated(rank: int, size: int, case: Case, count: int) -> bool:
    """The same bits every time."""
    from fla_npu.torch.parallel import npu_chunk_kda

    context = context_of(case)
    mine, seeds = local_inputs(case, context)
    runs = [differentiate(case, mine, seeds, npu_chunk_kda, context=context) for _ in range(count)]
    return all(torch.equal(run[n], runs[0][n]) for run in runs for n in run if run[n] is not None)


def inputs_unchanged(rank: int, size: int, case: Case) -> bool:
    """Neither inputs nor cotangents of the user are written."""
    from fla_npu.torch.parallel import npu_chunk_kda

    context = context_of(case)
    mine, seeds = local_inputs(case, context)
    before = [x.clone() for x in (*mine.values(), *seeds)]
    differentiate(case, mine, seeds, npu_chunk_kda, context=context)
    return all(torch.equal(x, y) for x, y in in_step((*mine.values(), *seeds), before))


def events(rank: int, size: int, case: Case) -> tuple[list[str], list[str]]:
    """Launches and messages of a forward and of its backward, in order; handshakes are left out."""
    from fla_npu import aclnn
    from fla_npu.torch.parallel import group, npu_chunk_kda

    context = context_of(case)
    mine, (seed, _) = local_inputs(case, context)
    leaves = {n: x.requires_grad_() for n, x in mine.items()}
    log: list[str] = []
    kept = aclnn.call, {n: getattr(group.Group, n) for n in ("gather", "send", "receive", "share")}

    def posted(name):
        def call(self, *arguments):
            handle = kept[1][name](self, *arguments)
            log.append(name)
            wait = handle.wait
            handle.wait = lambda: log.append(f"{name} waited for") or wait()
            return handle

        return call

    def quietly(self, data):
        count = len(log)
        rows = kept[1]["share"](self, data)
        del log[count:]
        return rows

    def launched(op, *arguments, **keywords):
        log.append(op)
        return kept[0](op, *arguments, **keywords)

    for name in ("gather", "send", "receive"):
        setattr(group.Group, name, posted(name))
    aclnn.call, group.Group.share = launched, quietly
    try:
        out, _ = npu_chunk_kda(**leaves, **case.all_options(), context=context)
        forward = list(log)
        log.clear()
        out.backward(seed)
        return forward, list(log)
    finally:
        aclnn.call = kept[0]
        for name, method in kept[1].items():
            setattr(group.Group, name, method)
