# SPDX-License-Identifier: Apache-2.0
"""Loading and symbol lookup, and pieces that do not belong together: faults other packages were hit by.

The number in a test's name is the number of the collected case. Each test shows the fault on a planted
copy and that an unharmed one is taken; what check_symbols says of damaged files is in its own tests.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import fake_opp
import pytest
from environments import VARIABLES

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))

from fakes import ACL, FakeOpp, compile_library, copy_opp, operator_source  # noqa: E402
from fla_npu import aclnn, errors, loader, opp  # noqa: E402
from fla_npu.spec import names, spec  # noqa: E402

H = spec("chunk_fwd_h")


@pytest.fixture(scope="module")
def fake(tmp_path_factory) -> FakeOpp:
    return FakeOpp(tmp_path_factory.mktemp("cases") / "opp", ops=("chunk_fwd_h",))


@pytest.fixture(scope="module")
def device(tmp_path_factory) -> tuple[FakeOpp, Path]:
    """A CANN OPP, and a folder with CANN's libraries; aclInit keeps what the variable says when it runs."""
    folder = tmp_path_factory.mktemp("cann")
    made = FakeOpp(
        folder / "it's an opp",
        ops=("chunk_fwd_h",),
        manifest={"backend": "cann", "socs": ["ascend910b"]},
    )
    made.twin.unlink()
    compile_library(ACL, folder / "lib64/libnnopbase.so")
    start = """#include <stdlib.h>
const char *seen = "";
int aclInit(const char *x) { char *v = getenv("ASCEND_CUSTOM_OPP_PATH"); seen = v ? v : ""; return 0; }
const char *aclrtGetSocName(void) { return "Ascend910B3"; }"""
    compile_library(start, folder / "lib64/libascendcl.so")
    return made, folder / "lib64"


def choose(monkeypatch, root: object, variable: str = "FLA_NPU_OPP_PATH") -> None:
    monkeypatch.setenv(variable, str(root))
    loader.reset()


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    env = {k: v for k, v in os.environ.items() if k not in VARIABLES} | {"XDG_DATA_HOME": "/nowhere"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env | environment)


INIT = "import ctypes; acl = ctypes.CDLL('libascendcl.so', mode=ctypes.RTLD_GLOBAL); acl.aclInit(None)\n"
BIND = "from fla_npu import loader; loader.bind('chunk_fwd_h')\n"
ALONE = "from fla_npu import opp; opp.own_root = lambda: None\n"  # as if installed without an OPP
SEEN = "print(ctypes.c_char_p.in_dll(acl, 'seen').value.decode())\n"


@pytest.mark.parametrize("code", [INIT + BIND, BIND + INIT], ids=["CANN first", "package first"])
def test_1_kernels_unknown_to_cann_are_announced_with_the_line_that_helps(device, code):
    """The variable is never changed by us: the line is printed, and done as printed it is enough."""
    made, folder = device
    base = {"LD_LIBRARY_PATH": str(folder), "FLA_NPU_OPP_PATH": str(made.root)}
    for old in ("", "/opt/other"):
        done = python(code + SEEN, **base, ASCEND_CUSTOM_OPP_PATH=old)
        assert done.stdout.strip() == old  # what CANN saw
        line = next(text.strip() for text in done.stderr.splitlines() if "export ASCEND_CUSTOM" in text)
        shell = f'ASCEND_CUSTOM_OPP_PATH={old}\n{line}\nprintf %s "$ASCEND_CUSTOM_OPP_PATH"'
        value = subprocess.run(["sh", "-c", shell], capture_output=True, text=True).stdout
        again = python(code + SEEN, **base, ASCEND_CUSTOM_OPP_PATH=value)
        assert again.stdout.strip() == str(made.vendor) + (f":{old}" if old else "") and not again.stderr


@pytest.mark.parametrize(
    "form",
    ["{}", "{}/", "/opt/other:{}", "{}:/opt/other", "::{}", "{link}", "{link}/../fla_npu", "{relative}"],
)
def test_1_a_variable_that_names_ours_in_any_form_is_enough(device, tmp_path, form):
    """With a slash at its end, behind others, through a link, relative: CANN finds the kernels, no warning."""
    made, folder = device
    (tmp_path / "fla_npu").symlink_to(made.vendor)
    text = form.format(made.vendor, link=tmp_path / "fla_npu", relative=os.path.relpath(made.vendor))
    base = {"LD_LIBRARY_PATH": str(folder), "FLA_NPU_OPP_PATH": str(made.root)}
    assert python(BIND, **base, ASCEND_CUSTOM_OPP_PATH=text).stderr == ""
    assert "export ASCEND_CUSTOM" in python(BIND, **base, ASCEND_CUSTOM_OPP_PATH=f"{made.vendor}x").stderr
    assert "export ASCEND_CUSTOM" in python(BIND, **base, ASCEND_CUSTOM_OPP_PATH=str(made.root)).stderr


def test_1_the_printed_line_under_strict_shells(device):
    """An unset variable ends a shell with `set -u`; nothing empty is left in the value."""
    made, folder = device
    done = python(BIND, LD_LIBRARY_PATH=str(folder), FLA_NPU_OPP_PATH=str(made.root))
    line = next(text.strip() for text in done.stderr.splitlines() if "export ASCEND_CUSTOM" in text)
    shell = ["sh", "-euc", f'{line}\nprintf %s "$ASCEND_CUSTOM_OPP_PATH"']
    environment = {k: v for k, v in os.environ.items() if k != "ASCEND_CUSTOM_OPP_PATH"}
    assert subprocess.run(shell, capture_output=True, text=True, env=environment).stdout == str(made.vendor)


def test_1_a_path_that_the_variable_cannot_hold(device, tmp_path):
    made, folder = device
    moved = shutil.copytree(made.root, tmp_path / "a:b")
    done = python(BIND, LD_LIBRARY_PATH=str(folder), FLA_NPU_OPP_PATH=str(moved))
    assert "to a path without ':'" in done.stderr and "export" not in done.stderr


def test_3_nothing_of_ours_enters_the_process_wide_scope(fake, tmp_path):
    """CANN's library asks for a name that ours has, too; it must get its own, and the exit must be clean."""
    root = copy_opp(fake, tmp_path / "opp")
    library = root / "vendors/fla_npu/op_api/lib/libcust_opapi.so"
    compile_library(operator_source(("chunk_fwd_h",)) + "\nint vendor_helper(void) { return 1; }", library)
    cann = compile_library(
        "int vendor_helper(void) { return 2; } int ask(void) { return vendor_helper(); }",
        tmp_path / "libopapi.so",
    )
    ask = f"import ctypes; print(ctypes.CDLL({str(cann)!r}).ask())"
    wrong = python(f"import ctypes; ctypes.CDLL({str(library)!r}, mode=ctypes.RTLD_GLOBAL)\n{ask}")
    assert wrong.stdout == "1\n"  # the fault: CANN's own call lands in the other library
    done = python(
        BIND + ask, FLA_NPU_OPP_PATH=str(root), LD_DEBUG="bindings", LD_DEBUG_OUTPUT=str(tmp_path / "log")
    )
    assert (done.returncode, done.stdout) == (0, "2\n")
    text = "".join(p.read_text() for p in tmp_path.glob("log.*"))
    assert f"binding file {cann} [0]" in text and f"{cann} [0] to {library}" not in text


@pytest.mark.parametrize("how", ["file", "symlink", "hard link", "dangling link"])
def test_4_a_copy_named_like_the_library_of_cann(clean, look, tmp_path, good_opp, how):
    root = Path(shutil.copytree(good_opp, tmp_path / "opp"))
    library = root / "vendors/fla_npu/op_api/lib/libcust_opapi.so"
    assert look(root).status == 0
    alias = library.with_name("libopapi.so")
    {
        "file": lambda: alias.write_bytes(library.read_bytes()),
        "symlink": lambda: alias.symlink_to(library),
        "hard link": lambda: os.link(library, alias),
        "dangling link": lambda: alias.symlink_to("nothing"),
    }[how]()
    seen = look(root)
    assert seen.status == (2 if how == "dangling link" else 1)
    assert "has the name of CANN's own library and would shadow it" in seen.text
    choose(clean, root)
    with pytest.raises(errors.AbiMismatch, match=r"loaded in place of CANN's libopapi\.so.*rm "):
        loader.bind("chunk_fwd_h")


def test_5_two_vendors_with_one_operator(clean, look, fake, tmp_path):
    """The first of the path wins for both functions, the duplicate is named, a half is never completed."""
    first, second = (fake_opp.make_opp(tmp_path / name) for name in "ab")
    for one, other in ((first, second), (second, first)):
        seen = look(one, other)
        assert seen.status == 1 and f"this one wins, hidden: {other}" in seen.text
    a, b = copy_opp(fake, tmp_path / "one"), copy_opp(fake, tmp_path / "two")
    for order in ((a, b), (b, a)):
        choose(clean, ":".join(f"{root}/vendors/fla_npu" for root in order), "ASCEND_CUSTOM_OPP_PATH")
        assert loader.bind("chunk_fwd_h").library.path.is_relative_to(order[0])
    library = "vendors/fla_npu/op_api/lib/libcust_opapi.so"
    compile_library(operator_source(("chunk_fwd_h",), leave_out=(H.symbols[0],)), tmp_path / "1" / library)
    compile_library(operator_source(("chunk_fwd_h",), leave_out=(H.symbols[1],)), tmp_path / "2" / library)
    halves = [f"{tmp_path / n}/vendors/fla_npu" for n in "12"]
    for folder in halves:
        shutil.copy(fake.twin, Path(folder, "op_api/lib/libfla_twin.so"))
    choose(clean, ":".join(halves), "ASCEND_CUSTOM_OPP_PATH")
    with pytest.raises(errors.SymbolMissing, match="needed from one library"):
        loader.bind("chunk_fwd_h")
    choose(clean, f"{':'.join(halves)}:{a}/vendors/fla_npu", "ASCEND_CUSTOM_OPP_PATH")
    assert loader.bind("chunk_fwd_h").library.path.is_relative_to(a)


def test_5_an_operator_that_became_built_in_is_not_taken_from_cann(fake, tmp_path):
    built_in = compile_library(operator_source(("chunk_fwd_h",)), tmp_path / "libopapi.so")
    code = f"""import ctypes
cann = ctypes.CDLL({str(built_in)!r}, mode=ctypes.RTLD_GLOBAL)
{BIND}address = loader.bind('chunk_fwd_h').addresses()['execute']
assert address != ctypes.cast(cann.{H.symbols[1]}, ctypes.c_void_p).value"""
    assert python(code, FLA_NPU_OPP_PATH=str(fake.root)).stderr == ""


def test_5_a_foreign_vendor_that_does_not_open_stops_nobody_else(clean, fake, tmp_path):
    broken = tmp_path / "broken/vendors/other/op_api/lib/libcust_opapi.so"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(fake.path.read_bytes()[:2000])
    choose(clean, f"{tmp_path}/broken/vendors/other:{fake.vendor}", "ASCEND_CUSTOM_OPP_PATH")
    with pytest.warns(errors.FlaNpuWarning, match="passed over.*broken.*cannot be loaded"):
        assert loader.bind("chunk_fwd_h").library.path == fake.path


def test_6_one_more_parameter_under_the_same_name(clean, look, opp, tmp_path):
    """C symbols carry no types: the hash of the prototype does. Without a manifest names are all there is."""
    assert look(opp).row["prototype"] == "ok"
    hashes = {"chunk_fwd_h": {"prototype_hash": "0" * 64}}
    fake_opp.write_manifest(opp, ops=hashes)
    seen = look(opp)
    assert seen.status == 1 and "built with another parameter list" in seen.text
    made = FakeOpp(tmp_path / "fake", ops=("chunk_fwd_h",), manifest={"ops": hashes})
    choose(clean, made.root)
    with pytest.raises(errors.AbiMismatch, match="another parameter list"):
        loader.bind("chunk_fwd_h")
    (opp / "manifest.json").unlink()
    seen = look(opp)
    assert seen.row["prototype"] == "unknown" and "signatures, hashes and build ids can't be" in seen.text


def values() -> dict:
    return {p.name: None for p in H.params}


def test_7_a_refused_call_is_not_called_a_missing_symbol(clean, fake, tmp_path):
    root = copy_opp(fake, tmp_path / "opp")
    library = root / "vendors/fla_npu/op_api/lib/libcust_opapi.so"
    compile_library(
        operator_source(("chunk_fwd_h",)).replace("fake_status1 = 0", "fake_status1 = 161002"), library
    )
    choose(clean, root)
    with pytest.raises(errors.ArgumentError, match=r"refused the call \(161002\)") as refused:
        aclnn.call("chunk_fwd_h", values())
    absent = next(name for name in names() if name != "chunk_fwd_h")
    with pytest.raises(errors.SymbolMissing) as missing:
        loader.bind(absent)
    assert "not in the OPP" in str(missing.value) and "not in" not in str(refused.value)
    for reason, data in {"truncated": library.read_bytes()[:900], "damaged": b"\x7fELF" + bytes(60)}.items():
        broken = copy_opp(fake, tmp_path / reason) / "vendors/fla_npu/op_api/lib/libcust_opapi.so"
        broken.write_bytes(data)
        choose(clean, tmp_path / reason)
        with pytest.raises(errors.AbiMismatch, match=reason):
            loader.bind("chunk_fwd_h")


def test_7_the_winner_is_the_same_every_time(clean, fake, tmp_path):
    other = copy_opp(fake, tmp_path / "other")
    path = f"{other}/vendors/fla_npu:{fake.vendor}"
    code = ALONE + BIND + "print(loader.bind('chunk_fwd_h').library.path)"
    seen = {python(code, ASCEND_CUSTOM_OPP_PATH=path, PYTHONHASHSEED=str(n)).stdout for n in range(4)}
    choose(clean, path, "ASCEND_CUSTOM_OPP_PATH")
    for _ in range(50):
        loader.reset()
        seen.add(f"{loader.bind('chunk_fwd_h').library.path}\n")
    assert seen == {f"{other}/vendors/fla_npu/op_api/lib/libcust_opapi.so\n"}


def test_10_a_twin_on_a_machine_with_an_npu_says_so(clean, fake, tmp_path):
    choose(clean, fake.root)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.bind("chunk_fwd_h")
    (tmp_path / "davinci0").touch()
    clean.setattr(loader, "DEVICE", tmp_path / "davinci0")
    loader.reset()
    with pytest.warns(
        errors.FlaNpuWarning, match="has an NPU.*is the CPU twin.*FLA_NPU_BACKEND=cann"
    ) as told:
        loader.bind("chunk_fwd_h")
    assert len(told) == 1


def test_11_another_chip_is_named_with_ours_before_the_first_operator(clean, look, device, tmp_path):
    made, folder = device
    env = {"FLA_NPU_OPP_PATH": str(made.root), "ASCEND_CUSTOM_OPP_PATH": str(made.vendor)}
    assert python(BIND, LD_LIBRARY_PATH=str(folder), **env).stderr == ""
    shutil.copytree(folder, tmp_path / "lib64")
    compile_library(
        'const char *aclrtGetSocName(void) { return "Ascend910_9391"; }', tmp_path / "lib64/libascendcl.so"
    )
    done = python(BIND, LD_LIBRARY_PATH=str(tmp_path / "lib64"), **env)
    assert "this machine has Ascend910_9391" in done.stderr and "built for ascend910b" in done.stderr
    assert "FLA_NPU_SOC=ascend910_93 pip install" in done.stderr  # a name that the build knows
    for name in ("Ascend310P3", "Ascend910A", "Ascend910_55"):
        text = f'const char *aclrtGetSocName(void) {{ return "{name}"; }}'
        compile_library(text, tmp_path / "lib64/libascendcl.so")
        done = python(BIND, LD_LIBRARY_PATH=str(tmp_path / "lib64"), **env)
        assert f"this machine has {name}" in done.stderr and "there are no kernels for it" in done.stderr
    vendor = fake_opp.make_vendor(tmp_path / "opp/vendors/fla_npu", soc="ascend910_93")
    assert look(vendor).data["vendors"][0]["socs"] == ["ascend910_93"]


OTHER_MACHINE = {"x86_64": 62, "aarch64": 183}[fake_opp.OTHER_ARCH]
FOREIGN_ELF = {
    "another machine": lambda data: data[:18] + bytes([OTHER_MACHINE, 0]) + data[20:],
    "32 bits": lambda data: data[:4] + b"\1" + data[5:],
    "big endian": lambda data: data[:5] + b"\2" + data[6:],
    "a program's object": lambda data: data[:16] + b"\1\0" + data[18:],
    "cut": lambda data: data[: len(data) // 2],
    "no ELF": lambda data: b"MZ" + data[2:],
}


@pytest.mark.parametrize("how", FOREIGN_ELF)
def test_12_a_foreign_or_cut_library_is_explained(clean, look, fake, tmp_path, how):
    root = copy_opp(fake, tmp_path / "opp")
    library = root / "vendors/fla_npu/op_api/lib/libcust_opapi.so"
    library.write_bytes(FOREIGN_ELF[how](library.read_bytes()))
    choose(clean, root)
    with pytest.raises(errors.AbiMismatch, match="It is damaged or built for another machine") as caught:
        loader.bind("chunk_fwd_h")
    told = f"it is for {fake_opp.OTHER_ARCH}, this machine is {fake_opp.ARCH}" in str(caught.value)
    assert told == (how == "another machine")
    seen = look(root)
    assert seen.status == (1 if how == "another machine" else 2) and "libcust_opapi.so" in seen.text


LIBRARIES = ["op_api/lib/libcust_opapi.so", "op_api/lib/libfla_twin.so", str(fake_opp.TILING),
             "op_impl/ai_core/tbe/kernel/ascend910b/chunk_fwd_h/ChunkFwdH.so"]  # fmt: skip


@pytest.mark.parametrize("name", LIBRARIES)
def test_12_one_library_of_another_build(clean, look, opp, name):
    assert look(opp).status == 0
    library = opp / "vendors/fla_npu" / name
    data = library.read_bytes()
    assert data.count(fake_opp.BUILD.encode()) == 1
    library.write_bytes(data.replace(fake_opp.BUILD.encode(), b"e" * 32))
    seen = look(opp)
    assert seen.status == 2 and f"{name} is of build {'e' * 32}" in seen.text
    if "op_api" in name:
        choose(clean, opp)
        with pytest.raises(errors.AbiMismatch, match="pieces of two builds are mixed"):
            loader.bind("chunk_fwd_h")


def test_12_a_manifest_of_another_build(clean, look, opp):
    fake_opp.write_manifest(opp, build_id="d" * 32)
    assert "two builds are mixed" in look(opp).text
    choose(clean, opp)
    with pytest.raises(errors.AbiMismatch, match="pieces of two builds are mixed"):
        loader.bind("chunk_fwd_h")


def test_14_every_name_is_what_the_run_time_derives():
    """Operator type -> folder, kernel, header, symbols. Runs of capitals stay together, as in CANN's rule."""
    sys.path.insert(0, str(ROOT / "ascendc/codegen"))
    from contract import snake

    assert {name: snake(name) for name in ("WUFwd", "A2A", "RMSNormV2", "Add3D", "GRUCell", "Conv2D")} == {
        "WUFwd": "wufwd", "A2A": "a2_a", "RMSNormV2": "rmsnorm_v2", "Add3D": "add3_d", "GRUCell": "grucell",
        "Conv2D": "conv2_d",
    }  # fmt: skip
    for name in names():
        op_type = spec(name).aclnn.removeprefix("aclnn")
        assert snake(op_type) == name
        assert spec(name).symbols == (f"aclnn{op_type}GetWorkspaceSize", f"aclnn{op_type}")


def test_14_a_kernel_under_another_name_and_a_decoy_on_the_path(look, opp, tmp_path, monkeypatch):
    decoy = fake_opp.make_opp(tmp_path / "decoy")
    kernels = opp / "vendors/fla_npu" / fake_opp.IMPL / "kernel/ascend910b"
    (kernels / "chunk_fwd_h").rename(kernels / "chunk_fwdh")
    monkeypatch.setenv("ASCEND_CUSTOM_OPP_PATH", str(decoy / "vendors/fla_npu"))
    seen = look(opp)
    assert seen.status == 2 and "there is no kernel" in seen.text and str(decoy) not in str(seen.data)


def test_15_one_file_at_a_time_is_missing(clean, look, good_opp, tmp_path):
    """Who notices: check_symbols always, a call when it is a file that the call opens."""
    noticed = {}
    root = Path(shutil.copytree(good_opp, tmp_path / "opp"))
    choose(clean, root)
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        kept = path.read_bytes()
        path.unlink()
        loader.reset()
        try:
            loader.libraries()
            called = False
        except errors.FlaNpuError:
            called = True
        noticed[path.name] = (look(root).status == 2, called)
        path.write_bytes(kept)
    assert not [n for n, (seen, _) in noticed.items() if not seen]
    assert {n for n, (_, called) in noticed.items() if called} == {"libcust_opapi.so", "libfla_twin.so"}


def test_15_a_relative_path_is_good_after_chdir(clean, fake, tmp_path):
    clean.chdir(fake.root.parent)
    choose(clean, "opp")
    found = opp.find()
    clean.chdir("/")
    assert found.libraries[0].is_absolute() and found.libraries[0].is_file()


CODES = {161001: errors.ArgumentError, 161002: errors.ArgumentError, 361001: errors.LaunchError,
         561000: errors.LaunchError, 561003: errors.LaunchError, 561101: errors.LaunchError,
         561103: errors.LaunchError, 561107: errors.LaunchError, 561112: errors.LaunchError}  # fmt: skip


@pytest.mark.parametrize("status", CODES)
def test_16_a_code_comes_with_text_operator_and_library(clean, fake, status):
    choose(clean, fake.root)
    fake.acl.fake_say(b"what CANN says")
    fake.set("fake_status1", status)
    try:
        with pytest.raises(CODES[status]) as raised:
            aclnn.call("chunk_fwd_h", values())
    finally:
        fake.set("fake_status1", 0)
    text = str(raised.value)
    assert str(status) in text and "what CANN says" in text and text.startswith("chunk_fwd_h: ")
    if status not in (161001, 161002):
        assert str(fake.path) in text and raised.value.status == status
        assert status == 361001 or len(text.split("what CANN says. ")[1]) > 20  # and what to do


def test_16_the_order_of_imports_changes_nothing(fake, tmp_path):
    for name in ("framework_a", "framework_b"):
        (tmp_path / f"{name}.py").write_text("import ctypes, threading\n")
    seen = set()
    for order in itertools.permutations(["fla_npu", "framework_a", "framework_b"]):
        code = f"import {', '.join(order)}\n{BIND}print(loader.current().root)"
        path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
        done = python(code, PYTHONPATH=path, FLA_NPU_OPP_PATH=str(fake.root))
        seen.add((done.stdout, done.stderr))
    assert seen == {(f"{fake.root}\n", "")}
