# SPDX-License-Identifier: Apache-2.0
"""Finding the vendors in whatever the user named: wheel, .run, package, OPP, vendor directory, library.

Everything becomes a Place: files by their path relative to the OPP root, read when asked for. What is there and
can't be a file of an OPP is one of its faults.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ..manifest import kind_of, parse_priority, read_file
from .archive import Archive, read_tar

__all__ = ["CONFIG", "LIBRARY", "InputError", "Place", "finding", "read_input", "status_of"]

LIBRARY = "op_api/lib/libcust_opapi.so"
CONFIG = "vendors/config.ini"
VENDOR_PARTS = ("op_api", "op_impl")
MAX_ENTRIES = 200_000  # files and folders of an OPP; it has some hundred


class InputError(Exception):
    """The input is nothing that could hold an OPP, or can't be read."""


def finding(level: str, where: str, text: str, op: str = "") -> dict:
    """A finding is plain data, as --json prints it: a level (damage, error, warning, note), a place, a text.

    `op` is the operator it is about, "" when it is about the whole place.
    """
    return {"level": level, "where": where, "op": op, "text": text}


def status_of(findings: list[dict]) -> int:
    """2: not what was packed, 1: something is missing or wrong, 0: all is there."""
    levels = {f["level"] for f in findings}
    return 2 if "damage" in levels else 1 if "error" in levels else 0


@dataclass
class Place:
    """One OPP: its files, the vendors among them, and the machine it claims to be for."""

    path: str
    kind: str
    files: dict[str, Callable[[], bytes]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)  # name -> why it is no file
    folders: set[str] = field(default_factory=set)
    links: dict[str, str] = field(default_factory=dict)  # name -> target
    shared: bool = False  # other vendors lie beside what was asked for
    arch: str = ""

    @property
    def vendors(self) -> list[str]:
        """Vendor folders ('vendors/x/'), first choice first. A vendor has an op_api or op_impl folder."""
        pattern = re.compile(r"^((?:vendors/[^/]+/)|)(?:op_api|op_impl)/")
        names = [*self.files, *self.faults, *(f"{name}/" for name in self.folders)]
        found = sorted({m.group(1) for name in names if (m := pattern.match(name))})
        order = self.priority() or []
        rank = {f"vendors/{name}/": number for number, name in reversed(list(enumerate(order)))}
        return sorted(found, key=lambda vendor: rank.get(vendor, len(order)))

    def priority(self) -> list[str] | None:
        """What config.ini names, None when it can't be read or names nothing."""
        try:
            return parse_priority(self.files[CONFIG]()) if CONFIG in self.files else None
        except OSError:
            return None


def read_input(path: Path) -> Place:
    """Recognise what `path` is and list its files; reads no library yet."""
    try:
        if path.is_symlink() and not path.exists():
            raise InputError(f"{path} is a dangling link to {os.readlink(path)}")
        mode, size = os.stat(path).st_mode, os.stat(path).st_size
        if stat.S_ISDIR(mode):
            return _folder(path)
        if not stat.S_ISREG(mode):
            raise InputError(f"{path} is {kind_of(mode)}: neither a file nor a folder")
        if path.suffix == ".so":
            return Place(str(path), "library", {LIBRARY: partial(read_file, path)})
        if size == 0:
            what = ", an incomplete wheel: fetch it again" if path.suffix == ".whl" else ""
            raise InputError(f"{path} is an empty file{what}")
        if path.suffix == ".whl" or _starts_with(path, b"PK"):
            return _wheel(path)
        packed = _starts_with(path, b"\x1f\x8b") or _starts_with(path, b"#!")
        return _tarball(path) if packed else _library(path)
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except PermissionError as error:
        raise InputError(
            f"permission denied: {error.filename}; run as its owner or make it readable"
        ) from error
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a circle of links
        raise InputError(f"{path} can't be read: {getattr(error, 'strerror', None) or error}") from error


def _starts_with(path: Path, head: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(head)) == head


def _wheel(path: Path) -> Place:
    """Members below fla_npu/opp, whether at the top or in the wheel's .data folder."""
    try:
        archive = Archive(path)
    except ValueError as error:
        what = "a damaged or incomplete wheel" if path.suffix == ".whl" else "a damaged zip file"
        raise InputError(f"{path} is {what}: {error}; fetch it again") from error
    place = Place(str(path), "wheel")
    pattern = re.compile(r"^(?:[^/]+\.data/(?:platlib|purelib)/)?[^/]+/opp/(.+[^/])$")
    for name in [*archive.members, *archive.faults]:
        member = pattern.match(name)
        if name in archive.faults:
            place.faults[member.group(1) if member else name] = archive.faults[name]
        elif member:
            place.files[member.group(1)] = partial(archive.read, name)
    tag = re.search(r"(x86_64|aarch64)\.whl$", path.name)
    place.arch = tag.group(1) if tag else ""
    if not place.vendors:
        raise InputError(f"{path} is a zip file without an OPP (no */opp/vendors inside)")
    return place


def _tarball(path: Path) -> Place:
    try:
        files, faults = read_tar(path)
    except ValueError as error:
        raise InputError(
            f"{path} is no .run or .tar.gz with an OPP, or is damaged: {error}; fetch it again"
        ) from error
    place = Place(str(path), "archive", {name: partial(bytes, data) for name, data in files.items()}, faults)
    if not place.vendors:
        raise InputError(f"{path} is an archive without an OPP (no vendors inside)")
    return place


def _library(path: Path) -> Place:
    if not _starts_with(path, b"\x7fELF"):
        hint = "; of a manifest name the folder, or use --against" if path.suffix == ".json" else ""
        raise InputError(f"{path} is neither a wheel, a .run or .tar.gz with an OPP, nor a library{hint}")
    return Place(str(path), "library", {LIBRARY: partial(read_file, path)})


def _folder(path: Path) -> Place:
    root, start, below = _root_of(path)
    if root is None:
        whole = next((parent for parent in path.absolute().parents if _is_vendor(parent)), None)
        part = f". It is part of a vendor: name {whole}" if whole else ""
        raise InputError(
            f"{path} holds no OPP: no vendors/, op_api/, op_impl/ or opp/ below it, and no fla_npu package{part}"
        )
    kinds = {"": "OPP" if (root / "vendors").is_dir() else "vendor", "vendors/": "vendors"}
    place = Place(str(root), kinds.get(below, "vendor"))
    if start != root:  # one of several vendors: with what the root says of all
        place.shared = True
        for name in ("manifest.json", CONFIG):
            if os.path.lexists(root / name):
                place.files[name] = partial(read_file, root / name)
    _walk(place, start, below)
    place.files = dict(sorted(place.files.items()))
    return place


def _root_of(path: Path) -> tuple[Path | None, Path, str]:
    """The OPP's root, the folder to read, and what the names of its files begin with."""
    path = path.absolute()
    if _is_vendor(path):
        if path.parent.name != "vendors":
            return path, path, ""  # a vendor directory alone
        if sum(map(_is_vendor, path.parent.iterdir())) > 1:
            return path.parent.parent, path, f"vendors/{path.name}/"
        return path.parent.parent, path.parent.parent, ""
    if path.name == "vendors":
        return path.parent, path.parent, ""
    for root in (path, path / "opp", path / "fla_npu" / "opp", path / "python" / "fla_npu" / "opp"):
        if (root / "vendors").is_dir():
            return root, root, ""
    if any(path.glob("*/op_api")):  # vendors in a folder of another name: calls take it, too
        return path, path, "vendors/"
    return None, path, ""


def _is_vendor(path: Path | str) -> bool:
    return any(os.path.isdir(os.path.join(path, part)) for part in VENDOR_PARTS)


def _walk(place: Place, start: Path, below: str) -> None:
    """Every file below `start`; a link to a folder is followed when it leads to a vendor, or stays inside."""
    inside = os.path.realpath(start) + os.sep
    todo, seen, count = [(str(start), below)], set(), 0
    while todo:
        folder, prefix = todo.pop()
        try:
            about = os.stat(folder)
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            place.faults[prefix.rstrip("/") or "."] = _unreadable(error)
            continue
        if (about.st_dev, about.st_ino) in seen:
            continue  # a circle of links, or one folder under two names
        seen.add((about.st_dev, about.st_ino))
        count += len(entries)
        if count > MAX_ENTRIES:
            raise InputError(f"{start} has more than {MAX_ENTRIES} files: it is no OPP")
        todo += [
            (entry.path, f"{name}/")
            for entry in entries
            if _take(place, entry, name := prefix + entry.name, inside)
        ]


def _take(place: Place, entry: os.DirEntry, name: str, inside: str) -> bool:
    """Puts one entry of a folder where it belongs; True when it is a folder to read."""
    try:
        if entry.is_symlink():
            place.links[name] = os.readlink(entry.path)
        mode = entry.stat().st_mode
    except FileNotFoundError:
        place.faults[name] = f"is a dangling link to {place.links.get(name, '?')}"
        return False
    except OSError as error:  # a circle of links, among others
        place.faults[name] = _unreadable(error)
        return False
    if stat.S_ISREG(mode):
        place.files[name] = partial(read_file, entry.path)
    elif not stat.S_ISDIR(mode):
        place.faults[name] = f"is {kind_of(mode)}, not a file"
    elif (
        name not in place.links
        or os.path.realpath(entry.path).startswith(inside)
        or (re.fullmatch(r"vendors/[^/]+", name) and _is_vendor(entry.path))
    ):
        place.folders.add(name)
        return True
    else:
        place.faults[name] = f"is a link to the folder {place.links[name]}, outside of the OPP"
    return False


def _unreadable(error: OSError) -> str:
    hint = "; run as its owner or make it readable" if isinstance(error, PermissionError) else ""
    return f"can't be read: {(error.strerror or str(error)).lower()}{hint}"
