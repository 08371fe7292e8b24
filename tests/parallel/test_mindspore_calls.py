# SPDX-License-Identifier: Apache-2.0
"""npu_chunk_kda over MindSpore processes: as near to float64 as the call in one process.

Two processes in the fast tier, one to eight in the long one; they start once per number.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

pytest.importorskip("mindspore")
pytest.importorskip("torch")

import mindspore_layers
import mindspore_work
import torch
import torch_layers
import torch_work
from in_step import in_step
from mindspore_jobs import answers, conv_jobs, head_jobs, jobs, mesh_jobs, zigzag_jobs
from mindspore_pool import Pool
from test_torch_calls import CASES, TRANSPORTS, random_case, using
from test_torch_cases import CONVOLUTIONS
from test_torch_public import PUBLIC, on_the_grid
from torch_layers import Conv
from torch_work import Case, assembled, error, judge, plain

CUT = Case((70, 60), (0, 20, 50, 130), state="float32")


@pytest.fixture(scope="module")
def pools():
    """Pools by size; one at a time, since each takes half a gigabyte per process."""
    made: dict[int, Pool] = {}

    def pool(size: int) -> Pool:
        for other in set(made) - {size}:
            made.pop(other).close()
        return made.setdefault(size, Pool(size))

    yield pool
    for one in made.values():
        one.close()


def results(pool: Pool, case: Case, members=None, work=mindspore_work.run) -> list:
    return answers(pool.run(work, jobs(case, pool.size, members)))


# two ranks, in the fast tier


@pytest.mark.parametrize("name", ["cut", "relay", "recompute", "rows"])
def test_two_ranks_are_one_process(pools, name):
    case = {
        "cut": CUT,
        "relay": using(Case((0, 40), layout="BSND", state="bfloat16"), "relay"),
        "recompute": Case((40, 33), hk=5, hv=5, options={"disable_recompute": False, "state_v_first": True}),
        "rows": using(Case((30, 33), batch=2, layout="BNSD", state="float32"), "doubling"),
    }[name]
    judge(case, results(pools(2), case))


def test_messages_carry_what_was_made_before_them(pools):
    assert pools(2).run(mindspore_layers.messages, 8) == [0, 0]


def test_heads_instead_of_tokens(pools):
    check_heads(pools(2), Case((35, 30), (0, 21, 65), hk=1, hv=4, state="float32"))


@pytest.mark.parametrize("name", ["two_ranks", "half"])
def test_convolution(pools, name):
    half = Conv((20, 13), (0, 19, 33), channels=64, dtype="bfloat16")
    check_conv(pools(2), {"two_ranks": CONVOLUTIONS["two_ranks"], "half": half}[name])


@pytest.mark.parametrize("cu", [None, (0, 8, 8, 40)], ids=["one", "packed"])
def test_zigzag_order_is_converted(pools, cu):
    """Load-balanced shards in, load-balanced results out: those of one process."""
    case = Case((20, 20), cu, options={"output_final_state": False})
    made, held = zigzag_jobs(case)
    found = answers(pools(2).run(mindspore_layers.zigzag, made, cu))
    shared = {n: found[0].pop(n) for n in ("da_log", "ddt_bias")}
    assert all(torch.equal(found[1].pop(n), x) for n, x in shared.items())
    whole = {}
    for n in found[0].keys() - {"final_state"}:
        rows = torch.cat([r[n] for r in found])
        whole[n] = torch.empty_like(rows)
        whole[n][torch.cat(held)] = rows
    judge(case, [whole | shared])


REFUSALS = {
    "dtype": ("ArgumentTypeError", "rank 1: Argument"),
    "tokens": ("ArgumentError", "rank 1: Argument"),
    "none": ("ArgumentTypeError", "rank 1: Argument"),
    "state": ("ArgumentError", "no sequence begins on rank 1"),
    "call": ("ParallelError", "rank 1 calls parallel.causal_conv1d"),
    "scale": ("ParallelError", "scale = "),
    "gradient": ("ParallelError", "gradient = True on rank 0, False on rank 1"),
    "function": ("KeyError", "rank 1: KeyError: 'no such layer'"),
}


@pytest.mark.parametrize("how", REFUSALS)
def test_what_one_rank_refuses_raises_on_all(pools, how):
    kind, text = REFUSALS[how]
    first, second = pools(2).run(mindspore_layers.refused, jobs(Case((30, 20)), 2), 1, how)
    assert second[0] == kind, second
    assert first[0] == "ParallelError" and text in first[1], first


def test_a_backward_that_one_rank_leaves_out(pools):
    """The next call of that rank meets it: an error on both, and no wait."""
    case = Case((30, 20), options={"output_final_state": False})
    first, second = pools(2).run(mindspore_layers.left_out, jobs(case, 2), 1)
    assert first[0] == second[0] == "ParallelError"
    assert "rank 0 calls the backward of parallel.npu_chunk_kda while rank 1 calls" in first[1], first


def test_packings_that_differ(pools):
    for arguments, text in (
        ([{"lengths": (1, 2)}, {"lengths": (1, 3)}], "lengths = "),
        ([{"lengths": 5}, {"cu_seqlens": (0, 5, 3)}], "must not decrease"),
    ):
        first, second = pools(2).run(mindspore_layers.packing, arguments)
        assert first[0] == "ParallelError" and text in first[1] and "rank 1" in first[1]
        assert second[0] in ("ParallelError", "ArgumentError") and text in second[1]


def test_groups_that_are_none(pools):
    groups = ["no_such_group", [0, 0], [0, 5], [], 3, [1]]
    first = pools(2).run(mindspore_layers.wrong_groups, groups[:5])[0]
    assert [kind for kind, _, _ in first] == ["ArgumentError"] * 4 + ["ArgumentTypeError"]


# more ranks


def check_heads(pool: Pool, case: Case) -> None:
    found = [
        r for r in answers(pool.run(mindspore_layers.heads, head_jobs(case, pool.size))) if r is not None
    ]
    state = torch.cat([r.pop("final_state") for r in found], 1)  # its heads are on different ranks
    for r in found:
        small = {n: r.pop(n) for n in ("da_log", "ddt_bias", "dinitial_state")}
    found[0] |= {**small, "final_state": state}
    judge(case, found)


def check_conv(pool: Pool, case: Conv) -> None:
    found = [r for r in answers(pool.run(mindspore_layers.conv, conv_jobs(case, pool.size))) if r is not None]
    axis, limit = 1 if case.batch else 0, 6e-3 if case.dtype == "bfloat16" else 1e-5
    for n, exact in torch_layers.conv_truth(case).items():
        parts = [r[n] for r in found]
        got = torch.cat(parts, axis) if n in ("y", "dx", "dresidual") else sum(x.double() for x in parts)
        assert error(got, exact) < limit, n


FOUR = pytest.mark.full


@FOUR
@pytest.mark.parametrize("name", CASES)
def test_the_ranks_are_one_process(pools, name):
    judge(CASES[name], results(pools(4), CASES[name]))


@FOUR
@pytest.mark.parametrize("transport", [t for t in TRANSPORTS if t != "gather"])
@pytest.mark.parametrize("name", ["several_per_rank", "v_first", "recompute"])
def test_every_transport_gives_the_same(pools, name, transport):
    want = assembled(CASES[name], results(pools(4), CASES[name]))
    got = assembled(CASES[name], results(pools(4), using(CASES[name], transport)))
    assert got.keys() == want.keys()
    for n, x in got.items():
        assert error(x, want[n]) < 2e-3, n


@FOUR
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_is_received_is_what_the_formula_says(pools, transport):
    from fla_npu.parallel import cost, make_plan

    case = using(Case((70,) * 4), transport)
    seen = pools(4).run(mindspore_layers.traffic, jobs(case, 4))
    want = cost(make_plan(case.lengths, transport=transport, group_size=case.group_size), case.hv)
    assert sum(r["forward"] for r in seen) == want.total
    assert max(r["forward"] for r in seen) == want.busiest
    assert sum(r["both"] for r in seen) == 2 * want.total


@FOUR
@pytest.mark.parametrize("seed", range(200, 212))
def test_random_packings(pools, seed):
    case = random_case(seed, 2 + seed % 3)
    judge(case, results(pools(4), case))


@FOUR
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(pools, name):
    check_conv(pools(4), CONVOLUTIONS[name])


@FOUR
@pytest.mark.parametrize("layout", ["BSND", "BNSD", "TND", "NTD"])
@pytest.mark.parametrize("lengths", [(35, 30), (20, 0, 40, 5)], ids=str)
def test_heads(pools, lengths, layout):
    case = Case(lengths, (0, 21, sum(lengths)), hk=1, hv=4, layout=layout, state="float32")
    check_heads(pools(4), case)


@FOUR
@pytest.mark.parametrize("transport", ["gather", "relay"])
def test_a_mesh_of_heads_and_sequence(pools, transport):
    options = {"output_final_state": False}
    case = Case((30, 20, 25, 10), (0, 10, 70, 85), hk=2, hv=4, transport=transport, options=options)
    found = answers(pools(4).run(mindspore_layers.mesh, mesh_jobs(case)))
    for r in found[1:]:  # sums over all ranks
        assert all(torch.equal(r.pop(n), found[0][n]) for n in ("da_log", "ddt_bias"))
    judge(case, found)


@FOUR
def test_nested_groups_and_orders(pools):
    """{0, 2} and {3, 1} work at the same time, on sequences of their own, one against the ranks' order."""
    one = Case((40, 30), (0, 50, 70), state="float32")
    other = using(dataclasses.replace(one, seed=1), "relay")
    both = [a or b for a, b in in_step(jobs(one, 4, (0, 2)), jobs(other, 4, (3, 1)))]
    found = answers(pools(4).run(mindspore_work.run, both))
    judge(one, [found[0], found[2]])
    judge(other, [found[3], found[1]])


@FOUR
@pytest.mark.parametrize("transport", ["gather", "relay"])
def test_layers_that_are_made_again(pools, transport):
    case = using(Case((20, 0, 30, 15), options={"output_final_state": False}), transport)
    want, got = (pools(4).run(mindspore_layers.replays, jobs(case, 4), again) for again in (False, True))
    for a, b in in_step(got, want):
        assert all(np.array_equal(a[n], b[n]) for n in b)
    assert any(np.abs(b["da_log"]).max() > 0 for b in want)


@FOUR
def test_one_rank_of_a_larger_job(pools):
    """A group of one rank inside of four: the plain call, bit for bit."""
    case = Case((70,), (0, 20, 70), state="float32", options={"use_beta_sigmoid_in_kernel": False})
    got, want = results(pools(4), case, (2,))[2], plain(case)
    assert got.keys() == want.keys()
    assert all(torch.equal(got[n], want[n].float()) for n in want)


@FOUR
def test_messages_of_four(pools):
    assert pools(4).run(mindspore_layers.messages, 8) == [0] * 4


@FOUR
@pytest.mark.parametrize("name", ["several_per_rank", "v_first", "no_gate"])
def test_same_bits_as_pytorch(pools, name):
    """The same kernels run on the same numbers; only the sigmoid of beta is each framework's own."""
    from torch_pool import Pool as TorchPool

    case = CASES[name]
    case = dataclasses.replace(case, options={**case.options, "use_beta_sigmoid_in_kernel": False})
    pool = TorchPool(len(case.lengths))
    try:
        want = assembled(case, pool.run(torch_work.run, case))
    finally:
        pool.close()
    got = assembled(case, results(pools(4), case))
    for n, x in got.items():
        assert torch.equal(x.double(), want[n].double()), n


@FOUR
@pytest.mark.parametrize("size", [3, 8])
def test_whole_worlds_of_other_sizes(pools, size):
    lengths = tuple((40, 0, 33, 20, 7, 64, 1, 30)[:size])
    case = Case(lengths, (0, 30, sum(lengths) - 3, sum(lengths)), state="float32")
    for transport in ("gather", "doubling"):
        judge(using(case, transport), results(pools(size), using(case, transport)))


@FOUR
@pytest.mark.parametrize("name", sorted(PUBLIC, key=lambda n: len(PUBLIC[n].lengths)))
def test_public_cases(pools, name):
    """As near to float64 as one process is, and to one process within the public rule: 8e-3."""
    case = PUBLIC[name]
    found = results(pools(len(case.lengths)), case)
    judge(case, found)
    got, single = assembled(case, found), plain(case)
    for n in ("o", "dq", "dk", "dv", "dg", "dbeta"):  # see there
        assert error(got[n], single[n]) < (8e-3 if on_the_grid(case) else 8e-3 * 2**0.5), n


@FOUR
@pytest.mark.parametrize("when", ["forward", "backward"])
def test_a_rank_that_ends(when):
    """Errors in the time that MindSpore waits, where its scheduler is asked not to end all at once."""
    pool = Pool(3, MS_DISABLE_HEARTBEAT="1")
    try:
        told = pool.run(mindspore_layers.dying, jobs(Case((30, 20, 25)), 3), 1, when, ending=(1,))
    finally:
        pool.close()
    for rank in (0, 2):
        kind, text, seconds = told[rank]
        assert kind == "ParallelError" and f"rank {rank} of 3" in text and seconds < 70, text
    assert any(re.search("(to|from) rank 1:|ranks [02, ]*1", text) for _, text, _ in told[::2]), told


@FOUR
def test_a_rank_that_ends_ends_the_job():
    """As MindSpore comes: its scheduler names the rank and ends the others, sooner than they notice."""
    pool = Pool(3)
    try:
        told = pool.run(mindspore_layers.dying, jobs(Case((30, 20, 25)), 3), 1, "forward", ending=(0, 1, 2))
        log = pool.logs()
    finally:
        pool.close()
    assert all(x is None or x[0] == "ParallelError" for x in told)
    assert any(told) or "The node: 1 is timed out" in log
