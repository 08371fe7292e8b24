# SPDX-License-Identifier: Apache-2.0
"""Two releases side by side: symbols, parameter lists, chips and kernels added, removed, changed.

A release is an OPP in any shape, or the manifest of one. What a program built or written for the old release
would miss is an error; what is new is a note.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..manifest import MAX_JSON, parse_manifest, read_file
from .places import read_place
from .tree import InputError, finding, read_input

__all__ = ["Release", "compare", "read_release"]


# Errors of a release by itself are not asked for here: an old one may lack what today's contracts have.
@dataclass
class Release:
    """What callers rely on. `prototypes` is None when nothing says them (no manifest)."""

    path: str
    symbols: set[str] = field(default_factory=set)
    prototypes: dict[str, str] | None = None  # aclnn name -> parameter list
    kernels: dict[str, set[str]] = field(default_factory=dict)  # operator -> chips
    about: dict[str, str] = field(default_factory=dict)  # version, backend, arch, cann
    damage: list[dict] = field(default_factory=list)  # what of it can't be trusted


def read_release(path: str) -> Release:
    """A release from a manifest, or from an OPP whose libraries are read. InputError when it is neither."""
    file = Path(path)
    if file.is_file() and file.suffix == ".json":
        try:
            manifest = parse_manifest(read_file(file, MAX_JSON))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise InputError(f"{path} is no manifest of an OPP: {why}") from error
        if "ops" not in manifest:
            raise InputError(f"{path} is no manifest of an OPP: it lists no operators ('ops')")
        release = _from_manifest(path, manifest)
        release.symbols = {
            symbol for name in release.prototypes or {} for symbol in (name, f"{name}GetWorkspaceSize")
        }
        return release
    found, findings = read_place(read_input(file), None)
    manifest = next((vendor.manifest for vendor in found if vendor.manifest), {})
    release = _from_manifest(path, manifest)
    release.damage = [f for f in findings if f["level"] == "damage"]
    for vendor in found:
        if vendor.api is not None:
            release.symbols |= {name for name in vendor.api.functions if name.startswith("aclnn")}
    return release


def _from_manifest(path: str, manifest: dict) -> Release:
    ops = manifest.get("ops") if manifest else None
    release = Release(path, prototypes=None if ops is None else {})
    release.about = {key: str(manifest.get(key, "")) for key in ("version", "backend", "arch", "cann")}
    for name, entry in (ops or {}).items():
        release.prototypes[str(entry.get("aclnn", name))] = str(
            entry.get("prototype", entry.get("prototype_hash", ""))
        )
        chips = entry.get("kernels", {})
        release.kernels[name] = (
            {chip for chip, files in chips.items() if files} if isinstance(chips, dict) else set()
        )
    return release


def _parameters(prototype: str) -> list[str]:
    return [part.strip() for part in prototype.split(",") if part.strip()]


def _how_changed(old: str, new: str) -> str:
    """The first parameter that differs, by its place; hashes say only that they do."""
    before, after = _parameters(old), _parameters(new)
    if len(before) < 2 or len(after) < 2:
        return "its hash differs"
    for place, (a, b) in enumerate(zip(before, after), 1):
        if a != b:
            counts = f", {len(before)} parameters became {len(after)}" if len(before) != len(after) else ""
            return f"parameter {place} was '{a}' and is '{b}'{counts}"
    return f"{len(before)} parameters became {len(after)}"


def compare(old: Release, new: Release) -> dict:
    """{"added": [...], "removed": [...], "changed": [...], "findings": [...]}; findings as check_symbols has them."""
    result: dict = {"against": old.path, "added": [], "removed": [], "changed": [], "findings": []}
    for which, release in (("older", old), ("newer", new)):
        result["findings"] += [f | {"text": f"the {which} release: {f['text']}"} for f in release.damage]

    def note(kind: str, text: str, op: str = "", level: str = "error") -> None:
        result[kind].append(text)
        result["findings"].append(finding(level, new.path, f"{kind}: {text}", op))

    for symbol in sorted(old.symbols - new.symbols):
        note("removed", f"symbol {symbol}")
    for symbol in sorted(new.symbols - old.symbols):
        note("added", f"symbol {symbol}", level="note")
    if old.prototypes is None or new.prototypes is None:
        missing = old.path if old.prototypes is None else new.path
        text = f"{missing} has no manifest: parameter lists can't be compared, symbols are"
        result["findings"].append(finding("warning", new.path, text))
    for name in sorted(set(old.prototypes or {}) & set(new.prototypes or {})):
        if old.prototypes[name] != new.prototypes[name]:
            note(
                "changed",
                f"parameters of {name}: {_how_changed(old.prototypes[name], new.prototypes[name])}",
                name,
            )
    for op in sorted(set(old.kernels) & set(new.kernels)):
        for chip in sorted(old.kernels[op] - new.kernels[op]):
            note("removed", f"kernels of {op} for {chip}", op)
        for chip in sorted(new.kernels[op] - old.kernels[op]):
            note("added", f"kernels of {op} for {chip}", op, level="note")
    for key, before in old.about.items():
        after = new.about.get(key, "")
        if before != after and before and after:
            level = "error" if key in ("backend", "arch") else "note"
            note("changed", f"{key}: was {before}, is {after}", level=level)
    return result
