# SPDX-License-Identifier: Apache-2.0
"""The cases of the PyTorch tests as jobs of MindSpore ranks, and their answers as PyTorch tensors."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from fla_npu.parallel import make_plan
from in_step import in_step
from mindspore_work import Job
from torch_layers import Conv, blocks, conv_inputs
from torch_work import TOKENWISE, Case, cotangents, inputs, local_inputs, part


def given(x: torch.Tensor) -> tuple:
    return x.float().numpy(), str(x.dtype).removeprefix("torch.")


def jobs(case: Case, size: int, members: tuple[int, ...] | None = None, **options) -> list[Job | None]:
    """One per rank of the job; the ranks of the case are `members`, in this order."""
    ranks = len(case.lengths)
    members = members or tuple(range(ranks))
    group = None if members == tuple(range(size)) else list(members)
    plan = make_plan(case.lengths, case.cu)
    made: list[Job | None] = [None] * size
    context = {"cu_seqlens": case.cu, "lengths": case.lengths, "transport": case.transport}
    for rank, world in enumerate(members):
        tensors, seeds = local_inputs(case, SimpleNamespace(shard=plan.shard(rank)))
        if not case.all_options()["output_final_state"]:
            seeds = (seeds[0], None)
        made[world] = Job(
            {**context, "group_size": case.group_size},
            {n: given(x) for n, x in tensors.items()},
            tuple(None if x is None else x.float().numpy() for x in seeds),
            {**case.all_options(), **options},
            case.wanted,
            group,
        )
    return made


def answers(results: list) -> list[dict | None]:
    """As `torch_work.judge` wants them."""
    return [None if r is None else {n: taken(x) for n, x in r.items()} for r in results]


def taken(x: tuple | None) -> torch.Tensor | None:
    return None if x is None else torch.from_numpy(x[0]).to(getattr(torch, x[1]))


def head_jobs(case: Case, size: int) -> list[Job | None]:
    """Of a call with all sequences inside `ulysses`: this rank's tokens, and states with all heads."""
    made, ranks = jobs(case, size), len(case.lengths)
    whole, (_, d_final), step = inputs(case), cotangents(case), case.hv // ranks
    for rank, job in enumerate(made[:ranks]):
        if case.state:
            job.tensors["initial_state"] = given(whole["initial_state"])
        job.seeds = job.seeds[0], d_final.narrow(1, rank * step, step).numpy()
        job.how = {"heads": (rank * step, step), "cu": case.cu}
    return made


def mesh_jobs(case: Case) -> list[Job]:
    """Of four ranks (s, h): contexts over the ranks of one h, each with the blocks of two."""
    made = jobs(case, 4)
    blocks = tuple(case.lengths[i] + case.lengths[i + 1] for i in (0, 2))
    for rank, job in enumerate(made):
        job.group, job.context = [rank % 2, 2 + rank % 2], {**job.context, "lengths": blocks}
    return made


def zigzag_jobs(case: Case) -> tuple[list[Job], list[torch.Tensor]]:
    """Of equal ranks with tokens in zigzag order, and the global tokens of each rank."""
    made, ranks = jobs(case, len(case.lengths)), len(case.lengths)
    tensors, (d_out, _), cu = inputs(case), cotangents(case), case.cu or (0, case.tokens)
    held = [torch.cat([torch.arange(*span) for span in blocks(cu, rank, ranks)]) for rank in range(ranks)]
    for job, mine in in_step(made, held):
        job.tensors = {n: given(x[mine] if n in TOKENWISE else x) for n, x in tensors.items()}
        job.seeds = d_out[mine].float().numpy(), None
    return made, held


def conv_jobs(case: Conv, size: int) -> list[Job | None]:
    made: list[Job | None] = [None] * size
    plan, axis = make_plan(case.lengths, case.cu), 1 if case.batch else 0
    tensors, seed = conv_inputs(case)
    ranks = len(case.lengths)
    for rank in range(ranks):
        span = axis, plan.shard(rank).start, plan.shard(rank).stop
        mine = {n: given(part(x, *span) if n in ("x", "residual") else x) for n, x in tensors.items()}
        made[rank] = Job(
            {"cu_seqlens": case.cu, "lengths": case.lengths},
            mine,
            (part(seed, *span).float().numpy(), None),
            {"activation": case.activation},
            group=None if ranks == size else list(range(ranks)),
        )
    return made
