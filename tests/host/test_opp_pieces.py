# SPDX-License-Identifier: Apache-2.0
"""An OPP with a piece that is gone, damaged or of another build: the call says which, and only that call fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fla_npu import opp

IMPL = "op_impl/ai_core/tbe"
KERNEL = f"{IMPL}/kernel/ascend910b/chunk_kda_fwd_finalize/ChunkKdaFwdFinalize.so"
CODE = """
import os, sys
sys.path.insert(0, {tests!r})
{before}
from acl_calls import Acl, finalize, fwd_h
acl = Acl()
{after}
for call in (finalize(), fwd_h()):
    status = acl.run(call)
    print(status, acl.error() if status else "")
"""


@pytest.fixture
def copy(tmp_path) -> Path:
    shutil.copytree(opp.find().root, tmp_path / "opp")
    return tmp_path / "opp"


def vendor(copy: Path) -> Path:
    return copy / "vendors/fla_npu"


def calls(copy: Path | str, before: str = "", after: str = "", cwd: Path | None = None) -> list[str]:
    """'status message' of a finalize and of a fwd_h call in a process of its own."""
    code = CODE.format(tests=str(Path(__file__).parent), before=before, after=after)
    package = str(Path(opp.__file__).resolve().parents[1])
    environment = {**os.environ, "FLA_NPU_OPP_PATH": str(copy), "PYTHONPATH": package}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=cwd
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def other_build(path: Path, build_id: str) -> None:
    data = path.read_bytes()
    assert build_id.encode() in data
    path.write_bytes(data.replace(build_id.encode(), b"f" * 32))


def test_a_copy_works_wherever_it_is(copy):
    assert calls(copy) == ["0 ", "0 "]


def test_directory_change_before_the_first_call(copy):
    """Paths are taken when the library is opened, even by a relative name."""
    assert calls(copy.name, cwd=copy.parent, after="os.chdir('/')") == ["0 ", "0 "]


def test_kernel_gone(copy):
    (vendor(copy) / KERNEL).unlink()
    first, second = calls(copy)
    assert first.startswith("561003 chunk_kda_fwd_finalize: cannot open") and KERNEL in first
    assert second == "0 "


def test_kernel_damaged(copy):
    path = vendor(copy) / KERNEL
    path.write_bytes(path.read_bytes()[:5000])
    first, second = calls(copy)
    assert first.startswith("561003 ") and KERNEL in first and "null" not in first
    assert second == "0 "


def test_kernel_of_another_operator(copy):
    kernels = vendor(copy) / f"{IMPL}/kernel/ascend910b"
    shutil.copy(kernels / "chunk_fwd_h/ChunkFwdH.so", vendor(copy) / KERNEL)
    assert "no kernel of this operator in" in calls(copy)[0]


def test_tiling_gone(copy):
    next((vendor(copy) / IMPL).rglob("libcust_opmaster_rt2.0.so")).unlink()
    for line in calls(copy):
        assert line.startswith("561000 ") and "libcust_opmaster_rt2.0.so" in line


@pytest.mark.parametrize("piece", ["kernel", "tiling", "twin"])
def test_piece_of_another_build(copy, piece):
    build_id = json.loads((copy / "manifest.json").read_text())["build_id"]
    path = {
        "kernel": vendor(copy) / KERNEL,
        "tiling": next((vendor(copy) / IMPL).rglob("libcust_opmaster_rt2.0.so")),
        "twin": vendor(copy) / "op_api/lib/libfla_twin.so",
    }[piece]
    other_build(path, build_id)
    first, second = calls(copy)
    assert "is of build" in first and "f" * 32 in first and build_id in first
    assert (second == "0 ") == (piece == "kernel")


def test_two_opps_in_one_process(copy, tmp_path):
    """The second one's twin library is already there under that name, from another build: told, not mixed."""
    other = tmp_path / "other"
    shutil.copytree(copy, other)
    build_id = json.loads((copy / "manifest.json").read_text())["build_id"]
    for path in other.rglob("*.so"):
        other_build(path, build_id)
    lib = vendor(other) / "op_api/lib"
    opened = [str(lib / name) for name in ("libfla_twin.so", "libcust_opapi.so")]
    before = f"import ctypes; kept = [ctypes.CDLL(path) for path in {opened}]"
    for line in calls(copy, before=before):
        assert line == "0 " or line.startswith("561000 ")
