# SPDX-License-Identifier: Apache-2.0
"""The JSON beside CANN's kernels: made from the contracts, and checked against what the run time derives."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import fake_cann
import fake_opp
import pytest
from fake_cann import IMPL, OP, OP_TYPE
from fla_npu import spec
from fla_npu.check_symbols import kernels

NAMES = spec.names()


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return fake_cann.make_opp(tmp_path_factory.mktemp("cann") / "opp")


@pytest.fixture
def cann(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "opp"))


@pytest.fixture
def change(cann, look):
    """change(path, edit): edits one JSON file of the OPP and looks at it again."""

    def run(path: str, edit, soc: str = "ascend910b"):
        file = next((cann / "vendors/fla_npu" / IMPL).glob(path.format(soc=soc, op=OP)))
        data = json.loads(file.read_text())
        edit(data)
        file.write_text(json.dumps(data))
        fake_cann.write_manifest(cann)
        return look(cann, op=OP)

    return run


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_derived_alike_on_both_sides(name):
    """The generator inside the build, and check_symbols in the installed package."""
    info, op = fake_cann.codegen("emit_info"), fake_cann.contract(name)
    keys = info.simplified_keys(op)
    assert len(set(keys)) == len(keys) == len(op.dtype_columns())
    assert {key.split("/", 2)[-1] for key in keys} == kernels.simplified_keys(spec.spec(name))
    assert all(key.startswith(f"{op.op_type}/d=0,p=0/") for key in keys)
    assert kernels.snake(op.op_type) == name


@pytest.mark.parametrize("name", NAMES)
def test_info_lists_one_dtype_per_combination(name):
    op = fake_cann.contract(name)
    info = fake_cann.codegen("emit_info").ops_info([op])[op.op_type]
    ports = [value for key, value in info.items() if key.startswith(("input", "output"))]
    assert len(ports) == len(op.inputs) + len(op.written)
    assert {len(port["dtype"].split(",")) for port in ports} == {len(op.dtype_columns())}
    assert info["opFile"]["value"] == info["opInterface"]["value"] == name
    assert ("output_mask" in info["attr"]["list"]) == bool(op.optional_outputs)


def test_complete(look, cann):
    seen = look(cann, op=OP)
    assert seen.status == 0, seen.text
    assert seen.data["ops"][OP]["kernels"] == {"ascend910b": True, "ascend910_93": True}


INFO = "config/{soc}/aic-{soc}-ops-info.json"
INDEX = "kernel/config/{soc}/binary_info_config.json"
ABOUT = "kernel/{soc}/{op}/*_" + "0" * 32 + ".json"


def rename(data: dict, old: str, new: str) -> None:
    data[new] = data.pop(old)


FAULTS = {
    "op type split differently": (INFO, lambda d: rename(d, OP_TYPE, "ChunkKDAFwdFinalize"), "does not know"),
    "other kernel file": (
        INFO,
        lambda d: d[OP_TYPE]["opFile"].update(value="finalize"),
        "names opFile finalize",
    ),
    "ports in another order": (
        INFO,
        lambda d: rename(d[OP_TYPE], "input0", "input9"),
        "ops-info has input0 None",
    ),
    "other dtypes": (
        INFO,
        lambda d: d[OP_TYPE]["input0"].update(dtype="int8"),
        "ops-info lists other dtypes",
    ),
    "not in the index": (INDEX, lambda d: d.clear(), "has no kernel of"),
    "index to another folder": (
        INDEX,
        lambda d: d[OP_TYPE]["binaryList"][0].update(binPath="ascend910b/finalize/x.o"),
        "not below ascend910b/chunk_kda_fwd_finalize/",
    ),
    "listed, not there": (
        INDEX,
        lambda d: d[OP_TYPE]["binaryList"][0].update(binPath=f"ascend910b/{OP}/{OP_TYPE}_none.o"),
        "is listed and missing",
    ),
    "a combination less": (
        INDEX,
        lambda d: d[OP_TYPE]["binaryList"][0].update(simplifiedKey=[f"{OP_TYPE}/d=0,p=0/0,2"]),
        "no kernel for 1 of 1 dtype combinations",
    ),
    "key of another op": (
        INDEX,
        lambda d: d[OP_TYPE]["binaryList"][0].update(simplifiedKey=["Other/d=0,p=0/27,2"]),
        "is not of ChunkKdaFwdFinalize",
    ),
    "name of the object": (ABOUT, lambda d: d.update(binFileName="x"), "binFileName x"),
    "fixed block dim": (ABOUT, lambda d: d.update(blockDim=20), "blockDim 20, tiling sets it"),
    "core type": (ABOUT, lambda d: d.update(coreType="GPU"), "coreType GPU"),
    "magic": (ABOUT, lambda d: d.pop("magic"), "magic None"),
    "workspace": (ABOUT, lambda d: d.update(workspace={}), "no workspace"),
    "tiling bytes": (ABOUT, lambda d: d.update(opParaSize=0), "opParaSize 0"),
    "cores not in step": (ABOUT, lambda d: d.update(intercoreSync=0), "without intercoreSync"),
    "hash": (ABOUT, lambda d: d.update(sha256="0" * 64), "is not the object that its description hashes"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_metadata_that_the_run_time_would_not_find(change, fault):
    path, edit, text = FAULTS[fault]
    seen = change(path, edit)
    assert seen.status == (2 if fault == "hash" else 1) and text in seen.text, seen.text
    assert "ascend910_93:" not in seen.text  # the other chip is whole


@pytest.mark.parametrize("path", [INFO, INDEX, "kernel/config/{soc}/{op}.json", ABOUT])
@pytest.mark.parametrize("how", ["gone", "cut", "a list", "deep"])
def test_metadata_file_gone_or_damaged(look, cann, path, how):
    file = next((cann / "vendors/fla_npu" / IMPL).glob(path.format(soc="ascend910_93", op=OP)))
    if how == "gone":
        file.unlink()
    else:
        file.write_text({"cut": file.read_text()[:40], "a list": "[]", "deep": "[" * 100_000}[how])
    fake_cann.write_manifest(cann)
    seen = look(cann, op=OP)
    damage = 0 if path == "kernel/config/{soc}/{op}.json" else 2  # of that one the name counts
    assert seen.status == (1 if how == "gone" else damage), seen.text


def test_placeholder_is_reported(look, cann):
    path = next(cann.rglob("*.o"))
    path.write_bytes(fake_cann.codegen("emit_info").PLACEHOLDER + b"\n")
    about = path.with_suffix(".json")
    hashed = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    about.write_text(json.dumps(json.loads(about.read_text()) | hashed))
    fake_cann.write_manifest(cann)
    seen = look(cann, op=OP)
    assert seen.status == 1 and "is a placeholder of a recorded toolkit" in seen.text
    assert kernels.PLACEHOLDER == fake_cann.codegen("emit_info").PLACEHOLDER


def test_placeholder_in_the_manifest(look, cann):
    fake_cann.write_manifest(cann, placeholder=True)
    assert "kernels are placeholders" in look(cann, op=OP).text


def test_object_that_is_no_object(look, cann):
    next(cann.rglob("*.o")).write_text("hello")
    fake_cann.write_manifest(cann)
    seen = look(cann, op=OP)
    assert seen.status == 2 and "is no ELF object" in seen.text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"backend": "twin"}, "says backend twin, but op_api/lib/libfla_twin.so is not there"),
        ({"backend": "gpu"}, "says backend gpu"),
        (
            {"arch": fake_opp.OTHER_ARCH},
            f"says {fake_opp.OTHER_ARCH}, but there are libraries for {fake_opp.ARCH}",
        ),
        ({"socs": ["ascend910b", "ascend950"]}, "no kernel for ascend950"),
    ],
)
def test_falsified_manifest(look, cann, changes, text):
    fake_cann.write_manifest(cann, **changes)
    seen = look(cann, op=OP)
    assert seen.status == 1 and text in seen.text, seen.text


def test_falsified_manifest_of_the_twin(look, opp):
    fake_opp.write_manifest(opp, backend="cann", arch=fake_opp.ARCH)
    seen = look(opp)
    assert seen.status == 1 and "says backend cann, but op_api/lib/libfla_twin.so is there" in seen.text


def test_search_path_of_the_build_machine(look, cann):
    path = cann / "vendors/fla_npu" / IMPL / "op_tiling/liboptiling.so"
    fake_opp.library(
        path, fake_opp.identity() + fake_opp.functions("t"), "-Wl,-rpath,/opt/build/lib64:$ORIGIN"
    )
    fake_cann.write_manifest(cann)
    seen = look(cann, op=OP)
    assert (
        seen.status == 1 and "liboptiling.so searches /opt/build/lib64, a folder of the machine" in seen.text
    )
