# SPDX-License-Identifier: Apache-2.0
"""From build outputs to the package tree: layout, manifest, nothing left over, nothing missing."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_opp import ARCH, BUILD, functions, identity, library
from fla_npu.manifest import digest

ROOT = Path(__file__).resolve().parents[2]
OPS = {"chunk_fwd_h": "ChunkFwdH", "chunk_kda_fwd_finalize": "ChunkKdaFwdFinalize"}


def make_build(build: Path, ops: list[str]) -> Path:
    """A build tree as CMake leaves it, with tiny libraries."""
    build.mkdir(exist_ok=True)
    config = {
        "version": "9+twin",
        "backend": "twin",
        "socs": ["ascend910b"],
        "ops": ops,
        "cann": "",
        "cann_home": "",
        "git": "",
        "compiler": "GNU 1",
        "arch": ARCH,
        "build_type": "Release",
        "kernel_options": [],
    }
    (build / "build_config.json").write_text(json.dumps(config))
    (build / "build_id.cpp").write_text(f'const char fla_build_id[33] = "{BUILD}";\n')
    symbols = [s for op in ops for s in (f"aclnn{OPS[op]}", f"aclnn{OPS[op]}GetWorkspaceSize")]
    sources = {
        "fla_twin": "",
        "cust_opapi": functions(*symbols),
        "cust_opmaster": functions(*(f"fla_plan_{op}" for op in ops)),
        **{f"kernel_{op}": f"const int fla_kernel_{op} = 1;" for op in ops},
    }
    paths = {name: str(library(build / f"{name}.so", identity() + text)) for name, text in sources.items()}
    (build / "artifacts.json").write_text(json.dumps(paths))
    for op in ops:
        subprocess.run(
            [
                sys.executable,
                str(ROOT / "ascendc/codegen/generate.py"),
                "twin",
                str(ROOT / f"ascendc/ops/{op}/op.json"),
                str(build / "generated" / op),
            ],
            check=True,
        )
    return build


def pack(build: Path) -> subprocess.CompletedProcess:
    command = [
        sys.executable,
        str(ROOT / "opp_package/pack.py"),
        "--build",
        str(build),
        "--source",
        str(ROOT),
    ]
    return subprocess.run([*command, "--out", str(build / "package")], capture_output=True, text=True)


def files_of(package: Path) -> set[str]:
    return {p.relative_to(package).as_posix() for p in package.rglob("*") if p.is_file()}


@pytest.fixture
def build(tmp_path):
    made = make_build(tmp_path / "build", list(OPS))
    done = pack(made)
    assert done.returncode == 0, done.stderr
    return made


def test_layout(build):
    vendor = "opp/vendors/fla_npu/"
    found = files_of(build / "package")
    impl = vendor + "op_impl/ai_core/tbe/"
    expected = {
        "opp/manifest.json",
        "opp/vendors/config.ini",
        vendor + "version.info",
        vendor + "op_api/lib/libcust_opapi.so",
        vendor + "op_api/lib/libfla_twin.so",
        impl + f"op_tiling/lib/linux/{ARCH}/libcust_opmaster_rt2.0.so",
        impl + "config/ascend910b/aic-ascend910b-ops-info.json",
        impl + "kernel/config/ascend910b/binary_info_config.json",
    }
    for op, op_type in OPS.items():
        expected |= {vendor + f"op_api/include/aclnn_{op}.h", impl + f"kernel/ascend910b/{op}/{op_type}.so"}
        expected |= {impl + f"kernel/ascend910b/{op}/{op_type}.json"}
        expected |= {impl + f"kernel/config/ascend910b/{op}.json"}
    expected |= {
        vendor + f"op_api/include/{p.relative_to(ROOT / 'ascendc/twin/include')}"
        for folder in ("acl", "aclnn")
        for p in (ROOT / "ascendc/twin/include" / folder).iterdir()
    }
    expected.add("_built")  # right in the folder: pip uninstall leaves one behind that has only folders
    expected |= {f"_contract/{p.parent.name}.json" for p in (ROOT / "ascendc/ops").glob("*/op.json")}
    assert found == expected
    assert not any(name.endswith("libopapi.so") for name in found)


def test_manifest_describes_every_file(build):
    opp = build / "package/opp"
    manifest = json.loads((opp / "manifest.json").read_text())
    assert (manifest["build_id"], manifest["backend"], manifest["version"]) == (BUILD, "twin", "9+twin")
    assert set(manifest["files"]) == files_of(opp) - {"manifest.json"}
    assert manifest["schema"] == 2 and manifest["digest"] == digest(manifest)
    for name, entry in manifest["files"].items():
        assert entry["sha256"] == hashlib.sha256((opp / name).read_bytes()).hexdigest()
    from fla_npu import spec

    for op in OPS:
        assert manifest["ops"][op]["prototype_hash"] == spec.spec(op).prototype_hash


def test_check_symbols_agrees(build, look):
    for op in OPS:
        seen = look(build / "package/opp", op=op)
        assert seen.status == 0, seen.text


def test_contracts_are_verbatim_and_whole(build):
    for path in (ROOT / "ascendc/ops").glob("*/op.json"):
        assert (build / f"package/_contract/{path.parent.name}.json").read_bytes() == path.read_bytes()


def test_bill_of_materials_lists_every_library(build):
    bom = json.loads((build / "sbom/fla-npu.cdx.json").read_text())
    assert (bom["bomFormat"], bom["metadata"]["component"]["version"]) == ("CycloneDX", "9+twin")
    assert bom["metadata"]["tools"]["components"][0]["name"] == "GNU"
    listed = {part["name"]: part["hashes"][0]["content"] for part in bom["components"]}
    libraries = [p for p in (build / "package").rglob("*.so")]
    assert listed == {
        p.relative_to(build / "package").as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in libraries
    }


def test_reused_tree_drops_removed_operators(build):
    before = (build / "package/opp/vendors/fla_npu/op_api/include/aclnn_chunk_fwd_h.h").stat().st_mtime_ns
    make_build(build, ["chunk_fwd_h"])
    assert pack(build).returncode == 0
    assert not [name for name in files_of(build / "package/opp") if "finalize" in name]
    assert (
        "chunk_kda_fwd_finalize" not in json.loads((build / "package/opp/manifest.json").read_text())["ops"]
    )
    assert not [p for p in (build / "package/opp").rglob("*") if p.is_dir() and not any(p.iterdir())]
    # What did not change was not written again.
    assert (
        build / "package/opp/vendors/fla_npu/op_api/include/aclnn_chunk_fwd_h.h"
    ).stat().st_mtime_ns == before


def test_stray_file_in_the_tree_goes(build):
    stray = build / "package/opp/vendors/fla_npu/op_api/lib/libopapi.so"
    stray.write_bytes(b"old")
    assert pack(build).returncode == 0
    assert not stray.exists()


@pytest.mark.parametrize(
    "lost", ["kernel_chunk_fwd_h.so", "cust_opapi.so", "generated/chunk_fwd_h/aclnn_chunk_fwd_h.h"]
)
def test_missing_output_is_an_error(build, lost):
    (build / lost).unlink()
    done = pack(build)
    assert done.returncode == 1
    assert "the build left something out" in done.stderr and Path(lost).name in done.stderr


def test_a_library_in_use_is_replaced_not_overwritten(build):
    path = build / "package/opp/vendors/fla_npu/op_api/lib/libcust_opapi.so"
    with path.open("rb") as in_use:
        old = in_use.read()
        library(build / "cust_opapi.so", identity() + functions("another"))
        assert pack(build).returncode == 0
        in_use.seek(0)
        assert in_use.read() == old
    assert path.read_bytes() != old
