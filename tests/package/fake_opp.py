# SPDX-License-Identifier: Apache-2.0
"""Small operator packages made with gcc: libraries that define names, and nothing else."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from pathlib import Path

from fla_npu import spec
from fla_npu.manifest import digest

BUILD = "0123456789abcdef0123456789abcdef"
OP = "chunk_fwd_h"
OP_TYPE = "ChunkFwdH"
API = "aclnnChunkFwdH"
BOTH = (f"{API}GetWorkspaceSize", API)
ARCH = platform.machine()
OTHER_ARCH = "x86_64" if ARCH == "aarch64" else "aarch64"
IMPL = Path("op_impl/ai_core/tbe")
TILING = IMPL / f"op_tiling/lib/linux/{ARCH}/libcust_opmaster_rt2.0.so"


def library(path: Path, source: str, *flags: str) -> Path:
    """A shared library from C text. -nostdlib keeps it at a few kilobytes and a few milliseconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-x", "c", "-", "-x", "none", "-o", str(path), *flags]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def functions(*names: str) -> str:
    return "".join(f"int {name}(void) {{ return 0; }}\n" for name in names)


def identity(build: str = BUILD) -> str:
    return f'const char fla_build_id[33] = "{build}";\n'


def symbols_of(op: str) -> tuple[str, str]:
    return spec.spec(op).symbols


def make_vendor(
    vendor: Path, ops: tuple[str, ...] = (OP,), soc: str = "ascend910b", build: str = BUILD
) -> Path:
    """One vendor directory of the twin with complete operators; without a build it is somebody else's."""
    api = identity(build) + functions(*(s for op in ops for s in symbols_of(op)))
    library(vendor / "op_api/lib/libcust_opapi.so", api)
    library(vendor / "op_api/lib/libfla_twin.so", identity(build))
    library(vendor / TILING, identity(build) + functions(*(f"fla_plan_{op}" for op in ops)))
    for op in ops:
        op_type = spec.spec(op).aclnn.removeprefix("aclnn")
        header = vendor / f"op_api/include/aclnn_{op}.h"
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(f"// {op}\n")
        library(
            vendor / IMPL / f"kernel/{soc}/{op}/{op_type}.so",
            identity(build) + f"const int fla_kernel_{op} = 1;\n",
        )
    return vendor


def write_manifest(root: Path, with_ops: tuple[str, ...] = (OP,), **changes: object) -> None:
    """manifest.json over what is in the tree now."""
    files = {
        path.relative_to(root).as_posix(): {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    }
    entries = {op: {"prototype_hash": spec.spec(op).prototype_hash} for op in with_ops}
    manifest = {"schema": 2, "build_id": BUILD, "backend": "twin", "socs": ["ascend910b"], "ops": entries}
    manifest |= {"files": files, **changes}
    (root / "manifest.json").write_text(json.dumps({**manifest, "digest": digest(manifest)}))


def make_opp(root: Path, ops: tuple[str, ...] = (OP,)) -> Path:
    """A whole OPP with a manifest that agrees with it."""
    make_vendor(root / "vendors/fla_npu", ops)
    (root / "vendors/config.ini").write_text("load_priority=fla_npu\n")
    write_manifest(root, ops)
    return root
