# SPDX-License-Identifier: Apache-2.0
"""Operator contracts as Python objects.

The contract `op.json` of each operator is installed beside this module (`_contract/<op>.json`).
Everything in this package that depends on an operator's parameters (argument order of the C call,
dtypes, shapes, output lists) is read from here, so nothing is typed a second time.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources
from pathlib import Path

from .errors import AbiMismatch, ArgumentError

__all__ = ["OpSpec", "Param", "names", "spec"]

# aclDataType numbers of the dtype names used in contracts and by the front ends.
ACL_DTYPE = {"float32": 0, "float16": 1, "int32": 3, "int64": 9, "float64": 11, "bfloat16": 27}

_C_WORD = {
    "in": "const aclTensor *",
    "out": "const aclTensor *",
    "ints": "const aclIntArray *",
    "string": "const char *",
    "bool": "bool ",
    "int": "int64_t ",
    "double": "double ",
}


@dataclass(frozen=True, eq=False)
class Param:
    """One parameter of the C call, in the frozen order. `kind` is in, attr, ints or out."""

    kind: str
    name: str
    c: str = ""  # name in the C prototype
    optional: bool = False
    dtypes: tuple[str, ...] = ()
    like: str = ""  # the input whose dtype this output has
    type: str = ""  # of an attr: bool, int, double, string
    default: object = None
    values: tuple = ()
    refused: str = ""  # why a port of the ABI is not accepted here
    present_if: str = ""  # attr that switches an optional output on
    # layout ("" when the layout plays no part) -> alternatives -> axis expressions
    dims: dict[str, tuple[tuple[tuple, ...], ...]] = field(default_factory=dict)

    def shapes(self, layout: str) -> tuple[tuple[tuple, ...], ...]:
        """Alternatives of the axis list; an axis is a tuple of letters and numbers to multiply."""
        return self.dims.get(layout) or self.dims[""]


@dataclass(frozen=True, eq=False)
class OpSpec:
    """Contract of one operator."""

    name: str
    aclnn: str
    summary: str
    params: tuple[Param, ...]
    fixed: dict[str, int]
    derived: dict[str, str]
    modes: dict[str, tuple[str, ...]]
    mutated: tuple[str, ...]  # inputs that the operator writes
    source: str  # file the contract was read from

    @property
    def symbols(self) -> tuple[str, str]:
        """The two exported functions of the two-phase call."""
        return self.aclnn + "GetWorkspaceSize", self.aclnn

    @cached_property
    def prototype(self) -> str:
        """C prototype of phase 1 on one line, as the generated header declares it."""
        words = [_C_WORD[p.type if p.kind == "attr" else p.kind] + p.c for p in self.params]
        words += ["uint64_t *workspaceSize", "aclOpExecutor **executor"]
        return f"aclnnStatus {self.symbols[0]}({', '.join(words)})"

    @cached_property
    def prototype_hash(self) -> str:
        """sha256 of `prototype`; the manifest of an OPP carries the one it was built with."""
        return hashlib.sha256(self.prototype.encode()).hexdigest()

    def of(self, *kinds: str) -> tuple[Param, ...]:
        return tuple(p for p in self.params if p.kind in kinds)

    def param(self, name: str) -> Param:
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Param]:
        return {p.name: p for p in self.params}


def _axes(text: str) -> tuple[tuple, ...]:
    """'HV*K T 1' -> (('HV', 'K'), ('T',), (1,))."""
    return tuple(
        tuple(int(part) if part.isdigit() else part for part in axis.split("*")) for axis in text.split()
    )


def _dims(entry) -> dict[str, tuple[tuple[tuple, ...], ...]]:
    by_layout = entry if isinstance(entry, dict) else {"": entry}
    return {
        layout: tuple(_axes(text) for text in ([shape] if isinstance(shape, str) else shape))
        for layout, shape in by_layout.items()
    }


def _param(entry: dict) -> Param:
    kind = next(k for k in ("in", "attr", "ints", "out") if k in entry)
    return Param(
        kind=kind,
        name=entry[kind],
        c=entry.get("c", entry[kind]),
        optional=bool(entry.get("optional", False)),
        dtypes=tuple(entry.get("dtypes", ())),
        like=entry.get("like", ""),
        type=entry.get("type", ""),
        default=entry.get("default"),
        values=tuple(entry.get("values", ())),
        refused=entry.get("refused", ""),
        present_if=entry.get("present_if", ""),
        dims=_dims(entry["dims"]) if "dims" in entry else {},
    )


def _folder():
    """The installed contracts; in a checkout that is not installed, the sources themselves."""
    installed = resources.files(__package__) / "_contract"
    if installed.is_dir():
        return {p.name.removesuffix(".json"): p for p in installed.iterdir() if p.name.endswith(".json")}
    ops = Path(__file__).resolve().parents[2] / "ascendc" / "ops"
    return {p.parent.name: p for p in sorted(ops.glob("*/op.json"))}


@cache
def _sources() -> dict:
    found = _folder()
    if not found:
        raise AbiMismatch(
            "fla_npu was installed without its operator contracts (fla_npu/_contract is empty or "
            "absent); install it again: pip install --force-reinstall --no-deps fla-npu"
        )
    return found


def names() -> tuple[str, ...]:
    """Names of all operators this version has a contract for."""
    return tuple(sorted(_sources()))


@cache
def spec(name: str) -> OpSpec:
    """Contract of operator `name`; ArgumentError lists the known names."""
    if name not in _sources():
        raise ArgumentError(f"fla_npu has no operator '{name}'; it has {', '.join(names())}")
    source = _sources()[name]
    data = json.loads(source.read_text(encoding="utf-8"))
    return OpSpec(
        name=data["name"],
        aclnn=data["aclnn"],
        summary=data.get("summary", ""),
        params=tuple(_param(entry) for entry in data["params"]),
        fixed=dict(data.get("fixed", {})),
        derived=dict(data.get("derived", {})),
        modes={mode: tuple(outs) for mode, outs in data.get("modes", {}).items()},
        mutated=tuple(data.get("mutated", ())),
        source=str(source),
    )


def extent(axis: tuple, letters: dict[str, int]) -> int:
    """Length of an axis expression under bound letters."""
    if len(axis) == 1:  # nearly always: one letter, or the number 1
        return axis[0] if isinstance(axis[0], int) else letters[axis[0]]
    return math.prod(part if isinstance(part, int) else letters[part] for part in axis)


def axes_text(axes: tuple[tuple, ...]) -> str:
    """'[B, HV, T, K]' for messages."""
    return "[" + ", ".join("*".join(str(part) for part in axis) for axis in axes) + "]"
