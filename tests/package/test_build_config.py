# SPDX-License-Identifier: Apache-2.0
"""What a build is for: CANN or twin, which chips, which operators, which version."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ("FLA_NPU_BACKEND", "FLA_NPU_SOC", "FLA_NPU_OPS", "FLA_NPU_KERNEL_OPTIONS", "ASCEND_HOME_PATH")


@pytest.fixture(autouse=True)
def no_options(monkeypatch):
    for name in OPTIONS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def config():
    place = importlib.util.spec_from_file_location("build_config", ROOT / "opp_package/build_config.py")
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


@pytest.fixture
def toolkit(config, tmp_path):
    """A folder with the files that make a toolkit one; nothing in it works."""
    home = tmp_path / "toolkit"
    for name in (*config.TOOLKIT_FILES, config.TEMPLATE):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    (home / "version.cfg").write_text("runtime_running_version=[8.1.RC1:8.1.RC1]\n")
    return home


def test_auto_without_cann_is_the_twin(config):
    made = config.decide("", "", "")
    assert (made["backend"], made["socs"]) == ("twin", ["ascend910b"])
    assert made["version"] == f"{config.VERSION}+twin"


def test_auto_with_cann_is_cann(config, toolkit, monkeypatch):
    monkeypatch.setenv("ASCEND_HOME_PATH", str(toolkit))
    made = config.decide("auto", "ascend910b,ascend910_93", "")
    assert (made["backend"], made["cann"]) == ("cann", "8.1.RC1")
    assert made["version"] == f"{config.VERSION}+cann8.1.ascend910b.ascend910.93"
    assert config.decide("twin", "", "")["backend"] == "twin"


@pytest.mark.parametrize("backend", ["auto", "cann"])
@pytest.mark.parametrize("home", ["nowhere", "empty"])
def test_no_toolkit_never_falls_back(config, tmp_path, monkeypatch, backend, home):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / home))
    with pytest.raises(config.ConfigError) as refused:
        config.decide(backend, "", "")
    text = str(refused.value)
    assert str(tmp_path / home) in text and "no CANN toolkit" in text and "FLA_NPU_BACKEND=twin" in text
    assert ("is not a directory" if home == "nowhere" else "include/register/op_def.h") in text


def test_half_a_toolkit_names_what_is_missing(config, toolkit, monkeypatch):
    (toolkit / "lib64/libnnopbase.so").unlink()
    monkeypatch.setenv("ASCEND_HOME_PATH", str(toolkit))
    with pytest.raises(config.ConfigError, match="has no lib64/libnnopbase.so. Point it"):
        config.decide("auto", "", "")


@pytest.mark.parametrize(
    "options, text",
    [
        (("gpu", "", ""), "FLA_NPU_BACKEND = gpu; it is one of auto, twin, cann"),
        (("cann", "", ""), "ASCEND_HOME_PATH is not set"),
        (("", "ascend310p", ""), "FLA_NPU_SOC = ascend310p; known chips are"),
        (("", "", "", "-g"), "FLA_NPU_KERNEL_OPTIONS = -g is for CANN's kernel compiler"),
        (("", "", "", "g"), "FLA_NPU_KERNEL_OPTIONS names g; an option begins with '-'"),
        (("", "", "chunk_fwd"), "FLA_NPU_OPS names chunk_fwd; the operators are chunk_fwd_h"),
    ],
)
def test_wrong_options(config, options, text):
    with pytest.raises(config.ConfigError) as refused:
        config.decide(*options)
    assert text in str(refused.value)


def test_newer_toolkits_are_known_by_their_package(config, toolkit, monkeypatch):
    monkeypatch.setenv("ASCEND_HOME_PATH", str(toolkit))
    assert config.decide("", "", "")["cann_asc"] == ""
    (toolkit / config.TEMPLATE).unlink()
    with pytest.raises(config.ConfigError, match="has no ASCConfig.cmake"):
        config.decide("", "", "")
    folder = toolkit / "aarch64-linux/lib64/cmake/ASC"
    folder.mkdir(parents=True)
    (folder / "ASCConfig.cmake").touch()
    made = config.decide("", "ascend910b ascend910b;ascend910_93", "", "-g -sanitizer;-DX=1")
    assert made["cann_asc"] == str(folder)
    assert made["socs"] == ["ascend910b", "ascend910_93"]  # each once
    assert made["kernel_options"] == ["-g", "-sanitizer", "-DX=1"]


@pytest.mark.parametrize(("free", "expected"), [(1 << 20, 1), (7 << 20, 3), (1 << 40, 8)])
def test_jobs_go_as_far_as_the_memory(config, monkeypatch, free, expected):
    monkeypatch.setattr(config.os, "sched_getaffinity", lambda pid: range(8))
    monkeypatch.setattr(config.Path, "read_text", lambda path: f"MemTotal: 1 kB\nMemAvailable: {free} kB\n")
    assert config.jobs() == expected


def test_max_jobs_outranks_the_memory(monkeypatch):
    pytest.importorskip("scikit_build_core")
    code = "import fla_build, os; fla_build._settings({}); print(os.environ['CMAKE_BUILD_PARALLEL_LEVEL'])"
    for given, expected in (
        ({"MAX_JOBS": "7"}, "7"),
        ({"CMAKE_BUILD_PARALLEL_LEVEL": "5", "MAX_JOBS": "7"}, "5"),
    ):
        environment = {**os.environ, **given, "PYTHONPATH": str(ROOT / "opp_package")}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        assert done.stdout.strip() == expected, done.stderr


def test_subset_and_separators(config):
    assert config.decide("", "", "chunk_fwd_h")["ops"] == ["chunk_fwd_h"]
    assert config.decide("", "", "chunk_fwd_h;chunk_kda_fwd_finalize, chunk_fwd_h")["ops"] == [
        "chunk_fwd_h",
        "chunk_kda_fwd_finalize",
    ]
    assert set(config.decide("", "", "")["ops"]) == {
        p.parent.name for p in (ROOT / "ascendc/ops").glob("*/op.json")
    }


def test_revision_of_a_checkout(config, tmp_path, monkeypatch):
    """The whole hash; '-dirty' with a change of what git knows, not with a new file; nothing in a folder below."""

    def git(*arguments: str) -> str:
        settings = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", *settings, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    monkeypatch.setattr(config, "ROOT", tmp_path)
    assert config.git_revision() == ""
    git("init", "-q")
    assert config.git_revision() == ""  # no commit
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "-q", "-m", "one")
    git("tag", "v1")
    (tmp_path / "new").touch()
    assert config.git_revision() == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("b")
    assert config.git_revision() == git("rev-parse", "HEAD") + "-dirty"
    (tmp_path / "sub").mkdir()
    monkeypatch.setattr(config, "ROOT", tmp_path / "sub")
    assert config.git_revision() == ""


def version_of(config, state: str) -> str:
    version = config.Version()
    version.build_state(state)
    return version.dynamic_metadata({}, {})["version"]


def test_a_source_archive_has_a_label_when_it_is_for_one_kind(config, toolkit, monkeypatch):
    """pip compares the version in an archive's name with that of what is built from it, label and all."""
    assert version_of(config, "sdist") == config.VERSION
    assert version_of(config, "wheel") == f"{config.VERSION}+twin"
    monkeypatch.setenv("ASCEND_HOME_PATH", str(toolkit))
    assert version_of(config, "sdist") == config.VERSION  # nobody asked for one kind
    monkeypatch.setenv("FLA_NPU_BACKEND", "twin")
    assert version_of(config, "sdist") == f"{config.VERSION}+twin"
    monkeypatch.setenv("FLA_NPU_BACKEND", "cann")
    monkeypatch.setenv("FLA_NPU_SOC", "ascend910_93,ascend910b")
    assert version_of(config, "sdist") == f"{config.VERSION}+cann8.1.ascend910.93.ascend910b"


@pytest.mark.parametrize("label", ["", "twin", "cann8.1.ascend910.93.ascend910b"])
def test_label_of_an_unpacked_archive(config, tmp_path, monkeypatch, label):
    monkeypatch.setattr(config, "ROOT", tmp_path)
    assert config.pinned() == ""
    version = f"{config.VERSION}+{label}" if label else config.VERSION
    (tmp_path / "PKG-INFO").write_text(f"Metadata-Version: 2.2\nName: fla-npu\nVersion: {version}\n\nA+b\n")
    assert config.pinned() == label


def test_an_archive_for_one_kind_builds_that_kind_or_nothing(config, toolkit, monkeypatch):
    monkeypatch.setattr(config, "pinned", lambda: "twin")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(toolkit))
    assert config.decide("", "", "")["version"] == f"{config.VERSION}+twin"
    with pytest.raises(config.ConfigError) as refused:
        config.decide("cann", "", "")
    text = str(refused.value)
    assert "this source archive is for +twin" in text and "+cann8.1.ascend910b" in text
    monkeypatch.setattr(config, "pinned", lambda: "cann8.1.ascend910.93.ascend910b")
    made = config.decide("auto", "", "")
    assert (made["backend"], made["socs"]) == ("cann", ["ascend910_93", "ascend910b"])
    for options in (("twin", "", ""), ("", "ascend910b", "")):
        with pytest.raises(config.ConfigError, match="take one without a label"):
            config.decide(*options)
    (toolkit / "version.cfg").write_text("runtime_running_version=[8.3.RC1:8.3.RC1]\n")
    with pytest.raises(config.ConfigError, match=r"not for \+cann8.3"):
        config.decide("", "", "")
    monkeypatch.delenv("ASCEND_HOME_PATH")
    with pytest.raises(config.ConfigError, match="ASCEND_HOME_PATH is not set"):
        config.decide("", "", "")


def cmake(build: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", *arguments]
    if arguments == ("--build",):
        command = ["cmake", "--build", str(build)]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # cmake and ninja of this environment
    environment = {**os.environ, "PATH": path, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def assert_compiles_alone(source: Path) -> None:
    """With the API's headers and its own folder, as the toolkit compiles it."""
    command = ["g++", "-std=c++17", "-fsyntax-only", "-DTWIN_CORE=AIC", "-DTWIN_CHECKED=0"]
    command += [f"-I{ROOT}/ascendc/twin/include", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_shared_headers_have_names_of_their_own():
    """CANN's operator project has one folder for all kernels: of two files of one name, one would be lost."""
    common = ROOT / "ascendc/common"
    names = [p.name for where in ("kernel/*.h", "stages/*/*.h") for p in common.glob(where)]
    assert len(names) == len(set(names))


def test_cmake_says_the_same_and_remembers_nothing(toolkit, tmp_path):
    """One build tree, with CANN, with a wrong path, and without: each time what the environment says."""
    build = tmp_path / "build"
    options = ("-DFLA_NPU_SOC=ascend910b,ascend910_93", "-DFLA_NPU_KERNEL_OPTIONS=-g -sanitizer")
    ops = ("chunk_fwd_h", "chunk_kda_fwd_prepare", "chunk_kda_bwd_v2")
    options += (f"-DFLA_NPU_OPS={','.join(ops)}", "-DCMAKE_BUILD_TYPE=Debug")

    def build_with_nothing_in_the_toolkit(*options: str) -> None:
        """As far as it goes: the template's functions are an empty file."""
        done = cmake(build, *options, ASCEND_HOME_PATH=str(toolkit))
        assert done.returncode == 0, done.stderr
        done = cmake(build, "--build", ASCEND_HOME_PATH=str(toolkit))
        assert done.returncode != 0 and "step 'configure' failed" in done.stderr, done.stdout

    build_with_nothing_in_the_toolkit(*options)
    assert json.loads((build / "build_config.json").read_text())["backend"] == "cann"
    handed_on = (build / "cann/options.cmake").read_text()
    for setting in (
        "ASCEND_COMPUTE_UNIT [==[ascend910b;ascend910_93]==]",
        "FLA_KERNEL_OPTIONS [==[-g;-sanitizer]==]",
        "CMAKE_BUILD_TYPE [==[Debug]==]",
        f"ASCEND_CANN_PACKAGE_PATH [==[{toolkit}]==]",
    ):
        assert f"set({setting} CACHE" in handed_on
    compiled = build / "cann/build/object.o"  # what a toolkit compiled stays, until it is another one
    compiled.touch()
    build_with_nothing_in_the_toolkit()
    assert compiled.exists()
    (toolkit / "version.cfg").write_text("runtime_running_version=[8.3.RC1:8.3.RC1]\n")
    build_with_nothing_in_the_toolkit()
    assert not compiled.exists()
    project = build / "cann/project"
    for name in ("op_host/chunk_fwd_h_def.cpp", "op_api/aclnn_chunk_fwd_h.cpp", "op_kernel/chunk_fwd_h.cpp"):
        assert (project / name).is_file(), name
    for op in ops:
        assert_compiles_alone(project / "op_kernel" / f"{op}.cpp")
    assert_compiles_alone(project / "op_host" / "backward_plan.cpp")
    done = cmake(build, ASCEND_HOME_PATH=str(tmp_path / "nowhere"))
    assert done.returncode != 0 and "is no CANN toolkit" in " ".join(done.stderr.split())
    done = cmake(build, "-DFLA_NPU_OPS=chunk_fwd_h", "-DFLA_NPU_SOC=", "-DFLA_NPU_KERNEL_OPTIONS=")
    assert done.returncode == 0, done.stderr
    made = json.loads((build / "build_config.json").read_text())
    assert (made["backend"], made["ops"]) == ("twin", ["chunk_fwd_h"])


def test_install_fails_with_the_reason(tmp_path):
    """The build backend itself, as pip calls it, before anything is compiled."""
    pytest.importorskip("scikit_build_core")
    code = f"import fla_build; fla_build.build_wheel({str(tmp_path)!r})"
    environment = {**os.environ, "ASCEND_HOME_PATH": str(tmp_path / "nowhere"), "PYTHONPATH": "opp_package"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=environment
    )
    assert done.returncode != 0
    assert (
        "fla-npu cannot be built, step 'options' failed: ASCEND_HOME_PATH =" in done.stderr
        and "is no CANN toolkit" in done.stderr
    )
    assert not list(tmp_path.iterdir())
