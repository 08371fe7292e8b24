# SPDX-License-Identifier: Apache-2.0
"""check_symbols on packages with one fault each, and on every shape a good package comes in."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import tempfile
import zipfile
from pathlib import Path

import fake_opp
import pytest
from fake_opp import API, BOTH, OP, functions, identity, library
from fla_npu import vendors

API_LIB = "op_api/lib/libcust_opapi.so"


def rebuild(vendor: Path, source: str, *flags: str) -> None:
    """Replace the operator library and its hash in the manifest."""
    library(vendor / API_LIB, identity() + source, *flags)
    fake_opp.write_manifest(vendor.parents[1])


def test_complete(look, opp):
    seen = look(opp)
    assert seen.status == 0, seen.text
    assert seen.row == {
        "aclnn": API,
        "provided_by": [f"{opp}:vendors/fla_npu"],
        "symbols": "ok",
        "header": True,
        "prototype": "ok",
        "tiling": True,
        "kernels": {"ascend910b": True},
    }


def test_without_names_every_contract_is_expected(look, opp):
    seen = look(opp, op=None)
    assert seen.status == 1
    assert seen.data["ops"][OP]["symbols"] == "ok"
    assert seen.data["ops"]["chunk_kda_fwd_prepare"]["symbols"] == "missing"


# What counts as providing a symbol


def test_only_imported(look, vendor):
    rebuild(vendor, f"int {BOTH[0]}(void); int {API}(void); int f(void) {{ return {BOTH[0]}() + {API}(); }}")
    seen = look(vendor.parents[1])
    assert (seen.status, seen.row["symbols"]) == (1, "missing")
    assert f"{API} is only imported, not defined" in seen.text


def test_hidden(look, vendor):
    rebuild(vendor, functions(*BOTH), "-fvisibility=hidden")
    seen = look(vendor.parents[1])
    assert (seen.status, seen.row["symbols"]) == (1, "missing")
    assert "absent or hidden" in seen.text


@pytest.mark.parametrize("kept, lost", [BOTH, BOTH[::-1]])
def test_half_of_the_pair(look, vendor, kept, lost):
    rebuild(vendor, functions(kept))
    seen = look(vendor.parents[1])
    assert (seen.status, seen.row["symbols"]) == (1, "incomplete")
    assert f"incomplete: {kept} is there, {lost} is" in seen.text


def test_no_prefix_match(look, vendor):
    rebuild(vendor, functions(f"{API}V2GetWorkspaceSize", f"{API}V2"))
    assert look(vendor.parents[1]).row["symbols"] == "missing"


def test_stripped(look, vendor):
    rebuild(vendor, functions(*BOTH), "-s")
    assert look(vendor.parents[1]).status == 0


def test_section_headers_removed(look, vendor):
    """A loader needs none; the dynamic segment says it all."""
    path = vendor / API_LIB
    data = bytearray(path.read_bytes())
    data[0x28:0x30] = struct.pack("<Q", 0)  # e_shoff
    data[0x3A:0x40] = b"\0" * 6  # e_shentsize, e_shnum, e_shstrndx
    path.write_bytes(data)
    fake_opp.write_manifest(vendor.parents[1])
    assert look(vendor.parents[1]).status == 0


def test_versioned(look, vendor, tmp_path):
    script = tmp_path / "map"
    script.write_text("V1 { global: *; };")
    rebuild(vendor, functions(*BOTH), f"-Wl,--version-script={script}")
    assert look(vendor.parents[1]).status == 0


def test_weak(look, vendor):
    rebuild(vendor, "".join(f"__attribute__((weak)) int {s}(void) {{ return 0; }}" for s in BOTH))
    assert look(vendor.parents[1]).status == 0


def test_data_is_no_function(look, vendor):
    rebuild(vendor, f"int {API} = 1;" + functions(BOTH[0]))
    seen = look(vendor.parents[1])
    assert (seen.status, seen.row["symbols"]) == (1, "incomplete")
    assert "defined as data" in seen.text


def test_unresolved_needs_do_not_matter(look, vendor, tmp_path):
    missing = library(tmp_path / "libascendcl.so", functions("acl"), "-Wl,-soname,libascendcl.so")
    rebuild(vendor, functions(*BOTH), "-Wl,--no-as-needed", str(missing))
    missing.unlink()
    assert look(vendor.parents[1]).status == 0


# Several providers


def test_two_vendors(look, opp, tmp_path):
    other = fake_opp.make_opp(tmp_path / "other")
    seen = look(opp, other)
    assert seen.status == 1
    assert "is in 2 vendors; this one wins" in seen.text
    assert seen.row["provided_by"][0].startswith(str(opp))
    assert look(other, opp).row["provided_by"][0].startswith(str(other))


def test_priority_of_config_ini(look, opp):
    fake_opp.make_vendor(opp / "vendors/aaa")
    (opp / "vendors/config.ini").write_text("load_priority=fla_npu,aaa\n")
    fake_opp.write_manifest(opp)
    seen = look(opp)
    assert [name.split("/")[-1] for name in seen.row["provided_by"]] == ["fla_npu", "aaa"]
    (opp / "vendors/config.ini").write_text("load_priority=aaa,fla_npu\n")
    assert look(opp).row["provided_by"][0].endswith("aaa")


@pytest.mark.parametrize("how", ["copy", "symlink", "hardlink"])
def test_alias_of_cann_library(look, opp, vendor, how):
    own, alias = vendor / API_LIB, vendor / "op_api/lib/libopapi.so"
    {"copy": shutil.copy, "symlink": lambda a, b: b.symlink_to(a.name), "hardlink": os.link}[how](own, alias)
    seen = look(opp)
    assert seen.status == 1
    assert "libopapi.so" in seen.text and "would shadow it; delete this file" in seen.text
    assert f"also defines {API}" in seen.text


# Pieces that do not fit


def test_header_without_symbol(look, vendor):
    rebuild(vendor, "")
    assert "not provided" in (text := look(vendor.parents[1]).text) and "its header declares it" in text


def test_symbol_without_kernel(look, opp, vendor):
    shutil.rmtree(vendor / fake_opp.IMPL / f"kernel/ascend910b/{OP}")
    fake_opp.write_manifest(opp)
    seen = look(opp)
    assert seen.status == 1
    assert "the library has it, but there is no kernel for ascend910b" in seen.text


def test_symbol_without_tiling(look, opp, vendor):
    library(vendor / fake_opp.TILING, identity())
    fake_opp.write_manifest(opp)
    seen = look(opp)
    assert (seen.status, seen.row["tiling"]) == (1, False)


def test_kernel_under_another_name(look, opp, vendor):
    """Runs of capitals split differently in two generators: the folder is not what the runtime derives."""
    kernels = vendor / fake_opp.IMPL / "kernel/ascend910b"
    (kernels / OP).rename(kernels / "chunk_fwdh")
    fake_opp.write_manifest(opp)
    assert "no kernel for ascend910b" in look(opp).text


def test_other_prototype(look, opp):
    fake_opp.write_manifest(opp, with_ops=())
    assert look(opp).row["prototype"] == "unknown"
    fake_opp.write_manifest(opp, ops={OP: {"prototype_hash": "f" * 64}})
    seen = look(opp)
    assert (seen.status, seen.row["prototype"]) == (1, "differs")


@pytest.mark.parametrize("name", [API_LIB, "op_api/lib/libfla_twin.so", str(fake_opp.TILING)])
def test_library_of_another_build(look, opp, vendor, name):
    text = {API_LIB: functions(*BOTH), str(fake_opp.TILING): functions(f"fla_plan_{OP}")}.get(name, "")
    library(vendor / name, identity("e" * 32) + text)
    seen = look(opp)
    assert seen.status == 2
    assert f"{name} is of build {'e' * 32}" in seen.text and "two builds are mixed" in seen.text
    assert "is not the file that was packed" in seen.text


def damaged(seen, text: str) -> None:
    """Status 2, a finding of its own level that says what, and the first of them on the standard error."""
    assert seen.status == 2 and not seen.data["ok"], seen.text
    findings = [f for f in seen.data["findings"] if f["level"] == "damage"]
    assert any(text in f["text"] for f in findings), seen.text
    assert seen.reason.startswith("check_symbols: ") and seen.reason.count("\n") == 1
    assert findings[0]["text"] in seen.reason


@pytest.mark.parametrize("how", ["gone", "changed", "a folder", "a pipe", "a dangling link", "a circle"])
def test_every_file_is_noticed(look, opp, how):
    """One file at a time of a complete package."""
    for path in sorted(p for p in opp.rglob("*") if p.is_file()):
        kept = path.read_bytes()
        path.unlink()
        if how == "changed":
            path.write_bytes(kept + b" ")
        elif how == "a folder":
            path.mkdir()
        elif how == "a pipe":
            os.mkfifo(path)
        elif how != "gone":
            path.symlink_to("nowhere" if how == "a dangling link" else path.name)
        seen = look(opp)
        # White space behind a manifest changes nothing that it says.
        if (how, path.name) != ("changed", "manifest.json"):
            damaged(seen, path.name)
        path.rmdir() if how == "a folder" else path.unlink(missing_ok=True)
        path.write_bytes(kept)
    assert look(opp).status == 0


def test_without_a_manifest(look, opp, vendor):
    """Every build of ours has one, libraries without a build id may be anybody's."""
    (opp / "manifest.json").unlink()
    damaged(look(opp), "manifest.json is gone")
    for name in (API_LIB, "op_api/lib/libfla_twin.so", str(fake_opp.TILING)):
        functions_of = functions(*BOTH) if name == API_LIB else functions(f"fla_plan_{OP}")
        library(vendor / name, functions_of)
    next(vendor.rglob("ChunkFwdH.so")).unlink()
    library(
        vendor / fake_opp.IMPL / f"kernel/ascend910b/{OP}/ChunkFwdH.so", f"const int fla_kernel_{OP} = 1;"
    )
    seen = look(opp)
    assert seen.status == 0 and "no manifest.json" in seen.text


def test_config_of_a_shared_root(look, opp):
    """The order of vendors belongs to none of them: with a stranger beside ours it may change, and it is said."""
    library(opp / "vendors/aaa" / API_LIB, functions("aclnnOther"))
    library(opp / "vendors/aaa" / fake_opp.TILING, functions("tiling"))
    config = opp / "vendors/config.ini"
    config.write_text("load_priority=aaa,fla_npu\n")
    seen = look(opp)
    assert seen.status == 0 and "its order decides which vendor wins" in seen.text, seen.text
    config.write_text("load_priority=aaa\n")
    assert "does not name fla_npu" in look(opp).text
    for odd in (b"", b"[vendors]\n", b"\xff\xfe\0", b"load_priority"):
        config.write_bytes(odd)
        damaged(look(opp), "config.ini has no line load_priority=")


@pytest.mark.parametrize(
    "text", ["{", "", "[]", "null", '{"ops": []}', '{"files": {"a": 1}}', '{"build_id": null}']
)
def test_damaged_manifest(look, opp, text):
    (opp / "manifest.json").write_text(text)
    damaged(look(opp), "manifest.json is damaged")


def test_stray_library(look, opp, vendor):
    library(vendor / "op_api/lib/libold.so", functions("old"))
    assert "libold.so is not part of this build" in look(opp).text


# Files that are no libraries


def test_other_machine(look, opp):
    text = look(opp, arch=fake_opp.OTHER_ARCH).text
    assert f"is for {fake_opp.ARCH}, needed is {fake_opp.OTHER_ARCH}" in text


def test_machine_without_asking(look, opp, vendor):
    path = vendor / API_LIB
    data = bytearray(path.read_bytes())
    number = {"x86_64": 62, "aarch64": 183}[fake_opp.OTHER_ARCH]  # e_machine
    data[0x12:0x14] = struct.pack("<H", number)
    path.write_bytes(data)
    seen = look(opp)
    assert f"is for {fake_opp.OTHER_ARCH}, needed is {fake_opp.ARCH}" in seen.text
    damaged(seen, "is not the file that was packed")
    fake_opp.write_manifest(opp)
    assert look(opp).status == 1  # packed so
    data[0x12:0x14] = struct.pack("<H", 243)  # RISC-V
    path.write_bytes(data)
    fake_opp.write_manifest(opp)
    damaged(look(opp), "is for machine 243")


@pytest.mark.parametrize("size", [1, 20, 64, 200, 1000, 5000])
def test_truncated(look, opp, vendor, size):
    path = vendor / API_LIB
    path.write_bytes(path.read_bytes()[:size])
    seen = look(opp)
    damaged(seen, API_LIB)
    words = ("is damaged", "is truncated", "is not an ELF file", "no dynamic segment")
    assert any(word in seen.text for word in words)


def test_empty_file(look, opp, vendor):
    (vendor / API_LIB).write_bytes(b"")
    damaged(look(opp), "is an empty file")


def test_directory_in_place_of_a_library(look, opp, vendor):
    (vendor / API_LIB).unlink()
    (vendor / API_LIB).mkdir()
    damaged(look(opp), "libcust_opapi.so is a directory")


def test_dangling_link(look, opp, vendor):
    (vendor / API_LIB).unlink()
    (vendor / API_LIB).symlink_to("nowhere.so")
    damaged(look(opp), "is a dangling link to nowhere.so")


def test_linker_script(look, opp, vendor):
    (vendor / API_LIB).write_text("/* GNU ld script */\nINPUT ( libother.so )\n")
    damaged(look(opp), "is a linker script")


def test_static_archive(look, opp, vendor):
    (vendor / API_LIB).write_bytes(b"!<arch>\n")
    damaged(look(opp), "is not an ELF file")


@pytest.mark.parametrize("what", ["absent", "text", "folder", "zip"])
def test_nothing_to_look_at(look, tmp_path, what):
    path = tmp_path / "it"
    if what == "text":
        path.write_text("hello")
    elif what == "folder":
        path.mkdir()
    elif what == "zip":
        zipfile.ZipFile(path, "w").writestr("a/b", "c")
    seen = look(path)
    assert seen.status == 2
    assert str(path) in seen.text


def test_vendors_in_a_folder_of_another_name(look, vendor, tmp_path):
    shutil.copytree(vendor, tmp_path / "ours/fla_npu")
    seen = look(tmp_path / "ours")
    assert seen.status == 0 and seen.row["symbols"] == "ok"
    assert seen.row["provided_by"] == [f"{tmp_path / 'ours'}:vendors/fla_npu"]


def test_damaged_wheel(look, opp, tmp_path):
    wheel = tmp_path / f"fla_npu-1-py3-none-linux_{fake_opp.ARCH}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(p for p in opp.rglob("*") if p.is_file()):
            archive.write(path, f"fla_npu/opp/{path.relative_to(opp).as_posix()}")
        at = archive.getinfo(f"fla_npu/opp/vendors/fla_npu/{API_LIB}").header_offset
    assert look(wheel).status == 0
    data = bytearray(wheel.read_bytes())
    data[at + 400] ^= 0xFF
    wheel.write_bytes(data)
    damaged(look(wheel), f"vendors/fla_npu/{API_LIB} is damaged")
    wheel.write_bytes(data[: len(data) // 2])
    seen = look(wheel)
    assert seen.status == 2 and "incomplete wheel" in seen.text


@pytest.fixture
def open_opp(good_opp):
    """A copy where another user may go; pytest's own folders are closed."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield Path(shutil.copytree(good_opp, folder / "opp"))
    shutil.rmtree(folder)


SECRETS = [API_LIB, "version.info", "../../manifest.json", "../config.ini", "../..", "..", ".", "op_api/lib"]


@pytest.mark.parametrize("name", SECRETS)
def test_what_may_not_be_read(look, open_opp, name):
    """A file or a folder that belongs to somebody else: its files are not missing, nobody may look."""
    vendor = open_opp / "vendors/fla_npu"
    (vendor / "version.info").write_text("1")
    fake_opp.write_manifest(open_opp)
    look(open_opp)  # all is imported before the user changes: where it lies may be closed, too
    secret = (vendor / name).resolve()
    secret.chmod(0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        if os.getuid() == 0:
            os.setgid(65534), os.setuid(65534)
        seen = look(open_opp)
        os.write(write, f"{seen.status} {seen.text}".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read().lower()
    os.waitpid(child, 0)
    secret.chmod(0o755)
    assert said.startswith("2 ") and "permission denied" in said, said
    assert str(secret).lower() in said or secret.name in said


# One package in every shape


def as_wheel(opp: Path, out: Path, prefix: str = "") -> Path:
    wheel = out / f"fla_npu-0-py3-none-linux_{fake_opp.ARCH}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in sorted(opp.rglob("*")):
            if path.is_file():
                archive.write(path, f"{prefix}fla_npu/opp/{path.relative_to(opp)}")
    return wheel


def installed(run: Path, place: Path) -> Path:
    subprocess.run(["sh", run, f"--install-path={place}"], check=True, capture_output=True)
    return place


def linked(link: Path, target: Path) -> Path:
    link.symlink_to(target)
    return link


SHAPES = {
    "opp": lambda opp, tmp: opp,
    "vendors": lambda opp, tmp: opp / "vendors",
    "vendor": lambda opp, tmp: opp / "vendors/fla_npu",
    "package": lambda opp, tmp: shutil.copytree(opp, tmp / "fla_npu/opp").parent,
    "site-packages": lambda opp, tmp: shutil.copytree(opp, tmp / "fla_npu/opp").parents[1],
    "wheel": lambda opp, tmp: as_wheel(opp, tmp),
    "wheel with .data": lambda opp, tmp: as_wheel(opp, tmp, "fla_npu-0.data/platlib/"),
    "run": lambda opp, tmp: vendors.pack(opp, tmp, "run"),
    "tar.gz": lambda opp, tmp: vendors.pack(opp, tmp, "tar.gz"),
    "tree": lambda opp, tmp: vendors.pack(opp, tmp, "tree"),
    "installed run": lambda opp, tmp: installed(vendors.pack(opp, tmp, "run"), tmp / "there"),
    "link": lambda opp, tmp: linked(tmp / "a link", opp),
    "relative": lambda opp, tmp: os.path.relpath(opp / "vendors/fla_npu"),
    "twice": lambda opp, tmp: linked(tmp / "twice", opp),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_same_answer_in_every_shape(look, opp, tmp_path, shape):
    made = SHAPES[shape](opp, tmp_path)
    seen = look(made, opp) if shape == "twice" else look(made)
    assert seen.status == 0, seen.text
    row = {key: value for key, value in seen.row.items() if key != "provided_by"}
    assert row == {key: value for key, value in look(opp).row.items() if key != "provided_by"}


def test_wheel_of_another_machine_is_judged_by_its_tag(look, opp, tmp_path):
    wheel = as_wheel(opp, tmp_path).rename(tmp_path / f"a-0-py3-none-linux_{fake_opp.OTHER_ARCH}.whl")
    assert f"is for {fake_opp.ARCH}, needed is {fake_opp.OTHER_ARCH}" in look(wheel).text


def test_lone_library(look, vendor):
    seen = look(vendor / API_LIB)
    assert seen.row["symbols"] == "ok"


@pytest.mark.parametrize("variable", ["ASCEND_CUSTOM_OPP_PATH", "FLA_NPU_OPP_PATH"])
def test_decoy_in_the_environment(tool, opp, tmp_path, variable):
    decoy = fake_opp.make_opp(tmp_path / "decoy")
    library(decoy / "vendors/fla_npu" / API_LIB, identity("d" * 32))
    done = tool(opp, "--op", OP, "--json", **{variable: str(decoy / "vendors/fla_npu")})
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(decoy) not in done.stdout


# The program


def test_exit_status_and_table(tool, opp, vendor):
    done = tool(opp, "--op", OP)
    assert done.returncode == 0, done.stdout + done.stderr
    assert OP in done.stdout and "complete" in done.stdout
    rebuild(vendor, functions(API))
    done = tool(opp, "--op", OP)
    assert done.returncode == 1 and "incomplete" in done.stdout
    done = tool(opp / "nowhere")
    assert done.returncode == 2 and "does not exist" in done.stderr
    assert tool("--no-such-flag").returncode == 2


def test_json_is_one_document(tool, opp):
    assert json.loads(tool(opp, "--op", OP, "--json").stdout)["ok"] is True


def test_unknown_operator(tool, opp):
    done = tool(opp, "--op", "chunk_fwd")
    assert done.returncode == 2 and "chunk_fwd_h" in done.stderr


def test_nothing_is_loaded(opp, vendor, tmp_path):
    """A library whose constructor leaves a mark is read, not run."""
    mark = tmp_path / "ran"
    source = (
        f'#include <stdio.h>\n__attribute__((constructor)) static void run(void) {{ fopen("{mark}", "w"); }}'
    )
    path = vendor / API_LIB
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source + identity() + functions(*BOTH), text=True, check=True)
    from fla_npu import check_symbols

    check_symbols.main([str(opp), "--json"])
    assert not mark.exists()
