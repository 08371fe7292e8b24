# SPDX-License-Identifier: Apache-2.0
"""Finding the vendors in whatever the user named: wheel, package, OPP, vendor directory, library.

Everything becomes a Place: files by their path relative to the OPP root, read when asked for.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["InputError", "Place", "read_input"]

LIBRARY = "op_api/lib/libcust_opapi.so"


class InputError(Exception):
    """The input is nothing that could hold an OPP, or can't be read."""


@dataclass
class Place:
    """One OPP: its files, the vendors among them, and the machine it claims to be for."""

    path: str
    kind: str
    files: dict[str, Callable[[], bytes]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)  # file -> why it can't be read
    links: dict[str, str] = field(default_factory=dict)  # file -> target
    arch: str = ""

    @property
    def vendors(self) -> list[str]:
        """Vendor folders ('vendors/x/'), first choice first. A vendor has an op_api or op_impl folder."""
        pattern = re.compile(r"^((?:vendors/[^/]+/)|)(?:op_api|op_impl)/")
        found = sorted({m.group(1) for name in [*self.files, *self.faults] if (m := pattern.match(name))})
        order = self._load_priority()
        return sorted(
            found,
            key=lambda v: (
                order.index(v.split("/")[1]) if "/" in v and v.split("/")[1] in order else len(order)
            ),
        )

    def _load_priority(self) -> list[str]:
        if "vendors/config.ini" not in self.files:
            return []
        text = self.files["vendors/config.ini"]().decode("utf-8", "replace")
        line = re.search(r"^\s*load_priority\s*=\s*(.*)$", text, re.M)
        return [name.strip() for name in line.group(1).split(",")] if line else []


def read_input(path: Path) -> Place:
    """Recognise what `path` is and list its files; reads no library yet."""
    try:
        if path.is_symlink() and not path.exists():
            raise InputError(f"{path} is a dangling link to {path.readlink()}")
        if not path.exists():
            raise InputError(f"{path} does not exist")
        if path.is_file():
            return _wheel(path) if zipfile.is_zipfile(path) else _library(path)
        return _folder(path)
    except PermissionError as error:
        raise InputError(
            f"permission denied: {error.filename}; run as its owner or make it readable"
        ) from error
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} can't be read: {error}") from error


def _wheel(path: Path) -> Place:
    """Members below fla_npu/opp, whether at the top or in the wheel's .data folder."""
    archive = zipfile.ZipFile(path)
    place = Place(str(path), "wheel")
    pattern = re.compile(r"^(?:[^/]+\.data/(?:platlib|purelib)/)?[^/]+/opp/(.+[^/])$")
    for name in archive.namelist():
        member = pattern.match(name)
        if member:
            place.files[member.group(1)] = lambda name=name: _member(archive, name)
    tag = re.search(r"(x86_64|aarch64)\.whl$", path.name)
    place.arch = tag.group(1) if tag else ""
    if not place.vendors:
        raise InputError(f"{path} is a zip file without an OPP (no */opp/vendors inside)")
    return place


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        return archive.read(name)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(f"{archive.filename} is damaged at {name}: {error}; fetch it again") from error


def _library(path: Path) -> Place:
    if path.suffix == ".whl":
        raise InputError(f"{path} is no zip file: a damaged or incomplete wheel; fetch it again")
    if path.suffix != ".so" and not path.read_bytes().startswith(b"\x7fELF") and path.stat().st_size:
        raise InputError(f"{path} is neither a wheel nor a library")
    return Place(str(path), "library", {LIBRARY: path.read_bytes})


def _folder(path: Path) -> Place:
    root, below = _root_of(path), ""
    if root is None and any(path.glob("*/op_api")):
        root, below = path, "vendors/"  # vendors in a folder of another name: calls take it, too
    if root is None:
        raise InputError(
            f"{path} holds no OPP: no vendors/, op_api/, op_impl/ or opp/ below it, and no fla_npu package"
        )
    kind = "OPP" if below or (root / "vendors").is_dir() else "vendor"
    place = Place(str(root), kind)
    for file in sorted(root.rglob("*")):
        name = below + file.relative_to(root).as_posix()
        if file.is_dir() and not os.access(file, os.R_OK | os.X_OK):
            raise PermissionError(13, "Permission denied", str(file))  # or its files would seem missing
        if file.is_symlink():
            place.links[name] = str(file.readlink())
        if file.is_file():
            place.files[name] = file.read_bytes
        elif file.is_symlink():
            place.faults[name] = f"is a dangling link to {file.readlink()}"
        elif file.suffix == ".so" and file.is_dir():
            place.faults[name] = "is a directory"
    return place


def _root_of(path: Path) -> Path | None:
    """The OPP root, or the vendor directory itself when it stands alone."""
    if path.name == "vendors":
        return path.parent
    if (path / "op_api").is_dir() or (path / "op_impl").is_dir():
        # A vendor inside an OPP keeps its manifest; only this vendor's files are looked at otherwise.
        alone = path.parent.name != "vendors" or sum(p.is_dir() for p in path.parent.iterdir()) > 1
        return path if alone else path.parent.parent
    for candidate in (path, path / "opp", path / "fla_npu" / "opp", path / "python" / "fla_npu" / "opp"):
        if (candidate / "vendors").is_dir():
            return candidate
    return None
