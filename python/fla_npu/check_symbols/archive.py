# SPDX-License-Identifier: Apache-2.0
"""Archives, a wheel's zip file before all: every member is verified, and none is unpacked beyond its bounds.

What an installer would do with a member must not be a matter of taste: its name leads into the package, it is
there once, it is a plain file, its two headers agree, no byte of the archive belongs to nobody, and RECORD has
its hash.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import lzma
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from ..manifest import MAX_FILE, MAX_JSON, read_file, record_hash

__all__ = ["Archive", "read_tar"]

MAX_TOTAL = 1 << 30  # bytes of all members
MAX_NAME = 1000
METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA}
KINDS = {0, stat.S_IFREG, stat.S_IFDIR}
BROKEN = (  # what zipfile raises on bytes it does not expect
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, NotImplementedError),
    *(RuntimeError, ValueError, KeyError, IndexError, OverflowError, OSError),
)


class Archive:
    """The members of a zip file by name, and `faults`: member -> what is wrong with it. ValueError: no zip file."""

    def __init__(self, path: Path) -> None:
        self.faults: dict[str, str] = {}
        with path.open("rb") as file:
            _check_end(file, path.stat().st_size)
            try:
                self.zip = zipfile.ZipFile(path)
                self.members = {info.filename: info for info in self.zip.infolist()}
                self._check_names()
                self._check_headers(file)
            except BROKEN as error:
                raise ValueError(f"{error or type(error).__name__}") from error
        if sum(info.file_size for info in self.zip.infolist()) > MAX_TOTAL:
            raise ValueError(f"it unpacks to more than {MAX_TOTAL >> 30} GiB")
        self._check_contents()

    def read(self, name: str) -> bytes:
        """A member's bytes; OSError when it has none that can be trusted."""
        info = self.members[name]
        try:
            with self.zip.open(info) as member:
                data = member.read(MAX_FILE + 1)
        except BROKEN as error:
            raise OSError(f"{error or type(error).__name__}") from error
        if len(data) != info.file_size:
            raise OSError(f"{len(data)} bytes, its header says {info.file_size}")
        return data

    def _fault(self, name: str, text: str) -> None:
        self.faults.setdefault(name, text)

    def _check_names(self) -> None:
        # Installers differ in what they do with each of these, and none of them comes from a build.
        seen: set[str] = set()
        short = [name for name in self.members if len(name) <= MAX_NAME]
        folders = {name[:at] for name in short for at, char in enumerate(name) if char == "/"}
        for info in self.zip.infolist():
            name, parts = info.orig_filename, info.orig_filename.split("/")
            if ".." in parts or "" in parts[:-1] or "\\" in name or "\0" in name or not name:
                self._fault(info.filename, "has a name that leads out of the package")
            if info.filename in seen or info.filename in folders:
                self._fault(info.filename, "is there twice: which one is installed is a matter of luck")
            seen.add(info.filename)
            if len(name) > MAX_NAME:
                self._fault(info.filename, f"has a name of {len(name)} characters")
            if info.flag_bits & 1:
                self._fault(info.filename, "is encrypted")
            elif info.compress_type not in METHODS:
                self._fault(
                    info.filename, f"is packed by method {info.compress_type}, which pip does not know"
                )
            if stat.S_IFMT(info.external_attr >> 16) not in KINDS:
                self._fault(info.filename, "is a link or a device, a wheel has files only")
            if info.file_size > MAX_FILE:
                self._fault(
                    info.filename, f"unpacks to {info.file_size} bytes, no file of an OPP has so many"
                )

    def _check_headers(self, file: BinaryIO) -> None:
        """Each member has a header of its own and a line in the directory; members follow one another."""
        end, slack = 0, 0
        for info in sorted(self.zip.infolist(), key=lambda i: i.header_offset):
            file.seek(info.header_offset)
            _, _, flags, method, _, _, *sizes, name, extra = struct.unpack("<4s5H3L2H", file.read(30))
            wanted = [info.CRC, info.compress_size, info.file_size]
            streamed = flags & 8  # its sizes follow behind it, in up to 24 bytes
            if (flags, method) != (info.flag_bits, info.compress_type) or sizes != wanted and not streamed:
                self._fault(info.filename, "has two headers that contradict each other")
            if not end <= info.header_offset <= end + slack:
                self._fault(
                    info.filename, "overlaps with another member, or follows bytes that belong to none"
                )
            end, slack = info.header_offset + 30 + name + extra + info.compress_size, 24 if streamed else 0
        if not end <= self.zip.start_dir <= end + slack:
            raise ValueError("bytes before its directory belong to no member")

    def _check_contents(self) -> None:
        # Every member, also those that are no part of the OPP: the wheel is used as a whole.
        hashes = {}
        for name in self.members:
            if name not in self.faults and not name.endswith("/"):
                try:
                    hashes[name] = record_hash(self.read(name))
                except OSError as why:
                    self._fault(name, f"is damaged: {why}")
        record = next((name for name in hashes if name.endswith(".dist-info/RECORD")), None)
        folder = next((name.split("/")[0] for name in self.members if ".dist-info/" in name), "")
        if folder and record is None:
            self._fault(f"{folder}/RECORD", "is missing: pip refuses such a wheel")
        if record and self.members[record].file_size <= MAX_JSON:
            self._check_record(record, hashes)

    def _check_record(self, record: str, hashes: dict[str, str]) -> None:
        """RECORD lists every file but itself, nearly always with a hash."""
        try:
            rows = list(csv.reader(self.read(record).decode().splitlines()))
        except (UnicodeDecodeError, csv.Error) as error:
            self._fault(record, f"can't be understood: {error}")
            return
        listed = {row[0]: row[1] for row in rows if len(row) > 1}
        for name in sorted(listed.keys() - hashes.keys() - self.faults.keys()):
            self._fault(name, "is missing; RECORD lists it")
        for name, found in hashes.items():
            if name not in listed:
                self._fault(name, "is not listed in RECORD")
            elif listed[name].startswith("sha256=") and listed[name] != found:
                self._fault(name, "is not the file that was packed (its sha256 differs from RECORD)")


def read_tar(path: Path) -> tuple[dict[str, bytes], dict[str, str]]:
    """Files of a .run or a .tar.gz, and member -> what is wrong with it. ValueError: it is neither, or damaged."""
    data = read_file(path)
    files: dict[str, bytes] = {}
    faults: dict[str, str] = {}
    total = 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(_payload(data) if data.startswith(b"#!") else data)) as packed:
            with tarfile.open(fileobj=packed, mode="r|") as archive:
                # One after another: a packed stream can't be trusted to say where the next one is.
                for member in archive:
                    name = member.name[2:] if member.name.startswith("./") else member.name
                    total += member.size
                    if total > MAX_FILE:
                        raise ValueError(f"it unpacks to more than {MAX_FILE >> 20} MiB")
                    if name.startswith("/") or ".." in name.split("/"):
                        faults[name] = "has a name that leads out of the package"
                    elif name in files:
                        faults[name] = "is there twice"
                    elif not member.isfile() and not member.isdir():
                        faults[name] = "is a link or a device, a package has files only"
                    elif member.isfile():
                        files[name] = archive.extractfile(member).read()
            while packed.read(1 << 20):  # to its end, where its sum is
                pass
    except (tarfile.TarError, *BROKEN) as error:
        raise ValueError(f"{error or type(error).__name__}") from error
    return {name: data for name, data in files.items() if name not in faults}, faults


def _payload(script: bytes) -> bytes:
    """The tree behind a .run's script; its own checksum is compared."""
    start = re.search(rb"^payload_at=(\d+)", script, re.M)
    wanted = re.search(rb"^payload_sha256='([0-9a-f]{64})'", script, re.M)
    if start is None or wanted is None:
        raise tarfile.ReadError("a shell script without an OPP")
    data = script.split(b"\n", int(start.group(1)) - 1)[-1]
    if hashlib.sha256(data).hexdigest() != wanted.group(1).decode():
        raise tarfile.ReadError("the packed tree is not the one that was packed (sha256)")
    return data


def _check_end(file: BinaryIO, size: int) -> None:
    """The last record closes the file, and what it promises is bounded."""
    file.seek(max(0, size - 65557))
    tail = file.read()
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) < at + 22:
        raise ValueError("its end is missing")
    _, _, _, _, entries, _, start, comment = struct.unpack_from("<4s4H2LH", tail, at)
    if at + 22 + comment != len(tail):
        raise ValueError("bytes follow its end")
    if entries == 0xFFFF or start == 0xFFFFFFFF:
        raise ValueError("it claims more members or bytes than any wheel of an OPP has")
