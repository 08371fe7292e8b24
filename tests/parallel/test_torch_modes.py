# SPDX-License-Identifier: Apache-2.0
"""A context-parallel call inside autograd, torch.compile and the checked twin."""

from __future__ import annotations

import pytest
import torch
import torch_modes
import torch_work
from in_step import in_step
from torch_pool import Pool
from torch_work import Case, judge

CASE = Case((40, 25, 0, 10), (0, 30, 75), state="float32")


@pytest.fixture
def pool(four):
    return four


def test_inference_has_the_bits_of_training(pool):
    assert pool.run(torch_modes.inference, CASE) == [True] * 4


def test_double_backward_is_refused(pool):
    for kind, text, _ in pool.run(torch_modes.twice, CASE):
        assert kind == "GradientUnavailable" and "cannot be differentiated again" in text


def test_the_same_bits_every_time(pool):
    assert pool.run(torch_modes.repeated, CASE, 4) == [True] * 4


def test_inputs_and_cotangents_are_not_written(pool):
    assert pool.run(torch_modes.inputs_unchanged, CASE) == [True] * 4


RECURRENCE = {"forward": "chunk_fwd_h", "backward": "chunk_gated_delta_rule_bwd_dhu"}


@pytest.mark.parametrize("transport", ["gather", "relay"])
def test_messages_leave_before_the_work_that_does_not_need_them(pool, transport):
    """And are waited for after it, on every rank that can."""
    case = Case((20, 30, 25, 10), transport=transport, options={"output_final_state": False})
    logs = pool.run(torch_modes.events, case)
    for rank in range(4):
        for way, log in in_step(("forward", "backward"), logs[rank]):
            source, sink = (0, 3) if way == "forward" else (3, 0)
            work = log.index(RECURRENCE[way])
            before, after = log[:work], log[work:]
            if transport == "gather":
                assert before.count("gather") == 1 and "gather" not in after
                assert ("gather waited for" in after) == (rank == source)
            else:
                assert before.count("send") == (rank != sink) and before.count("receive") == (rank != source)
                assert "send waited for" not in before and after.count("send waited for") == (rank != sink)


@pytest.mark.full
def test_torch_compile_runs_it_between_graphs(pool):
    case = Case((40, 25, 0, 10), hk=1, hv=1, options={"output_final_state": False})
    assert pool.run(torch_modes.compiled, case) == [True] * 4


@pytest.mark.full
@pytest.mark.parametrize("recompute", [False, True], ids=["save", "recompute"])
def test_the_checked_twin_agrees(twin, recompute):
    """Every rank's kernels under the checked twin: no fault, the same bits."""
    case = Case((40, 70), (0, 30, 110), state="float32", options={"disable_recompute": not recompute})
    pool = Pool(2, 300.0)
    try:
        want = pool.run(torch_work.run, case)
        pool.close()
        twin(mode="checked")
        got = pool.run(torch_work.run, case)
    finally:
        pool.close()
    for a, b in in_step(got, want):
        assert a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in b)
    judge(case, got)
