# SPDX-License-Identifier: Apache-2.0
"""The twin for aarch64: how a build for another processor is told and checked; the wheel, cross-built and run by qemu.

The long tier builds all operators with Debian's cross compiler and runs loader, command line, primitives and
operator tests in an aarch64 Python. Operators that repeat recorded calls of this machine must give its bits.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import aarch64_root
import pytest
from fla_npu import manylinux

ROOT = Path(__file__).resolve().parents[2]
OPERATORS = {path.parent.name for path in (ROOT / "ascendc/ops").glob("*/op.json")}
HERE = platform.machine()
OTHER = "x86_64" if HERE == "aarch64" else "aarch64"
full = pytest.mark.full


def elf(processor: str, tail: bytes = b"\0GLIBC_2.30\0") -> bytes:
    """As much of a library as the tag is made from."""
    number = {"x86_64": 62, "aarch64": 183, "riscv64": 243}[processor]
    return b"\x7fELF\x02\x01\x01".ljust(18, b"\0") + number.to_bytes(2, "little") + bytes(44) + tail


def wheel_of(folder: Path, tag: str, members: dict[str, bytes]) -> Path:
    path = folder / f"fla_npu-1-py3-none-linux_{tag}.whl"
    about = {"fla_npu-1.dist-info/WHEEL": f"Tag: py3-none-linux_{tag}\n".encode(),
             "fla_npu-1.dist-info/RECORD": b"fla_npu-1.dist-info/WHEEL,,\n"}  # fmt: skip
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (members | about).items():
            archive.writestr(name, data)
    return path


def manifest(processor: str) -> dict[str, bytes]:
    return {"fla_npu/opp/manifest.json": json.dumps({"arch": processor}).encode()}


@pytest.mark.parametrize("processor", ["x86_64", "aarch64"])
def test_the_tag_names_the_processor_of_the_libraries(tmp_path, processor):
    library = elf(processor)
    assert manylinux.machine(library) == processor
    made = manylinux.retag(wheel_of(tmp_path, processor, {"fla_npu/a.so": library, **manifest(processor)}))
    assert made.name == f"fla_npu-1-py3-none-manylinux_2_30_{processor}.whl"
    text = zipfile.ZipFile(made).read("fla_npu-1.dist-info/WHEEL").decode()
    assert text == f"Tag: py3-none-manylinux_2_30_{processor}\n"


def test_what_is_no_library_has_no_processor():
    assert [manylinux.machine(x) for x in (b"", b"\x7fELF", b"INPUT(libc.so.6)" * 4)] == ["", "", ""]
    assert manylinux.machine(elf("riscv64")) == "e_machine 243"
    big = bytearray(elf("x86_64"))
    big[5], big[18:20] = 2, (183).to_bytes(2, "big")
    assert manylinux.machine(bytes(big)) == "aarch64"


@pytest.mark.parametrize(
    "tag, members, said",
    [
        ("x86_64", {"fla_npu/a.so": elf("aarch64")}, "a.so is for aarch64"),
        ("aarch64", {"fla_npu/a.so": elf("x86_64")}, "a.so is for x86_64"),
        ("aarch64", {"fla_npu/a.so": elf("aarch64"), "fla_npu/b.so": elf("x86_64")}, "b.so is for x86_64"),
        ("x86_64", {"fla_npu/a.so": elf("riscv64")}, "a.so is for e_machine 243"),
        ("aarch64", {"fla_npu/a.so": elf("aarch64"), **manifest("x86_64")}, "its manifest says x86_64"),
    ],
    ids=["libraries", "compiler forgotten", "two trees mixed", "unknown", "manifest"],
)
def test_a_wheel_that_mixes_processors_is_refused_and_removed(tmp_path, tag, members, said):
    wheel = wheel_of(tmp_path, tag, members)
    with pytest.raises(manylinux.WrongProcessor) as caught:
        manylinux.retag(wheel)
    text = str(caught.value)
    assert f"its name says {tag}, but {said}" in text and "CXX=aarch64-linux-gnu-g++" in text
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def compiler(tmp_path):
    """A compiler that says what it compiles for, in a folder with a blank; `kind` as GCC's and Clang's answers."""

    def make(kind: str) -> str:
        path = tmp_path / "my tools/c++"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\nfor last; do :; done\n[ "$last" = -dumpmachine ] && echo {kind}\n')
        path.chmod(0o755)
        return f"'{path}' -O2"

    return make


def test_who_says_what_a_build_is_for(tmp_path, compiler):
    toolchain = tmp_path / "toolchain.cmake"
    toolchain.write_text('# set(CMAKE_SYSTEM_PROCESSOR mips)\nset( CMAKE_SYSTEM_PROCESSOR "arm64")\n')
    cross, define = compiler("aarch64-linux-gnu"), "cmake.define."
    cases = [
        ({}, {}, ""),
        ({}, {"CXX": cross}, "aarch64"),
        ({define + "CMAKE_CXX_COMPILER": cross}, {"CXX": "/nowhere/c++"}, "aarch64"),
        ({}, {"CXX": "/nowhere/c++"}, ""),
        ({}, {"CXX": "'unbalanced"}, ""),
        ({define + "CMAKE_TOOLCHAIN_FILE": str(toolchain)}, {}, "aarch64"),
        ({}, {"CMAKE_ARGS": f"-GNinja -DCMAKE_TOOLCHAIN_FILE:FILEPATH={toolchain}"}, "aarch64"),
        ({}, {"CMAKE_TOOLCHAIN_FILE": str(toolchain)}, "aarch64"),
        ({define + "CMAKE_SYSTEM_PROCESSOR": "riscv64"}, {"CXX": cross}, "riscv64"),
        ({}, {"CMAKE_ARGS": "-DCMAKE_SYSTEM_PROCESSOR=riscv64", "CXX": cross}, "riscv64"),
        (
            {define + "CMAKE_SYSTEM_PROCESSOR": "riscv64"},
            {"_PYTHON_HOST_PLATFORM": "linux-aarch64"},
            "aarch64",
        ),
        ({}, {"_PYTHON_HOST_PLATFORM": "macosx-14-arm64", "CXX": cross}, "aarch64"),
    ]
    for settings, environment, processor in cases:
        assert manylinux.processor(settings, environment) == processor, (settings, environment)


def build_backend():
    """The hooks of pip as pip loads them."""
    pytest.importorskip("scikit_build_core")
    place = importlib.util.spec_from_file_location("fla_build", ROOT / "opp_package/fla_build.py")
    loaded = importlib.util.module_from_spec(place)
    place.loader.exec_module(loaded)
    return loaded


def test_a_cross_compiler_is_all_that_a_build_for_another_processor_needs(monkeypatch, compiler):
    backend = build_backend()
    for name in ("_PYTHON_HOST_PLATFORM", "CMAKE_ARGS", "CMAKE_TOOLCHAIN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CXX", compiler(f"{HERE}-linux-gnu"))
    assert backend._settings({"a": "b"}) == {"a": "b"} and "_PYTHON_HOST_PLATFORM" not in os.environ
    monkeypatch.setenv("CXX", compiler(f"{OTHER}-linux-gnu"))
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", "")  # so that monkeypatch takes it away afterwards
    monkeypatch.delenv("_PYTHON_HOST_PLATFORM")
    told = backend._settings({"cmake.define.CMAKE_SYSTEM_NAME": "GNU"})
    assert os.environ["_PYTHON_HOST_PLATFORM"] == f"linux-{OTHER}"
    assert told == {"cmake.define.CMAKE_SYSTEM_NAME": "GNU", "cmake.define.CMAKE_SYSTEM_PROCESSOR": OTHER}


@pytest.mark.parametrize("asked", ["platform", "setting"])
@pytest.mark.parametrize("named", [True, False], ids=["CXX", "default"])
def test_a_compiler_for_another_processor_than_asked_is_refused_at_once(compiler, asked, named):
    environment = {"CXX": compiler(f"{HERE}-linux-gnu")} if named else {}
    settings = {"cmake.define.CMAKE_SYSTEM_PROCESSOR": OTHER} if asked == "setting" else {}
    environment |= {"_PYTHON_HOST_PLATFORM": f"linux-{OTHER}"} if asked == "platform" else {}
    with pytest.raises(manylinux.WrongProcessor) as caught:
        manylinux.prepare_cross(settings, environment)
    assert f"the build is for {OTHER}, but the compiler " in str(caught.value)
    assert f" makes code for {HERE}; set CXX to one for {OTHER}" in str(caught.value)


def test_processors_that_nobody_has_tried_are_left_to_cmake(compiler):
    """Their compilers and kernels do not agree about their names: powerpc64le is ppc64le, arm is armv7l."""
    environment, settings = {"CXX": compiler("powerpc64le-linux-gnu")}, {}
    manylinux.prepare_cross(settings, environment)
    assert settings == {} and "_PYTHON_HOST_PLATFORM" not in environment


# The long tier: built, then run.


def git_files(to: Path) -> Path:
    """What git knows of this checkout, as files."""
    listed = aarch64_root.run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to


@pytest.fixture(scope="module")
def tools():
    pytest.importorskip("scikit_build_core")
    missing = aarch64_root.missing_tools()
    if missing or HERE != "x86_64":
        pytest.skip(
            f"needs Debian's {', '.join(missing)}" if missing else f"cross-builds from x86_64, not {HERE}"
        )


@pytest.fixture(scope="module")
def built(tools, tmp_path_factory) -> tuple[Path, str]:
    """The wheel as a user makes it, and what the build printed."""
    source = git_files(tmp_path_factory.mktemp("source"))
    out = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-v",
        source,
        "--no-deps",
        "--no-build-isolation",
        "-w",
        out,
    ]
    cache = {"CCACHE_BASEDIR": str(source.parent), "CCACHE_NOHASHDIR": "1"}
    done = aarch64_root.run(*command, cwd=source, CXX=aarch64_root.COMPILER, **cache)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert [path.name for path in (source / "build").iterdir()] == ["py3-none-linux_aarch64"]
    return next(out.glob("*.whl")), done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    return built[0]


@pytest.fixture(scope="module")
def root(wheel, tmp_path_factory) -> Iterator[aarch64_root.Root]:
    """An aarch64 Python in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("aarch64")
    try:
        made = aarch64_root.Root(folder)
        done = made.install("--no-index", wheel)
        assert done.returncode == 0, done.stderr
        yield made
    finally:
        shutil.rmtree(folder)


@full
def test_the_wheel_says_aarch64_everywhere(built):
    wheel, printed = built
    tag = re.search(r"\+twin-py3-none-manylinux_2_(\d+)_aarch64\.whl$", wheel.name)
    assert tag and 17 <= int(tag.group(1)) <= aarch64_root.GLIBC, wheel.name
    assert "warning:" not in printed and "Building CXX object" in printed
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    libraries = {name: archive.read(name) for name in names if name.endswith(".so")}
    assert len(libraries) == 3 + len(OPERATORS)
    assert {manylinux.machine(data) for data in libraries.values()} == {"aarch64"}
    assert json.loads(archive.read("fla_npu/opp/manifest.json"))["arch"] == "aarch64"
    tiling = [name for name in names if "/op_tiling/lib/linux/" in name]
    assert [Path(name).parent.name for name in tiling] == ["aarch64"]
    bom = json.loads(archive.read(next(name for name in names if name.endswith("fla-npu.cdx.json"))))
    assert len([part for part in bom["components"] if part["name"].endswith(".so")]) == len(libraries)


@full
def test_check_symbols_on_this_machine(wheel, look):
    seen = look(wheel, op=None, arch="aarch64")
    assert seen.status == 0 and {row["symbols"] for row in seen.data["ops"].values()} == {"ok"}, seen.text
    assert look(wheel, op=None).status == 0  # by the wheel's name
    assert "is for aarch64, needed is x86_64" in look(wheel, op=None, arch="x86_64").text


@full
def test_the_installed_wheel_under_qemu(root, tmp_path):
    """Every library opens and every operator binds there; the command line agrees."""
    code = "import platform; from fla_npu import loader, spec\n"
    code += "print(platform.machine(), sorted(n for n in spec.names() if loader.bind(n).backend == 'twin'))"
    done = root.run("-c", code, cwd=tmp_path)
    assert done.stdout == f"aarch64 {sorted(OPERATORS)}\n", done.stderr
    told = root.run("-m", "fla_npu.cli", "info", "--json", cwd=tmp_path)
    facts = json.loads(told.stdout)
    assert facts["opp"]["chosen_by"] == "the installed package"
    assert facts["operators"] == dict.fromkeys(sorted(OPERATORS), "")
    seen = root.run("-m", "fla_npu.cli", "check-symbols", cwd=tmp_path)
    assert seen.returncode == 0 and "complete" in seen.stdout, seen.stdout + seen.stderr


def run_tests(root, *what: str, **environment: str) -> int:
    """Tests of this checkout under qemu; how many passed. None may fail."""
    options = ("-q", "-rf", "-o", "addopts=", "-p", "no:cacheprovider", "--import-mode=importlib")
    done = root.run("-m", "pytest", *options, *what, cwd=ROOT, **environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return int(re.search(r"(\d+) passed", done.stdout).group(1))


@full
def test_the_primitives_under_qemu(root, tmp_path):
    cross = [f"-DCMAKE_CXX_COMPILER={aarch64_root.COMPILER}", "-DCMAKE_SYSTEM_NAME=Linux"]
    cross += ["-DCMAKE_SYSTEM_PROCESSOR=aarch64"]
    for command in (["-S", ROOT / "tests/twin_instr", "-B", tmp_path, *cross], ["--build", tmp_path, "-j2"]):
        done = aarch64_root.run("cmake", *command)
        assert done.returncode == 0, done.stderr
    names = ("arithmetic", "cast", "cube", "math", "moves", "reduce_select")
    files = [f"tests/twin_instr/test_{name}.py" for name in names]
    ready = {"FLA_NPU_TEST_LIBRARY": str(tmp_path / "libtwin_instr.so")}
    assert run_tests(root, *files, "-k", "not avx", **ready) > 200


@full
def test_the_stage_operators_under_qemu(root):
    """Each against its golden model by the accuracy rule, on the fast machine and on the checked one.

    The largest cases are left out: their models in float64 are what takes the time, and bits are compared below.
    """
    stages = [f"tests/ops/test_stages.py::test_{name}" for name in ("prepare", "fwd_h", "finalize")]
    stages.append("tests/ops/test_backward_stages.py::test_stage")
    assert run_tests(root, *stages, "-k", "not long and not ragged and not eight") >= 130


FAULT = """
import os, pickle, sys
sys.path.insert(0, sys.argv[1])
import call_records
from fla_npu.errors import TwinFault
call = next(call for call in pickle.load(open(sys.argv[2], "rb")) if call["op"] == "merge_fwd_bwd_kernel")
os.environ.update(FLA_NPU_TWIN="checked", FLA_NPU_TWIN_SKIP=sys.argv[3])
try:
    call_records.repeat(call)
except TwinFault as fault:
    print(fault)
del os.environ["FLA_NPU_TWIN_SKIP"]
print(call_records.repeat(call)["h"]["differ"])
"""


@full
def test_a_fault_unwinds_all_cores_and_the_next_launch_is_clean(root, recorded, tmp_path):
    """Exceptions leave their fibers there, too."""
    kernel = ROOT / "ascendc/ops/merge_fwd_bwd_kernel/op_kernel"
    waits = [f"{path.name}:{number}" for path in sorted(kernel.iterdir())
             for number, line in enumerate(path.read_text().splitlines(), 1) if "WaitFlag<" in line]  # fmt: skip
    assert waits
    done = root.run("-c", FAULT, ROOT / "tests/package", recorded, ",".join(waits), cwd=tmp_path)
    said = done.stdout.splitlines()
    assert len(said) == 2 and "twin fault: " in said[0] and "merge_fwd_bwd_kernel" in said[0], done.stderr
    assert said[1] == "0"


@full
@pytest.mark.parametrize("machine", ["fast", "checked"])
def test_every_operator_has_the_bits_of_x86_64(root, recorded, machine, tmp_path):
    """The checked machine sees pages of 64 KiB, as many aarch64 kernels have them (where qemu can do that)."""
    switches = {"FLA_NPU_TWIN": machine} | ({"QEMU_PAGESIZE": "65536"} if machine == "checked" else {})
    replay = (ROOT / "tests/package/call_records.py", "replay", recorded)
    done = root.run(*replay, cwd=tmp_path, FLA_NPU_TWIN_THREADS="3", **switches)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen.keys() == OPERATORS
    rows = {f"{op}.{name}": row for op, outputs in seen.items() for name, row in outputs.items()}
    assert {name: row for name, row in rows.items() if row["differ"]} == {}
    assert all(row["count"] for row in rows.values()) and len(rows) > 60


@pytest.fixture(scope="module")
def recorded(tools, tmp_path_factory) -> Iterator[Path]:
    """Calls of all operators on this machine, which must fuse multiply-adds as aarch64 does."""
    words = set(re.search(r"(?m)^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text()).group(1).split())
    if not {"avx2", "fma"} <= words:
        pytest.skip("this machine fuses no multiply-adds: its bits are those of no other")
    file = tmp_path_factory.mktemp("calls") / "calls.pickle"
    command = [sys.executable, str(ROOT / "tests/package/call_records.py"), "record", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=file.parent)
    assert done.returncode == 0, done.stderr
    yield file
    file.unlink()
