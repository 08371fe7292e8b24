# SPDX-License-Identifier: Apache-2.0
"""The stages that carry states over ranks: PyTorch's bits, and a state that is written where it is."""

from __future__ import annotations

import fla_npu.mindspore as front
import mindspore as ms
import numpy as np
import pytest
import summary_run
from fla_npu.errors import ArgumentError, ArgumentTypeError
from in_step import in_step
from merge_run import make as make_merge
from mindspore import mint
from ms_calls import to_ms, torch_bits


def tensors_of(case) -> list:
    """The tensors of a summary's case in the order of the public functions."""
    kinds = {n: str(x.dtype).removeprefix("torch.") for n, x in case.tensors.items()}
    return [to_ms(case.arrays[n], kinds[n]) for n in summary_run.PORTS[case.op] if n in case.arrays]


@pytest.mark.parametrize("name", ["grouped_windows", "wide_u", "gk_bf16"])
def test_forward_summary_has_the_bits_of_pytorch(name, tools):
    case = summary_run.named(summary_run.FORWARD, name)
    k, w, u, gk = tensors_of(case)
    cu = case.options.get("cu_seqlens", (0, k.shape[2]))
    made = front.npu_chunk_kda_pre_process_fwd(k, w, u, gk=gk, cu_seqlens=cu)
    assert isinstance(made, tuple) and len(made) == 1 and made[0].dtype == ms.float32
    assert np.array_equal(tools.bits(made[0]), torch_bits(case.run()))


@pytest.mark.parametrize("name", ["grouped_window", "gk_bf16", "no_gate"])
def test_backward_summary_has_the_bits_of_pytorch(name, tools):
    case = summary_run.named(summary_run.BACKWARD, name)
    q, k, w, d_o, dv, *gk = tensors_of(case)
    made = front.npu_chunk_kda_pre_process_bwd(
        q, k, w, d_o, dv, case.options["scale"], gk=gk[0] if gk else None,
        cu_seqlens=case.options.get("cu_seqlens"),
    )  # fmt: skip
    assert np.array_equal(tools.bits(made), torch_bits(case.run()))


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("v_first", [False, True])
def test_merge_writes_and_returns_the_state(kind, v_first, tools):
    shape = {"S": 4, "HV": 2, "N": 2, "rank": 1, "forward": False, "dtype": kind, "state_v_first": v_first}
    case = make_merge(shape, 1)
    summaries, want = to_ms(case.array, kind), torch_bits(case.run())
    dtype = getattr(ms, kind)
    for state in (
        mint.zeros((2, 128, 128), dtype=dtype),
        ms.Tensor(np.full((2, 128, 128), np.nan, np.float32)).astype(dtype),
        ms.Parameter(mint.ones((2, 128, 128), dtype=dtype)),
    ):
        made = front.npu_chunk_kda_merge_fwd_bwd(state, summaries, 2, 1, forward=False, state_v_first=v_first)
        after = state * 1.0  # a built-in operator that follows reads what was written
        assert made is state
        assert np.array_equal(tools.bits(state), want) and np.array_equal(tools.bits(after), want)
    assert not front.npu_chunk_kda_merge_fwd_bwd(state, summaries, 0, 1).float().asnumpy().any()


def test_merge_in_a_queue_of_built_in_operators(tools):
    """Summaries come from built-in operators, states go into them: 16 chains, none of them waited for."""
    case = make_merge({"S": 3, "HV": 1, "N": 2, "rank": 2}, 2)
    base = to_ms(case.array, "float32")

    def chain(number: float, wait: bool):
        settle = (lambda x: ms.Tensor(x.asnumpy())) if wait else (lambda x: x)
        state = settle(mint.zeros((1, 128, 128)))
        for _ in range(3):
            summaries = settle(base * number + settle(state).mean())
            front.npu_chunk_kda_merge_fwd_bwd(state, summaries, 2, 2)
            state = settle(state * 0.5)
        return state

    numbers = [i / 64 for i in range(16)]
    queued = [chain(number, wait=False) for number in numbers]
    waited = [chain(number, wait=True) for number in numbers]
    pairs = in_step(queued, waited)
    assert all(np.array_equal(tools.bits(a), tools.bits(b)) for a, b in pairs)


def test_merged_states_are_constants():
    summaries = to_ms(make_merge({"S": 3, "HV": 1, "N": 2, "rank": 2}, 3).array, "float32")

    def loss(x):
        state = front.npu_chunk_kda_merge_fwd_bwd(mint.zeros((1, 128, 128)), x, 2, 2)
        return (state * 3.0).sum() + (x * 2.0).sum()

    assert (ms.grad(loss)(summaries).asnumpy() == 2.0).all()


WRONG = {
    "name of the state": ({"state": mint.zeros((2, 64, 128))}, ArgumentError, "state has shape"),
    "name of the summaries": ({"summaries": 1.0}, ArgumentTypeError, "summaries is a"),
    "dtypes": ({"state": mint.zeros((2, 128, 128), dtype=ms.bfloat16)}, ArgumentTypeError, "must agree"),
    "ranks": ({"pre_or_post_num_ranks": 3}, ArgumentError, "pre_or_post_num_ranks = 3"),
    "part": ({"state": mint.narrow(mint.zeros((4, 128, 128)), 0, 0, 2)}, ArgumentError, "memory of its own"),
    "turned": (
        {"state": mint.transpose(mint.zeros((2, 128, 128)), 1, 2)},
        ArgumentError,
        "memory of its own",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_named(name):
    changes, error, words = WRONG[name]
    good = {"state": mint.zeros((2, 128, 128)), "summaries": mint.zeros((3, 2, 128, 256))}
    with pytest.raises(error, match=words):
        front.npu_chunk_kda_merge_fwd_bwd(**{**good, "pre_or_post_num_ranks": 2, "rank": 2, **changes})


def test_windows_are_required(tools):
    k, w, u, gk = tensors_of(summary_run.named(summary_run.FORWARD, "one_chunk"))
    with pytest.raises(ArgumentError, match="npu_chunk_kda_pre_process_fwd: cu_seqlens is None"):
        front.npu_chunk_kda_pre_process_fwd(k, w, u, gk=gk, cu_seqlens=None)
