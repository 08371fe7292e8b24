# SPDX-License-Identifier: Apache-2.0
"""Damage by kind: what is no file, what is too large, wheels, libraries and JSON that were tampered with.

check_symbols ends with status 2 and a reason, the loader refuses; nothing is waited for, and memory stays bounded.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
import warnings
import zipfile
from pathlib import Path

import fake_cann
import fake_opp
import pytest
from apart import in_a_process
from fake_opp import API, BOTH, OP, functions, identity, library
from fla_npu import check_symbols, errors, loader, vendors
from fla_npu import opp as opps
from fla_npu.elf import ElfFault, read_elf
from fla_npu.manifest import digest, parse_manifest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

API_LIB = "op_api/lib/libcust_opapi.so"
ROLES = [
    "manifest.json",
    "vendors/config.ini",
    f"vendors/fla_npu/{API_LIB}",
    "vendors/fla_npu/notes.txt",
    "vendors/fla_npu/a.so",
]
SPECIAL = {
    "pipe": os.mkfifo,
    "socket": lambda path: socket.socket(socket.AF_UNIX).bind(os.path.relpath(path)),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "circle": lambda path: path.symlink_to(path.name),
}


def looked(look, path: Path) -> str:
    seen = look(path)
    return f"{seen.status} {seen.reason}"


def loaded(path: Path) -> str:
    """What the loader says of a place."""
    opps.own_root = lambda: None
    os.environ["FLA_NPU_OPP_PATH"] = str(path)
    loader.reset()
    try:
        loader.bind(OP)
    except errors.FlaNpuError as error:
        return f"refused: {error}"
    return "bound"


def taken(path: Path) -> str:
    """What `fla-npu opp install` would say of a source."""
    try:
        vendors.read_source(path)
    except errors.FlaNpuError as error:
        return f"refused: {error}"
    return "taken"


def damaged(seen, text: str = "") -> None:
    assert seen.status == 2 and seen.reason.startswith("check_symbols: "), seen.text
    assert text in seen.text, seen.text


# What is no file


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ROLES)
def test_special_file_in_a_package(look, opp, monkeypatch, kind, name):
    monkeypatch.chdir(opp)  # the path of a socket is short
    path = opp / name
    path.unlink(missing_ok=True)
    SPECIAL[kind](path)
    said, bound = in_a_process(functools.partial(looked, look, opp), functools.partial(loaded, opp))
    assert said.startswith("2 check_symbols: ") and path.name in said, said
    opened = path.name in ("manifest.json", "libcust_opapi.so")
    assert bound.startswith("refused: " if opened else ("refused", "bound")), bound


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["it", "it.so", "it.whl", "manifest.json"])
def test_special_file_as_the_input(look, tmp_path, monkeypatch, kind, name):
    monkeypatch.chdir(tmp_path)
    SPECIAL[kind](tmp_path / name)
    calls = (functools.partial(looked, look), loaded, taken)
    said, *refused = in_a_process(*(functools.partial(call, tmp_path / name) for call in calls))
    assert said.startswith("2 check_symbols: ") and name in said, said
    assert all(text.startswith("refused: ") for text in refused) and len(refused) == 2, refused


@pytest.mark.skipif(not os.path.exists("/proc/kmsg"), reason="no log of the kernel here")
@pytest.mark.parametrize("name", [*ROLES[:3], "../it", "../it.so", "../it.whl"])
def test_file_of_the_kernel(look, opp, name):
    """A file by its kind, but whoever reads waits for the next message."""
    path = opp / name
    path.unlink(missing_ok=True)
    path.symlink_to("/proc/kmsg")
    asked = path if name.startswith("..") else opp
    said, bound = in_a_process(functools.partial(looked, look, asked), functools.partial(loaded, asked))
    assert said.startswith("2 check_symbols: ") and bound.startswith(("refused: ", "bound")), (said, bound)


def test_folders_in_a_circle(look, opp, vendor):
    (vendor / "again").symlink_to("..")
    (vendor / "op_api/self").symlink_to(".")
    assert look(opp).status == 0
    (opp / "vendors/fla_npu/all").symlink_to("/")
    damaged(look(opp), "is a link to the folder /, outside of the OPP")


def test_a_vendor_behind_a_link_is_read(look, opp, tmp_path):
    (opp / "vendors/fla_npu").rename(tmp_path / "elsewhere")
    (opp / "vendors/fla_npu").symlink_to(tmp_path / "elsewhere")
    assert look(opp).status == 0
    (tmp_path / "elsewhere" / API_LIB).write_bytes(b"")
    damaged(look(opp), "is an empty file")


def test_deep_tree(look, opp):
    """Deeper than a path may be long."""
    kept = os.open(".", os.O_RDONLY)
    os.chdir(opp / "vendors")
    try:
        for _ in range(700):
            os.mkdir("deeper")
            os.chdir("deeper")
    finally:
        os.fchdir(kept)
        os.close(kept)
    damaged(look(opp), "file name too long")
    subprocess.run(["rm", "-rf", opp / "vendors/deeper"], check=True)
    assert look(opp).status == 0


@pytest.mark.full
def test_100_000_files(look, opp, vendor):
    (vendor / "many").mkdir()
    for number in range(100_000):
        (vendor / f"many/{number}").touch()
    start = time.monotonic()
    assert look(opp).status == 0
    assert time.monotonic() - start < 20


def test_more_files_than_any_package_has(look, opp, vendor, monkeypatch):
    monkeypatch.setattr(check_symbols.tree, "MAX_ENTRIES", 12)
    damaged(look(opp), "has more than 12 files: it is no OPP")


@pytest.mark.parametrize(
    "name", [*ROLES[:3], "vendors/fla_npu/b.so", "../fla_npu-1-py3-none-any.whl", "../c.so"]
)
def test_five_gigabytes(look, opp, name):
    path = (opp / name).resolve()
    with path.open("ab") as file:
        file.truncate(5 << 30)

    def memory() -> str:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        said = looked(look, path if name.startswith("..") else opp), loaded(opp)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        return f"{said[0]} | {said[1]} | {'large' if grown > 300_000 else 'small'}"

    (said,) = in_a_process(memory)
    assert said.startswith("2 check_symbols: ") and said.endswith("| small"), said


@pytest.mark.parametrize("form", ["text", "json", "junit", "sarif"])
def test_names_that_are_no_text(tool, opp, form):
    for name in (b"\xff\xfe.so", b"a\nb.so", "文件.so".encode(), b"\x1b[31m.so"):
        (opp / "vendors/fla_npu/op_api/lib" / os.fsdecode(name)).write_bytes(b"\0")
    for locale in ("C", "C.UTF-8"):
        done = tool(opp, "--format", form, LC_ALL=locale, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
        assert done.returncode == 2 and done.stderr.startswith("check_symbols: "), done.stderr
        assert done.stderr.count("\n") == 1 and done.stdout and "\x1b[31m.so" not in done.stderr


# Wheels


def wheel_of(opp: Path, out: Path, **options) -> Path:
    path = out / f"fla_npu-1-py3-none-linux_{fake_opp.ARCH}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(p for p in opp.rglob("*") if p.is_file()):
            archive.write(file, f"fla_npu/opp/{file.relative_to(opp).as_posix()}")
        archive.writestr("fla_npu/__init__.py", "import this\n" * 50)
    return path


def add(path: Path, name: str, data: bytes = b"", **facts: int) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo(name)
        for key, value in facts.items():
            setattr(info, key, value)
        archive.writestr(info, data)


def patch(path: Path, name: str, central: int, local: int, value: bytes) -> None:
    """Overwrites a field of a member, in the directory and in its own header."""
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        own, at = archive.getinfo(name).header_offset, archive.start_dir
    while data[at + 46 : at + 46 + len(name)] != name.encode():
        at = data.index(b"PK\1\2", at + 4)
    data[at + central : at + central + len(value)] = value
    if local:
        data[own + local : own + local + len(value)] = value
    path.write_bytes(data)


START = "fla_npu/__init__.py"
ODD_WHEELS = {
    "a parent folder": (lambda w: add(w, "../evil.so"), "leads out of the package"),
    "a parent folder inside": (lambda w: add(w, "fla_npu/opp/vendors/../../../x"), "leads out of the package"),
    "an absolute name": (lambda w: add(w, "/etc/x"), "leads out of the package"),
    "a backslash": (lambda w: add(w, "fla_npu\\..\\x"), "leads out of the package"),
    "twice": (lambda w: add(w, START, b"other"), "is there twice"),
    "the library twice": (lambda w: add(w, f"fla_npu/opp/vendors/fla_npu/{API_LIB}", b"x"), "is there twice"),
    "a file and a folder": (lambda w: add(w, START + "/x", b"x"), "is there twice"),
    "a link": (lambda w: add(w, "fla_npu/x", b"/etc/passwd", external_attr=0o120777 << 16), "is a link"),
    "a device": (lambda w: add(w, "fla_npu/x", b"", external_attr=0o020666 << 16), "is a link or a device"),
    "encrypted": (lambda w: patch(w, START, 8, 6, b"\1\0"), "is encrypted"),
    "an unknown method": (lambda w: patch(w, START, 10, 8, b"\x63\0"), "is packed by method 99"),
    "another method": (lambda w: patch(w, START, 10, 8, b"\x0e\0"), "is damaged"),
    "a bomb": (lambda w: patch(w, START, 24, 22, b"\0\0\0\x7f"), "unpacks to"),
    "a small bomb": (lambda w: patch(w, START, 24, 22, b"\0\0\0\1"), "is damaged"),
    "a name without end": (lambda w: add(w, "a/" * 30_000 + "x"), "has a name of 60001 characters"),
    "another sum": (lambda w: patch(w, START, 16, 14, b"abcd"), "is damaged: Bad CRC-32"),
    "two headers": (lambda w: patch(w, START, 16, 0, b"abcd"), "contradict each other"),
    "outside of the file": (lambda w: patch(w, START, 42, 0, b"\0\0\0\x7f"), ""),
    "an overlap": (lambda w: patch(w, START, 42, 0, b"\0\0\0\0"), ""),
    "a flipped byte": (lambda w: w.write_bytes(flip(w.read_bytes(), 900)), "is damaged"),
    "cut in the directory": (lambda w: w.write_bytes(w.read_bytes()[:-40]), "incomplete wheel"),
    "cut in half": (lambda w: w.write_bytes(w.read_bytes()[:3000]), "incomplete wheel"),
    "empty": (lambda w: w.write_bytes(b""), "incomplete wheel"),
    "an empty archive": (lambda w: zipfile.ZipFile(w, "w").close(), "without an OPP"),
    "bytes in front": (lambda w: w.write_bytes(b"#!/bin/sh\n" + w.read_bytes()), ""),
    "bytes behind": (lambda w: w.write_bytes(w.read_bytes() + b"x"), "bytes follow its end"),
    "a tar archive": (lambda w: w.write_bytes(b"\x1f\x8b" + bytes(3000)), "incomplete wheel"),
    "no wheel": (lambda w: (w.unlink(), add(w, "a/b", b"c")), "without an OPP"),
}  # fmt: skip


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("how", ODD_WHEELS)
def test_odd_wheel(look, opp, tmp_path, how):
    wheel = wheel_of(opp, tmp_path)
    assert look(wheel).status == 0
    change, text = ODD_WHEELS[how]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile says that a name comes twice
        change(wheel)
    damaged(look(wheel), text)
    assert taken(wheel).startswith("refused: ")


@pytest.mark.parametrize("how", ["", "changed", "gone", "added", "unreadable"])
def test_record_of_a_wheel(look, opp, tmp_path, how):
    """RECORD holds the hashes of what is no part of the OPP."""
    from fla_npu.manifest import record_hash

    wheel = wheel_of(opp, tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        rows = [f"{i.filename},{record_hash(archive.read(i))},{i.file_size}" for i in archive.infolist()]
    rows += ["fla_npu-1.dist-info/RECORD,,"] + (["fla_npu/gone.py,sha256=x,1"] if how == "gone" else [])
    rows = [row.replace("sha256=", "sha256=A") if how == "changed" and START in row else row for row in rows]
    text = "\n".join(rows).encode() if how != "unreadable" else b"\xff" * 20
    add(wheel, "fla_npu-1.dist-info/RECORD", text)
    if how == "added":
        add(wheel, "fla_npu/added.py", b"")
    seen, words = look(wheel), {"changed": "differs from RECORD", "gone": "is missing; RECORD lists it",
                                "added": "is not listed in RECORD", "unreadable": "can't be understood"}  # fmt: skip
    damaged(seen, words[how]) if how else None
    assert how or seen.status == 0, seen.text


def test_wheel_without_its_record(look, opp, tmp_path):
    wheel = wheel_of(opp, tmp_path)
    add(wheel, "fla_npu-1.dist-info/WHEEL", b"Wheel-Version: 1.0")
    damaged(look(wheel), "fla_npu-1.dist-info/RECORD is missing")


def test_every_byte_of_a_wheel_counts(look, opp, tmp_path):
    """One byte after another: 2, or the members are what they were."""
    from test_fuzz import members

    wheel = wheel_of(opp, tmp_path)
    data, whole, silent = wheel.read_bytes(), members(wheel), 0
    for at in range(0, len(data), max(1, len(data) // 250)):
        wheel.write_bytes(flip(data, at))
        seen = look(wheel)
        if seen.status != 2:
            assert seen.status == 0 and members(wheel) == whole, at
            silent += 1
    assert silent < 50  # dates, rights, versions in the directory


# Libraries


@pytest.fixture(scope="module")
def api(tmp_path_factory) -> bytes:
    source = (
        identity()
        + functions(*BOTH)
        + f"int need(void); int (*p)(void) = {API}; int f(void) {{ return need(); }}"
    )
    return library(tmp_path_factory.mktemp("api") / "libcust_opapi.so", source, "-Wl,-z,now").read_bytes()


def judged(data: bytes) -> str:
    try:
        return "good" if set(BOTH) <= read_elf(data).functions else "other"
    except ElfFault as fault:
        assert str(fault)
        return "fault"


def test_every_word_of_a_library(api):
    """Each number of its tables replaced by extremes: read or refused, at once."""
    assert judged(api) == "good"
    values = [0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1, len(api), len(api) - 1]
    start, outcomes = time.monotonic(), {"good": 0, "other": 0, "fault": 0}
    for at in range(16, min(len(api), 0x1000) - 8, 4):
        for value in values:
            for size in (2, 4, 8):
                word = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
                outcomes[judged(api[:at] + word + api[at + size :])] += 1
    assert outcomes["fault"] > 500 and outcomes["good"] > 500, outcomes
    assert time.monotonic() - start < 60


def test_every_length_of_a_library(api):
    assert {judged(api[:size]) for size in range(0, len(api), 97)} == {"fault"}


HEADERS = {
    "65535 segments": (56, b"\xff\xff"),
    "segments outside": (32, b"\0\0\0\0\0\0\0\x7f"),
    "65535 sections": (60, b"\xff\xff"),
    "sections outside": (40, b"\0\0\0\0\0\0\0\x7f"),
    "small sections": (58, b"\1\0"),
    "no such names": (62, b"\xff\x00"),
    "a program": (16, b"\2\0"),
    "an object": (16, b"\1\0"),
    "32 bits": (4, b"\1"),
    "big endian": (5, b"\2"),
    "RISC-V": (18, b"\xf3\0"),
}


@pytest.mark.parametrize("how", HEADERS)
def test_header_of_a_library(look, vendor, how):
    at, value = HEADERS[how]
    path = vendor / API_LIB
    data = path.read_bytes()
    path.write_bytes(data[:at] + value + data[at + len(value) :])
    damaged(look(path))  # alone
    fake_opp.write_manifest(vendor.parents[1])
    damaged(look(vendor.parents[1]))  # and packed so
    said, bound = in_a_process(lambda: "", functools.partial(loaded, vendor.parents[1]))
    assert bound.startswith("refused: "), said + bound


@settings(max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.binary(max_size=300), name=st.sampled_from([*ROLES, "x", "x.whl", "x.json"]))
def test_any_bytes(tmp_path_factory, good_opp, data, name):
    root = tmp_path_factory.mktemp("any")
    work = Path(shutil.copytree(good_opp, root / "opp"))
    for path, asked in (
        (work / name, work),
        (root / f"x{Path(name).suffix}", root / f"x{Path(name).suffix}"),
    ):
        for head in (b"", b"\x7fELF\2\1\1", b"PK\3\4", b"PK\5\6", b"{"):
            path.write_bytes(head + data)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                status = check_symbols.main([str(asked), "--op", OP])
            assert status == 2 or path.name in ("notes.txt", "x", "x.json", "x.whl"), (path, head)
    shutil.rmtree(root)


# Manifests


def places(value: object, path: tuple = ()) -> list[tuple]:
    """The way to every value inside."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def replaced(value: object, path: tuple, new: object) -> object:
    if not path:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = replaced(copied[path[0]], path[1:], new)
    return copied


JUNK = [
    None,
    True,
    0,
    -1,
    1e308,
    float("nan"),
    float("inf"),
    10**40,
    "",
    "x",
    "\ud800",
    [],
    [[]],
    {},
    {"a": 1},
    "x" * 10**5,
]


def test_any_value_in_a_manifest(look, opp):
    """With a digest every change is damage; an older manifest shows it where the type or the meaning is wrong."""
    path = opp / "manifest.json"
    whole = json.loads(path.read_text())
    older = {key: value for key, value in whole.items() if key not in ("digest", "schema")}
    older |= {
        "version": "1",
        "arch": fake_opp.ARCH,
        "git": "a",
        "cann": "",
        "placeholder": False,
        "kernel_options": [],
    }
    older["ops"] = {
        OP: {**older["ops"][OP], "aclnn": API, "prototype": "a, b", "kernels": {"ascend910b": ["a.so"]}}
    }
    path.write_text(json.dumps(older))
    assert look(opp).status == 0
    for where in places(whole):
        for junk in JUNK:
            path.write_text(json.dumps(replaced(whole, where, junk)))
            if replaced(whole, where, junk) != whole:
                damaged(look(opp), "manifest.json is damaged")
    for where in places(older):
        for junk in JUNK:
            path.write_text(json.dumps(replaced(older, where, junk)))
            seen = look(opp)
            value = functools.reduce(lambda inner, key: inner[key], where, older)
            if type(junk) is not type(value) and "kernels" not in where:
                damaged(seen)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                assert check_symbols.main([str(opp), "--against", str(path)]) in (0, 1, 2)


@pytest.mark.parametrize("text", [
    '{"ops": {}, "ops": {}}', '{"files": NaN}', '{"schema": 1e999}', f'{{"schema": {"9" * 100_000}}}', "[" * 100_000,
    '{"a":' * 100_000, "﻿{}", "\x00", '{"schema": 2}', '{"x": 1}', '"manifest"', "12", "{}x", "{'a': 1}",
])  # fmt: skip
def test_text_that_is_no_manifest(look, opp, text):
    (opp / "manifest.json").write_text(text)
    damaged(look(opp), "manifest.json is damaged")
    assert "manifest.json can't be understood" in loaded_here(opp)


def loaded_here(path: Path) -> str:
    (said,) = in_a_process(functools.partial(loaded, path))
    return said


def test_digest_of_a_manifest(look, opp):
    path = opp / "manifest.json"
    whole = json.loads(path.read_text())
    assert whole["digest"] == digest(whole) and parse_manifest(path.read_bytes()) == whole
    changes = [{"socs": ["ascend910_93"]}, {"schema": 1}, {"schema": 3}, {"digest": "0" * 64}, {"more": 1}]
    for change in changes:
        path.write_text(json.dumps(whole | change))
        damaged(look(opp), "it was changed after it was packed")
        assert loaded_here(opp).startswith("refused: ") and "fla-npu check-symbols" in loaded_here(opp)
    path.write_text(json.dumps({k: v for k, v in whole.items() if k != "digest"}))
    damaged(look(opp), "it was changed after it was packed")
    # White space and the order of keys are nobody's business; a manifest of schema 1 has no digest.
    path.write_text(json.dumps(dict(reversed(whole.items())), indent=3))
    assert look(opp).status == 0
    path.write_text(json.dumps({k: v for k, v in whole.items() if k not in ("digest", "schema")}))
    assert look(opp).status == 0 and loaded_here(opp) == "bound"


def test_any_value_in_kernel_metadata(look, tmp_path):
    cann = fake_cann.make_opp(tmp_path / "opp")
    for path in sorted((cann / "vendors/fla_npu" / fake_cann.IMPL).rglob("*.json")):
        if "910_93" in str(path):
            continue  # as the other chip
        whole = path.read_text()
        for where in places(json.loads(whole)):
            for junk in (None, 7, "x", [{}], {"value": []}):
                path.write_text(json.dumps(replaced(json.loads(whole), where, junk)))
                fake_cann.write_manifest(cann)
                assert look(cann, op=fake_cann.OP).status in (0, 1, 2)
        path.write_text(whole)


# A call opens plan and kernel at its first launch, and a damaged one ends the process


@pytest.mark.parametrize(
    "name", [str(fake_opp.TILING), f"op_impl/ai_core/tbe/kernel/ascend910b/{OP}/ChunkFwdH.so"]
)
@pytest.mark.parametrize("how", ["cut", "empty", "gone", "pipe"])
def test_parts_are_whole_before_a_call(opp, vendor, name, how):
    assert loaded_here(opp) == "bound"
    path = vendor / name
    data = path.read_bytes()
    path.unlink()
    if how == "pipe":
        os.mkfifo(path)
    elif how != "gone":
        path.write_bytes(data[: len(data) // 2 if how == "cut" else 0])
    assert path.name in loaded_here(opp) and loaded_here(opp).startswith("refused: ")


def test_a_renamed_vendor_is_read_as_one(look, opp):
    (opp / "vendors/fla_npu").rename(opp / "vendors/custom")
    (opp / "vendors/config.ini").write_text("load_priority=custom\n")
    library(opp / "vendors/custom" / API_LIB, identity() + functions(*BOTH, "more"))
    damaged(look(opp), f"{API_LIB} is not the file that was packed")
    assert "is not the file that was packed" in loaded_here(opp)


def test_reader_that_has_seen_enough(opp):
    command = f"{sys.executable} {Path(__file__).parents[2] / 'tools/check_symbols'} {opp} --op {OP} | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


def test_result_that_can_not_be_written(tool, opp, tmp_path):
    done = tool(opp, "--op", OP, "--output", tmp_path / "no/such/folder")
    assert done.returncode == 2 and done.stderr.startswith("check_symbols: the result can't be written: ")


def test_without_the_package_that_prints_the_table(opp, monkeypatch, capsys):
    for name in ("rich", "fla_npu.check_symbols.report"):
        monkeypatch.setitem(sys.modules, name, None)
    assert check_symbols.main([str(opp), "--op", OP, "--json"]) == 0
    assert check_symbols.main([str(opp), "--op", OP]) == 2
    assert "pip install rich" in capsys.readouterr().err
