# SPDX-License-Identifier: Apache-2.0
"""The few facts of an ELF file that matter here, read from its dynamic segment.

The dynamic segment is what the loader uses: it is there in stripped files too, even without sections.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

__all__ = ["BUILD_ID", "Elf", "ElfFault", "read_elf"]

BUILD_ID = "fla_build_id"
MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
FUNCTIONS = {"STT_FUNC", "STT_NOTYPE", "STT_LOOS"}  # STT_LOOS is GNU's indirect function


class ElfFault(Exception):
    """The file is no shared library that a loader would take."""


@dataclass
class Elf:
    """machine, what it defines and imports, and the build id it carries ('' without one)."""

    machine: str
    functions: set[str] = field(default_factory=set)
    data: set[str] = field(default_factory=set)
    imported: set[str] = field(default_factory=set)
    needed: list[str] = field(default_factory=list)
    runpath: list[str] = field(default_factory=list)
    build_id: str = ""

    def why_not(self, name: str) -> str:
        """Why a function that is not provided isn't, as far as the file tells."""
        if name in self.imported:
            return "only imported, not defined"
        if name in self.data:
            return "defined as data, not as a function"
        return "not among the dynamic symbols (absent or hidden)"


def read_elf(data: bytes) -> Elf:
    """Read a library from its bytes; ElfFault says what is wrong with it."""
    if not data:
        raise ElfFault("is an empty file")
    if not data.startswith(b"\x7fELF"):
        text = data[:200].decode("ascii", "replace").split()
        script = any(
            word in ("INPUT", "GROUP", "OUTPUT_FORMAT") for word in " ".join(text).replace("(", " ").split()
        )
        raise ElfFault("is a linker script, not a library" if script else "is not an ELF file")
    try:
        return _read(ELFFile(io.BytesIO(data)), data)
    except ElfFault:
        raise
    # A damaged file trips the parser anywhere, with whatever error comes first.
    except (
        ELFError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        OverflowError,
        AssertionError,
    ) as error:
        raise ElfFault(f"is damaged or truncated ({type(error).__name__}: {error})") from error


def _read(elf: ELFFile, data: bytes) -> Elf:
    if elf["e_type"] != "ET_DYN":
        raise ElfFault(f"is no shared library (ELF type {elf['e_type']})")
    machine = MACHINES.get(elf["e_machine"], str(elf["e_machine"]))
    result = Elf(machine)
    for segment in elf.iter_segments():
        if segment["p_type"] == "PT_LOAD" and segment["p_offset"] + segment["p_filesz"] > len(data):
            raise ElfFault(
                f"is truncated: a segment ends at {segment['p_offset'] + segment['p_filesz']}, the file at {len(data)}"
            )
    dynamic = next((s for s in elf.iter_segments() if s["p_type"] == "PT_DYNAMIC"), None)
    if dynamic is None:
        raise ElfFault("has no dynamic segment: a loader can't use it")
    result.needed = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")]
    for tag in dynamic.iter_tags():
        if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
            text = tag.rpath if tag.entry.d_tag == "DT_RPATH" else tag.runpath
            result.runpath += [part for part in text.split(":") if part]
    for symbol in dynamic.iter_symbols():
        _sort_symbol(elf, data, symbol, result)
    return result


def _sort_symbol(elf: ELFFile, data: bytes, symbol, result: Elf) -> None:
    bind, kind = symbol["st_info"]["bind"], symbol["st_info"]["type"]
    visible = symbol["st_other"]["visibility"] in ("STV_DEFAULT", "STV_PROTECTED")
    if symbol["st_shndx"] == "SHN_UNDEF":
        result.imported.add(symbol.name)
    elif bind != "STB_LOCAL" and visible:
        (result.functions if kind in FUNCTIONS else result.data).add(symbol.name)
        if symbol.name == BUILD_ID:
            offset = next(elf.address_offsets(symbol["st_value"], 1), None)
            if offset is not None:
                result.build_id = data[offset : offset + 32].split(b"\0")[0].decode("ascii", "replace")
