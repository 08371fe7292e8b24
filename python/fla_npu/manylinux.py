# SPDX-License-Identifier: Apache-2.0
"""The platform tag that a wheel's binaries keep: `manylinux_2_X_<processor>`, by what is in them.

PEP 600: the tag promises that the wheel works with glibc 2.X. What a library needs is in its version
records, so the tag is computed from the binaries and never promises more than they can do. A build for
another processor is recognised by its compiler or its options; a wheel whose name, manifest and libraries
do not agree about the processor is refused. Standard library only: the build uses this module before
anything is installed.
"""

from __future__ import annotations

import json
import platform
import re
import shlex
import subprocess
import zipfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from .elf import MACHINES, machine_name
from .manifest import record_hash

__all__ = ["WrongProcessor", "machine", "needs", "platform_tag", "prepare_cross", "processor", "retag"]

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


class WrongProcessor(SystemExit):
    """Ends the build: pip then shows the text and no traceback."""


def machine(library: bytes) -> str:
    """'x86_64', 'aarch64' or 'e_machine 243': the processor that an ELF file is for; '' for another file."""
    if library[:4] != b"\x7fELF" or len(library) < 20:
        return ""
    number = int.from_bytes(library[18:20], "little" if library[5] == 1 else "big")
    return MACHINES.get(number, f"e_machine {number}")


def _defined(settings: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, str]:
    """CMake's variables as a build sets them: by environment, CMAKE_ARGS, and config settings, the later ones win."""
    given = {"CMAKE_CXX_COMPILER": environment.get("CXX", "")}
    given["CMAKE_TOOLCHAIN_FILE"] = environment.get("CMAKE_TOOLCHAIN_FILE", "")
    given.update(re.findall(r"-D\s*(\w+)(?::\w+)?=(\S+)", environment.get("CMAKE_ARGS", "")))
    given.update((key.replace("cmake.define.", ""), str(value)) for key, value in settings.items())
    return given


def _of_compiler(command: str) -> str:
    """What a compiler makes code for, by its own words; '' when it has none, then CMake says what is wrong."""
    try:
        words = [*shlex.split(command), "-dumpmachine"]
        run = subprocess.run(words, capture_output=True, text=True, timeout=60)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    return run.stdout.strip().split("-")[0] if run.returncode == 0 else ""


def _of_toolchain(path: str) -> str:
    """What a toolchain file sets CMAKE_SYSTEM_PROCESSOR to."""
    text = Path(path).read_text(errors="replace") if Path(path).is_file() else ""
    found = re.search(r"(?im)^\s*set\s*\(\s*CMAKE_SYSTEM_PROCESSOR\s+\"?(\w+)", text)
    return found.group(1) if found else ""


def processor(settings: Mapping[str, object], environment: Mapping[str, str]) -> str:
    """The processor that a build is for, as far as its settings and environment tell; '' when nothing does.

    In this order: _PYTHON_HOST_PLATFORM, CMAKE_SYSTEM_PROCESSOR, a toolchain file that sets it, the compiler.
    """
    asked = re.fullmatch(r"linux[-_](\w+)", environment.get("_PYTHON_HOST_PLATFORM", ""))
    if asked:
        return asked.group(1)
    given = _defined(settings, environment)
    name = given.get("CMAKE_SYSTEM_PROCESSOR") or _of_toolchain(given["CMAKE_TOOLCHAIN_FILE"])
    name = name or (given["CMAKE_CXX_COMPILER"] and _of_compiler(given["CMAKE_CXX_COMPILER"]))
    return machine_name(name)


def prepare_cross(settings: MutableMapping[str, object], environment: MutableMapping[str, str]) -> None:
    """Tells scikit-build-core and CMake about a build for another processor; nothing for one for this machine.

    The platform goes into the wheel's name and into the name of the build tree, so that trees for two
    processors never mix. What the caller has set stays. WrongProcessor when the compiler makes something else.
    """
    name, given, known = processor(settings, environment), _defined(settings, environment), MACHINES.values()
    if name not in known:
        return
    compiler = given["CMAKE_CXX_COMPILER"] or "c++"
    made = "" if given["CMAKE_TOOLCHAIN_FILE"] else _of_compiler(compiler)
    if made in known and made != name:
        raise WrongProcessor(
            f"fla-npu cannot be built, step 'options' failed: the build is for {name}, but the compiler "
            f"{compiler} makes code for {made}; set CXX to one for {name} (CXX={name}-linux-gnu-g++), or leave out "
            "_PYTHON_HOST_PLATFORM and CMAKE_SYSTEM_PROCESSOR"
        )
    if name != machine_name(platform.machine()):
        environment.setdefault("_PYTHON_HOST_PLATFORM", f"linux-{name}")
        settings.setdefault("cmake.define.CMAKE_SYSTEM_NAME", "Linux")
        settings.setdefault("cmake.define.CMAKE_SYSTEM_PROCESSOR", name)


def _check_processor(wheel: Path, arch: str, contents: Mapping[str, bytes]) -> None:
    """WrongProcessor, with the wheel removed, unless name, manifest and every library are for one processor."""
    seen = {f"its name says {arch}": arch}
    for name, data in contents.items():
        if name.endswith("opp/manifest.json"):
            said = json.loads(data).get("arch", arch)
            seen.setdefault(f"its manifest says {said}", said)
        elif name.endswith(".so") and machine(data):
            seen.setdefault(f"{name.rsplit('/', 1)[-1]} is for {machine(data)}", machine(data))
    if set(seen.values()) == {arch}:
        return
    odd = [text for text, said in seen.items() if said != arch]
    wheel.unlink()
    raise WrongProcessor(
        f"fla-npu: step 'tag' failed: {wheel.name} would mix processors: its name says {arch}, but "
        f"{'; '.join(odd[:3])}. Name the compiler that makes code for {arch} in CXX, or, to build for another "
        "processor, set CXX to its cross compiler (CXX=aarch64-linux-gnu-g++), and let "
        "_PYTHON_HOST_PLATFORM and CMAKE_SYSTEM_PROCESSOR say the same or leave them out; an old tree in build/ "
        "is removed first"
    )


def retag(wheel: Path) -> Path:
    """Gives a `linux_<arch>` wheel the tag its binaries keep, in name, WHEEL and RECORD; returns its new path.

    Every other byte of every member, their order and dates stay. A wheel with another tag is left alone.
    WrongProcessor when the libraries are not for <arch>: such a wheel is removed.
    """
    match = re.fullmatch(r"(.+-)linux_(\w+)\.whl", wheel.name)
    if match is None:
        return wheel
    with zipfile.ZipFile(wheel) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    _check_processor(wheel, match.group(2), {info.filename: data for info, data in members})
    tag = platform_tag([data for info, data in members if info.filename.endswith(".so")], match.group(2))
    target = wheel.with_name(f"{match.group(1)}{tag}.whl")
    if target == wheel:
        return wheel
    start = next(info.filename for info, _ in members if info.filename.endswith(".dist-info/WHEEL"))
    texts = {info.filename: data for info, data in members}
    described = texts[start].replace(f"-linux_{match.group(2)}".encode(), f"-{tag}".encode())
    row = f"{start},{record_hash(described)},{len(described)}"
    record = start.removesuffix("WHEEL") + "RECORD"
    rows = [row if line.startswith(start + ",") else line for line in texts[record].decode().splitlines()]
    changed = {start: described, record: ("\n".join(rows) + "\n").encode()}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, data in members:
            archive.writestr(info, changed.get(info.filename, data))
    wheel.unlink()
    return target
