# SPDX-License-Identifier: Apache-2.0
"""No path on which MindSpore would return a gradient of zero without a word.

The forward is replaced by one that makes a constant, as an extension operator does: what is tested is
who gets through to it.
"""

from __future__ import annotations

import subprocess
import sys

import fla_npu.mindspore as front
import mindspore as ms
import numpy as np
import pytest
from fla_npu import chunk_kda
from fla_npu.errors import FlaNpuError
from fla_npu.mindspore.guard import GradientUnavailable, GraphModeUnsupported


@pytest.fixture(autouse=True)
def constant_forward(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # a refused compilation leaves rank_0/om/analyze_fail.ir behind

    def forward(adapter, q, *others, output_final_state, **options):
        values = ms.Tensor(2 * q.asnumpy())
        return values, values if output_final_state else None

    def save_forward(adapter, tensors, options):
        return *forward(adapter, **tensors, **options), ()

    monkeypatch.setattr(chunk_kda, "forward", forward)
    monkeypatch.setattr(chunk_kda, "save_forward", save_forward)


@pytest.fixture
def x():
    return ms.Tensor(np.ones((2, 3), np.float32))


def call(y):
    return front.npu_chunk_kda(y, y, y, y, y, 1.0)[0]


def call_with_everything(y):
    out = front.npu_chunk_kda(y, y, y, y, y, 1.0, 64, layout="BSND", a_log=y, dt_bias=None,
                              cu_seqlens=[0, 2, 3], output_final_state=True)  # fmt: skip
    return out[1].sum()


def loss(y):
    return call(y).sum() + (y * y).sum()


def prepare(y):
    return front.npu_chunk_kda_fwd_prepare(y, y, y, y, y, 1.0)[0]


def fwd_h(y):
    return front.npu_chunk_kda_fwd_h(y, y, y, gk=y)[0]


def finalize(y):
    return front.npu_chunk_kda_fwd_finalize(y, y, y, y)


def bwd_prepare(y):
    return front.npu_chunk_kda_bwd_prepare(y, y, y, y, scale=1.0)[0]


def bwd_dhu(y):
    return front.npu_chunk_kda_bwd_dhu(y, y, y, y, y, 1.0, gk=y)[0]


def bwd_finalize(y):
    return front.npu_chunk_kda_bwd_finalize(y, y, y, y, y, y, y, y, y, y, y, y, y, y, y, scale=1.0)[0]


def pre_process_fwd(y):
    return front.npu_chunk_kda_pre_process_fwd(y, y, y, gk=y, cu_seqlens=(0, 1))[0]


def pre_process_bwd(y):
    return front.npu_chunk_kda_pre_process_bwd(y, y, y, y, y, 1.0, gk=y)


def merge_fwd_bwd(y):
    return front.npu_chunk_kda_merge_fwd_bwd(y, y, 1, 1)


STAGES = [prepare, fwd_h, finalize, bwd_prepare, bwd_dhu, bwd_finalize]
STAGES += [pre_process_fwd, pre_process_bwd, merge_fwd_bwd]


class Net(ms.nn.Cell):
    def construct(self, y):
        return front.npu_chunk_kda(y, y, y, y, y, 1.0)[0]


@pytest.mark.parametrize("function", [call, call_with_everything, *STAGES])
def test_jit_is_refused(function, x):
    with pytest.raises(GraphModeUnsupported, match="npu_chunk_kda.* cannot be compiled into a graph"):
        ms.jit(function)(x)


def test_gradient_of_a_graph_is_refused(x):
    with pytest.raises(GraphModeUnsupported):
        ms.grad(ms.jit(loss))(x)


def test_graph_mode_is_refused(x):
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with pytest.raises(GraphModeUnsupported):
            Net()(x)
    finally:
        ms.set_context(mode=before)


def test_bytecode_capture_breaks_the_graph_and_works(x):
    assert np.array_equal(ms.jit(call, capture_mode="bytecode")(x).asnumpy(), 2 * x.asnumpy())


def test_tracing_capture_is_refused(tmp_path):
    """In a process of its own: MindSpore's tracing does not recover from any exception."""
    code = (
        "import mindspore as ms, numpy as np, fla_npu.mindspore as f\n"
        "call = lambda y: f.npu_chunk_kda(y, y, y, y, y, 1.0)[0]\n"
        "def traced(y): return call(y)\n"
        "try: ms.jit(traced, capture_mode='trace')(ms.Tensor(np.ones(3, np.float32)))\n"
        "except Exception as error: print(type(error).__name__, flush=True)\n"
        "import os; os._exit(0)\n"
    )
    script = tmp_path / "traced.py"  # MindSpore reads the source of what it compiles
    script.write_text(code)
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["GraphModeUnsupported"], done.stderr


def test_no_gradient_wanted_none_refused(x):
    """Without a gradient through it, the call is left alone, also inside a differentiated function."""

    def stopped(y):
        return ms.ops.stop_gradient(call(y)).sum() + (y * y).sum()

    def not_recorded(y):
        with ms._no_grad():
            held = call(y)
        return held.sum() + (y * y).sum()

    for function in (stopped, not_recorded):
        assert np.array_equal(ms.grad(function)(x).asnumpy(), 2 * x.asnumpy())


def test_refusals_are_errors_of_this_package():
    for kind in (GraphModeUnsupported, GradientUnavailable):
        assert issubclass(kind, FlaNpuError) and issubclass(kind, RuntimeError)
