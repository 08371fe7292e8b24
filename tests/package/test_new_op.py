# SPDX-License-Identifier: Apache-2.0
"""tools/new_op in a copy of what it needs: the folder it makes, and that its sources compile for the twin."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path):
    for name in ("tools/new_op", "ascendc/codegen", "ascendc/twin", "ascendc/common"):
        source, target = ROOT / name, tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    (tmp_path / "ascendc/ops").mkdir()
    return tmp_path


def new_op(checkout: Path, name: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "tools/new_op", name], cwd=checkout, capture_output=True, text=True
    )


def files(root: Path) -> set[str]:
    return {
        p.relative_to(root).as_posix()
        for p in root.rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }


def test_touches_one_folder(checkout):
    before = files(checkout)
    done = new_op(checkout, "row_scale")
    assert done.returncode == 0, done.stderr
    added = files(checkout) - before
    folder = "ascendc/ops/row_scale/"
    assert added == {
        folder + name
        for name in (
            "op.json",
            "README.md",
            "golden.py",
            "test_row_scale.py",
            "op_kernel/row_scale.cpp",
            "op_kernel/row_scale_tiling_data.h",
            "op_host/row_scale_plan.h",
            "op_host/row_scale_plan.cpp",
        )
    }
    contract = json.loads((checkout / folder / "op.json").read_text())
    assert (contract["op_type"], contract["aclnn"]) == ("RowScale", "aclnnRowScale")
    text = "".join((checkout / name).read_text() for name in added)
    assert "template" not in text.lower().replace("the template of `tools/new_op`", "")


def test_sources_compile(checkout):
    assert new_op(checkout, "row_scale").returncode == 0
    folder = checkout / "ascendc/ops/row_scale"
    generate = [sys.executable, "ascendc/codegen/generate.py", "twin", str(folder / "op.json"), "generated"]
    assert subprocess.run(generate, cwd=checkout).returncode == 0
    includes = ["ascendc/twin", "ascendc/twin/include", "ascendc/common/host", "ascendc/common/kernel"]
    includes += ["ascendc/common/aclnn", str(folder / "op_host"), str(folder / "op_kernel"), "generated"]
    sources = [*folder.rglob("*.cpp"), *(checkout / "generated").glob("*.cpp")]
    for source in sources:
        command = [
            "g++",
            "-std=c++17",
            "-fsyntax-only",
            "-Wall",
            "-Wextra",
            "-Werror",
            *(f"-I{i}" for i in includes),
        ]
        done = subprocess.run([*command, str(source)], cwd=checkout, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "name", ["RowScale", "row-scale", "2rows", "_rows", "row__scale", "a_b_c", "row_s_x"]
)
def test_bad_names(checkout, name):
    before = files(checkout)
    assert new_op(checkout, name).returncode == 2
    assert files(checkout) == before


def test_existing_operator_is_kept(checkout):
    assert new_op(checkout, "row_scale").returncode == 0
    before = files(checkout)
    done = new_op(checkout, "row_scale")
    assert done.returncode == 2 and "exists" in done.stderr
    assert files(checkout) == before
