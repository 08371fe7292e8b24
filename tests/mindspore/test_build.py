# SPDX-License-Identifier: Apache-2.0
"""Building the bridge once, whoever asks, whatever happens meanwhile. The compiler is a script here."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Writes one line per run to $LOG, then does as $WHAT says; "-o FILE" gets a file.
COMPILER = """#!/bin/sh
case "$*" in *--version*) echo "script++ 1.0"; exit 0;; esac
echo "$$ $*" >> "$LOG"
case "$WHAT" in
  hang) sleep 60;;
  slow) sleep 0.7;;
  fail) sleep 1.5; echo "bridge.cc:7:1: error: planted mistake" >&2; exit 1;;
esac
while [ $# -gt 0 ]; do [ "$1" = -o ] && echo made > "$2"; shift; done
exit 0
"""
# Importing MindSpore takes seconds and only the flags need it, so these processes go without: the package
# is made known without running its __init__.
BUILD = """
import importlib.util, pathlib, sys
import fla_npu
name = "fla_npu.mindspore"
folder = pathlib.Path(fla_npu.__path__[0], "mindspore")
spec = importlib.util.spec_from_file_location(
    name, folder / "__init__.py", submodule_search_locations=[str(folder)])
sys.modules[name] = importlib.util.module_from_spec(spec)
from fla_npu.mindspore import bridge, compiler
bridge.flags = lambda module: compiler.Toolchain((), ())
print(bridge.build())
"""


class Cache:
    """A cache directory of its own, and processes that build into it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.log = folder / "cache", folder / "log"
        self.compiler = folder / "script++"
        self.compiler.write_text(COMPILER)
        self.compiler.chmod(self.compiler.stat().st_mode | stat.S_IXUSR)
        self.log.touch()

    def start(self, what: str = "", code: str = BUILD, **env: str) -> subprocess.Popen:
        values = {"CXX": str(self.compiler), "LOG": str(self.log), "WHAT": what,
                  "FLA_NPU_CACHE_DIR": str(self.root)}  # fmt: skip
        return subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, **values, **env}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def runs(self) -> int:
        """Compiler runs so far; a whole build is five sources and one link."""
        return len(self.log.read_text().splitlines())

    def leftovers(self) -> list[Path]:
        return list(self.root.glob("bridge/*.tmp-*"))


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path)


def finish(process: subprocess.Popen, timeout: float = 60) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out.strip(), err


def test_processes_that_ask_at_once_share_one_build(cache):
    results = [finish(p) for p in [cache.start("slow") for _ in range(4)]]
    assert [code for code, *_ in results] == [0] * 4, results[0][2]
    assert len({out for _, out, _ in results}) == 1
    assert cache.runs() == 6
    assert Path(results[0][1]).is_file() and not cache.leftovers()
    # The builder says what it does and where it goes.
    builder = next(err for _, _, err in results if "compiling the bridge" in err)
    assert "about a minute" in builder and str(cache.root) in builder and "is ready after" in builder
    # Another process finds it ready and compiles nothing; --force does compile.
    assert finish(cache.start())[:2] == (0, results[0][1])
    assert cache.runs() == 6
    forced = BUILD.replace("build()", "build(force=True)")
    assert finish(cache.start(code=forced))[0] == 0 and cache.runs() == 12


def test_a_killed_build_blocks_nobody(cache):
    first = cache.start("hang")
    deadline = time.monotonic() + 60
    while not cache.runs() and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    finish(first)
    assert cache.leftovers(), "the kill came before or after the compilation"
    code, out, err = finish(cache.start(), timeout=60)
    assert code == 0, err
    assert Path(out).is_file() and not cache.leftovers()
    for line in cache.log.read_text().splitlines()[:5]:  # the compilers that the kill left alone
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line.split()[0]), signal.SIGKILL)


def test_a_compile_error_reaches_all_who_wait(cache):
    processes = [cache.start("fail") for _ in range(3)]
    results = [finish(p) for p in processes]
    for code, _, err in results:
        assert code == 1
        assert "BridgeBuildError" in err and "error: planted mistake" in err and "command: " in err
    assert cache.runs() <= 5 and not cache.leftovers()  # one build, its sources side by side
    # Whoever comes later tries again: the mistake may have been repaired.
    assert finish(cache.start())[0] == 0


def test_without_a_compiler(cache):
    none = {"CXX": "/no/such/compiler"}
    code, _, err = finish(cache.start(**none))
    assert code == 1
    assert re.search(r"no C\+\+ compiler was found.*install g\+\+ or set CXX.*build-bridge", err)
    # An entry that was compiled elsewhere for the same MindSpore and sources is taken.
    made = finish(cache.start())[1]
    assert finish(cache.start(**none))[:2] == (0, made)


def test_the_cache_cannot_be_written(cache, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("a file where a directory is needed")
    code, _, err = finish(cache.start(FLA_NPU_CACHE_DIR=str(blocked)))
    assert code == 1
    assert f"cannot write to the cache directory {blocked}" in err and "set FLA_NPU_CACHE_DIR" in err
    assert cache.runs() == 0


def test_a_relative_cache_directory_is_taken_from_where_the_process_started(cache, tmp_path):
    code = f"import os; os.chdir({str(tmp_path)!r})\n{BUILD}"
    code, out, err = finish(cache.start(code=code, FLA_NPU_CACHE_DIR="here"))
    assert code == 0, err
    assert Path(out).is_relative_to(tmp_path / "here") and Path(out).is_file()


def test_the_key_follows_sources_and_versions(monkeypatch):
    from fla_npu.mindspore import bridge

    keys = {bridge._key()}
    texts = dict(bridge._texts())
    monkeypatch.setattr(bridge, "_texts", lambda: {**texts, "calls.cc": texts["calls.cc"] + "// more"})
    keys.add(bridge._key())
    monkeypatch.setattr(bridge, "mindspore_version", lambda: "9.9.9")
    keys.add(bridge._key())
    assert len(keys) == 3


def test_too_old_or_no_mindspore_is_named(monkeypatch):
    from fla_npu.mindspore import require

    monkeypatch.setattr(require, "mindspore_version", lambda: "2.8.3")
    with pytest.raises(ImportError, match=r"needs MindSpore 2\.9 or newer.*found 2\.8\.3.*pip install"):
        require.require_mindspore()
    monkeypatch.undo()
    require.mindspore_version.cache_clear()
    monkeypatch.setattr(require.metadata, "version", _not_installed)
    monkeypatch.setitem(sys.modules, "mindspore", None)  # makes its import fail
    with pytest.raises(ImportError, match="which is not installed: pip install"):
        require.require_mindspore()


def _not_installed(name: str):
    from importlib import metadata

    raise metadata.PackageNotFoundError(name)


def test_every_source_of_the_bridge_is_installed():
    """The sources are package data: a wheel without them could not build anything."""
    from importlib import resources

    from fla_npu.mindspore import bridge

    folder = resources.files("fla_npu.mindspore") / "csrc"
    found = {entry.name for entry in folder.iterdir()}
    assert found == {*bridge._SOURCES, *bridge._HEADERS}
