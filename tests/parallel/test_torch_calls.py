# SPDX-License-Identifier: Apache-2.0
"""npu_chunk_kda over processes: outputs and all gradients as near to float64 as those of one process."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
import torch_work
from torch_work import Case, assembled, judge, plain

TRANSPORTS = {"gather": None, "relay": None, "grouped": 2, "doubling": None}
CUT = (0, 7, 7, 80, 130)


@pytest.fixture
def pool(four):
    return four


def using(case: Case, transport: str) -> Case:
    return dataclasses.replace(case, transport=transport, group_size=TRANSPORTS[transport])


CASES = {
    "one_sequence_2": Case((70, 60)),
    "cut_2": Case((70, 60), (0, 20, 50, 130), state="float32"),
    "aligned_2": Case((65, 65), (0, 65, 130), state="float32"),
    "one_sequence_3": Case((64, 1, 65), state="float32", layout="BSND"),
    "several_per_rank": Case((40, 30, 33, 27), CUT, state="float32", layout="BNSD"),
    "v_first": Case((40, 30, 33, 27), layout="BSND", options={"state_v_first": True}, state="bfloat16"),
    "recompute": Case(
        (40, 0, 33, 57), (*CUT, 130), hk=5, hv=10, state="float32", options={"disable_recompute": False}
    ),
    "rows": Case((40, 30, 33, 27), batch=2, layout="BSND", state="float32"),
    "rows_recompute": Case(
        (5, 0, 7), batch=2, hk=5, hv=5, layout="BNSD", state="float32",
        options={"disable_recompute": False, "state_v_first": True},
    ),
    "ntd_unbounded": Case((1, 64, 65, 0), (0, 64, 130), layout="NTD", options={"safe_gate": False}),
    "no_gate": Case((30, 35), options={"safe_gate": False, "use_gate_in_kernel": False, "use_exp2": False}),
    "no_final_state": Case((30, 35), options={"output_final_state": False}, state="float32"),
    "nothing_crosses": Case((30, 35), (0, 30, 65), state="float32"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_ranks_are_one_process(pool, name):
    judge(CASES[name], pool.run(torch_work.run, CASES[name]))


@pytest.mark.parametrize("transport", [t for t in TRANSPORTS if t != "gather"])
@pytest.mark.parametrize("name", ["several_per_rank", "v_first", "recompute"])
def test_every_transport_gives_the_same(pool, name, transport):
    want = assembled(CASES[name], pool.run(torch_work.run, CASES[name]))
    got = assembled(CASES[name], pool.run(torch_work.run, using(CASES[name], transport)))
    assert got.keys() == want.keys()
    for n, x in got.items():
        # The same maps folded in another order: they differ in last bits of a state, if at all.
        assert torch_work.error(x, want[n]) < 2e-3, n


def random_case(seed: int, ranks: int) -> Case:
    """Any packing over any lengths: empty sequences, empty ranks, several per rank, one over many."""
    rng = random.Random(seed)
    lengths = [rng.choice([0, 1, 3, 17, 40, 64, 65, rng.randint(1, 90)]) for _ in range(ranks)]
    lengths[rng.randrange(ranks)] += 1
    total = sum(lengths)
    cu = (0, *sorted(rng.randint(0, total) for _ in range(rng.randint(0, 5))), total)
    hk = rng.choice([1, 2, 5])
    transport = rng.choice([t for t in TRANSPORTS if t != "grouped" or ranks % 2 == 0])
    return Case(
        tuple(lengths), rng.choice([cu, cu, None]), hk, hk * rng.choice([1, 2]), seed=seed,
        layout=rng.choice(["TND", "NTD", "BNSD", "BSND"]), transport=transport,
        group_size=TRANSPORTS[transport], state=rng.choice(["", "float32", "bfloat16"]),
        options={
            "state_v_first": rng.random() < 0.3, "disable_recompute": rng.random() < 0.5,
            "safe_gate": rng.random() < 0.7, "output_final_state": rng.random() < 0.8,
        },
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_random_packings(pool, seed):
    case = random_case(seed, 2 + seed)
    judge(case, pool.run(torch_work.run, case))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_random_packings(pool, seed):
    case = random_case(seed, 2 + seed % 3)
    judge(case, pool.run(torch_work.run, case))


def test_one_rank_of_a_larger_job(pool):
    """A group of one rank inside of four: the plain call, bit for bit."""
    case = Case((70,), (0, 20, 70), state="float32")
    got = pool.run(torch_work.run, case, (2,))[2]
    want = plain(case)
    assert got.keys() == want.keys()
    assert all(torch.equal(got[n], want[n]) for n in want)


@pytest.mark.full
@pytest.mark.parametrize(
    "case",
    [
        Case((5, 4), batch=2, hk=68, hv=136, layout="BSND", state="float32"),
        Case((5, 4), hk=130, hv=260, state="float32", transport="relay"),
    ],
    ids=["rows", "heads"],
)
def test_more_heads_than_one_merge_takes(pool, case):
    judge(case, pool.run(torch_work.run, case))
