# SPDX-License-Identifier: Apache-2.0
"""`fla-npu opp`: OPPs outside the wheel, installed, replaced, beside others, removed; shells; the .run."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import fake_opp
import pytest
from fla_npu import errors, opp, vendors

INSTALLER = Path(vendors.__file__).with_name("installer.sh")
ODD_NAMES = [
    "plain",
    "a b",
    "it's",
    'say "x"',
    "$HOME`id`",
    "中文 目录",
    "a!b",
    "back\\slash",
    "x;y&z",
    "*?[a]",
]


def make_opp(root: Path, version: str = "1.0", build: str = fake_opp.BUILD, backend: str = "twin") -> Path:
    """A packed OPP of some release; `cann` has no twin library."""
    fake_opp.make_opp(root)
    if backend == "cann":
        (root / "vendors/fla_npu/op_api/lib/libfla_twin.so").unlink()
    fake_opp.write_manifest(root, version=version, arch=fake_opp.ARCH, build_id=build, backend=backend)
    return root


@pytest.fixture(scope="module")
def release(tmp_path_factory) -> Path:
    return make_opp(tmp_path_factory.mktemp("release") / "opp")


@pytest.fixture(scope="module")
def device_release(tmp_path_factory) -> Path:
    return make_opp(tmp_path_factory.mktemp("device") / "opp", backend="cann")


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A user who has installed nothing, in an environment that names no OPP."""
    for name in ("FLA_NPU_OPP_PATH", "ASCEND_CUSTOM_OPP_PATH", "ASCEND_OPP_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data/fla_npu/opp"


def tree(root: Path) -> dict[str, str]:
    """Everything below `root`, files with their hash."""
    return {
        p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else ""
        for p in root.rglob("*")
    }


def sh(*arguments: object, **environment: str) -> SimpleNamespace:
    done = subprocess.run(
        ["sh", *map(str, arguments)], capture_output=True, text=True, env={**os.environ, **environment}
    )
    return SimpleNamespace(status=done.returncode, text=done.stdout + done.stderr)


def test_installed_for_a_user_is_found_before_the_own_one(home, release, monkeypatch):
    monkeypatch.setattr(opp, "own_root", lambda: release)
    assert opp.find().source == opp.OWN
    vendors.install(release)
    assert opp.find().source == opp.USER and opp.find().root == home
    rows = vendors.listing()
    assert [row["state"] for row in rows] == ["used", "hidden"]
    assert rows[0]["source"] == "fla-npu opp install" and rows[0]["version"] == "1.0"
    monkeypatch.setenv("FLA_NPU_OPP_PATH", str(release))
    assert opp.find().source == "FLA_NPU_OPP_PATH"
    from fla_npu import info

    told = {place["source"]: place["state"] for place in info.collect()["places"]}
    assert told["FLA_NPU_OPP_PATH"] == "usable"
    assert told[opp.USER] == told[opp.OWN] == "usable, but FLA_NPU_OPP_PATH comes first"


def test_each_vendor_of_a_variable_is_listed_once(home, release, tmp_path, monkeypatch):
    monkeypatch.setattr(opp, "own_root", lambda: release)
    others = [make_opp(tmp_path / name) / "vendors/fla_npu" for name in ("one", "two")]
    monkeypatch.setenv("ASCEND_CUSTOM_OPP_PATH", ":".join(map(str, others)))
    wanted = [(str(release / "vendors/fla_npu"), "used"), *((str(other), "hidden") for other in others)]
    assert [(row["path"], row["state"]) for row in vendors.listing()] == wanted
    monkeypatch.setattr(opp, "own_root", lambda: None)
    assert [(row["path"], row["state"]) for row in vendors.listing()] == [(str(p), "used") for p in others]
    (others[0].parents[1] / "manifest.json").write_text("{")
    assert [row["state"].partition(":")[0] for row in vendors.listing()] == ["damaged", "hidden"]


def test_removed_without_a_trace(home, release, tmp_path):
    before = tree(tmp_path)
    vendors.install(release)
    assert (home / "vendors/config.ini").read_text() == "load_priority=fla_npu\n"
    vendors.remove()
    assert tree(tmp_path) == before
    with pytest.raises(vendors.InstallError, match="there is no fla_npu in"):
        vendors.remove()


def test_upgrade_and_downgrade_leave_nothing_of_the_other(home, release, tmp_path):
    newer = make_opp(tmp_path / "newer", version="2.0")
    extra = newer / "vendors/fla_npu/op_api/include/aclnn_more.h"
    extra.write_text("// more\n")
    fake_opp.write_manifest(newer, version="2.0", arch=fake_opp.ARCH)
    vendors.install(release)
    first = tree(home)
    vendors.install(newer)
    assert vendors.listing()[0]["version"] == "2.0"
    assert (home / "vendors/fla_npu/op_api/include/aclnn_more.h").is_file()
    vendors.install(release)
    assert tree(home) == first
    vendors.remove()
    assert not home.exists()


def test_side_by_side_with_another_vendor(home, release, tmp_path, look, monkeypatch):
    """In CANN's own root: the other vendor keeps its files, its place in the order and its libraries."""
    cann = tmp_path / "cann opp"
    fake_opp.make_vendor(cann / "vendors/other", build="")
    (cann / "vendors/config.ini").write_text("; by hand\nload_priority=other, fla_npu ,third\n")
    before = tree(cann)
    vendors.install(release, cann)
    config = (cann / "vendors/config.ini").read_text()
    assert config == "; by hand\nload_priority=fla_npu,other,third\n"
    monkeypatch.setenv("ASCEND_OPP_PATH", str(cann))
    monkeypatch.setattr(opp, "own_root", lambda: None)
    found = opp.find()
    assert [v.name for v in found.vendors] == ["fla_npu", "other"]
    assert found.manifest_of(found.libraries[0])["version"] == "1.0"
    assert found.manifest_of(found.libraries[1]) == {}
    seen = look(cann)  # the duplicate is named, and the winner
    assert seen.status == 1 and "this one wins, hidden: " in seen.text and "vendors/other" in seen.text
    assert "is not part of this build" not in seen.text
    assert look(cann / "vendors/fla_npu").status == 0
    vendors.remove(cann)
    after = tree(cann)
    assert (cann / "vendors/config.ini").read_text() == "; by hand\nload_priority=other,third\n"
    assert {k: v for k, v in after.items() if "config" not in k} == {
        k: v for k, v in before.items() if "config" not in k
    }


def test_every_form_has_the_same_files(home, release, tmp_path):
    import zipfile

    wheel = tmp_path / f"fla_npu-1.0-py3-none-linux_{fake_opp.ARCH}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in release.rglob("*"):
            archive.write(path, f"fla_npu/opp/{path.relative_to(release)}")
    run = vendors.pack(wheel, tmp_path / "out")
    packed = vendors.pack(run, tmp_path / "out", "tar.gz")
    plain = vendors.pack(packed, tmp_path / "out", "tree")
    assert tree(plain) == tree(release)
    assert sh(run, f"--extract={tmp_path / 'unpacked'}").status == 0
    assert tree(tmp_path / "unpacked") == tree(release)
    assert vendors.pack(plain, tmp_path / "again").read_bytes() == run.read_bytes()
    trees = []
    for source in (wheel, run, packed, plain):
        vendors.install(source)
        trees.append(tree(home))
    assert sh(run).status == 0
    assert all(t == trees[0] for t in [*trees, tree(home)])
    assert sh(run, "--uninstall").status == 0 and not home.exists()


def test_the_run_without_python_or_home(release, tmp_path):
    run = vendors.pack(release, tmp_path)
    assert "fla-npu 1.0 for ascend910b" in sh(run, "--help").text
    assert "whole" in sh(run, "--check").text
    bare = {"PATH": "/usr/bin:/bin", "HOME": "", "XDG_DATA_HOME": "", "ASCEND_OPP_PATH": ""}
    done = sh(run, **bare)
    assert done.status == 1 and "name one with --install-path" in done.text
    assert sh(run, **{**bare, "ASCEND_OPP_PATH": str(tmp_path / "cann")}).status == 0
    assert (tmp_path / "cann/vendors/fla_npu/bin/set_env.bash").is_file()
    assert "unknown option --nonsense" in sh(run, "--nonsense").text


@pytest.mark.parametrize("fault", ["cut", "changed", "other machine"])
def test_a_damaged_run_changes_nothing(home, release, tmp_path, fault):
    run = vendors.pack(release, tmp_path)
    data = bytearray(run.read_bytes())
    if fault == "cut":
        del data[-100:]
    elif fault == "changed":
        data[-50] ^= 1
    else:
        data = data.replace(
            *(f"payload_arch='{arch}'".encode() for arch in (fake_opp.ARCH, fake_opp.OTHER_ARCH))
        )
    run.write_bytes(data)
    done = sh(run)
    assert done.status == 1 and (
        "damaged or incomplete" in done.text or f"is for {fake_opp.OTHER_ARCH}" in done.text
    )
    assert not home.exists()
    if fault != "other machine":
        with pytest.raises(errors.OppNotFound, match="not the one that was packed"):
            vendors.install(run)


def test_a_system_that_is_too_old_is_named(home, tmp_path, monkeypatch):
    """Libraries of a newer C library are not installed; one that lies there is called what it is."""
    from fla_npu import loader

    source = make_opp(tmp_path / "new")
    code = "int old_and_new(void); int f(void) { return old_and_new(); }\n" + fake_opp.identity()
    (tmp_path / "map").write_text("GLIBC_2.99 { global: old_and_new; };\n")
    script, name = f"-Wl,--version-script={tmp_path / 'map'}", "-Wl,-soname,libc.so.6"
    stub = fake_opp.library(tmp_path / "libc.so.6", "int old_and_new(void) { return 1; }", script, name)
    fake_opp.library(source / "vendors/fla_npu/op_api/lib/libfla_twin.so", code, str(stub))
    fake_opp.write_manifest(source, version="1.0", arch=fake_opp.ARCH)
    with pytest.raises(errors.ArgumentError, match=r"needs glibc 2\.99, this system has glibc 2\."):
        vendors.install(source)
    done = sh(vendors.pack(source, tmp_path))
    assert done.status == 1 and "needs glibc 2.99, this system has 2." in done.text and not home.exists()
    monkeypatch.setenv("FLA_NPU_OPP_PATH", str(source))
    loader.reset()
    with pytest.raises(errors.AbiMismatch, match="was built for a newer system.*GLIBC_2.99"):
        loader.bind("chunk_fwd_h")
    loader.reset()


@pytest.mark.parametrize(
    "what", ["nothing", "text", "script", "changed", "lost", "stray", "foreign", "other machine"]
)
def test_bad_sources_are_refused_before_anything_changes(home, release, tmp_path, what):
    source = Path(shutil.copytree(release, tmp_path / "source"))
    library = source / "vendors/fla_npu/op_api/lib/libcust_opapi.so"
    text = tmp_path / "text"
    text.write_text("#!/bin/sh\necho\n" if what == "script" else "hello")
    if what == "changed":
        library.write_bytes(library.read_bytes() + b"\0")
    elif what == "lost":
        library.unlink()
    elif what == "stray":
        library.with_name("libopapi.so").write_bytes(b"")
    elif what == "foreign":
        (source / "manifest.json").unlink()
    elif what == "other machine":
        fake_opp.write_manifest(source, arch=fake_opp.OTHER_ARCH)
    asked = {"nothing": tmp_path / "nowhere", "text": text, "script": text}.get(what, source)
    words = {"nothing": "does not exist", "text": "neither a wheel, a .run", "script": "without an OPP",
             "changed": "sha256", "lost": "lacks vendors", "stray": "does not list", "foreign": "no OPP of",
             "other machine": f"is for {fake_opp.OTHER_ARCH}"}  # fmt: skip
    with pytest.raises(errors.FlaNpuError, match=words[what]):
        vendors.install(asked)
    assert not home.exists()


def test_a_killed_installation_is_put_right_by_the_next(home, release):
    vendors.install(release)
    place = home / "vendors"
    whole = tree(home)
    (place / "fla_npu").rename(place / ".fla_npu.old.123")  # killed between the two renames
    (place / ".fla_npu.new.123").mkdir()
    vendors.install(release)
    assert tree(home) == whole
    (place / ".fla_npu.new.9").mkdir()
    vendors.remove()
    assert not home.exists()


def test_a_real_kill_leaves_the_old_or_the_new(home, release):
    vendors.install(release)
    whole = tree(home)
    for wait in (0.0, 0.004, 0.008, 0.016, 0.03):
        process = subprocess.Popen(["sh", INSTALLER, f"--from={release}", "--quiet"], start_new_session=True)
        time.sleep(wait)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        vendors.install(release)
        assert tree(home) == whole


def test_eight_installations_at_once(home, release):
    processes = [
        subprocess.Popen(["sh", INSTALLER, f"--from={release}"], stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    assert [p.communicate()[0] is not None and p.returncode for p in processes] == [0] * 8
    assert sorted(p.name for p in (home / "vendors").iterdir()) == ["config.ini", "fla_npu"]
    assert opp.find().root == home


def test_a_vendor_of_our_name_that_came_another_way_is_left_alone(home, release, tmp_path, monkeypatch):
    theirs = tmp_path / "cann/vendors/fla_npu/op_api/lib/libcust_opapi.so"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"theirs")
    before = tree(tmp_path)
    for change in (
        lambda: vendors.install(release, tmp_path / "cann"),
        lambda: vendors.remove(tmp_path / "cann"),
    ):
        with pytest.raises(vendors.InstallError, match="was not installed by this program"):
            change()
    assert tree(tmp_path) == before
    monkeypatch.setenv("FLA_NPU_OPP_PATH", "/nowhere")
    assert "FLA_NPU_OPP_PATH = /nowhere comes before it" in vendors.install(release)


def test_config_ini_keeps_its_mode_and_a_vendors_folder_may_be_named(home, release, tmp_path):
    config = tmp_path / "cann/vendors/config.ini"
    config.parent.mkdir(parents=True)
    config.write_text("load_priority=other\r\n")
    config.chmod(0o640)
    run = vendors.pack(release, tmp_path)
    assert sh(run, f"--install-path={config.parent}/").status == 0
    assert (
        config.read_bytes() == b"load_priority=fla_npu,other\r\n" and config.stat().st_mode & 0o777 == 0o640
    )
    assert sh(run, "--uninstall", f"--install-path={config.parent}").status == 0
    assert config.read_bytes() == b"load_priority=other\r\n" and config.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in config.parent.iterdir()] == ["config.ini"]


@pytest.mark.parametrize("place", ["a:b", "a\nb"])
def test_a_place_that_no_variable_can_hold(home, release, tmp_path, place):
    with pytest.raises(vendors.InstallError, match="cannot be in a path variable"):
        vendors.install(release, tmp_path / place)
    assert not (tmp_path / place).exists()


SHELLS = {
    "bash": ["bash", "--norc", "-c"], "dash": ["dash", "-c"], "zsh": ["zsh", "-f", "-c"],
    "csh": ["csh", "-f", "-c"], "tcsh": ["tcsh", "-f", "-c"], "fish": ["fish", "--no-config", "-c"],
}  # fmt: skip
FILES = {"dash": "bash", "zsh": "bash", "tcsh": "csh"}


@pytest.mark.parametrize(
    "name", [" ".join(ODD_NAMES)] + [pytest.param(n, marks=pytest.mark.full) for n in ODD_NAMES]
)
@pytest.mark.parametrize("shell", SHELLS)
def test_set_env(home, device_release, tmp_path, shell, name):
    """Sourced twice: our vendor is first, once, the other one stays; whatever the path is made of."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    place = tmp_path / name
    vendors.install(device_release, place)
    kind = FILES.get(shell, shell)
    vendor = place / "vendors/fla_npu"
    link = tmp_path / "script"  # so that this test's own command needs no quoting
    link.symlink_to(vendor / f"bin/set_env.{kind}")
    read = "." if kind == "bash" else "source"
    command = f"{read} {link}\n{read} {link}\nenv" if kind != "csh" else f"{read} {link}; {read} {link}; env"
    for old in (None, "", "/opt/other:/opt/more"):
        values = {k: v for k, v in os.environ.items() if k != "ASCEND_CUSTOM_OPP_PATH"}
        values |= {} if old is None else {"ASCEND_CUSTOM_OPP_PATH": old}
        done = subprocess.run([*SHELLS[shell], command], capture_output=True, text=True, env=values)
        assert not done.stderr
        seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        assert seen["FLA_NPU_OPP_PATH"] == str(vendor)
        assert seen["ASCEND_CUSTOM_OPP_PATH"] == str(vendor) + (f":{old}" if old else "")


@pytest.mark.parametrize("shell", ["bash", "tcsh", "fish"])
def test_env_command_in_a_shell(home, device_release, tmp_path, monkeypatch, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    monkeypatch.setenv("FLA_NPU_OPP_PATH", str(shutil.copytree(device_release, tmp_path / "it's $x 中")))
    monkeypatch.setenv("ASCEND_CUSTOM_OPP_PATH", "/opt/other one")
    text = vendors.environment({"tcsh": "csh"}.get(shell, shell))
    (tmp_path / "text").write_text(text + "\n")
    asked = {
        "bash": 'eval "$(cat {0})"; env',
        "tcsh": 'eval "`cat {0}`"; env',
        "fish": "cat {0} | source; env",
    }
    command = asked[shell].replace("{0}", str(tmp_path / "text"))
    done = subprocess.run([*SHELLS[shell], command], capture_output=True, text=True, env=os.environ)
    assert not done.stderr
    vendor = tmp_path / "it's $x 中/vendors/fla_npu"
    assert f"ASCEND_CUSTOM_OPP_PATH={vendor}:/opt/other one\n" in done.stdout
    assert f"FLA_NPU_OPP_PATH={vendor}\n" in done.stdout


def test_env_of_a_twin_leaves_cann_alone(home, release):
    vendors.install(release)
    for shell in ("bash", "csh", "fish"):
        assert "ASCEND" not in vendors.environment(shell) and "FLA_NPU_OPP_PATH" in vendors.environment(shell)
    with pytest.raises(vendors.InstallError, match="no set_env for pwsh"):
        vendors.environment("pwsh")


def test_commands(home, release, tmp_path):
    from click.testing import CliRunner
    from fla_npu.cli import main

    def call(*arguments: object):
        return CliRunner().invoke(main, ["opp", *map(str, arguments)])

    assert "installed fla-npu in" in call("install", release).output
    assert str(home) in call("list", "--json").output and "used" in call("list").output
    assert call("env", "--shell", "/bin/zsh").output.startswith("export FLA_NPU_OPP_PATH=")
    run = call("pack", release, "--out", tmp_path / "out").output.strip()
    assert run.endswith(".run") and "removed fla_npu" in call("remove").output
    refused = call("install", tmp_path / "nowhere")
    assert refused.exit_code == 1 and refused.output == f"Error: {tmp_path}/nowhere does not exist\n"
