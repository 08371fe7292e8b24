# SPDX-License-Identifier: Apache-2.0
"""A place as a whole: its vendors, and what belongs to none of them (the order, the name of a wheel, odd files)."""

from __future__ import annotations

import hashlib
import re

from ..manifest import parse_priority
from .tree import CONFIG, LIBRARY, Place, finding
from .vendor import Vendor

__all__ = ["read_place"]


def read_place(place: Place, arch: str | None) -> tuple[list[Vendor], list[dict]]:
    """Every vendor of a place, first choice first, and what is wrong with the place and with each of them."""
    vendors = [Vendor(place, prefix, arch) for prefix in place.vendors]
    texts = [f"{name} {fault}" for name, fault in place.faults.items()]
    if not vendors:
        texts.append("holds no vendor directory")
    elif not any(v.manifest or v.damaged or v.has(LIBRARY) for v in vendors):
        texts.append(f"holds neither an operator library ({LIBRARY}) nor a manifest: it is no OPP")
    findings = [finding("damage", place.path, text) for text in texts]
    if vendors and place.kind != "library":
        findings += _check_config(place, vendors)
    if place.kind == "wheel":
        findings += _check_name(place, {tag for vendor in vendors for tag in vendor.tags})
    return vendors, findings + [f for vendor in vendors for f in vendor.findings]


def _check_name(place: Place, tags: set[str]) -> list[dict]:
    """A wheel's name tells pip which machine and which system it is for."""
    # pip goes by the name alone; what a wrong one promises is missed at the first call.
    parts = place.path.rsplit("/", 1)[-1][: -len(".whl")].split("-")
    if not place.path.endswith(".whl") or len(parts) not in (5, 6):
        return [finding("error", place.path, "has no name of a wheel, pip refuses it")]
    texts = []
    if not place.arch and tags:
        machines = ", ".join(sorted({re.sub("^(manylinux_2_[0-9]+|linux)_", "", tag) for tag in tags}))
        texts.append(f"its name says it is for '{parts[-1]}', but it holds libraries for {machines}")
    promised = [int(minor) for minor in re.findall(r"manylinux_2_(\d+)_", parts[-1])]
    needed = [int(minor) for tag in tags for minor in re.findall(r"manylinux_2_(\d+)_", tag)]
    if promised and max(needed, default=0) > min(promised):
        texts.append(f"its name promises glibc 2.{min(promised)}, its libraries need 2.{max(needed)}")
    return [finding("error", place.path, text) for text in texts]


def _check_config(place: Place, vendors: list[Vendor]) -> list[dict]:
    """The order of the vendors: ours as long as there are no others. Without it they are taken by name."""
    shared = place.shared or not all(vendor.listed_by_root for vendor in vendors)
    root = next((vendor.manifest for vendor in vendors if vendor.listed_by_root), {})
    packed, level = root.get("files", {}).get(CONFIG), "warning" if shared else "damage"
    found: list[tuple[str, str]] = []
    if CONFIG in place.files:
        data = vendors[0].read_config()
        order = None if data is None else parse_priority(data)
        if packed and data is not None and hashlib.sha256(data).hexdigest() != packed.get("sha256"):
            found.append((level, "is not the file that was packed: its order decides which vendor wins"))
        if data is not None and order is None:
            found.append(("damage", "has no line load_priority=: it can't be understood"))
        for name in [v.prefix.split("/")[1] for v in vendors if order and v.prefix]:
            if name not in order:
                found.append(("warning", f"does not name {name}: CANN does not see it below ASCEND_OPP_PATH"))
    elif CONFIG in place.folders:
        found.append(("damage", "is a directory"))
    elif packed and CONFIG not in place.faults:
        text = "is missing: vendors are taken by name, and CANN sees none below ASCEND_OPP_PATH"
        found.append((level, text))
    return [finding(level, place.path, f"{CONFIG} {text}") for level, text in found]
