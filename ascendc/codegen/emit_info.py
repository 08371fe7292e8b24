# SPDX-License-Identifier: Apache-2.0
"""The JSON descriptions that an OPP carries beside its libraries, as CANN's run time reads them.

Made from the contracts for the twin's OPP; for CANN where the toolkit's scripts leave one out. Names follow
what the run time derives from an op type: folder and file <op>, key <OpType>/d=..,p=../<dtype>,<format>/...
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from pathlib import Path

from contract import Op, Param

ACL_DTYPES = {"float32": 0, "float16": 1, "int32": 3, "int64": 9, "bfloat16": 27}
INFO_DTYPES = {
    "float32": "float",
    "float16": "float16",
    "int32": "int32",
    "int64": "int64",
    "bfloat16": "bfloat16",
}
INFO_TYPES = {"double": "float"}  # an attribute of an OpDef has no double
ND = 2
PLACEHOLDER = b"PLACEHOLDER OBJECT of the recorded toolkit"


def ops_info(ops: list[Op]) -> dict:
    """aic-<soc>-ops-info.json: ports, dtype combinations and attributes of every operator."""
    return {op.op_type: _op_info(op) for op in ops}


def _dtype(port: Param, column: dict[str, str]) -> str:
    return "int64" if port.role == "ints" else column[port.name]


def _attrs(op: Op) -> list[tuple[str, str, object]]:
    """(name, type, default) as registered: an operator with optional outputs has output_mask, too."""
    listed = [(a.name, INFO_TYPES.get(a.type, a.type), a.default) for a in op.attrs]
    return listed + ([("output_mask", "int", -1)] if op.optional_outputs else [])


def _op_info(op: Op) -> dict:
    columns = op.dtype_columns()
    info: dict = {"attr": {"list": ",".join(name for name, _, _ in _attrs(op))}}
    for name, kind, default in _attrs(op):
        value = str(default).lower() if isinstance(default, bool) else str(default)
        info[f"attr_{name}"] = {"type": kind, "value": "all", "paramType": "optional", "defaultValue": value}
    for kind, ports in (("input", op.inputs), ("output", op.written)):
        for index, port in enumerate(ports):
            formats = ",".join("ND" for _ in columns)
            info[f"{kind}{index}"] = {
                "name": port.name,
                "dtype": ",".join(INFO_DTYPES[_dtype(port, column)] for column in columns),
                "format": formats,
                "unknownshape_format": formats,
                "shape": "all",
                "paramType": "optional" if port.optional and kind == "input" else "required",
            }
    flags = {f"dynamic{what}": {"flag": "true"} for what in ("Format", "ShapeSupport", "RankSupport")}
    names = {"opFile": {"value": op.name}, "opInterface": {"value": op.name}}
    return info | flags | {"coreType": {"value": core_type(op)}} | names


def core_type(op: Op) -> str:
    return "MIX" if len(op.cores) > 1 else {"aic": "AiCore", "aiv": "VectorCore"}[op.cores[0]]


def simplified_keys(op: Op) -> list[str]:
    """The keys by which a kernel is looked up, one per dtype combination: inputs, then outputs."""
    return [
        f"{op.op_type}/d=0,p=0/"
        + "/".join(f"{ACL_DTYPES[_dtype(port, column)]},{ND}" for port in [*op.inputs, *op.written])
        for column in op.dtype_columns()
    ]


def twin_kernels(op: Op) -> list[dict]:
    """The twin has one kernel library for every dtype combination."""
    return [{"file": op.op_type, "suffix": ".so", "coreType": core_type(op), "keys": simplified_keys(op)}]


def built_kernel(about: dict) -> dict:
    """The same facts of a kernel that the toolkit compiled, from its description."""
    keys = about["supportInfo"]["simplifiedKey"]
    names = {"file": about["binFileName"], "suffix": about["binFileSuffix"]}
    return names | {"coreType": about["coreType"], "keys": [keys] if isinstance(keys, str) else keys}


def binary_info(soc: str, kernels: list[tuple[Op, list[dict]]]) -> dict:
    """binary_info_config.json: where the kernels of each operator lie."""
    return {
        op.op_type: {
            "dynamicRankSupport": True,
            "simplifiedKeyMode": 0,
            "binaryList": [
                {
                    "coreType": kernel["coreType"],
                    "simplifiedKey": kernel["keys"],
                    "binPath": f"{soc}/{op.name}/{kernel['file']}{kernel['suffix']}",
                    "jsonPath": f"{soc}/{op.name}/{kernel['file']}.json",
                }
                for kernel in found
            ],
        }
        for op, found in kernels
    }


def op_index(soc: str, op: Op, kernels: list[dict]) -> dict:
    """kernel/config/<soc>/<op>.json: the same list, of one operator."""
    return {"binList": binary_info(soc, [(op, kernels)])[op.op_type]["binaryList"]}


def kernels_in(files: dict[str, bytes], op: Op, soc: str) -> list[dict]:
    """The toolkit's kernels of an operator that are among the files; without one it is the twin's."""
    described = fnmatch.filter(files, f"opp/*/kernel/{soc}/{op.name}/{op.op_type}_*.json")
    return [built_kernel(json.loads(files[name])) for name in sorted(described)] or twin_kernels(op)


def make(
    what: str, ops: list[Op], op: Op | None, soc: str, files: dict[str, bytes], kernel: Path | None
) -> dict:
    """The description that layout.json names: ops_info, binary_info, op_index or kernel_info."""
    if what == "kernel_info":
        return kernel_info(op, kernel.read_bytes())
    if what == "op_index":
        return op_index(soc, op, kernels_in(files, op, soc))
    if what == "binary_info":
        return binary_info(soc, [(one, kernels_in(files, one, soc)) for one in ops])
    return ops_info(ops)


def kernel_info(op: Op, kernel: bytes) -> dict:
    """The description beside a twin kernel library."""
    return {
        "binFileName": op.op_type,
        "binFileSuffix": ".so",
        "blockDim": -1,
        "kernelName": op.name,
        "coreType": core_type(op),
        "intercoreSync": 1 if len(op.cores) > 1 else 0,
        "taskRation": "1:2",
        "workspace": {"num": 1, "size": [-1], "type": [0]},
        "supportInfo": {"simplifiedKey": simplified_keys(op), "opMode": "dynamic", "deterministic": "ignore"},
        "backend": "twin",
        "sha256": hashlib.sha256(kernel).hexdigest(),
    }


def bom(head: dict, libraries: dict[str, bytes]) -> dict:
    """A CycloneDX bill of materials of the OPP: its libraries with hashes, and what they were built with."""

    def part(kind: str, name: str, version: str, **more: object) -> dict:
        return {"type": kind, "name": name, "version": version} | more

    parts = [
        part(
            "file",
            name,
            head["version"],
            hashes=[{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}],
        )
        for name, data in sorted(libraries.items())
    ]
    tools = [part("application", *(head["compiler"].split(" ", 1) + [""])[:2])] if head["compiler"] else []
    tools += [part("platform", "CANN toolkit", head["cann"])] if head["cann"] else []
    subject = part("library", "fla-npu", head["version"], licenses=[{"license": {"id": "Apache-2.0"}}])
    subject["bom-ref"] = "fla-npu"
    meta = {"component": subject, "tools": {"components": tools}}
    meta["properties"] = [
        {"name": f"fla-npu:{key}", "value": str(head[key])} for key in ("backend", "socs", "git")
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": meta,
        "components": parts,
    }
