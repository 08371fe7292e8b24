# SPDX-License-Identifier: Apache-2.0
"""MindSpore's context parallel in one process: the plain call, refusals, and what the graph compiler may not have."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")
pytest.importorskip("torch")

import mindspore_work  # noqa: E402
from fla_npu import errors  # noqa: E402
from fla_npu.mindspore import npu_chunk_kda as plain_call  # noqa: E402
from fla_npu.mindspore import parallel  # noqa: E402
from fla_npu.mindspore.guard import GraphModeUnsupported  # noqa: E402
from fla_npu.mindspore.parallel import (  # noqa: E402
    ContextParallel,
    causal_conv1d,
    from_zigzag,
    head_slice,
    reduce_gradients,
    to_zigzag,
    ulysses,
)
from fla_npu.mindspore.parallel import group as group_module  # noqa: E402
from mindspore_jobs import conv_jobs, jobs, taken  # noqa: E402
from torch_layers import Conv, conv_truth  # noqa: E402
from torch_work import Case, error  # noqa: E402


@pytest.fixture
def silence(monkeypatch):
    """No message may be sent."""

    def message(*_, **__):
        raise AssertionError("a message in a group of one")

    for name in ("send", "receive", "receipt", "gather", "scatter"):
        monkeypatch.setattr(group_module.Group, name, message)


@pytest.mark.parametrize("name", ["packed", "rows", "recompute"])
def test_one_process_is_the_plain_call(silence, name):
    """Bit for bit, without a job and without a message."""
    case = {
        "packed": Case((70,), (0, 20, 20, 70), state="float32"),
        "rows": Case((70,), batch=2, layout="BSND", options={"safe_gate": False}),
        "recompute": Case((70,), options={"use_exp2": False, "disable_recompute": False}),
    }[name]
    job = jobs(case, 1)[0]
    tensors, context = mindspore_work.tensors_of(job), mindspore_work.context_of(job)
    got, want = (
        mindspore_work.differentiate(tensors, job.seeds, job.wanted, call)
        for call in (
            lambda **t: parallel.npu_chunk_kda(**t, **job.options, context=context),
            lambda **t: plain_call(**t, **job.options, cu_seqlens=case.cu),
        )
    )
    assert got.keys() == want.keys()
    for n, x in want.items():
        assert got[n] is x is None or np.array_equal(got[n][0], x[0]), n


@pytest.mark.parametrize(
    "case", [Conv((9,), (0, 1, 4, 9)), Conv((7,), width=2, batch=2, bias=False)], ids=str
)
def test_the_convolution_of_one_process(silence, case):
    job = conv_jobs(case, 1)[0]
    context = mindspore_work.context_of(job)
    found = mindspore_work.differentiate(
        mindspore_work.tensors_of(job), job.seeds, None,
        lambda **t: (causal_conv1d(**t, **job.options, context=context), None),
    )  # fmt: skip
    for n, exact in conv_truth(case).items():
        assert error(taken(found["o" if n == "y" else n]), exact) < 1e-5, n


def test_heads_and_sums_of_one_process(silence):
    x = ms.Tensor(np.arange(6, dtype=np.float32))
    assert ulysses(lambda a, b=None: (a, b), None)(x, b=3) == (x, 3)
    assert np.array_equal(head_slice(x, None).asnumpy(), x.asnumpy())
    assert from_zigzag(x, axis=0) is x
    assert reduce_gradients(x) is x and reduce_gradients([x, x]) == (x, x)


def test_what_is_refused():
    context, x = ContextParallel(cu_seqlens=(0, 3, 8)), ms.mint.zeros((8, 3))
    weight = ms.mint.zeros((3, 4))
    for call, match in (
        (
            lambda: causal_conv1d(ms.mint.zeros((2, 8, 3)), weight, context=context),
            "packed sequences need B = 1",
        ),
        (lambda: causal_conv1d(x, weight, activation="relu", context=context), "activation = 'relu'"),
        (lambda: causal_conv1d(x, weight, weight, context=context), "bias has shape"),
        (lambda: causal_conv1d(x, ms.mint.zeros((3, 5)), context=context), "weight has shape"),
        (lambda: causal_conv1d(x[:5], weight, context=context), "x has 5 tokens, but rank 0 has 8"),
        (lambda: causal_conv1d(x.astype(ms.int32), weight, context=context), "x is int32"),
        (lambda: causal_conv1d(x, weight, context=None), "context is a NoneType"),
        (lambda: ContextParallel("nccl", lengths=3), "is in no job"),
        (lambda: ContextParallel([0, 1], lengths=3), "is in no job"),
        (lambda: ContextParallel(), "neither lengths nor cu_seqlens"),
        (lambda: ulysses(3, None), "fn is a int"),
        (lambda: ulysses(abs, None, layout="TDN"), "layout = 'TDN'"),
        (lambda: from_zigzag(x, axis=5), "axis = 5"),
        (lambda: to_zigzag(x[:3], axis=0), "2 equal blocks"),
        (lambda: to_zigzag(x, axis=0, cu_seqlens=(0, 4)), "ends elsewhere"),
        (lambda: to_zigzag(3, axis=0), "x is a int"),
        (lambda: head_slice(3, None), "parameter is a int"),
        (lambda: reduce_gradients([x, None]), "NoneType among the gradients"),
    ):
        with pytest.raises((errors.ArgumentError, errors.ArgumentTypeError), match=match):
            call()


def kda(y):
    return parallel.npu_chunk_kda(y, y, y, y, y, 1.0, context=CONTEXT)[0]


def conv(y):
    return causal_conv1d(y, y, context=CONTEXT)


def around(y):
    return AROUND(y)


def sliced(y):
    return head_slice(y, None)


def summed(y):
    return reduce_gradients(y, None)


def ordered(y):
    return from_zigzag(y, axis=0)


CONTEXT = ContextParallel(lengths=2)
AROUND = ulysses(abs, None)


@pytest.mark.parametrize("function", [kda, conv, around, sliced, summed, ordered])
def test_graphs_are_refused(function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a refused compilation leaves a file behind
    with pytest.raises(GraphModeUnsupported, match="cannot be compiled into a graph"):
        ms.jit(function)(ms.mint.zeros((2, 3)))


def test_the_names_are_those_of_pytorch():
    """Same functions, same parameters, same defaults; only gradients are handed in where there is no `.grad`."""
    import fla_npu.torch.parallel as other

    assert parallel.__all__ == other.__all__
    for name in set(parallel.__all__) - {"ParallelError", "reduce_gradients"}:
        mine, theirs = (inspect.signature(getattr(m, name)).parameters for m in (parallel, other))
        shapes = [[(p.name, p.kind, p.default) for p in x.values()] for x in (mine, theirs)]
        assert shapes[0] == shapes[1], name
        assert getattr(parallel, name).__doc__
    mine, theirs = (inspect.signature(m.reduce_gradients).parameters for m in (parallel, other))
    assert [p.default for p in mine.values()] == [p.default for p in theirs.values()]
