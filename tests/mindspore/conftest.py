# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the MindSpore tests. One process and one bridge serve all of them.

The bridge comes from the user's cache; on a fresh machine the first test compiles it (about a minute).
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

HERE = Path(__file__).resolve().parent
ACL = (
    "aclCreateTensor",
    "aclDestroyTensor",
    "aclCreateIntArray",
    "aclDestroyIntArray",
    "aclGetRecentErrMsg",
    "aclDestroyAclOpExecutor",
)


@pytest.fixture(autouse=True)
def recording_ends():
    """After an exception in a gradient MindSpore goes on recording, and refuses in-place writes of later tests."""
    from mindspore.common.api import _pynative_executor as executor

    yield
    if executor.grad_flag():
        executor.clear_res()
        executor.set_grad_flag(False)


@pytest.fixture(scope="session")
def bridge():
    """The compiled bridge module."""
    from fla_npu.mindspore import bridge as module

    return module.load()


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory) -> Path:
    """fake_acl.c compiled: ACL and one operator that does as a test says."""
    path = tmp_path_factory.mktemp("fake") / "libfake_acl.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", str(HERE / "fake_acl.c"), "-o", str(path)], check=True)
    return path


class Fake:
    """The fake library bound to the bridge: `double` is the operator, attributes are its switches."""

    def __init__(self, bridge, path: Path) -> None:
        object.__setattr__(self, "_library", ctypes.CDLL(str(path)))
        object.__setattr__(self, "_bridge", bridge)
        stem = "aclnnChunkKdaFwdFinalize"
        acl = [self._at(name) for name in ACL] + [0]
        phases = self._at(f"{stem}GetWorkspaceSize"), self._at(stem)
        number = bridge.bind("chunk_kda_fwd_finalize", *phases, acl, False)
        object.__setattr__(self, "_number", number)

    def _at(self, name: str) -> int:
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value

    def _variable(self, name: str):
        kind = ctypes.c_uint64 if name == "workspace" else ctypes.c_int
        return kind.in_dll(self._library, f"fake_{name}")

    def __getattr__(self, name: str) -> int:
        return self._variable(name).value

    def __setattr__(self, name: str, value: int) -> None:
        self._variable(name).value = value

    def double(self, x, dims=None, cu=None, layout="BSND"):
        """2 * x for a bfloat16 tensor, elementwise, as one operator of the bridge."""
        given = x if dims is None else (x, dims)
        values = [x, x, given, x, cu, None, layout, True]
        return self._bridge.call(self._number, values, [("bfloat16", tuple(x.shape))])[0]


@pytest.fixture
def fake(bridge, fake_library):
    """The fake operator, with all switches off before and after the test."""
    made = Fake(bridge, fake_library)
    yield made
    for name in ("delay_us", "phase1_status", "phase2_status", "workspace"):
        setattr(made, name, 0)


def bf16(x) -> ms.Tensor:
    return ms.Tensor(np.asarray(x, np.float32)).astype(ms.bfloat16)


def f32(x: ms.Tensor) -> np.ndarray:
    """Values of a tensor of any float type; waits for everything queued."""
    return x.float().asnumpy()


def bits(x: ms.Tensor) -> np.ndarray:
    """Bit pattern of a tensor, for comparisons that tell +0 from -0 and one NaN from another."""
    array = x.asnumpy()
    return array.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[array.dtype.itemsize])


@pytest.fixture(scope="session")
def tools():
    return SimpleNamespace(bf16=bf16, f32=f32, bits=bits)
