# SPDX-License-Identifier: Apache-2.0
"""Ranks that disagree, end or stay away: an error that names rank and cause, in time, on every rank."""

from __future__ import annotations

import pytest
import torch_faults
from in_step import in_step
from torch_pool import Pool
from torch_work import Case

TIMEOUT = 4.0
CASE = Case((30, 20, 25))


@pytest.fixture(scope="module")
def pool():
    pool = Pool(3, TIMEOUT)
    yield pool
    pool.close()


PACKINGS = {
    "lengths": ([{"lengths": (1, 2, 3)}, {"lengths": (1, 2, 4)}, {"lengths": (1, 2, 3)}], "lengths = "),
    "cu": ([{"cu_seqlens": (0, 6)}, {"cu_seqlens": (0, 2, 6)}, {"cu_seqlens": (0, 6)}], "cu_seqlens = "),
    "transport": (
        [{"lengths": 5}, {"lengths": 5, "transport": "relay"}, {"lengths": 5}],
        "transport = ",
    ),
    "kind": ([{"lengths": 5}, {"lengths": (5, 5, 5)}, {"lengths": 5}], "one number per rank"),
}


@pytest.mark.parametrize("name", PACKINGS)
def test_packings_that_differ(pool, name):
    arguments, expected = PACKINGS[name]
    for kind, text, _ in pool.run(torch_faults.packing, arguments):
        assert kind == "ParallelError" and expected in text and "rank 1" in text, text


def test_a_packing_refused_on_one_rank(pool):
    arguments = [{"lengths": 3}, {"cu_seqlens": (0, 5, 3)}, {"lengths": 3}]
    answers = pool.run(torch_faults.packing, arguments)
    assert answers[1][0] == "ArgumentError" and "must not decrease" in answers[1][1]
    for kind, text, _ in answers[::2]:
        assert kind == "ParallelError" and "rank 1: " in text and "must not decrease" in text


def test_a_packing_that_does_not_add_up(pool):
    arguments = [{"lengths": 3, "cu_seqlens": (0, 10)}] * 3
    for kind, text, _ in pool.run(torch_faults.packing, arguments):
        assert kind == "ArgumentError" and "add up to 9 tokens, but cu_seqlens[-1] = 10" in text


CALLS = {
    "scale": "scale = ",
    "call": "rank 1 calls parallel.causal_conv1d",
    "no_grad": "rank 1 runs without recording",
    "dt_bias": "dt_bias = given on rank 0, None on rank 1",
}


@pytest.mark.parametrize("how", CALLS)
def test_calls_that_differ(pool, how):
    answers = pool.run(torch_faults.differing, CASE, how)
    assert all(kind == "ParallelError" for kind, _, _ in answers)
    assert CALLS[how] in answers[0][1]


def test_convolutions_that_differ(pool):
    for answers in pool.run(torch_faults.convolutions_that_differ):
        for (kind, text, _), name in in_step(answers, ("activation", "bias", "residual")):
            assert kind == "ParallelError" and f"ranks disagree: {name} = " in text, text


@pytest.mark.parametrize("how", ["scan", "left out", "conv", "order", "heads"])
def test_backwards_that_differ(pool, how):
    """Of the same shapes, so that without a word between the ranks they would take each other's messages."""
    answers = pool.run(torch_faults.backwards_that_differ, CASE, how)
    assert all(kind == "ParallelError" for kind, _, _ in answers), answers
    if how == "left out":
        assert (
            "the backward of parallel.npu_chunk_kda while rank 1 calls parallel.npu_chunk_kda"
            in answers[0][1]
        )
    else:
        assert "ranks disagree: forward = call " in answers[0][1]


def test_heads_that_cannot_be_shared(pool):
    expected = [
        "positional argument 1 has 4 heads",
        "positional argument 0 has 2 heads",
        "positional argument 1 has 5 tokens",
        "positional argument 1 is a int",
        "no positional tensor",
        "with all 12 tokens",
        "must be a multiple of the 3 ranks",
    ]
    for answers in pool.run(torch_faults.heads_refused):
        for (kind, text, _), words in in_step(answers, expected):
            assert kind in ("ArgumentError", "ArgumentTypeError") and words in text, text


def test_a_mesh_of_two_dimensions_is_refused(pool):
    for kind, text, _ in pool.run(torch_faults.mesh_of_two_dimensions):
        assert kind == "ArgumentError" and "pass one of them, such as mesh['sequence']" in text


def test_a_function_that_fails_between_exchanges(pool):
    answers = pool.run(torch_faults.failing_function)
    assert answers[1][0] == "KeyError"
    for kind, text, _ in answers[::2]:
        assert kind == "ParallelError" and "rank 1: KeyError: 'no such layer'" in text


@pytest.mark.parametrize(
    ("transport", "when"),
    [
        ("gather", "forward"),
        pytest.param("gather", "backward", marks=pytest.mark.full),
        pytest.param("relay", "forward", marks=pytest.mark.full),
        pytest.param("relay", "backward", marks=pytest.mark.full),
    ],
)
def test_a_rank_that_ends(pool, transport, when):
    victim = 1
    case = Case(CASE.lengths, transport=transport)
    answers = pool.run(torch_faults.dying, case, victim, when, ending=(victim,))
    for rank in (0, 2):
        kind, text, seconds = answers[rank]
        assert kind == "ParallelError" and f"rank {rank} of 3" in text and "rank 1" in text, text
        assert seconds < TIMEOUT + grace()


def grace() -> float:
    from fla_npu.torch.parallel import group

    return group.GRACE + 2.0


@pytest.mark.full
@pytest.mark.parametrize("op", ["chunk_kda_fwd_prepare", "pre_process_bwd_kernel_merged"])
def test_a_kernel_that_fails_on_one_rank(pool, op):
    """It raises its own error there; the others give it as the cause when their patience ends."""
    answers = pool.run(torch_faults.failing_alone, CASE, 2, op)
    assert answers[2][0] == "LaunchError"
    for kind, text, seconds in answers[:2]:
        assert kind == "ParallelError", text
        assert "rank 2 failed by itself with LaunchError: out of memory" in text
        assert seconds < TIMEOUT + grace()
    pool.close()  # its ranks are out of step


@pytest.mark.full
def test_a_rank_that_stays_away(pool):
    """It never runs its backward: the others wait as long as the group does, and name it."""
    answers = pool.run(torch_faults.silent, CASE, 1, TIMEOUT + 3.0)
    for rank in (0, 2):
        kind, text, seconds = answers[rank]
        assert kind == "ParallelError" and "No sign of rank 1" in text, text
        assert seconds < TIMEOUT + grace()
    pool.close()  # its ranks are out of step
