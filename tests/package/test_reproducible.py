# SPDX-License-Identifier: Apache-2.0
"""One commit built in two folders gives the same bytes, with a bill of materials inside (long tier).

The second build has another folder, order of files on the disk, file times, umask, user, home, clock, language,
number of jobs, and no compiler cache. From a source archive the manifest has no git revision; the rest is the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from recorded_toolkit import make_toolkit

ROOT = Path(__file__).resolve().parents[2]
OP = "chunk_kda_fwd_finalize"
FOLDERS = ("a", "another place, deeper/b")
pytestmark = pytest.mark.full
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("FLA_NPU", "ASCEND", "PYTHONPATH"))}
ENVIRONMENT["PATH"] = f"{Path(sys.executable).parent}:{ENVIRONMENT['PATH']}"


def build(source: Path, out: Path, **environment: object) -> Path:
    """A wheel of the source; its even or odd surroundings follow from the folder."""
    odd = str(source).endswith("/b")
    home = source.parent / ("home of b" if odd else "home")
    home.mkdir(exist_ok=True)
    surroundings = {
        "CCACHE_DIR": str(home.parent / "ccache"), "LANG": "C.UTF-8" if odd else "C", "TZ": "UTC-9" if odd else "UTC",
        "HOME": str(home), "USER": "b" if odd else "a", "LOGNAME": "b" if odd else "a", "MAX_JOBS": "1" if odd else "3",
    }  # fmt: skip
    if odd:
        surroundings["CCACHE_DISABLE"] = "1"
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        str(source),
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
    ]
    env = ENVIRONMENT | surroundings | {name: str(value) for name, value in environment.items()}
    umask = 0o077 if odd else 0o022
    done = subprocess.run(
        command, capture_output=True, text=True, env=env, preexec_fn=lambda: os.umask(umask)
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> list[Path]:
    """Two checkouts of the same commit, made in another order and with other times and modes."""
    pytest.importorskip("scikit_build_core")
    root = tmp_path_factory.mktemp("reproducible")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split("\0")
    for folder, names in zip(FOLDERS, (listed, listed[::-1])):
        for name in names:
            if name and (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
                place = root / folder / name
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, place)
                os.utime(place, (1e9, 1e9) if folder == FOLDERS[0] else (1.5e9, 1.5e9))
                place.chmod(0o644 if folder == FOLDERS[0] else 0o600)
    return [root / folder for folder in FOLDERS]


@pytest.fixture(scope="module")
def wheels(sources, tmp_path_factory) -> list[Path]:
    root = tmp_path_factory.mktemp("wheels")
    return [build(source, root / f"out{number}", FLA_NPU_OPS=OP) for number, source in enumerate(sources)]


def members(wheel: Path) -> dict[str, str]:
    archive = zipfile.ZipFile(wheel)
    return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def assert_same(first: Path, second: Path) -> None:
    a, b = members(first), members(second)
    differing = sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))
    assert not differing
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


def test_two_folders_give_the_same_bytes(wheels):
    assert_same(*wheels)


@pytest.mark.parametrize("style", ["template", "asc"])
def test_two_toolkits_at_two_places_give_the_same_bytes(sources, tmp_path, style):
    """Two chips, with each kind of recorded toolkit, and nothing of where it lay."""
    made = []
    for number, source in enumerate(sources):
        home = make_toolkit(tmp_path / ("toolkit" if number else "other toolkit, here") / style, style)
        options = {"ASCEND_HOME_PATH": home, "FLA_NPU_SOC": "ascend910b,ascend910_93", "FLA_NPU_OPS": OP}
        made.append(build(source, tmp_path / f"out{number}", **options))
    assert_same(*made)
    archive = zipfile.ZipFile(made[0])
    known = [bytes(path) for path in (tmp_path, *sources)]
    assert not [name for name in archive.namelist() for place in known if place in archive.read(name)]


def test_a_source_archive_gives_the_same_but_for_the_revision(sources, wheels, tmp_path):
    code = f"import fla_build; fla_build.build_sdist({str(tmp_path)!r})"
    env = ENVIRONMENT | {"PYTHONPATH": str(sources[0] / "opp_package")}
    subprocess.run([sys.executable, "-c", code], cwd=sources[0], env=env, check=True, capture_output=True)
    made = build(next(tmp_path.glob("*.tar.gz")), tmp_path / "out", FLA_NPU_OPS=OP)
    assert_same(wheels[0], made)  # the folders of these tests are no checkouts: no revision here either


def test_only_the_revision_tells_a_checkout(sources, wheels, tmp_path):
    """In a checkout the manifest and the bill of materials have it, and with them the hashes in RECORD."""
    commands = (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "one"])
    for command in commands:
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *command]
        subprocess.run(git, cwd=sources[0], check=True, capture_output=True)
    try:
        made = build(sources[0], tmp_path / "out", FLA_NPU_OPS=OP)
    finally:
        shutil.rmtree(sources[0] / ".git")
    first, second = members(wheels[0]), members(made)
    assert first.keys() == second.keys()
    names = {name.rpartition("/")[2] for name in first if first[name] != second[name]}
    assert names == {"manifest.json", "RECORD", "fla-npu.cdx.json"} or names == {"manifest.json", "RECORD"}
    manifest = json.loads(zipfile.ZipFile(made).read("fla_npu/opp/manifest.json"))
    assert len(manifest["git"]) == 40


def test_no_folder_of_the_build_is_in_the_wheel(wheels):
    archive = zipfile.ZipFile(wheels[0])
    folder = str(wheels[0].parents[1]).encode()
    assert not [name for name in archive.namelist() if folder in archive.read(name)]


def test_bill_of_materials(wheels):
    archive = zipfile.ZipFile(wheels[0])
    place = next(name for name in archive.namelist() if name.endswith(".dist-info/sboms/fla-npu.cdx.json"))
    bom = json.loads(archive.read(place))
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    assert (
        bom["metadata"]["component"]["name"] == "fla-npu"
        and "+twin" in bom["metadata"]["component"]["version"]
    )
    listed = {part["name"]: part["hashes"][0]["content"] for part in bom["components"]}
    libraries = {n.removeprefix("fla_npu/"): h for n, h in members(wheels[0]).items() if n.endswith(".so")}
    assert listed == libraries
