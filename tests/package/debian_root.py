# SPDX-License-Identifier: Apache-2.0
"""A Debian system in a folder, with nothing but what is asked for: what a user of that release starts from.

Commands run in mount and process namespaces of their own: nothing is ever mounted where others see it, and no
process outlives the command that started it. pip finds there what it finds here: its configuration goes along, as
do local folders that it names. What cannot be had skips the test with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["Root", "make_roots", "missing"]

NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# Bound into the root are /dev, /proc and $BOUND, one path a line; then the command.
ENTER = """
root=$1; shift
mount --rbind /dev "$root/dev" && mount -t proc proc "$root/proc" || exit 125
printf '%s\\n' "$BOUND" | while IFS= read -r path; do
    [ -z "$path" ] || mount --bind "$path" "$root$path" || exit 125
done
exec chroot "$root" "$@"
"""


def _debootstrap() -> str:
    return shutil.which("debootstrap") or shutil.which("debootstrap", path="/usr/sbin") or ""


def missing() -> str:
    """Why no root can be made here; '' when one can."""
    if os.geteuid():
        return "only root makes a Debian root"
    if not _debootstrap():
        return "debootstrap is not installed"
    if not shutil.which("unshare"):
        return "unshare (util-linux) is not installed"
    tried = subprocess.run([*NAMESPACES, "true"], capture_output=True, text=True)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


def _pip_here() -> tuple[dict[str, str], list[Path]]:
    """The configuration of this machine's pip as variables, and what it names on this machine."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
    variables: dict[str, str] = {}
    for line in sorted(listed.stdout.splitlines()):
        key, _, value = line.partition("=")
        if not key.startswith(":env:") or f"PIP_{key}" not in variables:
            name = key.rpartition(".")[2].upper().replace("-", "_")
            variables[f"PIP_{name}"] = value.strip("'\"")
    words = [word.replace("file://", "") for value in variables.values() for word in value.split()]
    paths = [Path(word) for word in words if word.startswith("/")]
    # An index may be a subfolder whose pages lead to files beside it.
    paths = [path.parent if path.name == "simple" else path for path in paths if path.exists()]
    if CERTIFICATES.is_file():
        paths.append(CERTIFICATES)
        variables.setdefault("PIP_CERT", str(CERTIFICATES))
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    return {**variables, **proxies, "PIP_NO_CACHE_DIR": "1"}, sorted(set(paths))


class Root:
    """The system in `path`, as debootstrap left it or as a copy of another one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.variables, self.bound = _pip_here()
        for bound in self.bound:
            place = self.at(bound)
            if bound.is_dir():
                place.mkdir(parents=True, exist_ok=True)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.touch()
        self.at("/etc/resolv.conf").unlink(missing_ok=True)
        shutil.copy("/etc/resolv.conf", self.at("/etc/resolv.conf"))

    def at(self, path: object) -> Path:
        """Where a path of the root lies on this machine."""
        return self.path / str(path).lstrip("/")

    def copy(self, path: Path) -> Root:
        subprocess.run(["cp", "-a", self.path, path], check=True)
        return Root(path)

    def run(self, *command: object, cwd: str = "/tmp", **environment: str) -> subprocess.CompletedProcess:
        """A command as root's user root, with an environment of its own."""
        inside = ["env", "-i", "HOME=/root", "LC_ALL=C.UTF-8", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        inside += [f"{name}={value}" for name, value in {**self.variables, **environment}.items()]
        inside += ["sh", "-c", 'cd "$0" && exec "$@"', cwd, *map(str, command)]
        bound = {**os.environ, "BOUND": "\n".join(map(str, self.bound))}
        return subprocess.run(
            [*NAMESPACES, "sh", "-c", ENTER, "enter", str(self.path), *inside],
            capture_output=True, text=True, env=bound, timeout=600,
        )  # fmt: skip

    def must(self, *command: object, **options: str) -> str:
        """The same; what it prints. It has to succeed."""
        done = self.run(*command, **options)
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def pythons(self) -> list[str]:
        """Every Python that the system has."""
        names = (path.name for path in self.at("/usr/bin").glob("python3.*"))
        return sorted(name for name in names if name[8:].isdigit())

    def files(self) -> set[str]:
        """Every file, folder and link; caches of Python left out."""
        found = (path.relative_to(self.path).as_posix() for path in self.path.rglob("*"))
        return {name for name in found if "__pycache__" not in name}


def make_roots(folder: Path, *suites: str) -> list[Root]:
    """Bare systems of these releases, side by side: the least that Debian calls one, and python3-venv."""
    if missing():
        pytest.skip(missing())
    command = [*NAMESPACES, _debootstrap(), "--variant=minbase", "--include=python3-venv"]
    running = []
    for suite in suites:
        with (folder / f"{suite}.log").open("w") as log:
            running.append(subprocess.Popen([*command, suite, folder / suite], stdout=log, stderr=log))
    ended = [process.wait() for process in running]
    for suite, status in zip(suites, ended):
        if status:
            last = (folder / f"{suite}.log").read_text().strip().splitlines()[-1]
            pytest.skip(f"{suite} cannot be had here: {last}")
    return [Root(folder / suite) for suite in suites]
