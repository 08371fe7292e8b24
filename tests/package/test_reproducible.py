# SPDX-License-Identifier: Apache-2.0
"""One commit built in two folders gives the same bytes, with a bill of materials inside (long tier)."""

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

ROOT = Path(__file__).resolve().parents[2]
OP = "chunk_kda_fwd_finalize"
FOLDERS = ("a", "another place, deeper/b")
pytestmark = pytest.mark.full
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("FLA_NPU", "ASCEND", "PYTHONPATH"))}


def build(source: Path, out: Path) -> Path:
    """A wheel with one operator; nothing comes from a compiler cache, the clock and the user are others."""
    environment = {
        "CCACHE_DISABLE": "1",
        "FLA_NPU_OPS": OP,
        "LANG": "C",
        "TZ": f"UTC-{len(str(source)) % 12}",
    }
    command = [sys.executable, "-m", "pip", "wheel", str(source), "--no-deps", "-w", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env={**ENVIRONMENT, **environment})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> list[Path]:
    root = tmp_path_factory.mktemp("reproducible")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    for folder in FOLDERS:
        for name in (
            listed if folder == FOLDERS[0] else reversed(listed)
        ):  # another order on the disk, other times
            if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
                (root / folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, root / folder / name)
    return [build(root / folder, root / f"out{number}") for number, folder in enumerate(FOLDERS)]


def members(wheel: Path) -> dict[str, str]:
    archive = zipfile.ZipFile(wheel)
    return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def test_two_folders_give_the_same_bytes(wheels):
    first, second = map(members, wheels)
    differing = sorted(name for name in first | second if first.get(name) != second.get(name))
    assert not differing
    assert wheels[0].name == wheels[1].name
    assert wheels[0].read_bytes() == wheels[1].read_bytes()


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
