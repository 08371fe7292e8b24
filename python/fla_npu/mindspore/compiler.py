# SPDX-License-Identifier: Apache-2.0
"""The compile commands of the bridge: MindSpore's own flags, our sources, our directory.

`CustomOpBuilder` says which include paths and flags an extension needs, and only that is taken from
it. Its build step keys a cache in the current directory by name alone and locks it with a plain
file, which a killed process leaves behind.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .. import machine
from ..errors import FlaNpuError

__all__ = ["BridgeBuildError", "Compiler", "Toolchain", "find_compiler", "flags"]

_REPORT_SECONDS = 10.0
_SHOWN_LINES = 60
_LEAST_ROOM = 1 << 20
_STEP_BYTES = 1600 << 20  # of memory: what the largest source takes


class BridgeBuildError(FlaNpuError):
    """The MindSpore bridge could not be compiled. The message carries the compiler's text."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the command and what identifies the code it makes."""

    command: tuple[str, ...]
    version: str

    @property
    def tag(self) -> str:
        return hashlib.sha256(self.version.encode()).hexdigest()[:8]


def _command(asked: str) -> tuple[str, ...]:
    """The words of $CXX, its program in full: it runs in another directory. () when there is none."""
    try:
        words = [asked] if shutil.which(asked) else shlex.split(asked)  # a path may hold spaces
    except ValueError:  # a quotation mark that nobody closed
        return ()
    program = shutil.which(words[0]) if words else None
    return (os.path.abspath(program), *words[1:]) if program else ()


def find_compiler() -> Compiler | None:
    """$CXX or g++; None when there is no such program."""
    command = _command(os.environ.get("CXX", "g++"))
    if not command:
        return None
    try:
        found = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise BridgeBuildError(
            f"cannot run {command[0]}: {error.strerror}; set CXX to a C++ compiler"
        ) from error
    return Compiler(command, found.stdout.partition("\n")[0] or command[0])


@dataclass(frozen=True)
class Toolchain:
    """Everything on the command line that is not a file of ours."""

    compile: tuple[str, ...]
    link: tuple[str, ...]


def flags(module: str) -> Toolchain:
    """Flags for extension `module`, from the CustomOpBuilder of the MindSpore that is installed."""
    from mindspore.ops import CustomOpBuilder

    # backend "CPU" on a device too: the bridge launches through addresses and needs no CANN header.
    builder = CustomOpBuilder(module, sources=[], backend="CPU")
    include = [f"-I{path}" for path in builder.get_include_paths()]
    include += ["-isystem", sysconfig.get_path("include", scheme="posix_prefix")]
    # The builder's --rpath has no value and would swallow the option after it.
    link = [flag for flag in builder.get_ldflags() if not flag.endswith("--rpath")]
    # -w: MindSpore's headers warn by the dozen under some compilers, which would bury an error.
    return Toolchain((*include, *builder.get_cflags(), "-w"), tuple(link))


class _Progress:
    """Elapsed seconds on stderr: one line that counts on a terminal, a line now and then in a log."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._began = self._last = time.monotonic()
        self._terminal = sys.stderr.isatty()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def tick(self, what: str) -> None:
        now = time.monotonic()
        if self._terminal and now - self._last >= 1:
            print(f"\r\x1b[Kfla_npu: {what}, {self.seconds:.0f} s ", end="", file=sys.stderr, flush=True)
        elif not self._terminal and now - self._last >= _REPORT_SECONDS:
            self._say(f"{what}, {self.seconds:.0f} s")
        else:
            return
        self._last = now

    def end_line(self) -> None:
        if self._terminal:
            print(file=sys.stderr)


class _Step:
    """One compile or link command, running; its text goes to a log of its own."""

    def __init__(self, command: list[str], what: str, directory: Path) -> None:
        self.command, self.what = command, what
        self.log = directory / f"{command[-1]}.log"
        with self.log.open("w", encoding="utf-8") as handle:
            handle.write(f"$ {shlex.join(command)}\n")
            handle.flush()
            try:
                self.process = subprocess.Popen(command, cwd=directory, stdout=handle, stderr=handle)
            except OSError as error:
                raise BridgeBuildError(f"cannot run {command[0]}: {error.strerror}") from error

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def check(self) -> None:
        """Raises with the compiler's text when the command has failed."""
        if not self.process.poll():
            return
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[1:]
        shown = "\n".join(lines[:_SHOWN_LINES])
        more = f"\n... {len(lines) - _SHOWN_LINES} more lines" if len(lines) > _SHOWN_LINES else ""
        killed = self.process.returncode == -signal.SIGKILL
        command = shlex.join(self.command) + _advice(lines, self.log.parent, killed)
        raise BridgeBuildError(
            f"compiling the MindSpore bridge failed: {self.what} ended with status "
            f"{self.process.returncode}\n{shown}{more}\ncommand: {command}"
        )


def _advice(lines: list[str], directory: Path, killed: bool) -> str:
    """What helps, for failures that are none of the sources'."""
    text = "\n".join(lines)
    # On a full disk the log is empty, too: the room is asked for, not the text alone.
    if "No space left on device" in text or shutil.disk_usage(directory).free < _LEAST_ROOM:
        return f"\nNo space left at {directory}: set FLA_NPU_CACHE_DIR (and TMPDIR) to a folder with room"
    if killed or "Killed signal" in text or "cannot allocate memory" in text.lower():
        return "\nThe compiler ran out of memory: it needs 2 GB"
    if "Python.h: No such file" in text:
        return "\nThe headers of this Python are not installed: on Debian and Ubuntu, apt-get install python3-dev"
    return ""


def _run(commands: list[tuple[str, list[str]]], directory: Path, progress: _Progress) -> None:
    """Run steps side by side, as many as there are CPUs and memory for. The first failure stops all and is raised."""
    steps: list[_Step] = []
    waiting, most = list(commands), machine.jobs(_STEP_BYTES)
    try:
        while True:
            running = [step for step in steps if step.process.poll() is None]
            for step in steps:
                step.check()
            if not running and not waiting:
                break
            while waiting and len(running) < most:
                what, command = waiting.pop(0)
                steps.append(_Step(command, what, directory))
                running.append(steps[-1])
            progress.tick(", ".join(step.what for step in running))
            time.sleep(0.05)
    except BridgeBuildError:
        progress.end_line()
        raise
    finally:
        for step in steps:  # also when interrupted: do not leave a compiler running
            step.stop()
        texts = [step.log.read_text(encoding="utf-8", errors="replace") for step in steps]
        with (directory / "build.log").open("a", encoding="utf-8") as log:
            log.writelines(texts)


def compile_module(
    compiler: Compiler,
    tools: Toolchain,
    sources: list[Path],
    directory: Path,
    output: str,
    say: Callable[[str], None],
) -> float:
    """Compile `sources` and link them to `directory`/`output`; returns the seconds it took."""
    progress = _Progress(say)
    objects = [f"{source.stem}.o" for source in sources]
    _run(
        [
            (f"compiling {source.name}", [*compiler.command, *tools.compile, "-c", str(source), "-o", target])
            for source, target in zip(sources, objects)
        ],
        directory,
        progress,
    )
    _run([("linking", [*compiler.command, *objects, *tools.link, "-o", output])], directory, progress)
    progress.end_line()
    return progress.seconds
