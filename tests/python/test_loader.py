# SPDX-License-Identifier: Apache-2.0
"""Opening libraries and binding operators, on small libraries made with the C compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from fakes import ACL, FakeOpp, compile_library, copy_opp, operator_source
from fla_npu import errors
from fla_npu.spec import names, spec
from in_step import in_step

H = spec("chunk_fwd_h")


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    return FakeOpp(tmp_path_factory.mktemp("loader") / "opp")


def test_binds_lazily_and_once(use_opp, fresh_loader, fake):
    use_opp(fake.root)
    assert fresh_loader._loaded is None
    first = fresh_loader.bind("chunk_fwd_h")
    assert first is fresh_loader.bind("chunk_fwd_h")
    assert set(fresh_loader._bound) == {"chunk_fwd_h"}
    assert first.library.path == fake.path
    assert all(first.addresses()[k] for k in ("workspace", "execute", "aclCreateTensor"))
    assert first.addresses()["aclrtSynchronizeStream"] == 0


def test_unknown_operator_lists_the_known_ones(fresh_loader):
    with pytest.raises(errors.ArgumentError, match=r"no operator 'chunk_fw'; it has chunk_fwd_h"):
        fresh_loader.bind("chunk_fw")


@pytest.mark.parametrize("half", [0, 1])
def test_missing_symbol_breaks_that_call_alone(use_opp, fresh_loader, tmp_path, half):
    opp = FakeOpp(tmp_path / "opp", leave_out=(H.symbols[half],))
    use_opp(opp.root)
    with pytest.raises(errors.SymbolMissing) as raised:
        fresh_loader.bind("chunk_fwd_h")
    text = str(raised.value)
    others = ", ".join(name for name in names() if name != "chunk_fwd_h")
    for word in (*H.symbols, str(opp.path), f"provides {others}"):
        assert word in text
    assert f"only {H.symbols[1 - half]}" in text
    assert "'pip install .'" in text
    assert fresh_loader.bind("chunk_kda_fwd_prepare").library.path == opp.path


def test_the_advice_keeps_what_is_there(use_opp, fresh_loader, tmp_path):
    """A subset build of the missing operator alone would lose the others."""
    use_opp(FakeOpp(tmp_path / "opp", ops=("chunk_kda_fwd_prepare",)).root)
    with pytest.raises(
        errors.SymbolMissing, match="'FLA_NPU_OPS=chunk_fwd_h,chunk_kda_fwd_prepare pip install"
    ):
        fresh_loader.bind("chunk_fwd_h")


def test_symbols_of_two_vendors_are_not_mixed(use_opp, fresh_loader, tmp_path):
    opp = FakeOpp(tmp_path / "opp", ops=("chunk_fwd_h",), leave_out=(H.symbols[0],))
    other = opp.root / "vendors/other/op_api/lib/libcust_opapi.so"
    compile_library(operator_source(("chunk_fwd_h",), leave_out=(H.symbols[1],)), other)
    use_opp(opp.root)
    with pytest.raises(errors.SymbolMissing, match="needed from one library"):
        fresh_loader.bind("chunk_fwd_h")
    whole = opp.root / "vendors/whole/op_api/lib/libcust_opapi.so"
    compile_library(operator_source(("chunk_fwd_h",)), whole)
    fresh_loader.reset()
    assert fresh_loader.bind("chunk_fwd_h").library.path == whole


@pytest.mark.parametrize("how", ["file", "symlink", "hard link", "dangling"])
def test_alias_of_cann_library_is_refused(use_opp, fresh_loader, fake, tmp_path, how):
    root = copy_opp(fake, tmp_path / "opp")
    lib = root / "vendors/fla_npu/op_api/lib/libcust_opapi.so"
    alias = lib.with_name("libopapi.so")
    make = {
        "file": lambda: alias.write_bytes(lib.read_bytes()),
        "symlink": lambda: alias.symlink_to(lib),
        "hard link": lambda: os.link(lib, alias),
        "dangling": lambda: alias.symlink_to("nothing"),
    }
    make[how]()
    use_opp(root)
    with pytest.raises(errors.AbiMismatch, match=r"libopapi\.so.*rm "):
        fresh_loader.bind("chunk_fwd_h")
    alias.unlink()
    assert fresh_loader.bind("chunk_fwd_h")


@pytest.mark.parametrize("content", [b"", b"\x7fELF" + bytes(60), b"/* GNU ld script */\nGROUP ( x )\n"])
def test_damaged_library(use_opp, fresh_loader, fake, tmp_path, content):
    root = copy_opp(fake, tmp_path / "opp")
    lib = root / "vendors/fla_npu/op_api/lib/libcust_opapi.so"
    lib.write_bytes(content)
    use_opp(root)
    with pytest.raises(errors.AbiMismatch, match=r"libcust_opapi\.so cannot be loaded"):
        fresh_loader.bind("chunk_fwd_h")


def test_missing_dependency_says_which(use_opp, fresh_loader, fake, tmp_path):
    root = copy_opp(fake, tmp_path / "opp")
    folder = root / "vendors/fla_npu/op_api/lib"
    compile_library("int needed;", folder / "libneeded_by_cann.so")
    source = folder / "x.c"
    source.write_text(operator_source(("chunk_fwd_h",)) + "\nextern int needed; int *use = &needed;")
    command = ["gcc", "-shared", "-fPIC", "-w", "-o", folder / "libcust_opapi.so", source]
    subprocess.run([*command, f"-L{folder}", "-lneeded_by_cann"], check=True)
    (folder / "libneeded_by_cann.so").unlink()
    use_opp(root)
    with pytest.raises(errors.OppNotFound, match=r"libneeded_by_cann\.so.*set_env\.sh"):
        fresh_loader.bind("chunk_fwd_h")


@pytest.mark.parametrize("name", ["libcust_opapi.so", "libfla_twin.so"])
@pytest.mark.parametrize("part", [0.0, 0.004, 0.3, 0.7])
def test_cut_library(use_opp, fresh_loader, fake, tmp_path, name, part):
    """The system's loader would map it, and the first use would kill the process (SIGBUS)."""
    root = copy_opp(fake, tmp_path / "opp")
    path = root / "vendors/fla_npu/op_api/lib" / name
    os.truncate(path, int(path.stat().st_size * part))
    use_opp(root)
    why = rf"{name} cannot be loaded: it is (an empty file|truncated|damaged)"
    with pytest.raises(errors.AbiMismatch, match=why):
        fresh_loader.bind("chunk_fwd_h")


def test_unreadable_twin_library(use_opp, fresh_loader, fake, monkeypatch):
    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    use_opp(fake.root)
    monkeypatch.setattr(fresh_loader, "read_file", denied)
    with pytest.raises(
        errors.AbiMismatch, match=r"libfla_twin.so cannot be loaded: permission denied.*chmod"
    ):
        fresh_loader.bind("chunk_fwd_h")


def test_twin_without_its_runtime(use_opp, fresh_loader, fake, tmp_path):
    root = copy_opp(fake, tmp_path / "opp")
    (root / "vendors/fla_npu/op_api/lib/libfla_twin.so").unlink()
    (root / "manifest.json").write_text('{"backend": "twin"}')
    use_opp(root)
    with pytest.raises(errors.OppNotFound, match=r"libfla_twin\.so"):
        fresh_loader.bind("chunk_fwd_h")


def test_loads_locally(use_opp, fresh_loader, fake):
    """Nothing of ours may answer a lookup in the process-wide scope."""
    code = (
        "import ctypes, os; from fla_npu import loader; loader.bind('chunk_fwd_h');"
        "g = ctypes.CDLL(None);"
        "assert not hasattr(g, 'aclnnChunkFwdH'); assert not hasattr(g, 'aclCreateTensor')"
    )
    env = {**os.environ, "FLA_NPU_OPP_PATH": str(fake.root)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


def test_threads_bind_one_object(use_opp, fresh_loader, fake):
    use_opp(fake.root)
    gate, seen = threading.Barrier(8), []

    def work():
        gate.wait()
        seen.append([fresh_loader.bind(name) for name in names()])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert all(a is b for row in seen for a, b in in_step(row, seen[0]))


def test_acl_comes_from_the_same_vendor(use_opp, fresh_loader, fake, tmp_path):
    root = copy_opp(fake, tmp_path / "opp")
    twin = root / "vendors/fla_npu/op_api/lib/libfla_twin.so"
    compile_library(ACL.replace("aclCreateIntArray", "aclCreateIntArrayV2"), twin)
    use_opp(root)
    from fla_npu import aclnn

    with pytest.raises(errors.OppNotFound, match="lacks the ACL function aclCreateIntArray"):
        aclnn.call("chunk_fwd_h", {})


def test_prototype_hash_of_another_build(use_opp, fresh_loader, tmp_path):
    manifest = {"backend": "twin", "ops": {"chunk_fwd_h": {"prototype_hash": "0" * 64}}}
    opp = FakeOpp(tmp_path / "opp", manifest=manifest)
    use_opp(opp.root)
    with pytest.raises(errors.AbiMismatch, match="another parameter list of aclnnChunkFwdH"):
        fresh_loader.bind("chunk_fwd_h")
    assert fresh_loader.bind("chunk_kda_fwd_prepare")


def test_build_ids_must_agree(use_opp, fresh_loader, tmp_path):
    manifest = {"backend": "twin", "build_id": "a" * 32}
    opp = FakeOpp(tmp_path / "opp", manifest=manifest, build_id="a" * 32)
    use_opp(opp.root)
    assert fresh_loader.bind("chunk_fwd_h")
    other = FakeOpp(tmp_path / "other", manifest=manifest, build_id="b" * 32)
    use_opp(other.root)
    with pytest.raises(errors.AbiMismatch, match=f"'{'b' * 32}'.*'{'a' * 32}': pieces of two builds"):
        fresh_loader.bind("chunk_fwd_h")
    foreign = FakeOpp(tmp_path / "foreign", manifest=manifest)
    compile_library(operator_source(names()), tmp_path / "x.so").rename(foreign.path)
    compile_library(ACL, tmp_path / "y.so").rename(foreign.twin)
    use_opp(foreign.root)
    with pytest.raises(errors.AbiMismatch, match="build id 'none'"):
        fresh_loader.bind("chunk_fwd_h")
