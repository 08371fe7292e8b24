# SPDX-License-Identifier: Apache-2.0
"""op.json as Python objects: read, checked, with the questions that the emitters ask.

Standard library only: the generator runs inside the build, with the build's Python.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

ATTR_TYPES = {"bool": "bool", "int": "int64_t", "double": "double", "string": "const char *"}
DTYPES = {
    "float32": "kFloat",
    "float16": "kFloat16",
    "int32": "kInt32",
    "int64": "kInt64",
    "bfloat16": "kBFloat16",
}
TOP_KEYS = {
    "name",
    "op_type",
    "aclnn",
    "summary",
    "python",
    "cores",
    "mutated",
    "letters",
    "fixed",
    "derived",
    "layout",
    "modes",
    "params",
}
PARAM_KEYS = {
    "in",
    "out",
    "ints",
    "attr",
    "c",
    "dims",
    "dtypes",
    "like",
    "optional",
    "doc",
    "type",
    "default",
    "values",
    "present_if",
    "refused",
    "windows",
}


class ContractError(ValueError):
    """op.json says something that cannot be meant."""


def snake(op_type: str) -> str:
    """File and kernel name that CANN derives from an op type: ChunkKdaFwd -> chunk_kda_fwd."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", op_type).lower()


@dataclass(frozen=True)
class Param:
    """One parameter of the frozen aclnn order."""

    role: str  # in, out, ints, attr
    name: str
    c: str
    doc: str = ""
    dims: list[tuple[str, str]] = field(default_factory=list)  # (layout or "", letters)
    dtypes: list[str] = field(default_factory=list)
    like: str = ""  # a required input whose dtype this output has; the plan refuses another one
    optional: bool = False
    type: str = ""
    default: Any = None
    values: list[Any] = field(default_factory=list)
    present_if: str = ""
    refused: str = ""
    windows: str = ""  # of an array of offsets: "all" or "first", edges of windows inside of T

    @property
    def is_tensor(self) -> bool:
        return self.role in ("in", "out")

    @property
    def c_type(self) -> str:
        if self.role == "attr":
            return ATTR_TYPES[self.type]
        return "const aclIntArray *" if self.role == "ints" else "const aclTensor *"

    @property
    def c_declaration(self) -> str:
        return self.c_type + ("" if self.c_type.endswith("*") else " ") + self.c

    def shapes(self) -> list[str]:
        """The distinct shapes, bracketed: ["[B, HV, T, K]"]."""
        return list(dict.fromkeys("[" + letters.replace(" ", ", ") + "]" for _, letters in self.dims))


@dataclass(frozen=True)
class Op:
    """One operator contract."""

    name: str
    op_type: str
    aclnn: str
    summary: str
    python: dict[str, str]
    params: list[Param]
    cores: list[str]
    mutated: list[str] = field(default_factory=list)
    letters: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, int] = field(default_factory=dict)
    derived: dict[str, str] = field(default_factory=dict)
    layout: str = ""
    modes: dict[str, list[str]] = field(default_factory=dict)

    def by_role(self, *roles: str) -> list[Param]:
        return [p for p in self.params if p.role in roles]

    @cached_property
    def inputs(self) -> list[Param]:
        """Kernel inputs in order; integer arrays are inputs too."""
        return self.by_role("in", "ints")

    @cached_property
    def outputs(self) -> list[Param]:
        return self.by_role("out")

    @cached_property
    def written(self) -> list[Param]:
        """Kernel outputs in order: those of the call, then its inputs that are written in place."""
        return [*self.outputs, *(p for p in self.inputs if p.name in self.mutated)]

    @cached_property
    def attrs(self) -> list[Param]:
        return self.by_role("attr")

    @cached_property
    def optional_outputs(self) -> list[Param]:
        return [p for p in self.outputs if p.optional]

    def dtype_columns(self) -> list[dict[str, str]]:
        """Every supported dtype combination, by tensor name, first choices first."""
        ports = self.by_role("in", "out")
        free = [p for p in ports if not p.like]
        rows = [dict(zip([p.name for p in free], row)) for row in product(*(p.dtypes for p in free))]
        return [{p.name: row[p.like or p.name] for p in ports} for row in rows]

    def prototype(self) -> list[str]:
        """C declarations of phase 1, in the frozen order."""
        return [p.c_declaration for p in self.params] + [
            "uint64_t *workspaceSize",
            "aclOpExecutor **executor",
        ]

    def prototype_hash(self) -> str:
        """Names and types of phase 1, so that a changed signature under an old symbol is seen."""
        text = f"aclnnStatus {self.aclnn}GetWorkspaceSize(" + ", ".join(self.prototype()) + ")"
        return hashlib.sha256(text.encode()).hexdigest()


def load(path: Path) -> Op:
    """Read and check one op.json; a fault names the file and the parameter."""
    try:
        data = json.loads(path.read_text())
        unknown = set(data) - TOP_KEYS
        if unknown:
            raise ContractError(f"unknown keys {sorted(unknown)}")
        params = [_param(entry) for entry in data.pop("params")]
        op = Op(params=params, **data)
        _check(op, path)
    except (ContractError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ContractError(f"{path}: {error}") from error
    return op


def _param(entry: dict[str, Any]) -> Param:
    unknown = set(entry) - PARAM_KEYS
    roles = [key for key in ("in", "out", "ints", "attr") if key in entry]
    if unknown or len(roles) != 1:
        raise ContractError(f"parameter {entry}: one of in, out, ints, attr; unknown {sorted(unknown)}")
    known = {k: v for k, v in entry.items() if k not in (*roles, "dims")}
    return Param(role=roles[0], name=entry[roles[0]], dims=_dims(entry.get("dims", [])), **known)


def _dims(value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [(layout, one) for layout, rule in value.items() for _, one in _dims(rule)]
    return [("", one) for one in ([value] if isinstance(value, str) else value)]


def _check(op: Op, path: Path) -> None:
    names = [p.name for p in op.params]
    flags = {p.name for p in op.attrs if p.type == "bool"}
    optional = {p.name for p in op.optional_outputs}
    types = {p.name: p.dtypes for p in op.by_role("in") if not p.optional}
    faults = [
        (op.name != path.parent.name, f"name {op.name} differs from its folder {path.parent.name}"),
        (snake(op.op_type) != op.name, f"op_type {op.op_type} makes {snake(op.op_type)}, not {op.name}"),
        (
            bool(re.search("[A-Z]{2}", op.op_type)),
            f"op_type {op.op_type} has capitals in a row: CANN's generators split them differently",
        ),
        (op.aclnn != "aclnn" + op.op_type, f"aclnn must be aclnn{op.op_type}"),
        (len(set(names)) != len(names), "a parameter name stands twice"),
        (bool(op.layout) and op.layout not in names, f"layout names no attribute: {op.layout}"),
        (not set(op.mutated) <= {p.name for p in op.by_role("in")}, "mutated names no input"),
        (not set(sum(op.modes.values(), [])) <= optional, "modes name outputs that are not optional"),
    ]
    for p in op.params:
        letters = {f for _, dims in p.dims for axis in dims.split() for f in axis.split("*")}
        strange = {f for f in letters if not f.isdigit()} - set(op.letters)
        faults += [
            (p.is_tensor and not (p.dims and p.dtypes), f"{p.name}: a tensor needs dims and dtypes"),
            (not set(p.dtypes) <= set(DTYPES), f"{p.name}: dtypes are {sorted(DTYPES)}"),
            (p.role == "attr" and p.type not in ATTR_TYPES, f"{p.name}: types are {sorted(ATTR_TYPES)}"),
            (bool(p.present_if) and p.present_if not in flags, f"{p.name}: present_if names no bool"),
            (
                bool(p.like) and types.get(p.like) != p.dtypes,
                f"{p.name}: like names no required input of its dtypes",
            ),
            (
                p.windows not in ("", "all", "first") or (bool(p.windows) and p.role != "ints"),
                f"{p.name}: windows is all or first, of an integer array",
            ),
            (bool(strange), f"{p.name}: letters {sorted(strange)} are not described"),
        ]
    for wrong, text in faults:
        if wrong:
            raise ContractError(text)
