# SPDX-License-Identifier: Apache-2.0
"""The wheel on Debian 11 and 12 as they come: built on the older one, installed and run on both (long tier).

glibc 2.31 and Python 3.9 there, 2.36 and 3.11 here; no compiler where the wheel is only used.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from debian_root import Root, make_roots

ROOT = Path(__file__).resolve().parents[2]
OPERATORS = sorted(path.parent.name for path in (ROOT / "ascendc/ops").glob("*/op.json"))
OLD, NEW = "bullseye", "bookworm"
pytestmark = pytest.mark.full
SUITES = pytest.mark.parametrize("suite", [OLD, NEW])
BIND = "from fla_npu import loader, spec; print(*[name for name in spec.names() if loader.bind(name)])"


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """The two systems, bare, and `builder`: the older one with g++."""
    folder = tmp_path_factory.mktemp("roots")
    try:
        old, new = make_roots(folder, OLD, NEW)
        builder = old.copy(folder / "builder")
        apt(builder, "g++")
        yield SimpleNamespace(**{OLD: old, NEW: new}, builder=builder)
    finally:
        shutil.rmtree(folder)


def apt(root: Root, *packages: str) -> None:
    done = root.run(
        "sh", "-c", "apt-get update -qq && apt-get install -y -qq --no-install-recommends $0 $@", *packages
    )
    if done.returncode:
        pytest.skip(f"{', '.join(packages)} cannot be had here: {done.stderr.strip()[-200:]}")


def environment(root: Root, python: str = "python3", name: str = "venv") -> str:
    """A new one; its folder of commands."""
    root.must(python, "-m", "venv", f"/{name}")
    return f"/{name}/bin"


@pytest.fixture(scope="module")
def wheel(roots) -> Path:
    """Built on the older system by its own pip, and put where each can take it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            target = roots.builder.at("/src") / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    pip = f"{environment(roots.builder, name='tools')}/pip"
    roots.builder.must(pip, "wheel", "/src", "--no-deps", "-w", "/dist")
    (made,) = roots.builder.at("/dist").iterdir()
    for root in (roots.bullseye, roots.bookworm):
        shutil.copytree(made.parent, root.at("/dist"))
    return made


@pytest.fixture(scope="module")
def installed(roots, wheel) -> dict[str, list[str]]:
    """For each system an environment per Python it has, with the wheel and what it depends on."""
    made: dict[str, list[str]] = {}
    for suite in (OLD, NEW):
        root = getattr(roots, suite)
        for python in root.pythons():
            made.setdefault(suite, []).append(environment(root, python, f"venv-{python}"))
            root.must(f"{made[suite][-1]}/pip", "install", "-q", f"/dist/{wheel.name}")
    return made


def test_built_on_glibc_2_31_the_wheel_promises_no_more(wheel):
    tag = re.search(rf"-manylinux_2_(\d+)_{platform.machine()}\.whl$", wheel.name)
    assert tag and int(tag[1]) <= 31, wheel.name


@SUITES
def test_under_every_python_of_the_system_all_is_there(roots, installed, suite):
    root = getattr(roots, suite)
    assert root.run("sh", "-c", "command -v g++ gcc cc c++").returncode, "a compiler in a bare system"
    assert len(installed[suite]) == len(root.pythons()) >= 1
    for scripts in installed[suite]:
        facts = json.loads(root.must(f"{scripts}/fla-npu", "info", "--json"))
        assert facts["opp"]["chosen_by"] == "the installed package"
        assert facts["operators"] == dict.fromkeys(OPERATORS, "")
        assert root.must(f"{scripts}/fla-npu", "check-symbols").rstrip().endswith("complete")
        assert root.must(f"{scripts}/python", "-c", BIND).split() == OPERATORS


@SUITES
def test_the_demo_names_what_it_lacks(roots, installed, suite):
    root, scripts = getattr(roots, suite), installed[suite][0]
    done = root.run(f"{scripts}/fla-npu", "demo")
    assert done.returncode == 1 and "the demo needs numpy: pip install 'fla-npu[demo]'" in done.stderr


@SUITES
def test_a_run_file_comes_and_goes_without_a_trace(roots, installed, wheel, suite):
    root, scripts = getattr(roots, suite), installed[suite][0]
    before = root.files()
    root.must(f"{scripts}/fla-npu", "opp", "pack", f"/dist/{wheel.name}", "--out", "/tmp")
    (packed,) = root.at("/tmp").glob("*.run")
    root.must("sh", f"/tmp/{packed.name}", "--install-path=/opt/ascend/opp", "--quiet")
    use = ". /opt/ascend/opp/vendors/fla_npu/bin/set_env.bash && exec $0/fla-npu info --json"
    facts = json.loads(root.must("sh", "-c", use, scripts))
    assert facts["opp"]["chosen_by"] == "FLA_NPU_OPP_PATH" and facts["operators"] == dict.fromkeys(
        OPERATORS, ""
    )
    root.must("sh", f"/tmp/{packed.name}", "--install-path=/opt/ascend/opp", "--uninstall", "--quiet")
    packed.unlink()
    assert root.files() - before == set() == before - root.files()


@pytest.fixture(scope="module")
def newer(roots, tmp_path_factory) -> Path:
    """A wheel of one operator, built here."""
    here = int(platform.libc_ver()[1].split(".")[1])
    if here <= 31:
        pytest.skip(f"glibc 2.{here} here is no newer than that of {OLD}")
    out = tmp_path_factory.mktemp("newer")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        ROOT,
        "--no-deps",
        "-w",
        out,
        "-C",
        "FLA_NPU_OPS=merge_fwd_bwd_kernel",
    ]
    done = subprocess.run([*command, "-C", f"build-dir={out}/build"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return next(out.glob("*.whl"))


def test_a_wheel_of_a_newer_system_is_refused_by_its_tag(roots, installed, newer):
    root, scripts = roots.bullseye, installed[OLD][0]
    shutil.copy(newer, root.at("/tmp"))
    done = root.run(f"{scripts}/pip", "install", "--no-deps", f"/tmp/{newer.name}")
    root.at(f"/tmp/{newer.name}").unlink()
    assert done.returncode and "is not a supported wheel on this platform" in done.stderr


def test_a_run_file_of_a_newer_system_is_refused(roots, installed, newer):
    from fla_npu import vendors

    root, scripts = roots.bullseye, installed[OLD][0]
    needed = int(re.search(r"manylinux_2_(\d+)_", newer.name)[1])
    packed = vendors.pack(newer, newer.parent)
    shutil.copy(packed, root.at("/tmp"))
    before = root.files()
    done = root.run("sh", f"/tmp/{packed.name}", "--install-path=/opt/ascend/opp")
    other = root.run(
        f"{scripts}/fla-npu", "opp", "install", f"/tmp/{packed.name}", "--path", "/opt/ascend/opp"
    )
    assert done.returncode == 1 and (
        found := re.search(r"needs glibc 2\.(\d+), this system has 2\.31", done.stderr)
    )
    assert 31 < int(found[1]) <= needed
    assert other.returncode == 1 and f"needs glibc 2.{found[1]}, this system has" in other.stderr
    assert root.files() == before
    root.must("sh", f"/tmp/{packed.name}", "--extract=/tmp/tree")  # by force
    done = root.run(f"{scripts}/fla-npu", "info", "--json", FLA_NPU_OPP_PATH="/tmp/tree")
    reason = json.loads(done.stdout)["operators"]["merge_fwd_bwd_kernel"]
    assert done.returncode == 1 and re.search(r"was built for a newer system.*GLIBC(XX)?_[0-9.]+", reason), (
        reason
    )
    root.at(f"/tmp/{packed.name}").unlink()
    shutil.rmtree(root.at("/tmp/tree"))


def first_result(root: Root, wheel: Path, framework: str) -> tuple[float, str]:
    """Seconds from no environment to the end of the demo, with wheels at hand; what it printed."""
    asked = f"/dist/{wheel.name}[{framework},demo]"
    scripts = environment(root, name="fetch")
    done = root.run(f"{scripts}/pip", "download", "-q", "--only-binary", ":all:", "-d", "/wheels", asked)
    if done.returncode:
        pytest.skip(f"{framework} cannot be had here: {done.stderr.strip()[-200:]}")
    start = time.monotonic()
    scripts = environment(root, name=framework)
    root.must(f"{scripts}/pip", "install", "-q", "--no-index", "--find-links", "/wheels", asked)
    seconds = time.monotonic() - start
    if framework == "mindspore":
        # The bridge needs the headers of Python: it names their package.
        done = root.run(f"{scripts}/fla-npu", "build-bridge")
        assert done.returncode == 1 and "apt-get install python3-dev" in done.stderr
        apt(root, "python3-dev")
    start = time.monotonic()
    shown = root.must(f"{scripts}/fla-npu", "demo")
    return seconds + time.monotonic() - start, shown


@pytest.mark.parametrize("suite, framework", [(NEW, "torch"), ("builder", "mindspore")])
def test_from_nothing_to_a_first_result(roots, wheel, record_property, suite, framework):
    """PyTorch on Debian 12, MindSpore on Debian 11 with g++: its bridge is compiled there."""
    seconds, shown = first_result(getattr(roots, suite), wheel, framework)
    record_property("seconds from nothing to a first result", seconds)
    print(f"{framework}: {seconds:.0f} s from an empty environment to the first result")
    errors = dict(re.findall(r"relative L2 error of (\w+) +([0-9.]+) %", shown))
    assert set(errors) == {"attn_out", "final_state"} and max(map(float, errors.values())) < 1, shown
    if framework == "torch":  # nothing to compile: 90 s are three times what it takes
        assert seconds < 90
