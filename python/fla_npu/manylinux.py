# SPDX-License-Identifier: Apache-2.0
"""The platform tag that a wheel's binaries keep: `manylinux_2_X` by what they ask of the C and C++ libraries.

PEP 600: the tag promises that the wheel works with glibc 2.X. What a library needs is in its version
records, so the tag is computed from the binaries and never promises more than they can do. Standard
library only: the build uses this module before anything is installed.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from pathlib import Path

__all__ = ["needs", "platform_tag", "retag"]

OLDEST = 17  # glibc 2.17 is the oldest that a Python of today runs on
# Last minor version of GLIBCXX_3.4.x and CXXABI_1.3.x that systems with glibc 2.<second> may be expected to have,
# as auditwheel's policies have it.
GLIBCXX = ((19, 17), (22, 24), (24, 27), (28, 31), (29, 34), (30, 35), (33, 39))
CXXABI = ((7, 17), (10, 24), (11, 27), (12, 31), (13, 34), (15, 39))
VERSION = re.compile(rb"\0(GLIBC_2|GLIBCXX_3\.4|CXXABI_1\.3)\.(\d+)(?:\.\d+)?(?=\0)")


def needs(library: bytes) -> dict[str, int]:
    """{'GLIBC': 34, 'GLIBCXX': 30, 'CXXABI': 9}: the highest minor version of each that a library asks for."""
    found: dict[str, int] = {}
    for name, minor in VERSION.findall(library):
        key = name.decode().split("_")[0]
        found[key] = max(found.get(key, 0), int(minor))
    return found


def _glibc_of(table: tuple[tuple[int, int], ...], minor: int) -> int:
    """The oldest glibc 2.x whose systems have the C++ version; 0 when none is known to."""
    return next((glibc for last, glibc in table if minor <= last), 0)


def platform_tag(libraries: list[bytes], arch: str) -> str:
    """'manylinux_2_35_x86_64', or 'linux_x86_64' when a library asks for more than any policy knows."""
    minimum = OLDEST
    for library in libraries:
        wanted = needs(library)
        floors = [wanted.get("GLIBC", 0)]
        floors += [
            _glibc_of(table, wanted[key])
            for key, table in (("GLIBCXX", GLIBCXX), ("CXXABI", CXXABI))
            if key in wanted
        ]
        if 0 in floors[1:]:
            return f"linux_{arch}"
        minimum = max(minimum, *floors)
    return f"manylinux_2_{minimum}_{arch}"


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def retag(wheel: Path) -> Path:
    """Gives a `linux_<arch>` wheel the tag its binaries keep, in name, WHEEL and RECORD; returns its new path.

    Every other byte of every member, their order and dates stay. A wheel with another tag is left alone.
    """
    match = re.fullmatch(r"(.+-)linux_(\w+)\.whl", wheel.name)
    if match is None:
        return wheel
    with zipfile.ZipFile(wheel) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    tag = platform_tag([data for info, data in members if info.filename.endswith(".so")], match.group(2))
    target = wheel.with_name(f"{match.group(1)}{tag}.whl")
    if target == wheel:
        return wheel
    start = next(info.filename for info, _ in members if info.filename.endswith(".dist-info/WHEEL"))
    texts = {info.filename: data for info, data in members}
    described = texts[start].replace(f"-linux_{match.group(2)}".encode(), f"-{tag}".encode())
    row = f"{start},{_digest(described)},{len(described)}"
    record = start.removesuffix("WHEEL") + "RECORD"
    rows = [row if line.startswith(start + ",") else line for line in texts[record].decode().splitlines()]
    changed = {start: described, record: ("\n".join(rows) + "\n").encode()}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, data in members:
            archive.writestr(info, changed.get(info.filename, data))
    wheel.unlink()
    return target
