# SPDX-License-Identifier: Apache-2.0
"""Source archives, as pip and uv take them: by path, by name, by link, and from pip's cache (long tier).

pip compares the version in an archive's name with that of what is built from it, label and all; its cache
of built wheels is looked up by link alone. An archive that is for one kind carries the label itself.
"""

from __future__ import annotations

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
OP = "merge_fwd_bwd_kernel"
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("FLA_NPU", "ASCEND", "PYTHONPATH"))}
ENVIRONMENT["PATH"] = f"{Path(sys.executable).parent}:{ENVIRONMENT['PATH']}"
PIP = [sys.executable, "-m", "pip"]
OPTIONS = ["--no-deps", "--no-build-isolation"]
pytestmark = pytest.mark.full


def run(*command: object, cwd: Path = ROOT, **environment: object) -> subprocess.CompletedProcess:
    env = ENVIRONMENT | {"FLA_NPU_OPS": OP} | {name: str(value) for name, value in environment.items()}
    return subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, env=env)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    copy = tmp_path_factory.mktemp("source")
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").stdout.split("\0")
    for name in listed:
        if name and (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory) -> Path:
    return make_toolkit(tmp_path_factory.mktemp("toolkit") / "8.1", "template")


@pytest.fixture(scope="module")
def archive(source, toolkit, tmp_path_factory):
    """archive(backend) -> the source archive that is made when this backend is named, '' for none."""
    pytest.importorskip("scikit_build_core")
    made: dict[str, Path] = {}

    def make(backend: str = "") -> Path:
        if backend not in made:
            out = tmp_path_factory.mktemp("dist")
            code = f"import fla_build; fla_build.build_sdist({str(out)!r})"
            environment = {"PYTHONPATH": source / "opp_package", "ASCEND_HOME_PATH": toolkit}
            done = run(sys.executable, "-c", code, cwd=source, FLA_NPU_BACKEND=backend, **environment)
            assert done.returncode == 0, done.stderr
            made[backend] = next(out.iterdir())
        return made[backend]

    return make


def pip_wheel(out: Path, *what: object, **environment: object) -> subprocess.CompletedProcess:
    return run(*PIP, "wheel", "-w", out, *OPTIONS, *what, **environment)


def built(out: Path, *what: object, **environment: object) -> str:
    """Name of the one wheel."""
    done = pip_wheel(out, *what, **environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,) = out.glob("*.whl")
    manifest = json.loads(zipfile.ZipFile(wheel).read("fla_npu/opp/manifest.json"))
    assert manifest["version"] == wheel.name.split("-")[1]
    return wheel.name


def test_37_names_of_archives(archive):
    names = [archive(backend).name for backend in ("", "twin", "cann")]
    version = names[0].removesuffix(".tar.gz")
    assert "+" not in version
    assert names[1:] == [f"{version}+twin.tar.gz", f"{version}+cann8.1.ascend910b.tar.gz"]


def by_name(out: Path, dist: Path, wanted: str, **environment: object) -> subprocess.CompletedProcess:
    """pip's choice among the archives of a folder, checked against what they would become; nothing is built."""
    return run(*PIP, "download", "-d", out, *OPTIONS, "--no-index", "-f", dist, wanted, **environment)


def test_37_an_archive_without_a_label_is_not_taken_by_name(archive, tmp_path):
    """pip's own words, which the page of troubleshooting quotes."""
    done = by_name(tmp_path / "out", archive().parent, "fla-npu")
    said = done.stdout + done.stderr
    assert done.returncode != 0 and not list(tmp_path.glob("out/*"))
    assert "has inconsistent version: expected '0.1.0', but metadata has '0.1.0+twin'" in said


def test_37_an_archive_for_one_kind_is_taken_by_name(archive, toolkit, tmp_path):
    """Also beside a toolkit; the version names the kind where both lie there; it builds that kind or nothing."""
    dist = tmp_path / "dist"
    dist.mkdir()
    for backend in ("twin", "cann"):
        shutil.copy(archive(backend), dist)
    wanted = "fla-npu==" + archive("cann").name.split("-")[1].removesuffix(".tar.gz")
    for name, kind in (("fla-npu", "twin"), (wanted, "cann")):
        done = by_name(tmp_path / kind, dist, name, ASCEND_HOME_PATH=toolkit)
        assert done.returncode == 0, done.stdout + done.stderr
        assert [path.name for path in (tmp_path / kind).iterdir()] == [archive(kind).name]
    refused = by_name(tmp_path / "no", dist, wanted)
    assert refused.returncode != 0 and "ASCEND_HOME_PATH is not set" in refused.stdout + refused.stderr


@pytest.fixture(scope="module")
def twin(archive, toolkit, tmp_path_factory) -> Path:
    """The twin's wheel, which pip builds after one for CANN, from the same archive and with the same cache."""
    root = tmp_path_factory.mktemp("pip")
    cache = ["--cache-dir", root / "cache"]
    assert "+cann8.1" in built(root / "cann", *cache, archive(), ASCEND_HOME_PATH=toolkit)
    assert "+twin-" in built(root / "twin", *cache, archive())
    return next(root.glob("twin/*.whl"))


def test_37_the_cache_of_pip_gives_back_no_other_kind(archive, toolkit, twin, tmp_path):
    """A named link is looked up in the cache, by the link alone: archives for one kind have their own."""
    cache = ["--cache-dir", twin.parents[1] / "cache"]
    again = pip_wheel(tmp_path / "a", *cache, f"fla-npu @ file://{archive()}", ASCEND_HOME_PATH=toolkit)
    assert again.returncode == 0 and len(list(tmp_path.glob("a/fla_npu-0.1.0+*.whl"))) == 1  # one of the two
    assert "+twin-" in built(
        tmp_path / "b", *cache, f"fla-npu @ file://{archive('twin')}", ASCEND_HOME_PATH=toolkit
    )


def test_18_and_37_uv_builds_the_same_files_and_follows_the_environment(
    source, archive, toolkit, twin, tmp_path
):
    """From a folder: with a toolkit, without, with a source that changed; and from an archive, by name."""
    uv = shutil.which("uv", path=ENVIRONMENT["PATH"]) or pytest.skip("no uv")
    start = [uv, "pip", "install", *OPTIONS, "--python", sys.executable, "--cache-dir", tmp_path / "cache"]

    def installed(place: str, *what: object, **environment: object) -> Path:
        done = run(*start, "--target", tmp_path / place, *what, **environment)
        assert done.returncode == 0, done.stderr[-3000:]
        return tmp_path / place / "fla_npu"

    def version(package: Path) -> str:
        return json.loads((package / "opp/manifest.json").read_text())["version"]

    def files(package: Path) -> list[str]:
        found = (p.relative_to(package.parent) for p in package.rglob("*") if p.is_file())
        return sorted(p.as_posix() for p in found if "__pycache__" not in p.parts)

    assert "+cann8.1" in version(installed("a", source, ASCEND_HOME_PATH=toolkit))
    expected = sorted(name for name in zipfile.ZipFile(twin).namelist() if name.startswith("fla_npu/"))
    assert files(installed("b", source)) == expected and version(tmp_path / "b/fla_npu").endswith("+twin")
    changed = source / "python/fla_npu/errors.py"
    before = changed.read_text()
    changed.write_text(before + "# changed\n")
    try:
        assert (installed("c", source) / "errors.py").read_text().endswith("# changed\n")
    finally:
        changed.write_text(before)
    assert files(installed("d", "--no-index", "-f", archive("twin").parent, "fla-npu")) == expected
