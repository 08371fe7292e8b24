# SPDX-License-Identifier: Apache-2.0
"""The wheel itself: built from a copy of this checkout, installed, broken on purpose, removed (long tier).

One build of everything and one of a subset in the same tree; the subset must not carry what the first left.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from in_step import in_step

ROOT = Path(__file__).resolve().parents[2]
OPERATORS = {path.parent.name for path in (ROOT / "ascendc/ops").glob("*/op.json")}
LEFT_OUT = "chunk_kda_fwd_finalize"
pytestmark = pytest.mark.full
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("FLA_NPU", "ASCEND", "PYTHONPATH"))}


def run(*command: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    env = {**ENVIRONMENT, **environment}
    return subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, env=env)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """What git knows of this checkout, as files."""
    copy = tmp_path_factory.mktemp("source")
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard").stdout.splitlines()
    for name in listed:
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


def build_wheel(source: Path, out: Path, **environment: str) -> Path:
    done = run(
        sys.executable, "-m", "pip", "wheel", source, "--no-deps", "-w", out, cwd=source, **environment
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def subset(source, wheel, tmp_path_factory) -> Path:
    """In the tree that `wheel` was built in, without one operator."""
    return build_wheel(
        source, tmp_path_factory.mktemp("subset"), FLA_NPU_OPS=",".join(sorted(OPERATORS - {LEFT_OUT}))
    )


def names(wheel: Path) -> list[str]:
    return sorted(n for n in zipfile.ZipFile(wheel).namelist() if not n.endswith("/"))


def test_name_size_and_top_level(wheel):
    assert wheel.name.startswith("fla_npu-") and "+twin-py3-none-manylinux_2_" in wheel.name
    assert wheel.stat().st_size < 15 << 20
    tops = {name.split("/")[0] for name in names(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"fla_npu"}


def test_no_alias_no_duplicate_no_framework(wheel):
    archive = zipfile.ZipFile(wheel)
    members = [name for name in names(wheel) if name.endswith(".so")]
    assert not any(name.endswith("libopapi.so") for name in members)
    contents = [archive.read(name) for name in members]
    assert len(set(contents)) == len(contents), "two copies of one library"
    from fla_npu.elf import read_elf

    system = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2"}
    loaders = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    for name, data in in_step(members, contents):
        assert set(read_elf(data).needed) <= system | loaders | {"libfla_twin.so"}, name


def test_sdist_gives_the_same_files(source, wheel, tmp_path):
    pytest.importorskip("build")
    done = run(sys.executable, "-m", "build", "--sdist", "-o", tmp_path, source)
    assert done.returncode == 0, done.stdout + done.stderr
    archive = next(tmp_path.glob("*.tar.gz"))
    assert "+" not in archive.name
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    again = build_wheel(next((tmp_path / "unpacked").iterdir()), tmp_path / "wheel")
    assert names(again) == names(wheel)


def test_subset_lacks_exactly_one_operator(wheel, subset, look):
    lost = {name for name in names(wheel) if name not in names(subset)}
    assert lost and all("fwdfinalize" in name.lower().replace("_", "") for name in lost)
    seen = look(subset, op=None)
    assert seen.status == 1
    states = {name: row["symbols"] for name, row in seen.data["ops"].items()}
    assert states == {name: "missing" if name == LEFT_OUT else "ok" for name in OPERATORS}


@pytest.fixture
def installed(tmp_path, subset):
    """A fresh environment with the subset wheel; dependencies come from this one."""
    run(sys.executable, "-m", "venv", "--system-site-packages", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    done = run(python, "-m", "pip", "install", "--no-deps", "--no-index", subset)
    assert done.returncode == 0, done.stderr
    return python


def test_only_the_missing_operator_fails(installed, tmp_path):
    code = """
from fla_npu import loader
from fla_npu.errors import SymbolMissing
loader.bind("chunk_fwd_h")
try:
    loader.bind("chunk_kda_fwd_finalize")
except SymbolMissing as error:
    print(error)
"""
    done = run(installed, "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "aclnnChunkKdaFwdFinalize" in done.stdout and "FLA_NPU_OPS" in done.stdout


def test_uninstall_leaves_nothing(installed, tmp_path):
    site = Path(run(installed, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").stdout.strip())
    assert (site / "fla_npu/opp/manifest.json").is_file()
    run(installed, "-c", "import fla_npu; fla_npu.build_info()", cwd=tmp_path)
    assert run(installed, "-m", "pip", "uninstall", "-y", "fla-npu").returncode == 0
    assert not [p for p in site.iterdir() if p.name.startswith("fla_npu")]


def test_no_toolkit_fails_the_install_and_says_why(source, tmp_path):
    done = run(
        sys.executable, "-m", "pip", "wheel", source, "--no-deps", "-w", tmp_path, ASCEND_HOME_PATH="/nowhere"
    )
    assert done.returncode != 0
    assert "ASCEND_HOME_PATH = /nowhere is no CANN toolkit" in done.stdout + done.stderr
    assert not list(tmp_path.iterdir())
