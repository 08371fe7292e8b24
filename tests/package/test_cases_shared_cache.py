# SPDX-License-Identifier: Apache-2.0
"""One cache folder, many builders: threads, processes, machines, with locks and without (cases 28 to 31).

A machine is simulated by namespaces of its own: host name, process numbers, mounts, TMPDIR. What flock does
there is decided by a shim: the real thing, a lock that only this machine sees, or an error.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from in_step import in_step
from test_build import BUILD, Cache, finish

full = pytest.mark.full
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for namespaces and other users")
NOBODY = 65534
ROUNDS = 20

# Writes what it makes in two halves, 50 equal lines that no other run has.
COMPILER = """#!/bin/sh
case "$*" in *--version*) echo "script++ 1.0"; exit 0;; esac
echo "$*" >> "$LOG"
case "$*" in *"-c "*) ;; *) [ -z "$WHAT" ] || { echo "error: planted mistake" >&2; exit 1; };; esac
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
read -r mark < /proc/sys/kernel/random/uuid
i=0
while [ $i -lt 50 ]; do
    echo "$mark"; i=$((i + 1))
    [ $i != 25 ] || sleep 0.03
done > "$out"
"""
# One line "CACHE" asks every thread to build there at once; the answer is one line with all results.
WORKER = (
    BUILD.replace("print(bridge.build())", "")
    + """
import hashlib, os, threading
bridge._say = lambda text: None
def once(results, start):
    start.wait()
    try:
        path = bridge.build()
        lines = path.read_bytes().splitlines()
        whole = len(lines) == 50 and len(set(lines)) == 1
        results.append(f"{path.name} {hashlib.sha256(lines[0]).hexdigest()[:9]} {whole}")
    except BaseException as error:
        results.append(f"{type(error).__name__}: {error}".replace("\\n", " "))
for line in sys.stdin:
    os.environ["FLA_NPU_CACHE_DIR"] = line.strip()
    results, start = [], threading.Barrier(int(os.environ["THREADS"]))
    threads = [threading.Thread(target=once, args=(results, start)) for _ in range(start.parties)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print("\\t".join(results), flush=True)
"""
)
# flock as a mount with local locks has it (LOCKS=folder of this machine), or with an error (LOCKS=number).
SHIM = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static int twins[1024]; /* of each file, the one on this machine that is really locked */
static pid_t owner; /* a vforked child that closes its files shares this memory */
static void forget(int fd)
{
    if (fd < 0 || fd >= 1024 || !twins[fd] || getpid() != owner) return;
    syscall(SYS_close, twins[fd]), twins[fd] = 0;
}
int close(int fd)
{
    forget(fd); /* a lock ends with its file */
    return syscall(SYS_close, fd);
}
int flock(int fd, int operation)
{
    const char *locks = getenv("LOCKS");
    if (locks[0] != '/') { errno = atoi(locks); return -1; }
    if (operation & LOCK_UN) { forget(fd); return 0; }
    struct stat state;
    char path[4096];
    fstat(fd, &state);
    sprintf(path, "%s/%lu", locks, (unsigned long)state.st_ino);
    owner = getpid();
    if (!twins[fd]) twins[fd] = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    return syscall(SYS_flock, twins[fd], operation);
}
"""


@pytest.fixture
def cache(tmp_path):
    made = Cache(tmp_path)
    made.compiler.write_text(COMPILER)
    return made


class Builders:
    """Processes that build when told to, round after round."""

    def __init__(
        self, cache: Cache, threads: int, prefixes: list[list[str]], environments: list[dict]
    ) -> None:
        values = {"CXX": str(cache.compiler), "LOG": str(cache.log), "WHAT": "", "THREADS": str(threads)}
        self.processes = [
            subprocess.Popen([*prefix, sys.executable, "-c", WORKER], env={**os.environ, **values, **more}, text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for prefix, more in in_step(prefixes, environments)
        ]  # fmt: skip

    def round(self, folder: Path) -> list[str]:
        for process in self.processes:
            process.stdin.write(f"{folder}\n")
            process.stdin.flush()
        return [result for p in self.processes for result in p.stdout.readline().rstrip("\n").split("\t")]

    def __enter__(self) -> Builders:
        self.watchdog = threading.Timer(240, self.stop)  # a hang ends as an empty answer
        self.watchdog.start()
        return self

    def stop(self) -> None:
        for process in self.processes:
            process.kill()

    def __exit__(self, *_) -> None:
        self.watchdog.cancel()
        for process in self.processes:
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
        self.stop()


def race(cache: Cache, builders: Builders, alone: bool) -> None:
    """20 rounds from nothing: everybody gets one whole file, the same; nothing is left behind."""
    with builders:
        for number in range(ROUNDS):
            cache.log.write_text("")
            folder = cache.root / str(number)
            results = builders.round(folder)
            assert len(set(results)) == 1 and results[0].endswith(" True"), results
            links = [line for line in cache.log.read_text().splitlines() if "-c " not in line]
            assert len(links) == 1 if alone else links
            assert not list(folder.glob("bridge/*.tmp-*"))


@full
def test_29_eight_processes_20_times_from_nothing(cache):
    race(cache, Builders(cache, 1, [[]] * 8, [{}] * 8), alone=True)


@full
def test_29_eight_threads_20_times_from_nothing(cache):
    race(cache, Builders(cache, 8, [[]], [{}]), alone=True)


HOST = 'hostname "$1" && mount -t proc proc /proc && mount -t tmpfs tmpfs "$2" && shift 2 && exec "$@"'


def hosts(tmp_path: Path) -> list[list[str]]:
    """Commands that run the rest of their words on machines of their own."""
    made = []
    for name in ("host-a", "host-b"):
        (tmp_path / name / "tmp").mkdir(parents=True)
        (tmp_path / name / "locks").mkdir()
        unshare = ["unshare", "-muip", "--fork", "--kill-child", "sh", "-c", HOST, "sh", name]
        made.append([*unshare, str(tmp_path / name / "tmp")])
    if subprocess.run([*made[0], "true"], capture_output=True).returncode:
        pytest.skip("no right to make namespaces")
    return made


def shim(tmp_path: Path) -> str:
    (tmp_path / "shim.c").write_text(SHIM)
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", tmp_path / "shim.so", tmp_path / "shim.c"]
    subprocess.run(list(map(str, command)), check=True)
    return str(tmp_path / "shim.so")


@full
@root_only
@pytest.mark.parametrize("locks", ["of both", "of each", "ENOLCK", "EOPNOTSUPP", "ENOSYS"])
def test_29_two_machines_on_one_folder_20_times(cache, tmp_path, locks):
    """Four threads on each. Where the machines do not see each other's locks both compile, one result stays."""
    import errno

    prefixes, names = hosts(tmp_path), ("host-a", "host-b")
    given = [getattr(errno, locks, f"{tmp_path}/{name}/locks") for name in names]
    more = [{"TMPDIR": f"{tmp_path}/{name}/tmp", "LOCKS": str(g)} for name, g in in_step(names, given)]
    if locks != "of both":
        library = shim(tmp_path)
        more = [{**m, "LD_PRELOAD": library} for m in more]
    race(cache, Builders(cache, 4, prefixes, more), alone=locks == "of both")


def test_29_without_locks_a_build_goes_on(cache, tmp_path):
    """One process, flock refused: a whole file; the scratch of another builder is left alone, an old one goes."""
    folder = cache.root / "bridge"
    assert finish(cache.start())[0] == 0  # tells the entry's name
    entry = next(p for p in folder.iterdir() if p.is_dir())
    others = [folder / f"{entry.name}.tmp-{name}" for name in ("deadbeef-running", "deadbeef-old")]
    for other in others:
        other.mkdir()
    os.utime(others[1], (0, time.time() - 2 * 24 * 3600))
    force = BUILD.replace("build()", "build(force=True)")
    more = {"LD_PRELOAD": shim(tmp_path), "LOCKS": "37"}
    code, out, err = finish(cache.start(code=force, **more))
    assert code == 0 and len(Path(out).read_text().splitlines()) == 50, err
    assert [other.exists() for other in others] == [True, False]


def test_28_who_waits_too_long_makes_it_as_well(cache):
    """A lock that nobody gives back, as after the death of a machine on a file server."""
    first = cache.start(
        code=BUILD.replace("print", "import time; bridge._compile = lambda *_: time.sleep(60)\nprint")
    )
    deadline = time.monotonic() + 30
    while not list(cache.root.glob("bridge/*.lock")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)
    hurry = "from fla_npu.mindspore import cache; cache._LONGEST_WAIT_SECONDS = 0.5\nprint"
    try:
        code, _, err = finish(cache.start(code=BUILD.replace("print", hurry)))
    finally:
        first.kill()
        finish(first)
    assert code == 0 and "waiting for another process" in err and "making it here as well" in err, err


def test_28_a_fork_of_a_killed_builder_blocks_nobody(cache):
    """A data loader's worker, say, that was forked while its parent compiled, and outlives it."""
    fork = """import os, time, threading
def compile(*_):
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    print(child, flush=True)
    os.kill(os.getpid(), 9)
bridge._compile = compile
print"""
    first = cache.start(code=BUILD.replace("print", fork))
    child = int(first.stdout.readline())
    try:
        first.wait()
        began = time.monotonic()
        assert finish(cache.start(), timeout=20)[0] == 0 and time.monotonic() - began < 10
    finally:
        os.kill(child, 9)
        finish(first)


def test_28_a_clock_that_was_set_back_keeps_no_failure_alive(cache):
    """failure.txt of an earlier attempt, dated in the future, by another machine's clock."""
    assert finish(cache.start("fail"))[0] == 1
    failure = next(cache.root.glob("bridge/*/failure.txt"))
    os.utime(failure, (time.time() + 3600,) * 2)
    code, _, err = finish(cache.start())
    assert code == 0 and not failure.exists(), err


@pytest.mark.parametrize("home", ["", "relative", None])
def test_31_a_cache_without_a_home_names_the_variable(cache, tmp_path, home):
    """A container's user without an entry in passwd; nothing named '~' appears anywhere."""
    code = f"import os; os.chdir({str(tmp_path)!r}); os.environ.pop('FLA_NPU_CACHE_DIR')\n"
    code += "os.environ.pop('XDG_CACHE_HOME', 0); import pwd\n"
    code += "def absent(_): raise KeyError\npwd.getpwuid = absent\n"
    code += "os.environ.pop('HOME', 0)\n" if home is None else f"os.environ['HOME'] = {home!r}\n"
    before = set(tmp_path.iterdir())
    status, _, err = finish(cache.start(code=code + BUILD))
    assert status == 1 and "CacheError: there is no directory for the cache" in err, err
    assert "set FLA_NPU_CACHE_DIR" in err and set(tmp_path.iterdir()) == before
    status, _, err = finish(cache.start(code=BUILD.replace("print", "import os; os.environ.pop('HOME', 0)\n"
                                        "os.environ['FLA_NPU_CACHE_DIR'] = '~none/x'\nprint")))  # fmt: skip
    assert status == 1 and "set FLA_NPU_CACHE_DIR to a directory in full" in err, err


@root_only
@pytest.mark.parametrize("compiler", ["g++", "/no/such/compiler"])
def test_31_a_cache_of_another_user_is_a_matter_of_permission(cache, tmp_path, compiler):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    code = BUILD.replace("print", f"import os; bridge._texts(), bridge._key()\nos.setuid({NOBODY})\nprint")
    status, _, err = finish(cache.start(code=code, FLA_NPU_CACHE_DIR=str(closed / "cache"), CXX=compiler))
    words = (
        f"cannot write to the cache directory {closed}" if compiler == "g++" else "no C++ compiler was found"
    )
    assert status == 1 and words in err.splitlines()[-1], err


@pytest.mark.parametrize(
    "form", ["{}/my tools/script++", '"{}/my tools/script++" -O1', "./my tools/script++"]
)
def test_a_compiler_in_a_path_with_spaces_or_a_relative_one(cache, tmp_path, form):
    place = tmp_path / "my tools"
    place.mkdir()
    cache.compiler.rename(place / "script++")
    code = f"import os; os.chdir({str(tmp_path)!r})\n{BUILD}"
    status, out, err = finish(cache.start(code=code, CXX=form.format(tmp_path)))
    assert status == 0 and len(Path(out).read_text().splitlines()) == 50, err


@pytest.mark.parametrize(
    "content, words", [("", "cannot run"), ("#!/no/such/shell\n", "cannot run"), (None, "no C++ compiler")]
)
def test_a_compiler_that_is_none(cache, tmp_path, content, words):
    fake = tmp_path / "fake++"
    fake.write_text(content or "")
    fake.chmod(0o755)
    asked = str(fake) if content is not None else f"'{fake}"  # a quotation mark left open
    status, _, err = finish(cache.start(CXX=asked))
    assert status == 1 and words in err and "set CXX" in err and "BridgeBuildError" in err, err


def test_36_a_compiler_that_the_system_killed_is_out_of_memory(cache):
    cache.compiler.write_text(COMPILER.replace("while [ $# -gt 0 ]", "kill -9 $$; while [ $# -gt 0 ]"))
    status, _, err = finish(cache.start())
    assert status == 1 and "ended with status -9" in err and "ran out of memory: it needs 2 GB" in err, err
