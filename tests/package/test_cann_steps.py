# SPDX-License-Identifier: Apache-2.0
"""The pieces of the CANN build one by one: the table of steps, a step that fails, what is left of an
earlier build, laying out the project.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fake_cann
import pytest

ROOT = Path(__file__).resolve().parents[2]
OPS = "ChunkFwdH:chunk_fwd_h ChunkKdaBwd:chunk_kda_bwd ChunkKdaBwdV2:chunk_kda_bwd_v2"


def test_one_cmake_file_and_no_script_of_the_toolkit():
    """The toolkit's functions are used in one file of at most 150 lines; its own files are not copied here."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split("\n")
    ours = [
        ROOT / name for name in listed if name and not name.startswith("tests/") and (ROOT / name).is_file()
    ]
    cmake = [path for path in ours if path.suffix == ".cmake" or path.name == "CMakeLists.txt"]
    uses = [
        p
        for p in cmake
        if re.search(r"npu_op_|ASCEND_(?!HOME)|add_simple_kernel|ENABLE_\w+_PACKAGE", p.read_text())
    ]
    assert [path.relative_to(ROOT).as_posix() for path in uses] == ["ascendc/cmake/fla_cann.cmake"]
    lines = uses[0].read_text().splitlines()
    assert len(lines) <= 150 and max(map(len, lines)) <= 120
    assert (
        len([line for line in lines if line.lstrip().startswith("#")]) >= 15
    )  # not made short by saying nothing
    theirs = {
        "func.cmake",
        "config.cmake",
        "intf.cmake",
        "makeself.cmake",
        "device_task.cmake",
        "parse_ini_to_json.py",
    }
    assert not [p for p in ours if p.name in theirs or p.name.startswith("ascendc_") or "makeself" in p.name]


@pytest.fixture
def cann_build(monkeypatch):
    """opp_package/cann_build.py, which is no package."""
    monkeypatch.syspath_prepend(str(ROOT / "opp_package"))
    import cann_build

    return cann_build


CONFIG = {
    "backend": "cann", "socs": ["ascend910b", "ascend910_93"], "ops": ["chunk_fwd_h"], "cann": "8.1.RC1",
    "cann_home": "/toolkit", "cann_asc": "", "build_type": "Release", "kernel_options": ["-g", "-DX=1"],
}  # fmt: skip
SETTINGS = ["CMAKE_CXX_COMPILER=/usr/bin/g++", "CMAKE_CXX_COMPILER_LAUNCHER=", "CMAKE_CXX_FLAGS=-DA=b"]


def test_the_steps_of_both_kinds_of_toolkit(cann_build, tmp_path):
    table = cann_build.steps(tmp_path, CONFIG, "cmake", SETTINGS)
    assert [name for name, _ in table] == ["lay out", "configure", "registrations", "opbuild", "configure package",
                                           "host side", "kernels", "install"]  # fmt: skip
    assert str(table[0][1][3]) == "/toolkit/tools/op_project_templates/ascendc/customize/cmake"
    newer = cann_build.steps(tmp_path, CONFIG | {"cann_asc": "/toolkit/lib64/cmake"}, "cmake", SETTINGS)
    assert [name for name, _ in newer] == ["lay out", "configure package", "host side", "kernels", "install"]
    assert newer[0][1][3] == ""


def test_nothing_runs_after_a_step_that_failed(cann_build, tmp_path, monkeypatch, capsys):
    (tmp_path / "build_config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "cann/log").mkdir(parents=True)
    (tmp_path / "cann/log/opbuild.log").touch()
    ran = tmp_path / "ran"
    table = [("kernels", ["sh", "-c", "exit 3"]), ("install", ["touch", str(ran)])]
    monkeypatch.setattr(cann_build, "steps", lambda *arguments: table)
    assert cann_build.main([str(tmp_path), "cmake", *SETTINGS]) == 1
    seen = capsys.readouterr()
    assert seen.out == "CANN: kernels\n" and "step 'kernels' failed (exit 3)" in seen.err
    assert not ran.exists()
    assert [path.name for path in (tmp_path / "cann/log").iterdir()] == ["kernels.log"]  # none of before
    table[0] = ("kernels", ["true"])
    assert cann_build.main([str(tmp_path), "cmake", *SETTINGS]) == 0
    assert capsys.readouterr().out == "CANN: kernels\nCANN: install\n" and ran.exists()


def test_jobs_of_a_step_are_bounded(cann_build, tmp_path, monkeypatch):
    asked = ["sh", "-c", "echo $CMAKE_BUILD_PARALLEL_LEVEL"]
    monkeypatch.setattr(cann_build, "jobs", lambda: 3)
    for given, expected in ((None, "3"), ("7", "7")):
        monkeypatch.delenv("CMAKE_BUILD_PARALLEL_LEVEL", raising=False)
        if given:
            monkeypatch.setenv("CMAKE_BUILD_PARALLEL_LEVEL", given)
        assert cann_build.succeeds("kernels", asked, tmp_path / "log", [])
        assert (tmp_path / "log").read_text() == f"{expected}\n"


def test_step_that_succeeds_says_nothing(cann_build, tmp_path, capsys):
    command = ["sh", "-c", "echo words; echo more >&2"]
    assert cann_build.succeeds("kernels", command, tmp_path / "new/log", OPS.split())
    assert capsys.readouterr() == ("", "")
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
def test_failed_step_names_operator_log_and_reason(cann_build, tmp_path, capsys, line, named):
    command = ["sh", "-c", f"echo '[ 5%] Building ChunkFwdH'; echo '{line}'; exit 3"]
    assert not cann_build.succeeds("kernels", command, tmp_path / "log", OPS.split())
    said = capsys.readouterr().err
    about = re.search(rf"step 'kernels' failed(.*) \(exit 3\); log: {tmp_path}/log", said).group(1)
    assert about == (f" at operator {named}, {fake_cann.codegen('contract').snake(named)}" if named else "")
    assert line in said


def test_program_that_is_not_there(cann_build, tmp_path, capsys):
    assert not cann_build.succeeds("kernels", ["no-such-program"], tmp_path / "log", OPS.split())
    said = capsys.readouterr().err
    assert "step 'kernels' failed" in said and "no-such-program" in said


# Laying out: in a copy of the sources, which a test may damage.


@pytest.fixture
def source(tmp_path) -> Path:
    for folder in ("cmake", "codegen", "common", "ops"):
        shutil.copytree(ROOT / "ascendc" / folder, tmp_path / "ascendc" / folder)
    return tmp_path / "ascendc"


@pytest.fixture
def template(tmp_path) -> Path:
    """The functions of a toolkit: a script that is run, in folders that are not written to."""
    util = tmp_path / "home/cmake/util"
    util.mkdir(parents=True)
    (util.parent / "func.cmake").write_text("# functions\n")
    (util / "gen.sh").write_text("#!/bin/sh\n")
    (util / "gen.sh").chmod(0o550)
    util.chmod(0o550)
    return util.parent


def lay_out(source: Path, build: Path, *ops: str, template: object = "", **changes: object) -> str:
    """What went wrong, or ''."""
    build.mkdir(exist_ok=True)
    config = CONFIG | {"ops": ops or CONFIG["ops"]} | changes
    (build / "build_config.json").write_text(json.dumps(config))
    command = [sys.executable, source / "codegen/cann_project.py", build, template, *SETTINGS]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert (done.returncode != 0) == bool(done.stderr)
    return done.stderr


def test_layout_follows_the_operators(source, tmp_path):
    out = tmp_path / "build/cann/project"
    assert not lay_out(source, tmp_path / "build", "chunk_fwd_h", "chunk_kda_bwd")
    lists = "set(FLA_OPS chunk_fwd_h chunk_kda_bwd)\nset(FLA_OP_TYPES ChunkFwdH ChunkKdaBwd)\n"
    assert (out / "ops.cmake").read_text() == lists
    assert (out / "CMakeLists.txt").read_bytes() == (source / "cmake/fla_cann.cmake").read_bytes()
    kept = out / "op_kernel/chunk_fwd_h.cpp"
    before = kept.stat().st_mtime_ns
    assert not list((out / "op_kernel").glob("chunk_kda_bwd_v2*"))
    assert not lay_out(source, tmp_path / "build", "chunk_fwd_h")
    assert not list((out / "op_kernel").glob("chunk_kda_bwd*"))
    assert kept.stat().st_mtime_ns == before  # unchanged files are not compiled again
    headers = list((out / "op_kernel").glob("*.h"))
    includes = [line for p in headers for line in p.read_text().splitlines() if '#include "' in line]
    assert includes and not [line for line in includes if line.count("/")]


def test_two_files_of_one_name(source, tmp_path):
    """Also of two operators: kernels have one folder, as the toolkit's compiler looks for them."""
    (source / "common/kernel/varlen.h").touch()
    (source / "ops/chunk_fwd_h/op_kernel/varlen.h").touch()
    said = lay_out(source, tmp_path / "build", "chunk_fwd_h")
    assert "error: " in said and "would both become op_kernel/varlen.h; rename one" in said


def test_settings_are_a_cache_file(source, tmp_path):
    assert not lay_out(source, tmp_path / "build")
    options = (tmp_path / "build/cann/options.cmake").read_text()
    assert 'set(ASCEND_COMPUTE_UNIT [==[ascend910b;ascend910_93]==] CACHE STRING "")' in options
    assert 'set(FLA_KERNEL_OPTIONS [==[-g;-DX=1]==] CACHE STRING "")' in options
    assert f'[==[-DA=b "-ffile-prefix-map={tmp_path}/build/cann/project/="]==]' in options


def test_what_is_left_of_an_earlier_build(source, template, tmp_path):
    """Compiled files stay while toolkit and settings do; what a toolkit only adds to, or left half done, does not."""
    made, functions = tmp_path / "build/cann/build", tmp_path / "build/cann/project/cmake"

    def leave(*names: str) -> list[Path]:
        for name in names:
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).touch()
        return [made / name for name in names]

    assert not lay_out(source, tmp_path / "build", template=template)
    assert (functions / "util/gen.sh").stat().st_mode & 0o100
    compiled, cache = leave("CMakeFiles/object.o", "CMakeCache.txt")
    # The last is the compiler's working folder of an operator: it does not start where a killed one left it.
    stale = leave(
        "autogen/aic.ini",
        "info/aic.json",
        "binary/x.o",
        "fla_kernels/x.o",
        "ChunkFwdH_ascend910_93/kernel_0/x",
    )
    (functions / "util/of_another_toolkit.py").touch()
    assert not lay_out(source, tmp_path / "build", template=template)
    assert compiled.exists() and cache.exists()
    assert not [path for path in stale if path.parent.exists()]
    assert sorted(p.name for p in functions.rglob("*")) == ["func.cmake", "gen.sh", "util"]
    assert not lay_out(source, tmp_path / "build", template=template, kernel_options=[])
    assert compiled.exists() and not cache.exists()
    assert not lay_out(source, tmp_path / "build", template=template, cann="8.3.RC1")
    assert not made.exists()
    assert not lay_out(source, tmp_path / "build", cann_asc="/toolkit/lib64/cmake")
    assert not functions.exists()
