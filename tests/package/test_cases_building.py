# SPDX-License-Identifier: Apache-2.0
"""Building, and what ends up in a wheel: faults other packages were hit by.

The number in a test's name is the number of the collected case. One small wheel is built for all tests of
the long tier; what is built again is built in its tree.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import fake_opp
import pytest
from environments import link_dependencies
from fla_npu import manylinux, owner
from fla_npu.manifest import record_hash

ROOT = Path(__file__).resolve().parents[2]
OPS = ("merge_fwd_bwd_kernel", "chunk_fwd_h")
full = pytest.mark.full
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("FLA_NPU", "ASCEND", "PYTHONPATH"))}


def run(*command: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    env = {**ENVIRONMENT, "CCACHE_BASEDIR": str(cwd.parent), "CCACHE_NOHASHDIR": "1", **environment}
    return subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, env=env)


def module(name: str):
    """A module of the build, which is no package."""
    place = importlib.util.spec_from_file_location(name, ROOT / f"opp_package/{name}.py")
    loaded = importlib.util.module_from_spec(place)
    place.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """What git knows of this checkout, as files, in a folder with an awkward name."""
    copy = tmp_path_factory.mktemp("source") / "it's a 中文 $x"
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").stdout.split("\0")
    for name in listed:
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


def pip_wheel(source: Path, out: Path, *options: str, **environment: str) -> subprocess.CompletedProcess:
    """Without build isolation, unless told otherwise: the tools of this environment."""
    options = options or ("--no-build-isolation",)
    command = [sys.executable, "-m", "pip", "wheel", source, "--no-deps", "-w", out, *options]
    return run(*command, cwd=source, **environment)


def build(source: Path, out: Path, *options: str, **environment: str) -> Path:
    done = pip_wheel(source, out, *options, **environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    return build(source, tmp_path_factory.mktemp("wheel"), FLA_NPU_OPS=",".join(OPS))


def names(wheel: Path) -> list[str]:
    return sorted(n for n in zipfile.ZipFile(wheel).namelist() if not n.endswith("/"))


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """An environment of its own that sees the packages of this one, but for fla_npu."""
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", folder)
    link_dependencies(next(folder.glob("lib/python*/site-packages")))
    return folder / "bin/python"


@pytest.mark.parametrize("fault", ["nowhere", "empty", "half", "cann without a toolkit"])
def test_10_a_broken_device_build_never_becomes_a_twin(tmp_path, monkeypatch, fault):
    config = module("build_config")
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    assert config.decide("auto", "", "")["version"].endswith("+twin")
    home = tmp_path / fault
    if fault == "half":
        (home / "include/aclnn").mkdir(parents=True)
        (home / "include/aclnn/acl_meta.h").touch()
    elif fault == "empty":
        home.mkdir()
    if fault != "cann without a toolkit":
        monkeypatch.setenv("ASCEND_HOME_PATH", str(home))
    for backend in ["cann"] if fault == "cann without a toolkit" else ["auto", "cann"]:
        with pytest.raises(config.ConfigError, match="ASCEND_HOME_PATH"):
            config.decide(backend, "", "")


def test_11_wheels_for_two_chips_are_two_versions(tmp_path, monkeypatch):
    from packaging.version import Version

    config = module("build_config")
    from fla_npu import loader

    assert loader.SOCS == config.SOCS
    toolkits = []
    for release in ("8.1.RC1", "8.5.0"):
        home = tmp_path / release
        for name in (*config.TOOLKIT_FILES, config.TEMPLATE):
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).touch()
        (home / "version.cfg").write_text(f"runtime_running_version=[{release}:{release}]\n")
        toolkits.append(home)
    seen = {Version(config.decide("twin", "", "")["version"])}
    for home in toolkits:
        monkeypatch.setenv("ASCEND_HOME_PATH", str(home))
        for soc in ("ascend910b", "ascend910_93", "ascend910b,ascend910_93"):
            seen.add(Version(config.decide("cann", soc, "")["version"]))
    assert len(seen) == 7  # case 37, too: pip's cache of one is no hit for another


def elf(tmp_path: Path, name: str, needed: str = "") -> bytes:
    """A library that asks for a version of the C library: a symbol of that version, imported."""
    stub = tmp_path / "libstub.so"
    versions = tmp_path / "map"
    if needed:
        versions.write_text(f"{needed} {{ global: old_and_new; }};\n")
        fake_opp.library(stub, "int old_and_new(void) { return 1; }", f"-Wl,--version-script={versions}")
    code = (
        "int old_and_new(void); int f(void) { return old_and_new(); }" if needed else fake_opp.functions("f")
    )
    return fake_opp.library(tmp_path / name, code, *([str(stub)] if needed else [])).read_bytes()


@pytest.mark.parametrize(
    "needed, tag",
    [("", "manylinux_2_17"), ("GLIBC_2.4", "manylinux_2_17"), ("GLIBC_2.34", "manylinux_2_34"),
     ("GLIBCXX_3.4.28", "manylinux_2_31"), ("GLIBCXX_3.4.30", "manylinux_2_35"), ("CXXABI_1.3.13", "manylinux_2_34"),
     ("GLIBCXX_3.4.99", "linux")],
)  # fmt: skip
def test_24_the_tag_is_what_the_binaries_need(tmp_path, needed, tag):
    plain, library = elf(tmp_path, "plain.so"), elf(tmp_path, "a.so", needed)
    assert manylinux.platform_tag([plain, library, plain], fake_opp.ARCH) == f"{tag}_{fake_opp.ARCH}"


def test_24_retagging_changes_nothing_else(tmp_path):
    arch = fake_opp.ARCH
    data = {"fla_npu/a.so": elf(tmp_path, "a.so", "GLIBC_2.30"), "fla_npu/__init__.py": b"",
            "fla_npu-1.dist-info/WHEEL": f"Wheel-Version: 1.0\nTag: py3-none-linux_{arch}\n".encode(),
            "fla_npu-1.dist-info/RECORD": b"fla_npu/a.so,,\nfla_npu-1.dist-info/WHEEL,sha256=x,1\n"}  # fmt: skip
    wheel = tmp_path / f"fla_npu-1-py3-none-linux_{arch}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in data.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), text)
    made = manylinux.retag(wheel)
    assert made.name == f"fla_npu-1-py3-none-manylinux_2_30_{arch}.whl" and not wheel.exists()
    archive = zipfile.ZipFile(made)
    assert archive.namelist() == list(data) and archive.infolist()[0].date_time[0] == 2020
    for name in list(data)[:2]:
        assert archive.read(name) == data[name]
    text = archive.read("fla_npu-1.dist-info/WHEEL")
    assert text.endswith(f"Tag: py3-none-manylinux_2_30_{arch}\n".encode())
    assert archive.read("fla_npu-1.dist-info/RECORD").decode().splitlines() == [
        "fla_npu/a.so,,",
        f"fla_npu-1.dist-info/WHEEL,{record_hash(text)},{len(text)}",
    ]
    assert manylinux.retag(made) == made


@full
def test_17_a_reused_tree_ships_no_removed_operator(source, wheel, tmp_path, look):
    """One operator fewer in the same tree; then a toolkit that is none, after a twin was built there."""
    again = build(source, tmp_path / "less", FLA_NPU_OPS=OPS[0])
    lost = set(names(wheel)) - set(names(again))
    assert lost and all("fwdh" in name.lower().replace("_", "") for name in lost)
    assert not set(names(again)) - set(names(wheel))
    seen = look(again, op=OPS[1])
    assert seen.status == 1 and seen.data["vendors"][0]["backend"] == "twin"
    failed = pip_wheel(source, tmp_path / "none", ASCEND_HOME_PATH="/nowhere", FLA_NPU_OPS=OPS[0])
    assert failed.returncode != 0 and "is no CANN toolkit" in failed.stdout + failed.stderr
    assert not list(tmp_path.glob("none/*.whl"))


@full
def test_17_a_tree_left_by_a_killed_build_or_moved_is_used_again(source, wheel, tmp_path):
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        source,
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
    ]
    header = next((source / "ascendc/common").rglob("*.h"))
    header.write_text(header.read_text() + "\n")  # so that there is something to compile
    env = {**ENVIRONMENT, "FLA_NPU_OPS": OPS[0], "CCACHE_DISABLE": "1"}
    process = subprocess.Popen(
        list(map(str, command)),
        env=env,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(8)
    os.killpg(process.pid, signal.SIGINT)
    process.wait()
    moved = source.with_name("moved")
    source.rename(moved)
    try:
        again = build(moved, tmp_path / "moved", FLA_NPU_OPS=OPS[0])
        assert set(names(again)) < set(names(wheel))
    finally:
        moved.rename(source)


@pytest.mark.parametrize(
    "had, asked, kept",
    [("{0}", "", True), ("{0}", "{0}", True), ("{0}", "{0} -m64", True), ("{0}", "link++", True),
     ("{0}", "other++", False), ("{0}", "/no/such", False), ("/gone/g++", "", False), (None, "other++", True)],
)  # fmt: skip
def test_17_a_tree_forgets_a_compiler_that_is_not_asked_for(tmp_path, monkeypatch, had, asked, kept):
    """CMake reads CXX when a tree is new, and never again."""
    programs = [tmp_path / "bin" / name for name in ("g++", "other++", "link++")]
    programs[0].parent.mkdir()
    for program in programs[:2]:
        program.touch(mode=0o755)
    programs[2].symlink_to("g++")
    tree = tmp_path / "checkout/build/tag"
    (tree / "CMakeFiles").mkdir(parents=True)
    line = f"CMAKE_CXX_COMPILER:FILEPATH={had.format(programs[0])}\n" if had else ""
    (tree / "CMakeCache.txt").write_text(f"// text\n{line}CMAKE_CXX_COMPILER_AR:FILEPATH=/usr/bin/ar\n")
    (tree / "object.o").touch()
    monkeypatch.setenv("PATH", str(programs[0].parent))
    monkeypatch.setenv("CXX", asked.format(programs[0]))
    owner.before_build(tmp_path / "checkout/python/fla_npu")
    assert (tree / "CMakeCache.txt").exists() == (tree / "CMakeFiles").exists() == kept
    assert (tree / "object.o").exists()


@full
def test_17_another_chip_python_or_compiler_in_the_same_tree(source, wheel, tmp_path):
    """Each time what is asked for now; a Python that has gone since is not asked for."""
    wanted = {"FLA_NPU_OPS": ",".join(OPS)}
    chip = build(source, tmp_path / "chip", FLA_NPU_SOC="ascend910_93", **wanted)
    assert names(chip) == sorted(n.replace("ascend910b", "ascend910_93") for n in names(wheel))
    manifest = json.loads(zipfile.ZipFile(chip).read("fla_npu/opp/manifest.json"))
    assert manifest["socs"] == ["ascend910_93"]
    assert names(build(source, tmp_path / "back", **wanted)) == names(wheel)
    gone = tmp_path / "gone"
    run(sys.executable, "-m", "venv", "--without-pip", gone)
    link_dependencies(next(gone.glob("lib/python*/site-packages")))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # its cmake and ninja
    pip = ["-m", "pip", "wheel", source, "--no-deps", "--no-build-isolation", "-w"]
    done = run(gone / "bin/python", *pip, tmp_path / "venv", cwd=source, PATH=path, **wanted)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    shutil.rmtree(gone)
    assert names(build(source, tmp_path / "without", **wanted)) == names(wheel)
    failed = pip_wheel(source, tmp_path / "none", CXX="/no/such/compiler", **wanted)
    assert failed.returncode != 0 and "/no/such/compiler" in failed.stdout + failed.stderr
    assert names(build(source, tmp_path / "repaired", **wanted)) == names(wheel)


@full
def test_18_every_way_to_build_gives_the_same_files(source, wheel, tmp_path, python):
    """With build isolation, from a config setting, and imported from an empty folder."""
    ways = {
        "isolated": build(source, tmp_path / "isolated", "--use-pep517", FLA_NPU_OPS=",".join(OPS)),
        "setting": build(
            source, tmp_path / "setting", "--no-build-isolation", "-C", f"FLA_NPU_OPS={','.join(OPS)}"
        ),
    }
    for way, made in ways.items():
        assert names(made) == names(wheel), way
    held = names(wheel)
    for needed in (
        "mindspore/csrc/bridge.cc",
        "installer.sh",
        "_contract/chunk_fwd_h.json",
        "opp/manifest.json",
    ):
        assert f"fla_npu/{needed}" in held
    assert {n.split("/")[0] for n in held if ".dist-info" not in n} == {"fla_npu"}  # 22: no stray package
    (tmp_path / "empty").mkdir()
    done = run(python, "-m", "pip", "install", "--no-deps", "--no-index", "--force-reinstall", wheel)
    assert done.returncode == 0, done.stderr
    code = "import fla_npu; from fla_npu import loader\n"
    code += "print(loader.bind('chunk_fwd_h').backend, fla_npu.build_info()['backend'])"
    assert run(python, "-c", code, cwd=tmp_path / "empty").stdout == "twin twin\n"


@full
def test_20_an_editable_install_finds_its_opp(source, wheel, tmp_path, python):
    """Python files in the checkout, the OPP in site-packages. The mode that makes no OPP is refused."""
    command = [python, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "-e", source]
    refused = run(*command, "-C", "editable.mode=inplace", cwd=source, FLA_NPU_OPS=",".join(OPS))
    assert (
        refused.returncode != 0
        and "leaves out the step that packs the OPP" in refused.stdout + refused.stderr
    )
    done = run(*command, cwd=source, FLA_NPU_OPS=",".join(OPS))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    code = "import fla_npu, os; from fla_npu import loader; loader.bind('chunk_fwd_h'); print(fla_npu.opp_path())"
    done = run(python, "-c", code, cwd=tmp_path)
    assert done.returncode == 0 and Path(done.stdout.strip(), "manifest.json").is_file(), done.stderr
    tool = run(python, "-m", "fla_npu.cli", "check-symbols", "--op", "chunk_fwd_h", cwd=tmp_path)
    assert tool.returncode == 0, tool.stdout + tool.stderr
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").stdout.strip())
    assert (site / "fla_npu/opp").is_dir()
    assert run(python, "-m", "pip", "uninstall", "-y", "fla-npu").returncode == 0
    assert not list(
        site.glob("*fla_npu*")
    )  # an empty folder would be imported, as a package without anything


@full
def test_22_uninstall_leaves_what_is_not_ours_and_nothing_else(wheel, tmp_path, python):
    assert (
        run(python, "-m", "pip", "install", "--no-deps", "--no-index", "--force-reinstall", wheel).returncode
        == 0
    )
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").stdout.strip())
    code = "from fla_npu import loader, info, check_symbols; loader.bind('chunk_fwd_h'); info.collect()"
    before = {p for p in (site / "fla_npu").rglob("*") if "__pycache__" not in p.parts}
    assert run(python, "-c", code, cwd=tmp_path).returncode == 0
    assert {
        p for p in (site / "fla_npu").rglob("*") if "__pycache__" not in p.parts
    } == before  # nothing is written
    alias = site / "fla_npu/opp/vendors/fla_npu/op_api/lib/libopapi.so"
    alias.write_bytes(b"")
    assert run(python, "-m", "pip", "uninstall", "-y", "fla-npu").returncode == 0
    assert [p for p in (site / "fla_npu").rglob("*") if p.is_file()] == [alias]
    # Our rest and nothing of ours: the next installation refuses it by name instead of using it.
    assert run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel).returncode == 0
    done = run(python, "-c", code, cwd=tmp_path)
    assert done.returncode == 1 and "libopapi.so lies beside" in done.stderr
    alias.unlink()
    assert run(python, "-m", "pip", "uninstall", "-y", "fla-npu").returncode == 0
    assert not list(site.glob("fla_npu*"))


@full
@pytest.mark.parametrize("order", ["before", "after"])
def test_22_another_distribution_with_our_import_name_for_real(wheel, tmp_path, python, order):
    """By pip: detected in both orders, the command of the message repairs it, and nothing is left of theirs."""
    other = tmp_path / "other_fla-1.0-py3-none-any.whl"
    texts = {"fla_npu/__init__.py": "from .fast import kernel\n", "fla_npu/fast.py": "kernel = 1\n",
             "other_fla-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: other-fla\nVersion: 1.0\n",
             "other_fla-1.0.dist-info/WHEEL":
                 "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}  # fmt: skip
    record = "".join(f"{name},,\n" for name in [*texts, "other_fla-1.0.dist-info/RECORD"])
    with zipfile.ZipFile(other, "w") as archive:
        for name, text in {**texts, "other_fla-1.0.dist-info/RECORD": record}.items():
            archive.writestr(name, text)
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    for package in [other, wheel] if order == "before" else [wheel, other]:
        done = run(*pip, "install", "--no-deps", "--no-index", package)
        assert done.returncode == 0, done.stderr
    code = "from fla_npu import loader; print(loader.bind('chunk_fwd_h').backend)"
    seen = run(python, "-c", code, cwd=tmp_path)
    assert seen.returncode == 1 and "also used by the installed distribution other-fla" in seen.stderr
    command = re.search(r"pip (uninstall [^,]*),", seen.stderr).group(1)
    assert run(*pip, *command.split()).returncode == 0
    assert run(*pip, "install", "--no-deps", "--no-index", wheel).returncode == 0
    assert run(python, "-c", code, cwd=tmp_path).stdout == "twin\n"
    assert run(*pip, "uninstall", "-y", "fla-npu").returncode == 0


@full
def test_23_24_auditwheel_agrees(wheel):
    """The tag in the name is auditwheel's own, nothing is bundled, the names CANN looks for are kept."""
    assert not [n for n in names(wheel) if ".libs/" in n or re.search(r"lib(ascend|hccl|nnopbase|torch)", n)]
    assert "fla_npu/opp/vendors/fla_npu/op_api/lib/libcust_opapi.so" in names(wheel)
    libraries = [zipfile.ZipFile(wheel).read(n) for n in names(wheel) if n.endswith(".so")]
    tag = re.search(r"(manylinux_2_(\d+)_\w+)\.whl$", wheel.name)
    assert tag and manylinux.platform_tag(libraries, fake_opp.ARCH) == tag.group(1)
    assert max(manylinux.needs(data).get("GLIBC", 0) for data in libraries) <= int(tag.group(2))
    tool = shutil.which("auditwheel", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if tool is None:
        pytest.skip("auditwheel is not installed; the tag was checked against the binaries")
    shown = run(tool, "show", wheel)
    assert f'"{tag.group(1)}"' in shown.stdout.replace("\n", " "), shown.stdout + shown.stderr


@full
def test_25_pip_takes_it_for_its_own_machine_only(wheel, tmp_path):
    assert "-py3-none-any" not in wheel.name
    other = tmp_path / wheel.name.replace(fake_opp.ARCH, fake_opp.OTHER_ARCH)
    shutil.copy(wheel, other)
    version = wheel.name.split("-")[1]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-index",
        "--only-binary",
        ":all:",
        "-f",
        tmp_path,
    ]
    here, there = (path.stem.split("-")[-1] for path in (wheel, other))
    refused = run(*command, "-d", tmp_path / "x", "--platform", here, f"fla-npu=={version}")
    assert refused.returncode != 0 and "No matching distribution" in refused.stderr
    taken = run(*command, "-d", tmp_path / "y", "--platform", there, f"fla-npu=={version}")
    assert taken.returncode == 0, taken.stderr


@full
def test_27_no_library_is_there_twice(wheel):
    archive = zipfile.ZipFile(wheel)
    members = [n for n in names(wheel) if n.endswith(".so")]
    assert members and len({archive.read(n) for n in members}) == len(members)
    assert not [i.filename for i in archive.infolist() if (i.external_attr >> 16) & 0o170000 == 0o120000]
    assert not [n for n in members if n.endswith(("libopapi.so", "liboptiling.so"))]


@full
def test_37_a_wheel_of_another_kind_is_another_version(wheel):
    """pip's cache knows names and versions only; the label tells builds apart, and build_info() too."""
    text = zipfile.ZipFile(wheel).read(next(n for n in names(wheel) if n.endswith("METADATA"))).decode()
    version = re.search(r"^Version: (\S+)$", text, re.M).group(1)
    assert version.endswith("+twin") and version == wheel.name.split("-")[1]


def interpreters() -> list[Path]:
    """Every Python 3.9 or newer that is here: on the PATH, and pyenv's."""
    found = [Path(p) for n in range(9, 16) if (p := shutil.which(f"python3.{n}"))]
    found += Path.home().glob(".pyenv/versions/3.[19]*/bin/python")
    versions = {}
    for path in found:
        version = run(
            path, "-c", "import sys; print('3.%d' % sys.version_info[1])", cwd=Path("/")
        ).stdout.strip()
        versions.setdefault(version, path)
    return [path for version, path in sorted(versions.items()) if version]


@full
@pytest.mark.parametrize("interpreter", interpreters(), ids=str)
def test_the_wheel_under_every_python_that_is_here(wheel, tmp_path, interpreter):
    """One wheel for all: with its dependencies from the index, libraries opened, command line and check."""
    if run(interpreter, "-m", "venv", tmp_path / "venv", cwd=tmp_path).returncode:
        pytest.skip("this Python makes no environments")
    scripts = tmp_path / "venv/bin"
    done = run(scripts / "python", "-m", "pip", "install", "-q", wheel, cwd=tmp_path)
    if "No matching distribution" in done.stderr and "fla-npu" not in done.stderr:
        pytest.skip("the index has no dependencies for this Python")
    assert done.returncode == 0, done.stderr[-2000:]
    facts = json.loads(run(scripts / "fla-npu", "info", "--json", cwd=tmp_path).stdout)
    assert facts["opp"]["chosen_by"] == "the installed package"
    assert [name for name, reason in facts["operators"].items() if not reason] == sorted(OPS)
    for op in OPS:
        seen = run(scripts / "fla-npu", "check-symbols", "--op", op, cwd=tmp_path)
        assert seen.returncode == 0, seen.stdout + seen.stderr


LEFT = ["stray.so", "libopapi.so", "a.o", "core.123", "opp/manifest.json", "opp/vendors/old/lib.so",
        "_contract/gone.json", "link", "notes.txt", "torch/x.pyd"]  # fmt: skip
PASSED = [".x.swp", ".ipynb_checkpoints/x.py", "x.py~", "x.py.orig", "torch/__pycache__/x.pyc", ".idea/a.xml"]


@pytest.mark.parametrize("name", LEFT)
def test_22_what_was_left_in_the_checkout_is_refused_by_name(tmp_path, name):
    """An OPP of an earlier in-place build, say, would be packed with the new one; an editor's copies do no harm."""
    package = Path(
        shutil.copytree(ROOT / "python/fla_npu", tmp_path / "p", ignore=shutil.ignore_patterns("__pycache__"))
    )
    for passed in PASSED:
        (package / passed).parent.mkdir(parents=True, exist_ok=True)
        (package / passed).touch()
    owner.before_build(package)
    path = package / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/etc") if name == "link" else path.touch()
    with pytest.raises(SystemExit, match=f"step 'sources' failed: {package}/{re.escape(name.split('/')[0])}"):
        owner.before_build(package)


@pytest.mark.parametrize("what", ["the checkout", "ASCEND_HOME_PATH", "TMPDIR"])
def test_a_path_that_cmake_cannot_take_is_refused_with_the_character(tmp_path, monkeypatch, what):
    import tempfile

    def ask(name: str) -> None:
        place = tmp_path / name
        place.mkdir(exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(place) if what == "TMPDIR" else None)
        monkeypatch.setenv("ASCEND_HOME_PATH", str(place) if what == "ASCEND_HOME_PATH" else "")
        owner.before_build(
            place / "python/fla_npu" if what == "the checkout" else Path("/nowhere/python/fla_npu")
        )

    for name in ("it's a 中文 $x", "a&b(c)", "100%d @x@", "#~=,", "a{b}*?`!^", "\udcff"):
        ask(name)
    for name in ("a[b", "a]b", "a|b", "a<b", "a;b", 'a"b', "a\\b", "a\tb", "a\nb"):
        with pytest.raises(SystemExit, match=f"step 'paths' failed: {what} is .*use a path without"):
            ask(name)


@full
def test_22_strays_around_and_inside_the_package(source, wheel, tmp_path):
    """Other packages in the source root, environments, an editor's files: the same wheel, one name at its top."""
    strays = [
        "stray.py",
        "stray_pkg/__init__.py",
        "python/other/__init__.py",
        "env/lib/python3/site-packages/x.py",
    ]
    strays += ["setup.cfg", *(f"python/fla_npu/{name}" for name in PASSED)]
    made = []
    try:
        for name in strays:
            made.append(source / name)
            made[-1].parent.mkdir(parents=True, exist_ok=True)
            made[-1].touch()
        again = build(source, tmp_path / "again", FLA_NPU_OPS=",".join(OPS))
        assert names(again) == names(wheel)
        made.append(source / "python/fla_npu/opp/vendors/fla_npu/op_api/lib/libopapi.so")
        made[-1].parent.mkdir(parents=True)
        made[-1].touch()
        failed = pip_wheel(source, tmp_path / "none", FLA_NPU_OPS=",".join(OPS))
        assert failed.returncode != 0 and "step 'sources' failed" in failed.stdout + failed.stderr
    finally:
        for path in made:
            path.unlink()
        for name in ("python/fla_npu/opp", "stray_pkg", "env", "python/other"):
            shutil.rmtree(source / name, ignore_errors=True)


@full
@pytest.mark.parametrize("name", ["it's $HOME 中", 'say "x"', "back\\slash", "[a]*?;|<b>", "-lead %d{x}"])
def test_an_environment_in_a_path_of_any_characters(wheel, tmp_path, name):
    """The wheel's own OPP is found, opened, checked and printed for a shell, wherever the environment lies."""
    folder = tmp_path / name
    run(sys.executable, "-m", "venv", "--without-pip", f"{tmp_path}/./{name}")
    site = next(folder.glob("lib/python*/site-packages"))
    link_dependencies(site)
    inside = folder / "bin/python"
    done = run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        inside,
        "install",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    code = "from fla_npu import loader; print(loader.bind('chunk_fwd_h').library.path)"
    assert Path(run(inside, "-c", code, cwd=tmp_path).stdout.strip()).is_relative_to(site / "fla_npu/opp")
    tool = run(inside, "-m", "fla_npu.cli", "check-symbols", "--op", "chunk_fwd_h", cwd=tmp_path)
    assert tool.returncode == 0, tool.stdout + tool.stderr
    lines = run(inside, "-m", "fla_npu.cli", "opp", "env", "--shell", "bash", cwd=tmp_path).stdout
    shown = run("sh", "-c", f'{lines}\nprintf %s "$FLA_NPU_OPP_PATH"').stdout
    assert Path(shown) == site / "fla_npu/opp/vendors/fla_npu"
