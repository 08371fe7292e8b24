# SPDX-License-Identifier: Apache-2.0
"""Installing OPPs outside the wheel, unfriendly: killed at every step, at once, odd files, other users, no trace."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import fake_opp
import pytest
from fla_npu import errors, opp, vendors
from in_step import in_step
from test_vendors import INSTALLER, home, make_opp, release, sh  # noqa: F401

full = pytest.mark.full
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
NOBODY = 65534


def state(root: Path) -> dict[str, tuple]:
    """All there is below `root`: kind, mode, owner, size, content, and when files were written."""
    found = {}
    for path in [root, *root.rglob("*")]:
        facts = path.lstat()
        kind = stat.S_IFMT(facts.st_mode)
        text = (
            path.read_bytes() if kind == stat.S_IFREG else os.readlink(path) if kind == stat.S_IFLNK else ""
        )
        written = facts.st_mtime_ns if kind == stat.S_IFREG else 0
        found[str(path.relative_to(root))] = (facts.st_mode, facts.st_uid, facts.st_gid, text, written)
    return found


CONFIGS = {
    "none": None,
    "empty": b"",
    "other": b"load_priority=other\n",
    "CRLF": b"load_priority=other,third\r\n",
    "comments": b"# by hand\n; load_priority=no\n\nload_priority=other\n\n# end\n",
    "no newline at the end": b"load_priority=other",
    "no newline, no list": b"# nothing",
    "header": b"[vendors]\nload_priority = other , third\nmore=1\n",
    "spaces": b"  load_priority \t=  other ,  third  \n",
    "duplicates": b"load_priority=other,other\nload_priority=third\n",
    "an empty list": b"load_priority=\n",
    "an empty list with CRLF": b"load_priority= \r\n",
    "no text": b"\xff\xfe\nload_priority=\xc4other\n\0\n",
    "names like ours": b"load_priority=fla_npu2,my_fla_npu,fla_npu.old\n",
}


FIRST = ("none", "CRLF", "comments", "no newline, no list", "spaces")  # of these the others are variants


@pytest.mark.parametrize("kind", [pytest.param(k, marks=() if k in FIRST else full) for k in CONFIGS])
def test_config_ini_of_any_kind_comes_back_byte_for_byte(home, release, tmp_path, kind):  # noqa: F811
    place = tmp_path / "cann"
    config = place / "vendors/config.ini"
    fake_opp.make_vendor(place / "vendors/other")
    if CONFIGS[kind] is not None:
        config.write_bytes(CONFIGS[kind])
        config.chmod(0o640)
    before = state(tmp_path)
    for count in (1, 2):  # installed, and upgraded
        vendors.install(release, place)
        lists = [
            line.split("=")[1]
            for line in config.read_text("latin1").splitlines()
            if line.lstrip().startswith("load_")
        ]
        assert lists and all(
            names.strip().split(",")[0] == "fla_npu" and names.count(",fla_npu,") == 0 for names in lists
        )
        assert opp._vendor_order(place / "vendors")[0].name == "fla_npu", count
        if CONFIGS[kind] is not None:
            assert stat.S_IMODE(config.stat().st_mode) == 0o640
    vendors.remove(place)
    assert state(tmp_path) == before


LISTS = {
    "": "", "fla_npu": "", "fla_npu,other": "other", "other,fla_npu": "other", "a, fla_npu ,b": "a,b",
    "a,fla_npu,fla_npu,b": "a,b", "fla_npu , fla_npu": "", " fla_npu,a": " a", "a,fla_npu2": "a,fla_npu2",
}  # fmt: skip


@pytest.mark.parametrize("end", ["\n", pytest.param("\r\n", marks=full), pytest.param("", marks=full)])
def test_a_list_that_others_changed_loses_our_name_only(home, release, tmp_path, end):  # noqa: F811
    """Written to after we came: nothing of theirs is lost when we go."""
    config = tmp_path / "vendors/config.ini"
    config.parent.mkdir()
    for there, left in LISTS.items():
        config.write_text("load_priority=theirs\n")
        vendors.install(release, tmp_path)
        config.write_bytes(f"; new\nload_priority={there}{end}".encode())
        vendors.remove(tmp_path)
        assert config.read_bytes() == f"; new\nload_priority={left}{end}".encode(), there
        config.unlink()
        vendors.install(release, tmp_path)  # the list was ours alone
        config.write_bytes(f"load_priority={there}{end}".encode())
        vendors.remove(tmp_path)
        assert config.exists() == bool(left), there


def test_config_ini_that_is_a_link_stays_one(home, release, tmp_path):  # noqa: F811
    real, place = tmp_path / "etc/vendors.ini", tmp_path / "cann"
    for folder in (real.parent, place / "vendors"):
        folder.mkdir(parents=True)
    real.write_text("load_priority=other\n")
    (place / "vendors/config.ini").symlink_to("../../etc/vendors.ini")
    before = {name: facts[:4] for name, facts in state(tmp_path).items()}
    vendors.install(release, place)
    assert (place / "vendors/config.ini").is_symlink() and real.read_text() == "load_priority=fla_npu,other\n"
    vendors.remove(place)
    assert {name: facts[:4] for name, facts in state(tmp_path).items()} == before


# Stands before every program of the installer; the one with number $STEP is the last.
WRAPPER = """#!/bin/sh
echo >> "$COUNT"
if [ "$(/usr/bin/wc -l < "$COUNT")" -ge "$STEP" ]; then kill -9 0; fi
exec {real} "$@"
"""
PROGRAMS = "mkdir mv rm rmdir cp chmod sed grep cat cmp stat tail dirname flock id tr uname getconf".split()


@pytest.fixture(scope="module")
def wrappers(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wrappers")
    for name in PROGRAMS:
        (folder / name).write_text(WRAPPER.replace("{real}", shutil.which(name)))
        (folder / name).chmod(0o755)
    return folder


def killed_at(step: int, wrappers: Path, folder: Path, *arguments: object) -> bool:
    """Runs the installer until its program number `step`; False when it came to its end before."""
    count = folder / "count"
    count.write_text("")
    environment = {
        **os.environ,
        "PATH": f"{wrappers}:{os.environ['PATH']}",
        "COUNT": str(count),
        "STEP": str(step),
    }
    command = ["sh", INSTALLER, *map(str, arguments)]
    done = subprocess.run(command, env=environment, start_new_session=True, capture_output=True)
    count.unlink()
    return done.returncode == -9


@full
@pytest.mark.parametrize("then", ["remove", "install and remove"])
@pytest.mark.parametrize("what", ["first", "upgrade", "removal"])
def test_killed_at_every_step(home, release, tmp_path, wrappers, what, then):  # noqa: F811
    """After kill -9 at any program that the installer runs: a whole OPP or none, and no trace at the end."""
    newer = make_opp(tmp_path / "newer", version="2.0") if what == "upgrade" else release
    place = tmp_path / "place/opp"
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for step in range(1, 200):
        shutil.rmtree(tmp_path / "place", ignore_errors=True)
        (tmp_path / "place").mkdir()
        before = state(tmp_path / "place")
        if what != "first":
            vendors.install(release, place)
        options = ["--uninstall"] if what == "removal" else [f"--from={newer}"]
        killed = killed_at(step, wrappers, folder, f"--install-path={place}", *options)
        if killed and (place / "vendors/fla_npu").exists():
            seen = opp._look("test", place).opp
            assert seen and seen.manifest["version"] in ("1.0", "2.0"), step
            vendors._verify(place, vendors._folder(place))
        if then == "install and remove":
            vendors.install(release, place)
            assert [p.name for p in (place / "vendors").iterdir() if p.name.startswith(".")] == [], step
        try:
            vendors.remove(place)
        except vendors.InstallError as error:
            assert "there is no fla_npu" in str(error), step
        assert state(tmp_path / "place") == before, step
        if not killed:
            break
    assert 10 < step < 199


@full
@root_only
@pytest.mark.parametrize("what", ["first", "upgrade"])
def test_a_disk_that_is_full_at_any_step(home, release, tmp_path, what):  # noqa: F811
    """From no room at all to enough, a page at a time: what was there stays as it was, or the whole OPP is there."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], capture_output=True
    ).returncode:
        pytest.skip("no right to mount a tmpfs")
    try:
        place, filler = small / "place", small / "filler"
        config = place / "vendors/config.ini"
        config.parent.mkdir(parents=True)
        config.write_text("load_priority=other\n")
        if what == "upgrade":
            vendors.install(release, place)
        before = state(place)
        for room in range(0, 200, 4):
            filler.write_bytes(b"")
            free = shutil.disk_usage(small).free
            filler.write_bytes(bytes(max(0, free - (room << 10))))
            try:
                vendors.install(release, place)
                break
            except vendors.InstallError as error:
                assert (
                    "is the disk full" in str(error)
                    or "No space left" in str(error)
                    or "cannot make" in str(error)
                )
            assert state(place) == before, room
        assert room > 20 and opp._look("test", place).opp
        filler.unlink()
        vendors.remove(place)
        assert config.read_text() == "load_priority=other\n" and len(list(config.parent.iterdir())) == 1
    finally:
        subprocess.run(["umount", str(small)], check=True)


@full
def test_installing_and_removing_at_once(home, release, tmp_path):  # noqa: F811
    """Twelve of each in one place, which comes and goes: none fails but for 'there is no fla_npu'; no trace."""
    place = tmp_path / "place/opp"
    (tmp_path / "place").mkdir()
    before = state(tmp_path / "place")
    commands = [
        [f"--from={release}", f"--install-path={place}"],
        ["--uninstall", f"--install-path={place}"],
    ] * 12
    running = [subprocess.Popen(["sh", INSTALLER, *c], stderr=subprocess.PIPE, text=True) for c in commands]
    for process, command in in_step(running, commands):
        text = process.communicate(timeout=120)[1]
        assert not text or ("--uninstall" in command and "there is no fla_npu" in text), text
    if place.exists():
        vendors.remove(place)
    assert state(tmp_path / "place") == before


def test_a_process_that_looks_while_another_installs_finds_it_each_time(home, release):  # noqa: F811
    vendors.install(release)
    seen, stop = [], threading.Event()

    def look() -> None:
        while not stop.is_set():
            try:
                seen.append(opp.find().manifest["version"])
            except errors.FlaNpuError as error:
                seen.append(str(error))

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(3):
        subprocess.run(
            ["sh", INSTALLER, f"--from={release}", "--quiet", f"--install-path={home}"], check=True
        )
    stop.set()
    thread.join()
    assert set(seen) == {"1.0"}


@root_only
def test_installed_by_root_with_umask_077_for_others(home, release, tmp_path):  # noqa: F811
    place = Path(tempfile.mkdtemp(prefix="fla_npu_test_"))
    place.chmod(0o755)
    try:
        run = vendors.pack(release, tmp_path)
        done = subprocess.run(
            ["sh", "-c", f"umask 077; sh {run} --install-path={place}/new/opp"], capture_output=True
        )
        assert done.returncode == 0
        for path in [*place.rglob("*")]:
            assert path.stat().st_mode & (0o555 if path.is_dir() else 0o444) == (
                0o555 if path.is_dir() else 0o444
            ), path
        code = f"""import os
from fla_npu import opp
os.setgid({NOBODY}); os.setuid({NOBODY})
print(opp._look('x', opp.Path({str(place / "new/opp")!r})).state)"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout == "usable\n", done.stderr
        assert sh(run, "--uninstall", f"--install-path={place}/new/opp").status == 0 and not list(
            place.iterdir()
        )
    finally:
        shutil.rmtree(place)


@root_only
@pytest.mark.parametrize("mode", [0o444, 0o400, 0o600])
def test_a_config_ini_that_its_owner_may_not_write(home, release, mode):  # noqa: F811
    """A file with mode 444, changed by an ordinary user who owns the folder: replaced, its mode kept."""
    place = Path(tempfile.mkdtemp(prefix="fla_npu_test_"))
    source = Path(shutil.copytree(release, place / "source"))
    config = place / "opp/vendors/config.ini"
    config.parent.mkdir(parents=True)
    config.write_text("load_priority=other\n")
    config.chmod(mode)
    script = Path(shutil.copy(INSTALLER, place))
    for path in [place, *place.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    try:
        for options, text in (
            ([f"--from={source}"], "load_priority=fla_npu,other\n"),
            (["--uninstall"], "load_priority=other\n"),
        ):
            done = subprocess.run(
                ["sh", script, f"--install-path={place}/opp", *options], capture_output=True, text=True,
                user=NOBODY, group=NOBODY, extra_groups=[], cwd="/",
            )  # fmt: skip
            assert done.returncode == 0 and not done.stderr, done.stderr
            assert config.read_text() == text and stat.S_IMODE(config.stat().st_mode) == mode
    finally:
        shutil.rmtree(place)


@root_only
@pytest.mark.parametrize("closed", ["opp", "opp/vendors"])
def test_a_place_of_another_user_is_refused_with_the_reason(home, release, closed):  # noqa: F811
    place = Path(tempfile.mkdtemp(prefix="fla_npu_test_"))
    place.chmod(0o755)
    source = Path(shutil.copytree(release, place / "source"))
    (place / closed).mkdir(parents=True)
    script = Path(shutil.copy(INSTALLER, place))
    before = state(place)
    try:
        for options in ([f"--from={source}"], ["--uninstall"]):
            done = subprocess.run(
                ["sh", script, f"--install-path={place}/opp", *options], capture_output=True, text=True,
                user=NOBODY, group=NOBODY, extra_groups=[], cwd="/",
            )  # fmt: skip
            words = ("permission denied", "choose another place", "there is no fla_npu")
            assert done.returncode == 1 and any(w in done.stderr for w in words), done.stderr
            assert state(place) == before
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize(
    "form",
    ["place/opp", "./place/opp/", "place/../place/opp", "new/../place/opp", "~/opp", "place/opp/vendors",
     "place/opp/vendors/fla_npu", "link/opp"],
)  # fmt: skip
def test_a_place_in_any_form(home, release, tmp_path, monkeypatch, form):  # noqa: F811
    """Relative, with dots, a tilde that the shell left, the vendors folder, a link; by .run and by command."""
    work = tmp_path / "work"
    (work / "place").mkdir(parents=True)
    (work / "link").symlink_to("place")
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(work / "place"))
    before = state(work)
    installed = work / "place/opp/vendors/fla_npu/manifest.json"
    run = vendors.pack(release, tmp_path)
    assert sh(run, f"--install-path={form}").status == 0 and installed.is_file()
    script = (installed.parent / "bin/set_env.bash").read_text()
    assert Path(script.split("'")[1]).is_absolute() and Path(script.split("'")[1]).samefile(installed.parent)
    assert sh(run, f"--install-path={form}", "--uninstall").status == 0
    assert state(work) == before
    vendors.install(release, Path(form))
    assert installed.is_file()
    vendors.remove(Path(form))
    assert state(work) == before


@pytest.mark.parametrize("kind", ["dangling", "to a folder", "a file"])
def test_a_vendor_that_is_no_folder_of_ours_is_left_alone(home, release, tmp_path, kind):  # noqa: F811
    vendor = tmp_path / "vendors/fla_npu"
    vendor.parent.mkdir()
    (tmp_path / "theirs").mkdir()
    if kind == "a file":
        vendor.write_text("theirs")
    else:
        vendor.symlink_to("/nowhere" if kind == "dangling" else tmp_path / "theirs")
    before = state(tmp_path)
    for change in (lambda: vendors.install(release, tmp_path), lambda: vendors.remove(tmp_path)):
        with pytest.raises(vendors.InstallError, match="was not installed by this program"):
            change()
        assert state(tmp_path) == before


@pytest.mark.parametrize("form", ["run", "tar.gz", "tree"])
def test_packing_into_a_place_that_takes_nothing(home, release, tmp_path, form):  # noqa: F811
    """A file in place of a folder, and a write that fails half way: named, and nothing left behind."""
    (tmp_path / "file").touch()
    with pytest.raises(vendors.InstallError, match="cannot write .*choose another --out"):
        vendors.pack(release, tmp_path / "file/out", form)
    out = tmp_path / "out"
    real = Path.write_bytes

    def fails(path: Path, data: bytes) -> None:
        real(path, data[:10])
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_bytes", fails)
        with pytest.raises(vendors.InstallError, match="No space left on device"):
            vendors.pack(release, out, form)
    assert list(out.iterdir()) == []
    assert vendors.pack(release, out, form).exists() and len(list(out.iterdir())) == 1


@pytest.mark.parametrize("name", ["vendors", "a/vendors/fla_npu", "relative"])
def test_extracting_to_a_folder_of_any_name(home, release, tmp_path, name):  # noqa: F811
    run = vendors.pack(release, tmp_path)
    assert sh(run, f"--extract={tmp_path / name}").status == 0
    assert (tmp_path / name / "manifest.json").is_file()
    refused = sh(run, f"--extract={run}/x")
    assert refused.status == 1 and "choose another folder" in refused.text


@pytest.mark.parametrize("folder, made", [("file", False), ("new/folder", True)])
def test_a_demo_asks_first_whether_its_picture_can_be_written(tmp_path, monkeypatch, folder, made):
    from click.testing import CliRunner
    from fla_npu import cli, demo

    def begin(framework: str) -> str:
        raise RuntimeError("the work begins")

    monkeypatch.setattr(cli, "_need", lambda module: None)
    monkeypatch.setattr(demo, "pick_framework", begin)
    (tmp_path / "file").touch()
    done = CliRunner().invoke(cli.main, ["demo", "--out", str(tmp_path / folder / "x.png")])
    assert (str(done.exception) == "the work begins") is made
    assert ("choose another --out" in done.output) is not made


def test_a_path_that_is_no_text(home, release, tmp_path):  # noqa: F811
    place = tmp_path / "\udcff x"
    assert str(place) in vendors.install(release, place)
    vendors.remove(place)
    assert not place.exists()


def test_without_a_folder_for_temporary_files(home, release, tmp_path, monkeypatch):  # noqa: F811
    """Removing and printing need none; installing names the variable."""
    vendors.install(release)
    monkeypatch.setattr(
        tempfile, "_get_default_tempdir", lambda: (_ for _ in ()).throw(FileNotFoundError(2, "No usable"))
    )
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(vendors.InstallError, match="set TMPDIR"):
        vendors.install(release)
    assert "FLA_NPU_OPP_PATH" in vendors.environment("bash")
    vendors.remove()
    assert not home.exists()


@pytest.mark.parametrize("relative", ["data", "./data", "~"])
def test_a_relative_data_home_does_not_count(home, release, tmp_path, monkeypatch, relative):  # noqa: F811
    """Installer and loader agree on where a user's OPP lies."""
    monkeypatch.setenv("XDG_DATA_HOME", relative)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    run = vendors.pack(release, tmp_path / "out")
    assert sh(run).status == 0
    assert opp.find().source == opp.USER and opp.find().root == tmp_path / "home/.local/share/fla_npu/opp"
    monkeypatch.setenv("HOME", "")
    assert opp.user_root() is None and "name one with --install-path" in sh(run).text


def test_locks_that_a_file_system_refuses_stop_nobody(home, release, tmp_path, monkeypatch):  # noqa: F811
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/flock").write_text("#!/bin/sh\necho 'flock: 9: No locks available' >&2\nexit 71\n")
    (tmp_path / "bin/flock").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    vendors.install(release)
    assert opp.find().source == opp.USER
    vendors.remove()
    assert not home.exists()


SHELLS = ["dash", "bash", "busybox sh", "ksh", "mksh", "zsh --emulate sh"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_run_under_other_shells(home, release, tmp_path, shell):  # noqa: F811
    if shutil.which(shell.split()[0]) is None:
        pytest.skip(f"{shell} is not installed")
    run, place = vendors.pack(release, tmp_path), tmp_path / "it's a 中文 $x/opp"
    place.parents[0].mkdir()
    config = place.parent / "vendors/config.ini"
    before = state(place.parent)
    for options in ([], [], ["--uninstall"]):
        done = subprocess.run(
            [*shell.split(), run, f"--install-path={place}", *options], capture_output=True, text=True
        )
        assert done.returncode == 0 and not done.stderr, done.stderr
    assert state(place.parent) == before and not config.exists()


def test_a_system_with_nothing_but_busybox(home, release, tmp_path):  # noqa: F811
    """Installed, replaced and removed with its programs alone; without flock, too; what is missing is named."""
    if shutil.which("busybox") is None:
        pytest.skip("busybox is not installed")
    programs = tmp_path / "bin"
    programs.mkdir()
    subprocess.run(["busybox", "--install", "-s", str(programs)], check=True)
    (programs / "getconf").unlink(missing_ok=True)
    run, place = vendors.pack(release, tmp_path), tmp_path / "place"
    config = place / "vendors/config.ini"
    config.parent.mkdir(parents=True)
    config.write_bytes(CONFIGS["CRLF"])

    def there() -> dict:  # its cp keeps whole seconds
        return {name: facts[:4] for name, facts in state(place).items()}

    before = there()

    def call(*options: str) -> subprocess.CompletedProcess:
        command = [programs / "sh", run, f"--install-path={place}", *options]
        return subprocess.run(
            list(map(str, command)), capture_output=True, text=True, env={"PATH": str(programs)}
        )

    for lost in (None, "flock"):
        if lost:
            (programs / lost).unlink(missing_ok=True)
        for options in ([], [], ["--uninstall"]):
            done = call(*options)
            assert done.returncode == 0 and not done.stderr, done.stderr
        assert there() == before
    for lost in ("sha256sum", "gzip", "tar"):
        (programs / lost).rename(tmp_path / lost)
        done = call()
        assert done.returncode == 1 and f"has no program {lost}" in done.stderr and there() == before, (
            done.stderr
        )
        (tmp_path / lost).rename(programs / lost)


@pytest.mark.parametrize(
    "shell, command",
    [("bash", "set -eu; . {0}; . {0}; env"),
     ("dash", "set -eu; . {0}; . {0}; env"), ("ksh", "set -eu; . {0}; . {0}; env"),
     ("mksh", "set -eu; . {0}; . {0}; env"), ("busybox", "set -eu; . {0}; . {0}; env"),
     ("zsh", "setopt err_exit no_unset warn_create_global; . {0}; . {0}; env"),
     ("tcsh", "source {0}; source {0}; env"), ("fish", "source {0}; source {0}; env")],
)  # fmt: skip
@pytest.mark.parametrize(
    "variable",
    [None, *(pytest.param(v, marks=full) for v in ("", "/opt/a", ":".join(f"/opt/{n}" for n in range(200))))],
)
def test_set_env_in_strict_shells(home, tmp_path, shell, command, variable):  # noqa: F811
    """Unset variables are errors, failing commands end the shell; the variable absent, empty, one, 200 entries."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    vendors.install(make_opp(tmp_path / "device", backend="cann"), tmp_path / "opp")
    kind = {"tcsh": "csh", "fish": "fish"}.get(shell, "bash")
    words = {
        "busybox": ["busybox", "sh"],
        "tcsh": ["tcsh", "-fe"],
        "zsh": ["zsh", "-f"],
        "fish": ["fish", "--no-config"],
    }
    values = {k: v for k, v in os.environ.items() if k not in ("ASCEND_CUSTOM_OPP_PATH", "FLA_NPU_OPP_PATH")}
    values |= {} if variable is None else {"ASCEND_CUSTOM_OPP_PATH": variable}
    vendor = tmp_path / "opp/vendors/fla_npu"
    asked = command.replace("{0}", str(vendor / f"bin/set_env.{kind}"))
    done = subprocess.run(
        [*words.get(shell, [shell]), "-c", asked], capture_output=True, text=True, env=values
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert seen["ASCEND_CUSTOM_OPP_PATH"] == str(vendor) + (f":{variable}" if variable else "")
