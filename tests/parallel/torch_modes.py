# SPDX-License-Identifier: Apache-2.0
"""What ranks do in the tests of autograd and compilation around a context-parallel call."""

from __future__ import annotations

import torch
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
    return all(torch.equal(a, b) for a, b in zip(*results, strict=True))


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
    return all(torch.equal(x, y) for x, y in zip((*mine.values(), *seeds), before, strict=True))
