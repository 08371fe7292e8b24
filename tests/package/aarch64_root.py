# SPDX-License-Identifier: Apache-2.0
"""An aarch64 Python with NumPy, PyTorch and pytest in a folder, run by qemu: no chroot, no binfmt, no container.

Debian's packages are fetched and unpacked by the first stage of debootstrap, which runs nothing of them; wheels
are unpacked by pip. What cannot be had skips the test with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["COMPILER", "Root", "missing_tools", "run"]

COMPILER = "aarch64-linux-gnu-g++"
QEMU = ("qemu-aarch64", "qemu-aarch64-static")
SUITE, PYTHON, GLIBC = "bookworm", "3.11", 36
#: Each by name, since pip would judge conditions on the processor by that of this machine. PyTorch 2.10 is the
#: last release whose aarch64 wheel needs no CUDA libraries.
WHEELS = (
    "numpy<2", "torch==2.10.0", "typing-extensions", "sympy", "mpmath", "networkx", "jinja2", "markupsafe",
    "fsspec", "filelock", "pytest", "pluggy", "iniconfig", "packaging", "pygments", "click", "platformdirs",
    "rich", "markdown-it-py", "mdurl",
)  # fmt: skip
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("FLA_NPU", "ASCEND", "PYTHON"))}
ENVIRONMENT["PATH"] = os.pathsep.join(
    [str(Path(sys.executable).parent), ENVIRONMENT.get("PATH", "")]
)  # its cmake


def emulator() -> str:
    """The path of qemu for one process; '' without it."""
    return next((found for found in map(shutil.which, QEMU) if found), "")


def missing_tools() -> list[str]:
    """What this machine lacks, by the Debian package that brings it."""
    here = {
        "g++-aarch64-linux-gnu": shutil.which(COMPILER),
        "qemu-user": emulator(),
        "debootstrap": shutil.which("debootstrap") or Path("/usr/sbin/debootstrap").is_file(),
        "dpkg": shutil.which("dpkg-deb"),
    }
    return [package for package, found in here.items() if not found]


def run(*command: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess:
    """A command of this machine, without what chooses an OPP."""
    env = {**ENVIRONMENT, **environment}
    return subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, env=env)


def _must(done: subprocess.CompletedProcess, what: str) -> None:
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        pytest.skip(f"{what} cannot be had here: {last}")


class Root:
    """`folder/root`: Debian's files; `folder/site`: what is installed for its Python."""

    def __init__(self, folder: Path) -> None:
        self.root, self.site = folder / "root", folder / "site"
        self._unpack(folder / "archives")
        _must(self.install("--only-binary", ":all:", *WHEELS), "wheels for aarch64")

    def _unpack(self, archives: Path) -> None:
        tool = shutil.which("debootstrap") or "/usr/sbin/debootstrap"
        options = ("--download-only", "--arch=arm64", "--variant=minbase", f"--include=python{PYTHON}")
        _must(run(tool, *options, SUITE, archives), "Debian's arm64 packages")
        for package in sorted((archives / "var/cache/apt/archives").glob("*.deb")):
            if package.name.startswith(("lib", "python", "zlib")):
                _must(run("dpkg-deb", "-x", package, self.root), package.name)
        shutil.rmtree(archives)

    def install(self, *what: object) -> subprocess.CompletedProcess:
        """By the pip of this machine, which judges the names of wheels as pip on this aarch64 would."""
        python = ["--python-version", PYTHON, "--implementation", "cp"]
        python += [
            word for minor in range(17, GLIBC + 1) for word in ("--platform", f"manylinux_2_{minor}_aarch64")
        ]
        options = ("-q", "--no-compile", "--no-deps", "--target", self.site, *python)
        return run(sys.executable, "-m", "pip", "install", *options, *what)

    def run(self, *arguments: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
        """Python with arguments, in the root's libraries."""
        python = (emulator(), "-L", self.root, self.root / f"usr/bin/python{PYTHON}")
        environment = {"PYTHONPATH": str(self.site), "PYTHONDONTWRITEBYTECODE": "1", **environment}
        return run(*python, *arguments, cwd=cwd, **environment)
