# SPDX-License-Identifier: Apache-2.0
"""The cases of the PyTorch tests as jobs of MindSpore ranks, and their answers as PyTorch tensors."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from fla_npu.parallel import make_plan
from mindspore_work import Job
from torch_work import Case, local_inputs


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
    return [
        None if r is None else {n: None if x is None else torch.from_numpy(x) for n, x in r.items()}
        for r in results
    ]
