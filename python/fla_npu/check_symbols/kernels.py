# SPDX-License-Identifier: Apache-2.0
"""Kernel metadata of a CANN OPP against what CANN's run time derives from an op's name.

From the op type follow the folder and file <op>, the key of ops-info and of binary_info_config.json, the
names of the kernel objects, and one simplified key per dtype combination, by which a call finds its kernel.
A wrong one of them is met by the first call that needs it, as 561003, and not before.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Optional

from ..manifest import parse_object
from ..spec import ACL_DTYPE, OpSpec

__all__ = ["PLACEHOLDER", "check_kernels", "simplified_keys", "snake"]

IMPL = "op_impl/ai_core/tbe"
PLACEHOLDER = b"PLACEHOLDER OBJECT of the recorded toolkit"
# ops-info's words; the dtypes that it may spell in two ways come out as one.
INFO_DTYPE = {
    "float32": "float",
    "float16": "float16",
    "int32": "int32",
    "int64": "int64",
    "bfloat16": "bf16",
}
ND = 2
CORE_TYPES = ("MIX", "AiCore", "VectorCore")
Read = Callable[[str], Optional[bytes]]
Report = Callable[..., None]


def snake(op_type: str) -> str:
    """Folder and file name that CANN derives from an op type."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", op_type).lower()


def _columns(op: OpSpec) -> list[dict[str, str]]:
    """Every dtype combination, by port; a port that follows another has its dtype."""
    ports = op.of("in", "out")
    free = [p for p in ports if not p.like]
    rows = (dict(zip((p.name for p in free), row)) for row in product(*(p.dtypes for p in free)))
    return [{p.name: row[p.like or p.name] for p in ports} for row in rows]


def _ports(op: OpSpec) -> dict[str, tuple]:
    """Kernel inputs and outputs in order; integer arrays are inputs, written inputs are outputs, too."""
    inputs = op.of("in", "ints")
    return {"input": inputs, "output": (*op.of("out"), *(p for p in inputs if p.name in op.mutated))}


def _dtypes(op: OpSpec, column: dict[str, str], kind: str) -> list[str]:
    return ["int64" if p.kind == "ints" else column[p.name] for p in _ports(op)[kind]]


def simplified_keys(op: OpSpec) -> set[str]:
    """Dtype part of the keys, one per combination: '27,2/27,2/0,2', inputs and then outputs."""
    return {
        "/".join(
            f"{ACL_DTYPE[d]},{ND}" for d in [*_dtypes(op, column, "input"), *_dtypes(op, column, "output")]
        )
        for column in _columns(op)
    }


class _Reader:
    """JSON files of one vendor; what can't be understood is a finding, once."""

    def __init__(self, read: Read, report: Report) -> None:
        self.read, self.report, self.seen = read, report, {}

    def json(self, name: str) -> dict:
        """The file's object; {} with a finding when it is missing, damaged or no object."""
        if name not in self.seen:
            self.seen[name] = {}
            data = self.read(name)
            if data is None:
                self.report("error", f"{name} can't be had: CANN's run time looks there")
                return {}
            try:
                self.seen[name] = parse_object(data)
            except ValueError as why:
                self.report("damage", f"{name} is damaged: {why}")
        return self.seen[name]


def check_kernels(ops: list[OpSpec], soc: str, files: dict[str, str], read: Read, report: Report) -> None:
    """Findings about one chip of one vendor.

    files: paths inside the vendor. read(path) -> bytes. report(level, text, operator) takes a finding.
    """
    reader = _Reader(lambda name: read(name) if name in files else None, report)
    error = partial(report, "error")
    info = reader.json(f"{IMPL}/config/{soc}/aic-{soc}-ops-info.json")
    index = reader.json(f"{IMPL}/kernel/config/{soc}/binary_info_config.json")
    for op in ops:
        op_type = op.aclnn.removeprefix("aclnn")
        _check_info(op, op_type, soc, info, error)
        _check_index(op, op_type, soc, index, reader, error)
        if f"{IMPL}/kernel/config/{soc}/{snake(op_type)}.json" not in files:
            error(
                f"{soc}: kernel/config/{soc}/{snake(op_type)}.json is missing, the name derived from {op_type}",
                op.name,
            )
    _check_objects(soc, files, read, report)


def _get(tree: object, *keys: str) -> object:
    """A value deep in JSON, None where a level is missing or is no object."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _check_info(op: OpSpec, op_type: str, soc: str, info: dict, error: Report) -> None:
    """ops-info: the op is registered under its type with its file, function, ports and dtypes."""
    if op_type not in info:
        error(f"{soc}: ops-info does not know {op_type}", op.name)
        return
    for key in ("opFile", "opInterface"):
        found = _get(info, op_type, key, "value")
        if found != snake(op_type):
            error(
                f"{soc}: ops-info names {key} {found} for {op_type}, the run time derives {snake(op_type)}",
                op.name,
            )
    columns = _columns(op)
    for kind, ports in _ports(op).items():
        for index, port in enumerate(ports):
            entry = f"{kind}{index}"
            name = _get(info, op_type, entry, "name")
            if name != port.name:
                error(f"{soc}: ops-info has {entry} {name}, the contract has {port.name}", op.name)
                continue
            expected = ",".join(INFO_DTYPE[_dtypes(op, column, kind)[index]] for column in columns)
            found = str(_get(info, op_type, entry, "dtype"))
            if ",".join(INFO_DTYPE.get(dtype, dtype) for dtype in found.split(",")) != expected:
                error(f"{soc}: ops-info lists other dtypes for {port.name} than the contract", op.name)


def _check_index(op: OpSpec, op_type: str, soc: str, index: dict, reader: _Reader, error: Report) -> None:
    """binary_info_config.json: a kernel, with its files, for every dtype combination."""
    listed = _get(index, op_type, "binaryList")
    if not isinstance(listed, list) or not listed:
        error(f"{soc}: binary_info_config.json has no kernel of {op_type}", op.name)
        return
    missing = simplified_keys(op)
    for entry in listed:
        paths = [_get(entry, "binPath"), _get(entry, "jsonPath")]
        keys = _get(entry, "simplifiedKey")
        keys = [keys] if isinstance(keys, str) else keys if isinstance(keys, list) else []
        for path in paths:
            folder = str(path).split("/")[:2]
            if folder != [soc, snake(op_type)]:
                error(
                    f"{soc}: binary_info_config.json points to {path}, not below {soc}/{snake(op_type)}/",
                    op.name,
                )
        if reader.read(f"{IMPL}/kernel/{paths[0]}") is None:
            error(f"{soc}: kernel/{paths[0]} is listed and missing", op.name)
        about = reader.json(f"{IMPL}/kernel/{paths[1]}")
        if about:
            _check_about(op, op_type, soc, str(paths[0]), about, reader, error)
        for key in keys:
            if not str(key).startswith(f"{op_type}/d="):
                error(f"{soc}: simplified key {key} is not of {op_type}", op.name)
            missing.discard(str(key).split("/", 2)[-1])
    if missing:
        error(f"{soc}: no kernel for {len(missing)} of {len(_columns(op))} dtype combinations", op.name)


def _check_about(
    op: OpSpec, op_type: str, soc: str, path: str, about: dict, reader: _Reader, error: Report
) -> None:
    """The description beside a kernel object."""
    stem = path.rsplit("/", 1)[-1].rsplit(".", 1)[0]
    core, size = about.get("coreType"), about.get("opParaSize")
    facts = {
        f"binFileName {about.get('binFileName')}": about.get("binFileName") == stem,
        f"kernelName {about.get('kernelName')}": str(about.get("kernelName", "")).startswith(op_type),
        f"blockDim {about.get('blockDim')}, tiling sets it": about.get("blockDim") == -1,
        f"coreType {core}": core in CORE_TYPES,
        f"magic {about.get('magic')}": str(about.get("magic", "")).startswith("RT_DEV_BINARY_MAGIC_ELF"),
        "no workspace of unknown size": _get(about, "workspace", "num") == 1,
        f"opParaSize {size}": isinstance(size, int) and size > 0,
        "a mixed kernel without intercoreSync": core != "MIX" or about.get("intercoreSync") == 1,
    }
    for text, good in facts.items():
        if not good:
            error(f"{soc}: the description of {stem} is wrong: {text}", op.name)
    kernel = reader.read(f"{IMPL}/kernel/{path}")
    if kernel is not None and about.get("sha256") != hashlib.sha256(kernel).hexdigest():
        text = f"{soc}: {stem}{path[path.rfind('.') :]} is not the object that its description hashes"
        reader.report("damage", text, op.name)


def _check_objects(soc: str, files: dict[str, str], read: Read, report: Report) -> None:
    """Kernel objects are ELF files with device code; a placeholder is none."""
    for name in files:
        if name.startswith(f"{IMPL}/kernel/{soc}/") and name.endswith(".o"):
            op, head = name.split("/")[5], read(name)
            if head is None:
                continue  # it has been said
            if PLACEHOLDER in head[:4096]:
                text = f"{name} is a placeholder of a recorded toolkit, no device code: this OPP can't run"
                report("error", text, op)
            elif not head.startswith(b"\x7fELF"):
                report("damage", f"{name} is no ELF object: CANN's run time can't load it", op)
