# SPDX-License-Identifier: Apache-2.0
"""What a library may look like, and what a package may come as: check_symbols says of each what a loader would find."""

from __future__ import annotations

import ctypes
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import fake_opp
import pytest
from fake_opp import ARCH, BOTH, OP, functions, identity, library
from fla_npu import errors, loader, vendors
from fla_npu.elf import ElfFault, read_elf
from test_check_symbols import as_wheel

FIRST, API = BOTH
API_LIB = "op_api/lib/libcust_opapi.so"
SYMVER = f'__asm__(".symver impl, {API}@V1"); int impl(void) {{ return 0; }}'

# Ways to have, or not to have, a function: C source, flags, and what a caller finds.
WAYS = {
    "plain": (functions(API), [], "function"),
    "weak": (f"__attribute__((weak)) int {API}(void) {{ return 0; }}", [], "function"),
    "alias": (f'int other(void) {{ return 0; }} int {API}(void) __attribute__((alias("other")));', [], "function"),
    "protected": (f'__attribute__((visibility("protected"))) int {API}(void) {{ return 0; }}', [], "function"),
    "indirect": (
        f'static int f(void) {{ return 0; }} static void *pick(void) {{ return f; }} '
        f'int {API}(void) __attribute__((ifunc("pick")));', [], "function",
    ),
    "stripped": (functions(API), ["-s"], "function"),
    "old table of hashes": (functions(API), ["-Wl,--hash-style=sysv"], "function"),
    "both tables": (functions(API), ["-Wl,--hash-style=both"], "function"),
    "C++": (functions(API), ["-x", "c++"], "there is _Z14aclnnChunkFwdHv"),
    "another case": (functions(API.lower()), [], "absent or hidden"),
    "one more letter": (functions(API + "V2", API + "_"), [], f"there is {API}V2, {API}_"),
    "hidden": (functions(API), ["-fvisibility=hidden"], "absent or hidden"),
    "internal": (f'__attribute__((visibility("internal"))) int {API}(void) {{ return 0; }}', [], "absent or hidden"),
    "static": (f"static int {API}(void) {{ return 0; }} int (*use)(void) = {API};", [], "absent or hidden"),
    "imported": (f"int {API}(void); int use(void) {{ return {API}(); }}", [], "only imported"),
    "imported, nothing else": (
        f"int {API}(void); static int (*use)(void) __attribute__((used)) = {API};", [], "only imported",
    ),
    "imported if there": (
        f"__attribute__((weak)) int {API}(void); int use(void) {{ return {API}(); }}", [], "only imported",
    ),
    "data": (f"int {API} = 1;", [], "defined as data"),
    "zeros": (f"int {API};", ["-fcommon"], "defined as data"),
    "constant": (f"const int {API} = 1;", [], "defined as data"),
    "of a thread": (f"__thread int {API} = 1;", [], "defined as data"),
    "local by script": (functions(API), ["MAP V1 { global: other; local: *; };"], "absent or hidden"),
    "versioned": (functions(API), ["MAP V1 { global: *; };"], "function"),
    "for old programs": (SYMVER, ["MAP V1 { global: impl; };"], "for old programs only"),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_what_counts_as_a_function(look, tmp_path, way):
    """As the system's loader has it: what it finds, we find, data aside, which it does not tell from functions."""
    source, flags, expected = WAYS[way]
    script = tmp_path / "map"
    script.write_text("".join(flag[4:] for flag in flags if flag.startswith("MAP ")))
    used = [f"-Wl,--version-script={script}" if flag.startswith("MAP ") else flag for flag in flags]
    path = tmp_path / "lib.so"
    head = ["-x", "c++"] if "c++" in used else ["-x", "c"]
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        "-nostdlib",
        *head,
        "-",
        *[f for f in used if f not in ("-x", "c++")],
    ]
    subprocess.run([*command, "-x", "none", "-o", path], input=source, text=True, check=True)
    elf = read_elf(path.read_bytes())
    assert (API in elf.functions) == (expected == "function")
    if expected != "function":
        assert expected in elf.why_not(API)
        assert expected in look(path).text
    if "imported" not in way and not elf.data:
        opened = ctypes.CDLL(str(path))
        assert hasattr(opened, API) == (expected == "function")


IN_ITS_PLACE = {
    "a static archive": b"!<arch>\n",
    "a Windows library": b"MZ\x90\0",
    "a macOS library": b"\xcf\xfa\xed\xfe\x07",
    "a gzip file": gzip.compress(b"x"),
    "a zip file": b"PK\3\4",
    "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
    "a page of HTML": b"\n<!DOCTYPE html><title>404</title>",
    "a script": b"#!/bin/sh\n",
    "is a linker script": b"OUTPUT_FORMAT(elf64-x86-64)\nGROUP ( libx.so )\n",
    "is an empty file": b"",
    "is not an ELF file": b"\x80hello",
    "is truncated": b"\x7fELF\2\1\1" + bytes(20),
    "no shared library (ELF type 0)": b"\x7fELF\2\1\1" + bytes(80),
}


@pytest.mark.parametrize("what", IN_ITS_PLACE)
def test_what_lies_in_the_place_of_a_library(look, opp, vendor, what):
    (vendor / API_LIB).write_bytes(IN_ITS_PLACE[what])
    for path in (opp, vendor / API_LIB):
        seen = look(path)
        assert seen.status == 2 and what in seen.text, seen.text
    fake_opp.write_manifest(opp)
    assert look(opp).status == 2  # packed so


def test_an_object_and_a_program(look, tmp_path):
    for kind, flags in {"ELF type 1": ["-c"], "ELF type 2": ["-no-pie", "-nostdlib", "-Wl,-e,main"]}.items():
        command = ["gcc", *flags, "-x", "c", "-", "-o", tmp_path / "x.so"]
        subprocess.run(command, input="int main(void) { return 0; }", text=True, check=True)
        seen = look(tmp_path / "x.so")
        assert seen.status == 2 and f"is no shared library ({kind})" in seen.text


def test_a_library_that_calls_itself_as_canns(look, opp, vendor, clean):
    """By that name CANN asks for its own: once ours is in the process, it would get ours."""
    library(vendor / API_LIB, identity() + functions(*BOTH), "-Wl,-soname,libopapi.so")
    fake_opp.write_manifest(opp)
    seen = look(opp)
    assert seen.status == 1 and f"{API_LIB} calls itself libopapi.so" in seen.text
    clean.setenv("FLA_NPU_OPP_PATH", str(opp))
    with pytest.raises(errors.AbiMismatch, match="calls itself libopapi.so"):
        loader.bind(OP)


def test_one_function_in_each_of_two_vendors(look, opp, vendor, tmp_path):
    """Never one of each: neither provides it."""
    other = Path(shutil.copytree(opp, tmp_path / "other"))
    library(vendor / API_LIB, identity() + functions(FIRST))
    library(other / "vendors/fla_npu" / API_LIB, identity() + functions(API))
    for root in (opp, other):
        fake_opp.write_manifest(root)
    seen = look(opp, other)
    assert (seen.status, seen.row["symbols"], seen.row["provided_by"]) == (1, "incomplete", [])
    assert f"incomplete: {FIRST} is there, {API} is" in seen.text
    assert f"incomplete: {API} is there, {FIRST} is" in seen.text


def test_one_vendor_of_a_root_with_several(look, opp, vendor):
    """Asked for one, the others are not looked at; its manifest, in the root, is."""
    library(opp / "vendors/broken" / API_LIB, "").write_bytes(b"")
    seen = look(vendor)
    assert seen.status == 0 and len(seen.data["vendors"]) == 1, seen.text
    assert seen.data["vendors"][0]["build_id"] == fake_opp.BUILD
    (vendor / API_LIB).write_bytes(b"")
    assert look(vendor).status == 2


def test_three_vendors_in_the_order_of_config(look, opp):
    for name in ("b", "a"):
        shutil.copytree(opp / "vendors/fla_npu", opp / "vendors" / name)
    (opp / "vendors/config.ini").write_text("load_priority = b , a,fla_npu\n")
    fake_opp.write_manifest(opp)
    seen = look(opp)
    assert [name.split("/")[-1] for name in seen.row["provided_by"]] == ["b", "a", "fla_npu"]
    assert "is in 3 vendors; this one wins" in seen.text and seen.status == 1


# Names of wheels


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (f"fla_npu-1-py3-none-manylinux_2_17_{ARCH}.whl", ""),
        (f"fla_npu-1-1-py3-none-linux_{ARCH}.whl", ""),
        ("fla_npu-1-py3-none-any.whl", f"its name says it is for 'any', but it holds libraries for {ARCH}"),
        ("fla_npu-1-py3-none-win_amd64.whl", "its name says it is for 'win_amd64', but it holds"),
        ("wheel.whl", "has no name of a wheel, pip refuses it"),
        ("fla_npu.zip", "has no name of a wheel, pip refuses it"),
    ],
)
def test_name_of_a_wheel(look, opp, tmp_path, name, text):
    seen = look(as_wheel(opp, tmp_path).rename(tmp_path / name))
    assert seen.status == (1 if text else 0) and text in seen.text, seen.text


def test_name_that_promises_an_older_system(look, opp, vendor, tmp_path):
    library(vendor / API_LIB, identity() + functions(*BOTH) + 'const char n[] = "\\0GLIBC_2.34\\0";')
    fake_opp.write_manifest(opp)
    wheel = as_wheel(opp, tmp_path)
    for minor, status in ((31, 1), (34, 0), (39, 0)):
        wheel = wheel.rename(tmp_path / f"fla_npu-1-py3-none-manylinux_2_{minor}_{ARCH}.whl")
        seen = look(wheel)
        assert seen.status == status, seen.text
        assert status == 0 or "its name promises glibc 2.31, its libraries need 2.34" in seen.text


# Archives of `fla-npu opp pack`


def tar_of(opp: Path, out: Path, *more: tarfile.TarInfo) -> Path:
    with tarfile.open(out, "w:gz") as archive:
        archive.add(opp, ".")
        for member in more:
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    return out


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.size, made.linkname = kind, size, "/etc/passwd"
    return made


ODD_MEMBERS = {
    "leads out of the package": member("../x"),
    "a name that leads out": member("/etc/x"),
    "is there twice": member("manifest.json"),
    "is a link or a device": member("vendors/fla_npu/x", tarfile.SYMTYPE),
    "a link or a device": member("vendors/fla_npu/x", tarfile.FIFOTYPE),
    "unpacks to more than": member("vendors/fla_npu/x", size=300 << 20),
}


@pytest.mark.parametrize("text", ODD_MEMBERS)
def test_odd_member_of_an_archive(look, opp, tmp_path, text):
    assert look(tar_of(opp, tmp_path / "good.tar.gz")).status == 0
    seen = look(tar_of(opp, tmp_path / "odd.tar.gz", ODD_MEMBERS[text]))
    assert seen.status == 2 and text in seen.text, seen.text


@pytest.mark.parametrize("form", ["run", "tar.gz"])
def test_damaged_archive(look, opp, tmp_path, form):
    path = vendors.pack(opp, tmp_path, form)
    data = path.read_bytes()
    assert look(path).status == 0
    for at in range(0, len(data), len(data) // 40):
        path.write_bytes(data[:at])
        assert look(path).status == 2, at
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        seen = look(
            path
        )  # a letter of the script, or of the archive's date, changes nothing of what is packed
        script = form == "run" and at < data.index(b"\x1f\x8b")
        assert seen.status == 2 or script or at < 10, at
    path.write_bytes(data + b"x")
    assert look(path).status == 2


@pytest.mark.parametrize(
    "text", ["", "#!/bin/sh\necho\n", "#!/bin/sh\npayload_at=2\npayload_sha256=''\n", "hello"]
)
def test_file_that_is_no_archive(look, tmp_path, text):
    path = tmp_path / "fla_npu.run"
    path.write_text(text)
    assert look(path).status == 2


# Nothing but PATH is looked at


def test_decoys_everywhere(tool, opp, tmp_path):
    decoy = fake_opp.make_opp(tmp_path / "decoy")
    library(decoy / "vendors/fla_npu" / API_LIB, identity("d" * 32))
    shutil.copytree(decoy, tmp_path / "data/fla_npu/opp")
    vendor = str(decoy / "vendors/fla_npu")
    done = tool(
        opp, "--op", OP, "--json", ASCEND_CUSTOM_OPP_PATH=vendor, FLA_NPU_OPP_PATH=vendor, ASCEND_OPP_PATH=str(decoy),
        XDG_DATA_HOME=str(tmp_path / "data"), LD_LIBRARY_PATH=f"{vendor}/op_api/lib", LD_PRELOAD="",
    )  # fmt: skip
    assert done.returncode == 0 and str(decoy) not in done.stdout, done.stdout + done.stderr


def test_without_a_path_what_a_call_would_use(tool, opp, tmp_path):
    """Also when the call refuses it: what else is damaged is what one wants to know then."""
    manifest = opp / "manifest.json"
    manifest.write_text(manifest.read_text().replace("ascend910b", "ascend910_93"))
    (opp / "vendors/fla_npu" / API_LIB).write_bytes(b"")
    done = tool("--op", OP, FLA_NPU_OPP_PATH=str(opp))
    assert (
        done.returncode == 2
        and "is an empty file" in done.stdout
        and "manifest.json is damaged" in done.stdout
    )
    done = tool("--op", OP, FLA_NPU_OPP_PATH=str(tmp_path / "nowhere"))
    assert done.returncode == 2 and "Correct the variable" in done.stderr


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("", "a path is empty"),
        ("vendors/fla_npu/op_api/lib", "It is part of a vendor: name "),
        ("manifest.json", "of a manifest name the folder, or use --against"),
        ("manifest.json/x", "Not a directory"),
        ("/dev/null", "is a device: neither a file nor a folder"),
        ("x" * 5000, "File name too long"),
        ("/", "holds no OPP"),
    ],
)
def test_paths_that_lead_nowhere(look, opp, monkeypatch, path, text):
    monkeypatch.chdir(opp)
    seen = look(path)
    assert seen.status == 2 and text in seen.text


def test_one_place_under_several_names(look, opp, vendor, tmp_path):
    (tmp_path / "link").symlink_to(opp)
    seen = look(opp, opp / "vendors", vendor, tmp_path / "link", f"{opp}/../opp/")
    assert seen.status == 0 and len(seen.row["provided_by"]) == 1, seen.text


def test_names_of_machines(look, opp):
    other = {"x86_64": "amd64", "aarch64": "arm64"}[ARCH]
    assert (
        look(opp, arch=other).status
        == look(opp, arch=other.upper()).status
        == look(opp, arch=ARCH).status
        == 0
    )
    seen = look(opp, arch="riscv")
    assert seen.status == 2 and "--arch riscv: known are x86_64, aarch64" in seen.text


def test_reading_changes_nothing(look, opp):
    before = {
        p: (p.stat().st_mtime_ns, hashlib.sha256(p.read_bytes()).hexdigest())
        for p in opp.rglob("*.*")
        if p.is_file()
    }
    look(opp)
    assert before == {p: (p.stat().st_mtime_ns, hashlib.sha256(p.read_bytes()).hexdigest()) for p in before}


def test_every_fault_says_what_it_is(opp, vendor):
    """Faults are sentences that go on after the file's name."""
    texts = set()
    data = (vendor / API_LIB).read_bytes()
    for at in range(16, 3000, 2):
        try:
            read_elf(data[:at] + os.urandom(2) + data[at + 2 :])
        except ElfFault as fault:
            texts.add(re.sub(r"0x[0-9a-f]+|\d+", "N", str(fault)))
    assert len(texts) > 8 and all(re.match(r"(is|has) ", text) for text in texts), texts
