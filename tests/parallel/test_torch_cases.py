# SPDX-License-Identifier: Apache-2.0
"""Faults that context parallelism had elsewhere, each as a test: what is tried, and the right answer."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch_faults
import torch_layers
import torch_work
from in_step import in_step
from torch_layers import Conv
from torch_work import Case, assembled, cuts, error, judge, plain, truth


@pytest.fixture
def pool(four):
    return four


@pytest.mark.parametrize("lengths", [None, (40, 88)], ids=["one", "two"])
def test_g1_every_head_uses_its_own_gate(pool, lengths):
    """Gates differ a lot by head; each head on each rank is as accurate as in one process."""
    case = Case((64, 64), cuts(128, lengths) if lengths else None, hk=4, hv=4)
    got = assembled(case, pool.run(torch_work.run, case))
    single, exact = plain(case), truth(case)
    for name in ("dq", "dk", "dv", "dg", "dbeta", "o"):
        for rows in (slice(0, 64), slice(64, 128)):
            for head in range(4):
                x, y, z = (t[name].reshape(128, 4, -1)[rows, head] for t in (got, single, exact))
                assert error(x, z) <= 1.5 * error(y, z) + 3e-4, (name, rows, head)


def test_g1_summaries_follow_every_heads_gate():
    """g = -10 in heads 1..3 changes these heads and no other."""
    from fla_npu.ops.ascendc import pre_process_bwd_kernel_merged, pre_process_fwd_kernel_merged

    rng = torch.Generator().manual_seed(0)
    q, k, w, u, d_o, dv = (torch.randn(1, 4, 70, 128, generator=rng).bfloat16() / 11 for _ in range(6))
    still = torch.zeros(1, 4, 70, 128)
    steep = still.clone()
    steep[:, 1:] = -10.0 * torch.arange(1, 71).view(1, 1, 70, 1)
    steep[..., 64:, :] += 640.0 * (torch.arange(4) > 0).view(1, 4, 1, 1)  # cumulative in a chunk
    calls = [
        lambda gk: pre_process_fwd_kernel_merged(k, w, u, gk=gk, cu_seqlens=(0, 70))[0],
        lambda gk: pre_process_bwd_kernel_merged(q, k, w, d_o, dv, 0.1, 64, gk=gk, cu_seqlens=(0, 70)),
    ]
    for call in calls:
        a, b = call(still), call(steep)
        assert torch.equal(a[0], b[0])
        assert all(error(b[h], a[h]) > 0.1 for h in (1, 2, 3))


def test_g3_any_other_chunk_size_is_refused(pool):
    for kind, text, _ in pool.run(torch_faults.chunk_size, Case((40,) * 4)):
        assert kind == "ArgumentError" and "chunk_size = 32" in text


def test_g3_tokens_per_rank_need_not_be_chunks(pool):
    case = Case((40, 40, 40))
    judge(case, pool.run(torch_work.run, case))


@pytest.mark.parametrize("lengths", [(4, 3, 3), (1, 1, 0)], ids=str)
def test_g4_tokens_that_do_not_divide(pool, lengths):
    case = Case(lengths, state="float32")
    judge(case, pool.run(torch_work.run, case))


def test_g4_even_parts(pool):
    """[5, 7] on three ranks would be 4 tokens each: rank 1 has one token of the first sequence."""
    parts = pool.run(torch_faults.even_shard, (0, 5, 14))
    assert parts == [((0, 4), 0, 4), ((0, 1, 4), 4, 4), ((0, 3), 3, 3), ((0, 3), 6, 3)]
    case = Case((4, 4, 4), (0, 5, 12))
    judge(case, pool.run(torch_work.run, case))


@pytest.mark.parametrize("empty", [0, 1, 3])
def test_g5_a_rank_without_tokens(pool, empty):
    lengths = [30, 20, 25, 10]
    lengths[empty] = 0
    for options in ({}, {"disable_recompute": False}):
        case = Case(tuple(lengths), state="float32", options=options)
        judge(case, pool.run(torch_work.run, case))


@pytest.mark.parametrize("transport", ["gather", "relay"])
@pytest.mark.parametrize("idle", [0, 2])
def test_g5_a_rank_that_needs_no_gradient_and_has_no_loss(pool, idle, transport):
    case = Case((30, 20, 25, 10), transport=transport)
    got = pool.run(torch_faults.needing_nothing, case, idle)
    # The others' gradients are those of a loss over their tokens only, through the idle rank's too.
    t, (d_out, _) = torch_work.inputs(case), torch_work.cotangents(case)
    offsets = [0, 30, 50, 75, 85]
    mine = slice(offsets[idle], offsets[idle + 1])
    d_out[mine] = 0
    options = {**case.all_options(), "output_final_state": False}
    want = torch_work.differentiate(
        dataclasses.replace(case, options={"output_final_state": False}),
        t,
        (d_out, None),
        plain_call(options),
    )
    for rank in set(range(4)) - {idle}:
        rows = slice(offsets[rank], offsets[rank + 1])
        for x, n in in_step(got[rank], ("dq", "dk", "dv", "dg", "dbeta")):
            assert error(x, want[n][rows]) < 8e-3, (rank, n)


def plain_call(options):
    from fla_npu.torch import npu_chunk_kda

    return lambda **t: npu_chunk_kda(**{**t, **options})


@pytest.mark.parametrize("how", ["dtype", "tokens", "none", "state"])
def test_g5_a_refused_input_raises_everywhere(pool, how):
    answers = pool.run(torch_faults.refused, Case((30, 20, 25, 10)), 1, how)
    for rank, (kind, text, _) in enumerate(answers):
        if rank == 1:
            assert kind in ("ArgumentError", "ArgumentTypeError"), text
        else:
            assert kind == "ParallelError" and "rank 1: Argument" in text, text


@pytest.mark.parametrize("cu", [None, (0, 16, 16, 80)], ids=["one", "packed"])
def test_g7_zigzag_order_is_converted(pool, cu):
    """Load-balanced shards in, load-balanced results out: those of one process."""
    case = Case((20, 20, 20, 20), cu, hk=1, hv=2, options={"output_final_state": False})
    results = pool.run(torch_layers.zigzag, case)
    order = torch.cat([r.pop("order") for r in results])
    for r in results[1:]:
        assert all(torch.equal(r.pop(n), results[0][n]) for n in ("da_log", "ddt_bias"))
    whole = {}
    for n in results[0].keys() - {"da_log", "ddt_bias"}:
        rows = torch.cat([r[n] for r in results])
        whole[n] = torch.empty_like(rows)
        whole[n][order] = rows
    judge(case, [whole | {n: results[0][n] for n in ("da_log", "ddt_bias")}])


def test_g7_sequences_that_do_not_divide_are_refused(pool):
    answers = pool.run(torch_layers.uneven_zigzag)
    assert "sequence 0 has 9 tokens" in answers[1] and answers[1].startswith("ArgumentError")
    assert all(x.startswith(("ParallelError", "ArgumentError")) for x in answers)


def test_g8_order_and_side_of_the_product(pool):
    """Maps of random keys do not commute; four ranks, both orientations, a state of size one."""
    for v_first in (False, True):
        case = Case((33, 64, 20, 40), hv=1, state="float32", options={"state_v_first": v_first})
        judge(case, pool.run(torch_work.run, case))


CONVOLUTIONS = {
    "one_of_eight": Conv((2, 2, 2, 2)),
    "one_and_seven": Conv((2, 2, 2, 2), (0, 1, 8)),
    "one_token_each": Conv((1, 1, 1, 1), width=4, activation=None, residual=False),
    "empty": Conv((3, 0, 1, 4), (0, 0, 2, 2, 8), width=3, bias=False),
    "two_ranks": Conv((5, 3), width=2, activation="swish"),
    "rows": Conv((2, 2, 2, 2), batch=2),
    "one_row": Conv((2, 3, 1, 2), (0, 4, 8), batch=1),
    "bf16": Conv((20, 13, 1, 40), (0, 30, 74), channels=64, dtype="bfloat16"),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_g10_convolution(pool, name):
    case = CONVOLUTIONS[name]
    results = [r for r in pool.run(torch_layers.conv, case) if r is not None]
    want, axis = torch_layers.conv_truth(case), 1 if case.batch else 0
    limit = 6e-3 if case.dtype == "bfloat16" else 1e-5
    for n, exact in want.items():
        parts = [r[n] for r in results]
        got = torch.cat(parts, axis) if n in ("y", "dx", "dresidual") else sum(x.double() for x in parts)
        assert error(got, exact) < limit, n
    for r in pool.run(torch_layers.conv, case, False):
        assert r is None or r.keys() == {"y"}


def test_g10_packed_rows_are_refused():
    from fla_npu import errors
    from fla_npu.torch.parallel import ContextParallel, causal_conv1d

    context = ContextParallel(cu_seqlens=(0, 3, 8))
    x, weight = torch.randn(2, 8, 3), torch.randn(3, 4)
    with pytest.raises(errors.ArgumentError, match="packed sequences need B = 1"):
        causal_conv1d(x, weight, context=context)
    for bad, match in (({"activation": "relu"}, "activation = 'relu'"), ({"bias": x}, "bias has shape")):
        with pytest.raises(errors.ArgumentError, match=match):
            causal_conv1d(x[0], weight, **bad, context=context)
    with pytest.raises(errors.ArgumentError, match="weight has shape"):
        causal_conv1d(x[0], torch.randn(3, 5), context=context)


@pytest.mark.parametrize("kind", ["reentrant", "frames"])
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.full)])
def test_g11_checkpoints(pool, ranks, kind):
    """Two layers in a row, replayed in the backward; and of two batches only one."""
    for options, transport in (({}, "gather"), ({"disable_recompute": False}, "relay")):
        lengths = (20, 0, 30, 15)[-ranks:]
        case = Case(lengths, transport=transport, options=options)
        want = pool.run(torch_layers.layers, case, "none")
        for batches in (1, 2):
            got = pool.run(torch_layers.layers, case, kind, 2, batches)
            for a, b in in_step(got, want):
                assert (a is None) == (b is None)
                assert a is None or all(torch.equal(a[n], b[n]) for n in b)


@pytest.mark.parametrize("sequences", ["one", "each", "crossing"])
def test_g12_states_of_the_user(pool, sequences):
    """A seed is used once, on the rank of its beginning; final states are where sequences end."""
    cu = {"one": None, "each": (0, 20, 45, 75), "crossing": (0, 10, 30, 60, 75)}[sequences]
    case = Case((20, 25, 30), cu, state="float32")
    results = pool.run(torch_work.run, case)[:3]
    judge(case, results)
    rows = {"one": ([1, 0, 0], [0, 0, 1]), "each": ([1] * 3, [1] * 3), "crossing": ([2, 1, 1], [1, 1, 2])}
    starts, ends = rows[sequences]
    assert [len(r["dinitial_state"]) for r in results] == starts
    assert [len(r["final_state"]) for r in results] == ends


def test_g12_a_state_where_no_sequence_begins_is_refused(pool):
    answers = pool.run(torch_faults.refused, Case((30, 20, 25, 10)), 2, "state")
    assert answers[2][0] == "ArgumentError" and "no sequence begins on rank 2" in answers[2][1]


def test_g13_one_process_is_the_plain_call(monkeypatch):
    """Bit for bit, without a group and without a message."""
    from fla_npu.torch.parallel import ContextParallel, group, npu_chunk_kda

    def message(*_, **__):
        raise AssertionError("a message in a group of one")

    for name in ("send", "receive", "gather", "scatter", "_start"):
        monkeypatch.setattr(group.Group, name, message)
    for case in (
        Case((70,), (0, 20, 20, 70), state="float32"),
        Case((70,), batch=2, layout="BSND", options={"safe_gate": False}),
        Case((70,), options={"use_exp2": False, "disable_recompute": False}),
    ):
        context = ContextParallel(cu_seqlens=case.cu, lengths=case.lengths)
        got = torch_work.differentiate(
            case, torch_work.inputs(case), torch_work.cotangents(case), npu_chunk_kda, context=context
        )
        want = plain(case)
        assert got.keys() == want.keys() and all(torch.equal(got[n], want[n]) for n in want)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_g14_partial_gradients_of_shared_parameters(pool, dtype):
    case = Case((40, 25), hv=4, hk=2)
    ranks = pool.run(torch_layers.shared, case, dtype)[:2]
    for n in ("a_log", "dt_bias"):
        total = ranks[0][f"partial {n}"].float() + ranks[1][f"partial {n}"].float()
        assert torch.equal(ranks[0][f"d{n}"], total.to(getattr(torch, dtype)))
        assert torch.equal(ranks[0][f"d{n}"], ranks[1][f"d{n}"])
        want = truth(dataclasses.replace(case, options={"output_final_state": False}))[f"d{n}"]
        assert error(ranks[0][f"d{n}"], want) < (1.5e-2 if dtype == "bfloat16" else 1e-2), n


@pytest.mark.parametrize("transport", ["gather", "relay", "grouped", "doubling"])
def test_g16_memory_and_bytes_of_the_exchange(pool, transport):
    """What is received is what the formula says; nothing of it outlives the forward but the incoming state."""
    from fla_npu.parallel import make_plan
    from fla_npu.parallel.scaling import cost

    for ranks in (2, 4):
        size = 2 if transport == "grouped" else None
        case = Case((70,) * ranks, transport=transport, group_size=size)
        seen = [r for r in pool.run(torch_layers.traffic, case) if r]
        want = cost(make_plan(case.lengths, transport=transport, group_size=size), case.hv)
        assert sum(r["forward"] for r in seen) == want.total
        assert max(r["forward"] for r in seen) == want.busiest
        assert sum(r["both"] for r in seen) == 2 * want.total
        assert all(r["kept"] == 0 for r in seen)


# beyond the list: groups inside of groups, heads and sequence


def test_one_token_and_one_head_per_message(pool):
    """A tensor of one number counts as contiguous whatever its stride."""
    assert not any(found.any() for found in pool.run(torch_layers.single_numbers))


@pytest.mark.parametrize("layout", ["BSND", "BNSD", "TND"])
@pytest.mark.parametrize("lengths", [(35, 30), (20, 0, 40, 5)], ids=str)
def test_heads_instead_of_tokens(pool, lengths, layout):
    """All-to-all around the plain call; two ranks share one key head, and four."""
    total, ranks = sum(lengths), len(lengths)
    case = Case(lengths, (0, 21, total), hk=1, hv=4, layout=layout, state="float32")
    results = [r for r in pool.run(torch_layers.heads, case) if r is not None]
    states = [torch.cat([r[n] for r in results], 1) for n in ("final_state",)]
    for r in results:  # heads of the state are on different ranks, its gradient is whole
        r.pop("final_state")
        small = {n: r.pop(n) for n in ("da_log", "ddt_bias", "dinitial_state")}
    whole = [{**r} for r in results]
    whole[0] |= {**small, "final_state": states[0]}
    judge(case, whole)
    assert ranks == len(results)


@pytest.mark.parametrize("transport", ["gather", "relay"])
def test_a_mesh_of_heads_and_sequence(pool, transport):
    case = Case(
        (30, 20, 25, 10),
        (0, 10, 70, 85),
        hk=2,
        hv=4,
        transport=transport,
        options={"output_final_state": False},
    )
    results = pool.run(torch_layers.mesh, case)
    for r in results[1:]:  # sums over all ranks
        assert all(torch.equal(r.pop(n), results[0][n]) for n in ("da_log", "ddt_bias"))
    judge(case, results)


@pytest.mark.parametrize("rows", [[[0, 1], [2, 3]], [[2, 3], [0, 1]]], ids=["up", "down"])
def test_nested_groups(pool, rows):
    """{0, 2} and {1, 3} work at the same time, on sequences of their own; ranks count upwards in any case."""
    case = Case((40, 30), (0, 50, 70), state="float32")
    results = pool.run(torch_layers.nested, case, rows)
    judge(case, results[0::2])
    judge(dataclasses.replace(case, seed=1), results[1::2])
