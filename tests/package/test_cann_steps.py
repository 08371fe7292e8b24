# SPDX-License-Identifier: Apache-2.0
"""The pieces of the CANN build one by one: laying out the project, and a step that fails."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import fake_cann
import pytest

ROOT = Path(__file__).resolve().parents[2]
OPS = "ChunkFwdH:chunk_fwd_h ChunkKdaBwd:chunk_kda_bwd ChunkKdaBwdV2:chunk_kda_bwd_v2"


def step(log: Path, *command: str, ops: str = OPS) -> subprocess.CompletedProcess:
    start = [sys.executable, str(ROOT / "opp_package/step.py"), "kernels", str(log), ops]
    return subprocess.run([*start, *command], capture_output=True, text=True)


def test_step_that_succeeds_says_nothing(tmp_path):
    done = step(tmp_path / "new/log", "sh", "-c", "echo words; echo more >&2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sorted((tmp_path / "new/log").read_text().split()) == ["more", "words"]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (
            "gmake[3]: *** [CMakeFiles/ChunkKdaBwdV2_ascend910_93.dir/build.make:70: x] Error 1",
            "ChunkKdaBwdV2",
        ),
        ("/b/op_kernel/chunk_kda_bwd/chunk_kda_bwd.cpp:7:1: error: expected", "ChunkKdaBwd"),
        ("/b/op_api/aclnn_chunk_fwd_h.cpp:3:10: fatal error: opdev/op_log.h: No such file", "ChunkFwdH"),
        ("/b/op_host/chunk_kda_bwd_v2_def.cpp:3:10: error: no", "ChunkKdaBwdV2"),
        ("/b/op_host/contract.cpp:3:10: error: no", ""),
        ("[ 10%] Building ChunkFwdH", ""),
    ],
)
def test_failed_step_names_operator_log_and_reason(tmp_path, line, named):
    done = step(tmp_path / "log", "sh", "-c", f"echo '[ 5%] Building ChunkFwdH'; echo '{line}'; exit 3")
    assert done.returncode == 1
    about = re.search(rf"step 'kernels' failed(.*) \(exit 3\); log: {tmp_path}/log", done.stderr).group(1)
    assert about == (f" at operator {named}, {fake_cann.codegen('contract').snake(named)}" if named else "")
    assert line in done.stderr


def test_program_that_is_not_there(tmp_path):
    done = step(tmp_path / "log", "no-such-program")
    assert (
        done.returncode == 1 and "step 'kernels' failed" in done.stderr and "no-such-program" in done.stderr
    )


@pytest.fixture
def source(tmp_path) -> Path:
    for folder in ("common", "ops"):
        shutil.copytree(ROOT / "ascendc" / folder, tmp_path / "ascendc" / folder)
    return tmp_path / "ascendc"


def lay_out(source: Path, out: Path, *ops: str) -> subprocess.CompletedProcess:
    command = [
        sys.executable,
        str(ROOT / "ascendc/codegen/cann_project.py"),
        str(source),
        str(out / "generated"),
    ]
    return subprocess.run([*command, str(out), *ops], capture_output=True, text=True)


def test_layout_follows_the_operators(source, tmp_path):
    out = tmp_path / "project"
    assert lay_out(source, out, "chunk_fwd_h", "chunk_kda_bwd").returncode == 0
    lists = "set(FLA_OPS chunk_fwd_h chunk_kda_bwd)\nset(FLA_OP_TYPES ChunkFwdH ChunkKdaBwd)\n"
    assert (out / "ops.cmake").read_text() == lists
    kept = out / "op_kernel/chunk_fwd_h/chunk_fwd_h.cpp"
    before = kept.stat().st_mtime_ns
    assert not list((out / "op_kernel/chunk_kda_bwd").glob("chunk_kda_bwd_v2*"))
    assert lay_out(source, out, "chunk_fwd_h").returncode == 0
    assert not list(out.glob("op_kernel/chunk_kda_bwd/*"))
    assert kept.stat().st_mtime_ns == before  # unchanged files are not compiled again
    headers = list((out / "op_kernel").rglob("*.h"))
    includes = [line for p in headers for line in p.read_text().splitlines() if '#include "' in line]
    assert includes and not [line for line in includes if line.count("/")]


def test_two_files_of_one_name(source, tmp_path):
    (source / "common/kernel/varlen.h").touch()
    (source / "ops/chunk_fwd_h/op_kernel/varlen.h").touch()
    done = lay_out(source, tmp_path / "project", "chunk_fwd_h")
    assert done.returncode == 1 and "step 'lay out' failed" in done.stderr
    assert "would both become op_kernel/chunk_fwd_h/varlen.h; rename one" in done.stderr
