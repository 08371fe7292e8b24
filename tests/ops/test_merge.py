# SPDX-License-Identifier: Apache-2.0
"""The maps of several ranks, one after another: values, order, what is read, the same bits everywhere."""

from __future__ import annotations

from functools import cache

import kda_run
import merge_run
import numpy as np
import pytest
import torch
from acl_calls import Acl, Call, Tensor
from goldens import golden_module, relative_l2
from kda_compare import judge
from kda_inputs import WIDTH
from kda_run import same_bits
from merge_run import OP

CASES = golden_module(OP).CASES
KINDS = pytest.mark.parametrize("kind", ["float32", "bfloat16"])
NULL, INVALID = 161001, 161002


@cache
def case_of(name: str) -> merge_run.MergeCase:
    return merge_run.named(name)


@pytest.mark.parametrize("name", CASES)
def test_values_and_checked_bits(name, twin):
    case = case_of(name)
    out = case.run()
    judge("merge.h", kda_run.array(out), case.golden(), case.golden(True), case.kind)
    twin(mode="checked")
    assert same_bits(case.run(), out)


@pytest.mark.parametrize("ranks", range(2, 9))
def test_float32_stays_float32(ranks):
    """Every number of ranks, both ways, to 1e-5."""
    for forward in (True, False):
        shape = {"S": ranks, "HV": 1, "N": ranks - 1, "rank": ranks - 1 if forward else 0}
        case = merge_run.make(shape | {"forward": forward}, ranks)
        assert relative_l2(kda_run.array(case.run()), case.golden()) < 1e-5


@KINDS
@pytest.mark.parametrize("v_first", [False, True], ids=["k_first", "v_first"])
def test_g8_order_and_side(kind, v_first):
    """H <- M_r H + E_r from the left, the farthest rank first; any other order is far off."""
    shape = {"S": 4, "HV": 2, "N": 3, "rank": 3, "dtype": kind, "state_v_first": v_first}
    case = merge_run.make(shape, 1)
    e, m = case.array[..., :WIDTH], case.array[..., WIDTH:]
    want = m[2] @ (m[1] @ e[0] + e[1]) + e[2]
    other = m[0] @ (m[1] @ e[2] + e[1]) + e[0]
    right = (e[0] @ m[1] + e[1]) @ m[2] + e[2]
    got = kda_run.array(case.run())
    got = np.swapaxes(got, -1, -2) if v_first else got
    assert relative_l2(got, want) < (1e-5 if kind == "float32" else 3e-3)
    assert relative_l2(got, other) > 0.5 and relative_l2(got, right) > 0.5
    # Behind rank 0 the same three, the farthest first again.
    back = torch.cat((case.summaries[3:], case.summaries[:3].flip(0)))
    behind = merge_run.MergeCase(back, case.array, 3, 0, {"forward": False, "state_v_first": v_first})
    assert same_bits(behind.run(), case.run())


@KINDS
def test_v_first_turns_the_result_and_nothing_else(kind):
    case = merge_run.make({"S": 4, "HV": 3, "N": 3, "rank": 3, "dtype": kind}, 2)
    turned = case.run(state_v_first=True)
    assert same_bits(turned.mT.contiguous(), case.run())


@KINDS
@pytest.mark.parametrize("forward", [True, False])
def test_only_what_counts_is_read(kind, forward):
    """Other ranks, M of the farthest one, and what h held."""
    shape = {"S": 6, "HV": 2, "N": 2, "rank": 3 if forward else 2, "forward": forward, "dtype": kind}
    case = merge_run.make(shape, 3)
    first, second = (1, 2) if forward else (4, 3)
    bare = torch.full_like(case.summaries, float("nan"))
    bare[second] = case.summaries[second]
    bare[first, ..., :WIDTH] = case.summaries[first, ..., :WIDTH]
    assert same_bits(case.run(summaries=bare), case.run())
    one = merge_run.MergeCase(bare, case.array, 1, first + (1 if forward else -1), case.options)
    assert torch.equal(one.run(), case.summaries[first, ..., :WIDTH])


@KINDS
@pytest.mark.parametrize("heads", [1, 7])
def test_no_rank_makes_zeros(kind, heads, twin):
    case = merge_run.make({"S": 2, "HV": heads, "N": 0, "rank": 1, "dtype": kind}, 4)
    case.summaries.fill_(float("nan"))
    for mode in ("fast", "checked"):
        twin(mode=mode)
        for rank in (0, 1):
            for forward in (True, False):
                case.rank = rank
                assert not case.run(forward=forward).count_nonzero()


def test_heads_do_not_know_each_other():
    case = case_of("many_heads")
    out = case.run()
    for head in (0, 13, 44):
        assert same_bits(case.run(summaries=case.summaries[:, head : head + 1])[0], out[head])


@KINDS
def test_views_of_summaries(kind):
    case = merge_run.make({"S": 3, "HV": 2, "N": 2, "rank": 2, "dtype": kind}, 5)
    wide = torch.full((2, 3, WIDTH, 300), float("nan"), dtype=case.summaries.dtype)
    wide[..., 20:276] = case.summaries.transpose(0, 1)
    view = wide[..., 20:276].transpose(0, 1)
    assert not view.is_contiguous()
    assert same_bits(case.run(summaries=view), case.run())


@pytest.mark.parametrize("name", ["forward", "bf16_v_first"])
def test_threads_cores_and_schedules(name, twin):
    """Few cores make wide lanes, many narrow ones; neither shows."""
    case = case_of(name)
    want = case.run()
    for threads in (1, 3):
        twin(threads=threads)
        assert same_bits(case.run(), want), f"{threads} threads"
    for cores in (1, 3, 24):
        for mode in ("fast", "checked"):
            twin(mode=mode, cores=cores)
            assert same_bits(case.run(), want), f"{cores} cores, {mode}"
    for seed, copies in ((1, "late"), (7, "eager"), (12345, "late")):
        twin(mode="checked", cores=2, seed=seed, copies=copies)
        assert same_bits(case.run(), want), f"seed {seed}, {copies}"


@pytest.mark.full
@pytest.mark.parametrize("name", ["forward", "bf16_v_first", "v_first_backward", "one_summary", "none"])
def test_many_schedules(name, twin):
    case = case_of(name)
    want = case.run()
    for seed in range(30):
        twin(mode="checked", seed=seed, cores=(1, 2, 5, 20)[seed % 4])
        assert same_bits(case.run(), want), f"seed {seed}"


def test_h_is_written_where_it_is():
    from fla_npu.ops.ascendc import merge_fwd_bwd_kernel

    case = case_of("forward_middle")
    whole = torch.zeros(4, WIDTH, WIDTH)
    part, version = whole[1:3], whole._version
    assert merge_fwd_bwd_kernel(part, case.summaries, case.count, case.rank) is part
    assert same_bits(whole[1:3].contiguous(), case.run())
    assert not whole[0].any() and not whole[3].any()
    assert whole._version == version + 1
    with torch.inference_mode():
        assert same_bits(case.run(), whole[1:3].contiguous())


def test_autograd_notices_the_write():
    """A state that a backward still needs cannot be overwritten unseen; one that requires grad not at all."""
    from fla_npu.errors import ArgumentError
    from fla_npu.ops.ascendc import merge_fwd_bwd_kernel

    case = case_of("forward_middle")
    x, h = torch.ones(2, WIDTH, WIDTH, requires_grad=True), torch.ones(2, WIDTH, WIDTH)
    product = x * h
    merge_fwd_bwd_kernel(h, case.summaries, case.count, case.rank)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    with pytest.raises(RuntimeError, match=r"h requires grad.*h.detach\(\)"):
        merge_fwd_bwd_kernel(x, case.summaries, case.count, case.rank)
    made = case.run(summaries=case.summaries.clone().requires_grad_())
    assert not made.requires_grad and same_bits(made, case.run())
    with pytest.raises(ArgumentError, match=r"strides \(16384, 1, 128\).*contiguous"):
        merge_fwd_bwd_kernel(h.mT, case.summaries, case.count, case.rank)


def plain(S: int = 3, HV: int = 1, kind: str = "float32", **changes) -> Call:
    """A right call at the C interface with `changes` put over it (None removes an argument)."""
    arguments = {
        "h": Tensor.zeros((HV, WIDTH, WIDTH), kind),
        "ag_hm": Tensor.zeros((S, HV, WIDTH, 2 * WIDTH), kind),
        "pre_or_post_num_ranks": 1,
        "rank": 1,
        "forward": True,
        "state_v_first": False,
    }
    return Call(OP, arguments | changes)


TURNED = Tensor(np.zeros((1, WIDTH, WIDTH), np.float32), "float32", (WIDTH * WIDTH, 1, WIDTH))
BAD = {
    "no_h": ({"h": None}, NULL, "h is missing (null)"),
    "no_summaries": ({"ag_hm": None}, NULL, "ag_hm is missing (null)"),
    "half": ({"h": Tensor.zeros((1, WIDTH, WIDTH), "float16")}, INVALID, "h is float16"),
    "mixed": ({"h": Tensor.zeros((1, WIDTH, WIDTH), "bfloat16")}, INVALID, "h and ag_hm differ in dtype"),
    "rank_of_h": ({"h": Tensor.zeros((1, 1, WIDTH, WIDTH), "float32")}, INVALID, "h has rank 4"),
    "heads": ({"h": Tensor.zeros((2, WIDTH, WIDTH), "float32")}, INVALID, "(HV) is 1, but h has HV = 2"),
    "width": ({"ag_hm": Tensor.zeros((3, 1, WIDTH, WIDTH), "float32")}, INVALID, "(KV) is 128; it must be 256"),
    "view": ({"h": TURNED}, INVALID, "h is not contiguous; it is written in place"),
    "ranks": ({"S": 1025}, INVALID, "ag_hm has S = 1025 ranks; at most 1024"),
    "many_heads": ({"HV": 257}, INVALID, "h has HV = 257 heads; at most 256"),
    "below_0": ({"rank": -1}, INVALID, "rank = -1, but ag_hm has S = 3 ranks; it must be one of 0 to 2"),
    "beyond": ({"rank": 3}, INVALID, "rank = 3, but ag_hm has S = 3 ranks"),
    "negative": ({"pre_or_post_num_ranks": -1}, INVALID, "pre_or_post_num_ranks = -1"),
    "too_many": ({"pre_or_post_num_ranks": 4}, INVALID, "pre_or_post_num_ranks = 4, but ag_hm has S = 3"),
    "before": ({"pre_or_post_num_ranks": 2}, INVALID, "= 2 ranks before rank = 1: there are 1"),
    "behind": (
        {"pre_or_post_num_ranks": 2, "forward": False}, INVALID, "= 2 ranks behind rank = 1 of S = 3: there are 1",
    ),
    "all": ({"pre_or_post_num_ranks": 3, "rank": 2}, INVALID, "= 3 ranks before rank = 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_refusals(name):
    changes, status, text = BAD[name]
    acl = Acl()
    assert acl.run(plain(**changes)) == status
    said = acl.error()
    assert text in said and said.startswith(OP)


def test_a_state_inside_the_summaries_is_refused():
    """It would be written while it is read."""
    summaries = np.zeros((3, 1, WIDTH, 2 * WIDTH), np.float32)
    inside = summaries.reshape(-1)[: WIDTH * WIDTH].reshape(1, WIDTH, WIDTH)
    acl = Acl()
    assert acl.run(plain(h=Tensor(inside, "float32"), ag_hm=Tensor(summaries, "float32"))) == INVALID
    assert "h, which is written, shares memory with input ag_hm" in acl.error()


@pytest.mark.parametrize("changes", [{}, {"S": 1, "rank": 0}, {"S": 1, "rank": 0, "forward": False}])
def test_the_plain_call_is_right(changes):
    acl = Acl()
    assert acl.run(plain(**changes)) == 0, acl.error()
