# SPDX-License-Identifier: Apache-2.0
"""Cases 12, 15 and 24 on the OPP in use: every mix of two builds, every file lost, and what its libraries export."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fla_npu import elf, opp
from fla_npu.manifest import digest
from in_step import in_step

pytest.importorskip("torch")
OP, OTHER = "chunk_fwd_h", "f" * 32
IMPL = "vendors/fla_npu/op_impl/ai_core/tbe"
PARTS = {
    "operators": ["vendors/fla_npu/op_api/lib/libcust_opapi.so"],
    "twin": ["vendors/fla_npu/op_api/lib/libfla_twin.so"],
    "tiling": [f"{IMPL}/op_tiling/lib/linux/*/libcust_opmaster_rt2.0.so"],
    "kernels": [f"{IMPL}/kernel/*/*/*.so"],
    "manifest": ["manifest.json"],
}
# Forked for each OPP, so that PyTorch is imported once. One line each: what the call did.
CALLS = """
import os, sys, torch
from fla_npu import check_symbols
from fla_npu.ops import ascendc
k = torch.zeros(1, 64, 1, 128, dtype=torch.bfloat16)
values = [k, k, k] + [torch.zeros(1, 64, 1, 128)]
for root in sys.stdin.read().splitlines():
    if os.fork() == 0:
        os.environ["FLA_NPU_OPP_PATH"] = root
        os.chdir("/")
        try:
            {call}
            print("ran", flush=True)
        except BaseException as error:
            print(type(error).__name__, str(error).replace("\\n", " "), flush=True)
        os._exit(0)
    status = os.wait()[1]
    if status:
        print("ended with", status, flush=True)
"""
CALL = """out = __import__("fla_npu.torch", fromlist=["x"]).npu_chunk_kda(
                *values[:3], values[3], torch.zeros(1, 64, 1), 1.0, layout="BSND", a_log=torch.zeros(1),
                safe_gate=True, use_qk_l2norm_in_kernel=True)"""


def calls(roots: list[Path]) -> list[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FLA_NPU", "ASCEND"))}
    environment["FLA_NPU_TWIN_THREADS"] = "1"
    text = "".join(f"{root}\n" for root in roots)
    command = [sys.executable, "-c", CALLS.replace("{call}", CALL)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, env=environment)
    lines = done.stdout.splitlines()
    assert len(lines) == len(roots), done.stdout[-2000:] + done.stderr[-2000:]
    return lines


@pytest.fixture(scope="module")
def builds(tmp_path_factory) -> tuple[Path, Path]:
    """The OPP in use, and the same as another build would be: another id in every library."""
    found = opp.find()
    if found.backend != "twin" or not found.build_id:
        pytest.skip("needs a twin OPP with a manifest")
    folder = tmp_path_factory.mktemp("builds")
    new, old = folder / "new", folder / "old"
    shutil.copytree(found.root, new)
    shutil.copytree(found.root, old)
    manifest = json.loads((old / "manifest.json").read_text().replace(found.build_id, OTHER))
    for name, entry in manifest["files"].items():
        data = (old / name).read_bytes()
        if name.endswith(".so"):
            assert found.build_id.encode() in data
            (old / name).write_bytes(data := data.replace(found.build_id.encode(), OTHER.encode()))
        entry["sha256"] = hashlib.sha256(data).hexdigest()
    manifest["digest"] = digest(manifest)
    (old / "manifest.json").write_text(json.dumps(manifest))
    return new, old


def mix(new: Path, old: Path, parts: tuple[str, ...], root: Path) -> Path:
    """`new` with these parts of `old`."""
    shutil.copytree(new, root)
    for pattern in itertools.chain.from_iterable(PARTS[part] for part in parts):
        for path in old.glob(pattern):
            shutil.copy(path, root / path.relative_to(old))
    return root


def look(root: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "fla_npu.cli", "check-symbols", str(root)], capture_output=True, text=True
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.full
def test_12_every_mix_of_two_builds_is_refused(builds, tmp_path):
    """30 mixes of five parts: none computes, each is called a mixture; the two whole builds run."""
    new, old = builds
    chosen = [c for n in range(1, len(PARTS)) for c in itertools.combinations(PARTS, n)]
    roots = [mix(new, old, parts, tmp_path / str(n)) for n, parts in enumerate(chosen)]
    assert len(roots) == 30 and calls([new, old]) == ["ran", "ran"]
    for parts, said in in_step(chosen, calls(roots)):
        assert said.startswith(("AbiMismatch", "LaunchError")) and "build" in said, (parts, said)
    for parts, root in in_step(chosen, roots):
        status, text = look(root)
        assert status in (1, 2) and ("of build" in text or "mixed" in text or "sha256" in text), (
            parts,
            text[-500:],
        )
    assert look(new)[0] == look(old)[0] == 0


@pytest.mark.full
def test_15_every_file_of_the_opp_lost_one_at_a_time(builds, tmp_path):
    """Import, a call from '/', check_symbols: the call needs what it opens, the check wants all; no crash."""
    new, _ = builds
    files = sorted(p.relative_to(new).as_posix() for p in new.rglob("*") if p.is_file())
    roots = []
    for number, name in enumerate(files):
        roots.append(Path(shutil.copytree(new, tmp_path / str(number))))
        (roots[-1] / name).unlink()
    noticed = set()
    for name, root, said in in_step(files, roots, calls(roots)):
        if said != "ran":
            assert said.startswith(("OppNotFound", "LaunchError", "AbiMismatch")), (name, said)
            assert "no operator library" in said or Path(name).name in said, (name, said)
            noticed.add(Path(name).name)
        status, text = look(root)
        assert status in (1, 2), (
            name,
            text[-300:],
        )
        assert Path(name).name in text or "no operator library" in text or "missing" in text, (
            name,
            text[-300:],
        )
    assert {"libcust_opapi.so", "libfla_twin.so", "libcust_opmaster_rt2.0.so"} < noticed


def test_24_no_type_of_cpp_crosses_the_border():
    """What callers use has C names, and no library asks a framework for anything: std::string's ABI does not matter."""
    found = opp.find()
    own = {path.name for path in found.root.rglob("*.so")}
    system = ("libc.so", "libm.so", "libstdc++.so", "libgcc_s.so", "libpthread.so", "libdl.so", "ld-linux")
    for path in sorted(found.root.rglob("*.so")):
        read = elf.read_elf(path.read_bytes())
        assert all(name in own or name.startswith(system) for name in read.needed), (path, read.needed)
        if path.name == "libcust_opapi.so":
            assert read.functions and not [n for n in read.functions | read.data if n.startswith("_Z")]
