# SPDX-License-Identifier: Apache-2.0
"""The few facts of a shared library that matter here, read from its dynamic segment without loading it.

The dynamic segment is what the system's loader uses: it is there in stripped files too, even without sections.
What that loader would trust is held against the file first: a damaged library kills the process that maps it.
Every number is checked before it is used as a place or a count, so that no file costs more than its size. That is
why no general parser (pyelftools) is used: it shows what a file says, the loader has to know what it may not say.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

__all__ = ["MACHINES", "Elf", "ElfFault", "machine_name", "read_elf"]

BUILD_ID = "fla_build_id"
MACHINES = {62: "x86_64", 183: "aarch64"}
OTHER_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}
# Far beyond any real library.
MAX_SEGMENTS, MAX_SYMBOLS, MAX_NOTES, MAX_NAMES = 256, 500_000, 1 << 20, 1 << 26

LOAD, DYNAMIC, NOTE = 1, 2, 4  # kinds of segments
EXECUTABLE, WRITABLE = 1, 2  # their flags
NEEDED, HASH, STRTAB, SYMTAB, RELA, RELASZ, STRSZ, SONAME, RPATH, RUNPATH = 1, 4, 5, 6, 7, 8, 10, 14, 15, 29
INIT, FINI, TEXTREL, JMPREL, PLTRELSZ, INIT_ARRAY, INIT_ARRAYSZ = 12, 13, 22, 23, 2, 25, 27
GNU_HASH, VERSYM = 0x6FFFFEF5, 0x6FFFFFF0
FUNCTIONS = {0, 2, 10}  # no type, function, GNU's indirect function
VISIBLE = {0, 3}  # default, protected
OTHER_FILES = {  # what lies in a library's place at times
    b"!<": "a static archive",
    b"MZ": "a Windows library",
    b"\xcf\xfa\xed\xfe": "a macOS library",
    b"\x1f\x8b": "a gzip file",
    b"PK": "a zip file",
    b"version https://git-lfs": "a pointer of Git LFS: 'git lfs pull' brings the file",
    b"<": "a page of HTML or XML: a download that failed",
    b"#!": "a script",
}
FIRST_RESERVED = 0xFF00  # section indices from here on are no sections


class ElfFault(Exception):
    """The file is no shared library that a loader would take."""


def machine_name(name: str) -> str:
    """The name that a processor has here: AMD64 is x86_64, arm64 is aarch64."""
    return OTHER_NAMES.get(name.lower(), name)


@dataclass
class Elf:
    """machine, what it defines and imports, and the build id it carries ('' without one)."""

    machine: str
    functions: set[str] = field(default_factory=set)
    data: set[str] = field(default_factory=set)
    imported: set[str] = field(default_factory=set)
    old: set[str] = field(default_factory=set)  # under a version that is not the default one
    needed: list[str] = field(default_factory=list)
    runpath: list[str] = field(default_factory=list)
    soname: str = ""
    build_id: str = ""

    def why_not(self, name: str) -> str:
        """Why a function that is not provided isn't, as far as the file tells."""
        if name in self.imported:
            return "only imported, not defined"
        if name in self.data:
            return "defined as data, not as a function"
        if name in self.old:
            return "defined for old programs only (name@VERSION, not name@@VERSION)"
        near = sorted(
            other for other in self.functions if name in other and other != f"{name}GetWorkspaceSize"
        )
        there = f"; there is {', '.join(near[:3])}, which is another name" if near else ""
        return f"not among the dynamic symbols (absent or hidden{there})"


def read_elf(data: bytes) -> Elf:
    """Read a library from its bytes; ElfFault says what is wrong with it."""
    if not data:
        raise ElfFault("is an empty file")
    if not data.startswith(b"\x7fELF"):
        words = data[:200].decode("ascii", "replace").replace("(", " ").split()
        if {"INPUT", "GROUP", "OUTPUT_FORMAT"} & set(words):
            raise ElfFault("is a linker script, not a library")
        kind = next((text for head, text in OTHER_FILES.items() if data[:200].lstrip().startswith(head)), "")
        raise ElfFault(f"is not an ELF file{kind and f' but {kind}'}")
    if len(data) < 64:
        raise ElfFault(f"is truncated: {len(data)} bytes, less than a header")
    if data[4:7] != b"\x02\x01\x01":
        raise ElfFault("is an ELF file of another kind: not 64 bits, little endian, version 1")
    return _Reader(data).read()


# Segments are read first: they translate every other address into a place in the file.
class _Reader:
    """One file being read. Addresses are those of the loaded library, offsets those of the file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.kind, machine = self.at("<HH", 16)
        if self.kind != 3:
            raise ElfFault(f"is no shared library (ELF type {self.kind})")
        if machine not in MACHINES:
            raise ElfFault(f"is for machine {machine}; this package is for x86_64 and aarch64 only")
        self.elf = Elf(MACHINES[machine])
        # Address, offset, bytes in the file and in memory, flags.
        self.loads: list[tuple[int, int, int, int, int]] = []
        self.dynamic: dict[int, int] = {}  # tag -> value, of those that come once
        self.texts: list[tuple[int, int]] = []  # (tag, offset of a string)

    def at(self, form: str, offset: int) -> tuple:
        """Numbers at an offset of the file."""
        if not 0 <= offset <= len(self.data) - struct.calcsize(form):
            raise ElfFault(
                f"is damaged or truncated: it refers to byte {offset}, the file has {len(self.data)}"
            )
        return struct.unpack_from(form, self.data, offset)

    def table(self, offset: int, count: int, size: int, what: str) -> memoryview:
        """`count` entries of `size` bytes; a fault when they do not lie in the file."""
        if offset < 0 or count < 0 or offset + count * size > len(self.data):
            raise ElfFault(
                f"is damaged or truncated: {what} does not fit into the file ({len(self.data)} bytes)"
            )
        return memoryview(self.data)[offset : offset + count * size]

    def place(self, address: int, what: str, size: int = 1) -> int:
        """The offset of `size` bytes at an address."""
        for start, offset, length, _, _ in self.loads:
            if start <= address and address + size <= start + length:
                return offset + address - start
        raise ElfFault(f"is damaged: {what} (address {address:#x}) is not in the file")

    def read(self) -> Elf:
        self.read_segments()
        self.check_sections()
        self.read_relocations()
        self.count = self.count_symbols()
        self.read_symbols()
        self.check_entries()
        return self.elf

    def read_segments(self) -> None:
        # Segments are mapped at ascending addresses, and nothing of them lies behind the end of the file: the
        # system's loader maps it nevertheless, and the first use of what is not there ends the process.
        (start,), (size, count) = self.at("<Q", 32), self.at("<HH", 54)
        if size != 56:
            raise ElfFault(f"is damaged: program headers of {size} bytes, not 56")
        if count > MAX_SEGMENTS:
            raise ElfFault(f"is damaged: it claims to have {count} segments")
        dynamic = None
        for entry in struct.iter_unpack("<IIQQQQQQ", self.table(start, count, size, "its program header")):
            kind, flags, offset, address, _, length, memory, align = entry
            if kind in (LOAD, DYNAMIC, NOTE) and offset + length > len(self.data):
                end = offset + length
                raise ElfFault(f"is truncated: a segment ends at {end}, the file at {len(self.data)}")
            if kind == LOAD:
                last = self.loads[-1][0] + self.loads[-1][3] if self.loads else 0
                misplaced = align > 1 and (align & (align - 1) or (address - offset) % align)
                if address < last or length > memory or address + memory >= 1 << 47 or misplaced:
                    raise ElfFault(f"is damaged: the segment at {address:#x} can't be mapped")
                self.loads.append((address, offset, length, memory, flags))
            elif kind == DYNAMIC:
                dynamic = (offset, length)
            elif kind == NOTE:
                self.check_notes(offset, offset + length, 8 if align == 8 else 4)
        if dynamic is None:
            raise ElfFault("has no dynamic segment: a loader can't use it")
        self.read_dynamic(*dynamic)

    def check_notes(self, offset: int, end: int, align: int) -> None:
        if end - offset > MAX_NOTES:
            raise ElfFault(f"is damaged: notes of {end - offset} bytes")
        while offset + 12 <= end:
            name, text, _ = self.at("<III", offset)
            offset += 12 + (name + 3) // 4 * 4
            offset = (offset + text + align - 1) // align * align
            if offset > end + align:
                raise ElfFault("is damaged: a note is longer than its segment")

    def read_dynamic(self, offset: int, length: int) -> None:
        for tag, value in struct.iter_unpack(
            "<QQ", self.table(offset, length // 16, 16, "its dynamic segment")
        ):
            if tag == 0:
                break
            if tag in (NEEDED, SONAME, RPATH, RUNPATH):
                self.texts.append((tag, value))
            self.dynamic[tag] = value
        else:
            raise ElfFault("is damaged: its dynamic segment has no end")
        if STRTAB not in self.dynamic or SYMTAB not in self.dynamic:
            raise ElfFault("has no dynamic symbols")
        size = self.dynamic.get(STRSZ, 0)
        start = self.place(self.dynamic[STRTAB], "the table of names", size)
        self.budget = MAX_NAMES  # names may overlap in the table: all of them together could be far larger
        self.names = self.data[start : start + size]
        for tag, value in self.texts:
            if tag == NEEDED:
                self.elf.needed.append(self.text(value))
            elif tag == SONAME:
                self.elf.soname = self.text(value)
            else:
                self.elf.runpath += [part for part in self.text(value).split(":") if part]

    def text(self, offset: int) -> str:
        end = self.names.find(b"\0", offset)
        self.budget -= end - offset
        if end < 0 or self.budget < 0:
            raise ElfFault(f"is damaged: a name at {offset}, the table of names has {len(self.names)} bytes")
        return self.names[offset:end].decode("utf-8", "replace")

    def check_sections(self) -> None:
        """No loader needs sections; where they contradict the segments, bytes are gone or were put in."""
        (start,), (size, count, names) = self.at("<Q", 40), self.at("<HHH", 58)
        if start == 0:
            return
        if size != 64 or names >= max(count, 1):
            raise ElfFault(f"is damaged: {count} section headers of {size} bytes, names in number {names}")
        for number, entry in enumerate(
            struct.iter_unpack("<IIQQQQIIQQ", self.table(start, count, size, "its section header"))
        ):
            _, kind, flags, address, offset, length, *_ = entry
            if number == 0 and (kind or address or offset):
                raise ElfFault("is damaged: its section headers do not begin with an empty one")
            if kind in (0, 8) or not length:  # none, or without bytes
                continue
            if offset + length > len(self.data):
                raise ElfFault("is damaged or truncated: a section lies outside of the file")
            if flags & 2 and self.place(address, "a section", length) != offset:
                raise ElfFault(f"is damaged: a section at {offset} and its segment contradict each other")

    # A stripped library has no section that says how many symbols there are.
    def count_symbols(self) -> int:
        """How many there are. Hash tables say it of what is defined, relocations of what is imported."""
        self.hashes: dict[int, int] = {}  # symbol -> hash of its name, as far as GNU's table has it
        if GNU_HASH in self.dynamic:
            count = self.count_by_gnu_hash(self.place(self.dynamic[GNU_HASH], "the hash table", 16))
        elif HASH in self.dynamic:
            buckets, count = self.at("<II", self.place(self.dynamic[HASH], "the hash table", 8))
            self.table(
                self.place(self.dynamic[HASH], "the hash table"), buckets + count + 2, 4, "its hash table"
            )
        else:
            raise ElfFault("has no table of hashes: a loader finds no symbol in it")
        if not self.hashes:
            count = max(count, self.last_needed + 1)
        if count > MAX_SYMBOLS:
            raise ElfFault(f"is damaged: it claims to have {count} symbols")
        return count

    def count_by_gnu_hash(self, start: int) -> int:
        # Header, filter, one first symbol per bucket, and one hash per symbol; the lowest bit ends a bucket.
        buckets, first, words, _ = self.at("<IIII", start)
        if max(buckets, words) > MAX_SYMBOLS:
            raise ElfFault(f"is damaged: a hash table of {buckets} buckets and {words} words")
        at = start + 16 + 8 * words
        heads = struct.unpack(f"<{buckets}I", self.table(at, buckets, 4, "its hash table"))
        chains = at + 4 * buckets - 4 * first
        last = max(heads, default=0)
        if last < first:
            return first  # nothing is defined
        while last < MAX_SYMBOLS and not self.at("<I", chains + 4 * last)[0] & 1:
            last += 1
        values = self.table(chains + 4 * first, last + 1 - first, 4, "its hash table")
        self.hashes = dict(enumerate(struct.unpack(f"<{last + 1 - first}I", values), first))
        return last + 1

    def read_symbols(self) -> None:
        start = self.place(self.dynamic[SYMTAB], "the table of symbols")
        symbols = self.table(start, self.count, 24, "its table of symbols")
        versions = [1] * self.count
        if VERSYM in self.dynamic:
            where = self.place(self.dynamic[VERSYM], "the table of versions")
            versions = struct.unpack(
                f"<{self.count}H", self.table(where, self.count, 2, "its table of versions")
            )
        for number, symbol in enumerate(struct.iter_unpack("<IBBHQQ", symbols)):
            self.sort_symbol(self.text(symbol[0]), symbol, number, versions[number])

    # A name is found through its hash: when that differs, no caller gets it, whatever the table of symbols says.
    def sort_symbol(self, name: str, symbol: tuple[int, ...], number: int, version: int) -> None:
        _, info, other, section, value, _ = symbol
        bind, kind, visibility = info >> 4, info & 15, other & 3
        if section == 0:
            self.elf.imported.add(name)
            return
        if number in self.hashes and (_gnu_hash(name) ^ self.hashes[number]) >> 1:
            raise ElfFault(f"is damaged: its hash table does not lead to {name}")
        if bind == 0 or visibility not in VISIBLE:
            return
        if kind in (2, 10) and section < FIRST_RESERVED and not self.in_memory(value, EXECUTABLE):
            raise ElfFault(f"is damaged: the function {name} lies outside of its code")
        if version > 0x8001:
            self.elf.old.add(name)  # the top bit: found by its version only
            return
        (self.elf.functions if kind in FUNCTIONS else self.elf.data).add(name)
        if name == BUILD_ID:
            offset = self.place(value, "its build id", 32)
            self.elf.build_id = self.data[offset : offset + 32].split(b"\0")[0].decode("ascii", "replace")

    def in_memory(self, address: int, flag: int) -> bool:
        """Is it an address of a segment that is to be run, or that may be written to?"""
        return any(
            start <= address < start + size and flags & flag for start, _, _, size, flags in self.loads
        )

    def read_relocations(self) -> None:
        """Between which addresses a loader writes while it opens the library, and the last symbol it needs for it."""
        low, high, last = 1 << 64, -1, 0
        for table, size in ((RELA, RELASZ), (JMPREL, PLTRELSZ)):
            if self.dynamic.get(size):
                start = self.place(self.dynamic.get(table, 0), "the table of relocations")
                entries = self.table(start, self.dynamic[size] // 24, 24, "its table of relocations")
                for where, info, _ in struct.iter_unpack("<QQq", entries):
                    if info & 0xFFFFFFFF:  # 0: nothing to do
                        low, high, last = min(low, where), max(high, where), max(last, info >> 32)
        # It asks nobody: a damaged entry makes it write to any place of the process.
        writable = EXECUTABLE if TEXTREL in self.dynamic else WRITABLE
        if high >= 0 and not (self.in_memory(low, writable) and self.in_memory(high, writable)):
            raise ElfFault(f"is damaged: relocations from {low:#x} to {high:#x} are outside of its data")
        self.last_needed = last

    def check_entries(self) -> None:
        """What a loader calls while it opens the library."""
        if self.last_needed >= self.count:
            raise ElfFault(f"is damaged: a relocation needs symbol {self.last_needed} of {self.count}")
        for tag in (INIT, FINI):
            if self.dynamic.get(tag) and not self.in_memory(self.dynamic[tag], EXECUTABLE):
                raise ElfFault("is damaged: what is run at load lies outside of its code")
        if self.dynamic.get(INIT_ARRAYSZ):
            self.place(self.dynamic.get(INIT_ARRAY, 0), "what is run at load", self.dynamic[INIT_ARRAYSZ])


def _gnu_hash(name: str) -> int:
    value = 5381
    for byte in name.encode("utf-8", "replace"):
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value
