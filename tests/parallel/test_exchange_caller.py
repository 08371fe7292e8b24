# SPDX-License-Identifier: Apache-2.0
"""A caller with its own state exchange: sharded equals unsharded, in one process and over gloo."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from exchange_caller import GATE, ORDER, SCALE, cut, in_threads, joined, over_gloo
from torch_pool import Pool

#: Tokens per rank, and offsets of sequences.
CASES = {
    "two_ranks": ((70, 60), (0, 130)),
    "packed": ((100, 90), (0, 40, 150, 190)),
    "aligned": ((64, 64), (0, 64, 128)),
    "over_all": ((30, 65, 1, 44), (0, 10, 135, 140)),
}
#: The caller's relays, gk and the gradient of the state are bfloat16, and chunks begin elsewhere than in the
#: whole call, so other values are rounded: seen are 5e-3 at most.
LIMITS = {"o": 6e-3, "a_log": 1e-2}


@cache
def case_of(name: str) -> tuple[dict, torch.Tensor]:
    rng = torch.Generator().manual_seed(len(name))
    tokens, heads = sum(CASES[name][0]), 2

    def normal(*tail):
        return torch.randn(1, tokens, heads, *tail, generator=rng)

    t = {n: normal(128).bfloat16() for n in ("q", "k", "v")}
    t |= {"g": normal(128) - 2.0, "beta": normal()}
    t |= {"a_log": torch.linspace(-0.5, 0.5, heads), "dt_bias": 0.1 * torch.randn(heads, 128, generator=rng)}
    return t, normal(128).bfloat16()


@cache
def unsharded(name: str) -> dict:
    from fla_npu.torch import npu_chunk_kda

    t, seed = case_of(name)
    leaves = {n: x.clone().requires_grad_() for n, x in t.items()}
    out, _ = npu_chunk_kda(
        **leaves, scale=SCALE, layout="BSND", cu_seqlens=CASES[name][1], use_gate_in_kernel=True,
        use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True, **GATE,
    )  # fmt: skip
    out.backward(seed)
    return {"o": out.detach()} | {n: x.grad for n, x in leaves.items()}


def check(made: dict, name: str) -> None:
    for n in ("o", *ORDER):
        want = unsharded(name)[n].double()
        error = float((made[n].double() - want).norm() / want.norm())
        assert error < LIMITS.get(n, 8e-3), f"{n}: {error:.2e}"


def test_pieces():
    lengths, cu = CASES["over_all"]
    pieces = [cut(lengths, cu, rank) for rank in range(4)]
    assert [p.cu for p in pieces] == [(0, 10, 30), (0, 65), (0, 1), (0, 39, 44)]
    assert [(p.before, p.behind) for p in pieces] == [(0, 3), (1, 2), (2, 1), (3, 0)]


@pytest.mark.parametrize("name", CASES)
def test_in_one_process(name):
    t, seed = case_of(name)
    check(in_threads(t, seed, *CASES[name]), name)


@pytest.mark.parametrize("name", ["packed", pytest.param("over_all", marks=pytest.mark.full)])
def test_over_gloo(name):
    t, seed = case_of(name)
    pool = Pool(len(CASES[name][0]))
    try:
        parts = pool.run(over_gloo, t, seed, *CASES[name])
    finally:
        pool.close()
    made = joined(parts)
    check(made, name)
    local = in_threads(t, seed, *CASES[name])
    assert all(torch.equal(made[n], local[n]) for n in ("o", *ORDER))
