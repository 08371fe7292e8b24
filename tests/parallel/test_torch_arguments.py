# SPDX-License-Identifier: Apache-2.0
"""What a process refuses by itself, and what it says."""

from __future__ import annotations

import pytest
import torch
from fla_npu import errors
from fla_npu.torch.parallel import (
    ContextParallel,
    causal_conv1d,
    from_zigzag,
    npu_chunk_kda,
    reduce_gradients,
    to_zigzag,
    ulysses,
)
from torch_work import Case, inputs

CONTEXTS = {
    "nothing": ({}, "neither lengths nor cu_seqlens is given"),
    "group": ({"group": "world", "lengths": 3}, "group is a str"),
    "count": ({"lengths": (1, 2)}, "has 2 entries, the group has 1 ranks"),
    "negative": ({"lengths": -1}, "lengths = -1"),
    "none": ({"lengths": 0}, "no rank has a token"),
    "transport": ({"lengths": 3, "transport": "ring"}, "transport = 'ring'"),
    "sum": ({"lengths": 3, "cu_seqlens": (0, 4)}, "add up to 3 tokens, but cu_seqlens[-1] = 4"),
    "offsets": ({"cu_seqlens": (0, 4, 3)}, "must not decrease"),
    "floats": ({"cu_seqlens": torch.tensor([0.0, 4.0])}, "has dtype float32"),
    "group_size": ({"lengths": 3, "group_size": 1}, "only 'grouped' has groups"),
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_contexts(name):
    arguments, words = CONTEXTS[name]
    with pytest.raises((errors.ArgumentError, errors.ArgumentTypeError)) as caught:
        ContextParallel(**arguments)
    assert words in str(caught.value)


def test_a_context_says_what_it_is():
    context = ContextParallel(cu_seqlens=torch.tensor([0, 4, 9]))
    assert repr(context) == "ContextParallel(rank 0 of 1, tokens [0, 9) of 9, 2 sequences, gather)"
    assert context.shard.starts == context.shard.finishes == (0, 1)


@pytest.mark.parametrize("context", [None, (0, 70)], ids=str)
def test_something_else_than_a_context(context):
    case = Case((70,))
    with pytest.raises(errors.ArgumentTypeError, match="pass a fla_npu.torch.parallel.ContextParallel"):
        npu_chunk_kda(**inputs(case), **case.all_options(), context=context)
    with pytest.raises(errors.ArgumentTypeError, match="pass a fla_npu.torch.parallel.ContextParallel"):
        causal_conv1d(torch.zeros(3, 2), torch.zeros(2, 4), context=context)


def test_misspelled_keywords():
    case = Case((70,))
    context = ContextParallel(lengths=70)
    for wrong in ({"cu_seqlens": (0, 70)}, {"A_log": None}, {"transport": "relay"}):
        with pytest.raises(TypeError, match="unexpected keyword"):
            npu_chunk_kda(**inputs(case), **case.all_options(), **wrong, context=context)


def test_functions_around():
    with pytest.raises(errors.ArgumentError, match="layout = 'SBND'"):
        ulysses(len, None, layout="SBND")
    with pytest.raises(errors.ArgumentTypeError, match="fn is a int"):
        ulysses(3, None)
    with pytest.raises(errors.ArgumentTypeError, match="int among the parameters"):
        reduce_gradients([3])
    for call in (from_zigzag, to_zigzag):
        with pytest.raises(errors.ArgumentError, match="2 equal blocks"):
            call(torch.zeros(3, 2), axis=0)
        with pytest.raises(errors.ArgumentError, match="axis = 5"):
            call(torch.zeros(4, 2), axis=5)
    x = torch.randn(4, 2)
    assert from_zigzag(x, axis=0) is x


def test_one_process_needs_no_messages():
    """Every function works without torch.distributed, on all of its tokens."""
    assert not torch.distributed.is_initialized()
    x = torch.randn(1, 5, 4, 2, requires_grad=True)
    assert torch.equal(ulysses(lambda y: 2 * y, None)(x), 2 * x)
    x.grad = torch.ones_like(x)
    reduce_gradients([x])
    assert torch.equal(x.grad, torch.ones_like(x))
