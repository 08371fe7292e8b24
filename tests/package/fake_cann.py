# SPDX-License-Identifier: Apache-2.0
"""A small OPP as a CANN build leaves it: real metadata, tiny libraries, kernel objects without any code."""

from __future__ import annotations

import hashlib
import importlib
import json
import subprocess
import sys
from pathlib import Path

import fake_opp
from fake_opp import functions, identity, library
from fla_npu import spec

CODEGEN = Path(__file__).resolve().parents[2] / "ascendc/codegen"
SOCS = ("ascend910b", "ascend910_93")
OP = "chunk_kda_fwd_finalize"
OP_TYPE = "ChunkKdaFwdFinalize"
IMPL = fake_opp.IMPL


def codegen(name: str):
    """A module of the generator, which is no package."""
    if str(CODEGEN) not in sys.path:
        sys.path.insert(0, str(CODEGEN))
    return importlib.import_module(name)


def contract(op: str = OP):
    return codegen("contract").load(CODEGEN.parent / f"ops/{op}/op.json")


def kernel_object(path: Path) -> bytes:
    """An ELF object, of this machine: nobody reads more than its first bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-c", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input="int kernel(void) { return 0; }", text=True, check=True)
    return path.read_bytes()


def write_json(path: Path, data: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


def describe(name: str, key: str, data: bytes) -> dict:
    return {
        "binFileName": name,
        "binFileSuffix": ".o",
        "blockDim": -1,
        "coreType": "MIX",
        "intercoreSync": 1,
        "magic": "RT_DEV_BINARY_MAGIC_ELF",
        "kernelName": name,
        "opParaSize": 1024,
        "sha256": hashlib.sha256(data).hexdigest(),
        "workspace": {"num": 1, "size": [-1], "type": [0]},
        "supportInfo": {"simplifiedKey": [key]},
    }


def make_opp(root: Path, op: str = OP) -> Path:
    """Complete for one operator and both chips."""
    info, contracted = codegen("emit_info"), contract(op)
    vendor = root / "vendors/fla_npu"
    library(vendor / "op_api/lib/libcust_opapi.so", identity() + functions(*spec.spec(op).symbols))
    for name in ("liboptiling.so", f"lib/linux/{fake_opp.ARCH}/libcust_opmaster_rt2.0.so"):
        library(vendor / IMPL / "op_tiling" / name, identity() + functions("tiling"))
    (vendor / "op_api/include").mkdir()
    (vendor / f"op_api/include/aclnn_{op}.h").write_text(f"// {op}\n")
    for soc in SOCS:
        folder, kernels = vendor / IMPL / f"kernel/{soc}/{op}", []
        for number, key in enumerate(info.simplified_keys(contracted)):
            name = f"{contracted.op_type}_{number:032x}"
            about = describe(name, key, kernel_object(folder / f"{name}.o"))
            write_json(folder / f"{name}.json", about)
            kernels.append(info.built_kernel(about))
        config = vendor / IMPL / f"kernel/config/{soc}"
        write_json(config / "binary_info_config.json", info.binary_info(soc, [(contracted, kernels)]))
        write_json(config / f"{op}.json", info.op_index(soc, contracted, kernels))
        write_json(vendor / IMPL / f"config/{soc}/aic-{soc}-ops-info.json", info.ops_info([contracted]))
    (root / "vendors/config.ini").write_text("load_priority=fla_npu\n")
    write_manifest(root, op)
    return root


def write_manifest(root: Path, op: str = OP, **changes: object) -> None:
    facts = {"backend": "cann", "socs": list(SOCS), "arch": fake_opp.ARCH, "cann": "8.1.RC1"}
    fake_opp.write_manifest(root, (op,), **facts | changes)
