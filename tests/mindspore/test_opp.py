# SPDX-License-Identifier: Apache-2.0
"""An OPP with one operator: the others are missing when they are called, and nothing was launched."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import time

import fla_npu.mindspore as front
import mindspore as ms
import numpy as np
import pytest
from fla_npu import loader
from fla_npu.errors import ArgumentError, OppNotFound, SymbolMissing


@pytest.fixture
def small_opp(tmp_path, monkeypatch, fake_library):
    """An OPP whose only operator is the fake chunk_kda_fwd_finalize; returns its library."""
    folder = tmp_path / "vendors" / "fla_npu" / "op_api" / "lib"
    folder.mkdir(parents=True)
    shutil.copy(fake_library, folder / "libcust_opapi.so")
    (folder / "libfla_twin.so").symlink_to("libcust_opapi.so")  # one library under both names
    monkeypatch.setenv("FLA_NPU_OPP_PATH", str(tmp_path))
    loader.reset()
    yield ctypes.CDLL(str(folder / "libcust_opapi.so"))
    loader.reset()


def stage(tools, tokens=65):
    """Arguments of finalize for one head."""
    rng = np.random.default_rng(3)
    shapes = (
        (1, 1, tokens, 128),
        (1, 1, tokens, 64),
        (1, 1, tokens, 128),
        (1, -(-tokens // 64), 1, 128, 128),
    )
    return [tools.bf16(rng.integers(-4, 4, shape)) for shape in shapes]


def switch(library, name: str) -> ctypes.c_int:
    return ctypes.c_int.in_dll(library, f"fake_{name}")


def test_a_missing_symbol_is_told_before_any_launch(small_opp, tools):
    q = tools.bf16(np.zeros((1, 1, 64, 128)))
    g = ms.Tensor(np.zeros((1, 1, 64, 128), np.float32))
    beta = ms.Tensor(np.zeros((1, 1, 64), np.float32))
    launched = switch(small_opp, "launches").value
    for function in (front.npu_chunk_kda, front.npu_chunk_kda_fwd_prepare):
        with pytest.raises(SymbolMissing, match="aclnnChunkKdaFwdPrepare") as caught:
            function(q, q, q, g, beta, 1.0, use_gate_in_kernel=False)
        assert "provides chunk_kda_fwd_finalize" in str(caught.value)
    assert switch(small_opp, "launches").value == launched


def test_an_operator_that_is_there_works_beside_missing_ones(small_opp, tools):
    arguments = stage(tools)
    out = front.npu_chunk_kda_fwd_finalize(*arguments, output_layout="BNSD")
    assert np.array_equal(tools.f32(out), 2 * tools.f32(arguments[2]))


def test_no_opp_at_all(tmp_path, monkeypatch, tools):
    monkeypatch.setenv("FLA_NPU_OPP_PATH", str(tmp_path / "nothing"))
    loader.reset()
    try:
        with pytest.raises(OppNotFound, match="nothing"):
            front.npu_chunk_kda_fwd_finalize(*stage(tools))
    finally:
        loader.reset()


def test_failures_have_their_type_when_blocking(small_opp):
    """In a process of its own, because launch_blocking() cannot be undone."""
    code = """
import ctypes, os, sys
import mindspore as ms, numpy as np
import fla_npu.mindspore as front
ms.runtime.launch_blocking()
library = ctypes.CDLL(os.environ["FLA_NPU_OPP_PATH"] + "/vendors/fla_npu/op_api/lib/libcust_opapi.so")
shapes = (1, 1, 64, 128), (1, 1, 64, 64), (1, 1, 64, 128), (1, 1, 1, 128, 128)
arguments = [ms.Tensor(np.ones(s, np.float32)).astype(ms.bfloat16) for s in shapes]
for status in (507015, 561103, 161002, 0):
    ctypes.c_int.in_dll(library, "fake_phase2_status").value = status
    try:
        print(front.npu_chunk_kda_fwd_finalize(*arguments).float().asnumpy().min())
    except Exception as error:
        print(type(error).__name__, "fake fault of phase 2" in str(error))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    want = ["TwinFault True", "LaunchError True", "ArgumentError True", "2.0"]
    assert done.stdout.splitlines() == want, done.stderr


def test_failures_arrive_at_the_next_synchronisation(small_opp, tools):
    arguments = stage(tools)
    tools.f32(arguments[0])
    switch(small_opp, "phase1_status").value = 161002
    with pytest.raises((RuntimeError, ArgumentError), match="161002.*fake refusal of phase 1"):
        front.npu_chunk_kda_fwd_finalize(*arguments).asnumpy()
    switch(small_opp, "phase1_status").value = 0
    out = front.npu_chunk_kda_fwd_finalize(*arguments, output_layout="BNSD")
    assert np.array_equal(tools.f32(out), 2 * tools.f32(arguments[2]))


def test_a_call_costs_little(small_opp, tools):
    """Issue cost of a stage function, validation included; generous, the machine may be busy."""
    arguments = stage(tools)
    best = min(_seconds_per_call(arguments) for _ in range(5))
    assert best < 400e-6, f"{best * 1e6:.0f} us a call"


def _seconds_per_call(arguments, count=100) -> float:
    began = time.perf_counter()
    for _ in range(count):
        out = front.npu_chunk_kda_fwd_finalize(*arguments)
    took = time.perf_counter() - began
    out.asnumpy()
    return took / count
