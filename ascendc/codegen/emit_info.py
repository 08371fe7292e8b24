# SPDX-License-Identifier: Apache-2.0
"""The JSON descriptions that an OPP carries beside its libraries, in CANN's form, from the contracts."""

from __future__ import annotations

import hashlib

from contract import Op


def ops_info(ops: list[Op]) -> dict:
    """aic-<soc>-ops-info.json: ports, dtype combinations and attributes of every operator."""
    return {op.op_type: _op_info(op) for op in ops}


def _op_info(op: Op) -> dict:
    columns = op.dtype_columns()
    info: dict = {"attr": {"list": ",".join(a.name for a in op.attrs)}}
    info |= {f"attr_{a.name}": {"type": a.type, "defaultValue": a.default} for a in op.attrs}
    for kind, ports in (("input", op.inputs), ("output", op.written)):
        for index, port in enumerate(ports):
            dtypes = ["int64" if port.role == "ints" else column[port.name] for column in columns]
            info[f"{kind}{index}"] = {
                "name": port.name,
                "dtype": ",".join(dtypes),
                "shape": "all",
                "paramType": "optional" if port.optional else "required",
            }
    return info | {"opFile": {"value": op.name}, "opInterface": {"value": op.name}}


def core_type(op: Op) -> str:
    return "MIX" if len(op.cores) > 1 else {"aic": "AiCore", "aiv": "VectorCore"}[op.cores[0]]


def binary_info(ops: list[Op], soc: str) -> dict:
    """binary_info_config.json: where each operator's kernel lies."""
    places = {op.op_type: (op, f"{soc}/{op.name}/{op.op_type}") for op in ops}
    return {
        op_type: {
            "binaryList": [{"coreType": core_type(op), "binPath": f"{place}.so", "jsonPath": f"{place}.json"}]
        }
        for op_type, (op, place) in places.items()
    }


def kernel_info(op: Op, kernel: bytes) -> dict:
    """The description beside a twin kernel library."""
    return {
        "binFileName": op.op_type,
        "binFileSuffix": ".so",
        "kernelName": op.name,
        "coreType": core_type(op),
        "taskRation": "1:2",
        "backend": "twin",
        "sha256": hashlib.sha256(kernel).hexdigest(),
    }
