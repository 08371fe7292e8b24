# SPDX-License-Identifier: Apache-2.0
"""A per-user cache that several processes may fill at once.

An entry is a directory. One process makes it while it holds an operating system lock, in a temporary
directory that is renamed into place when complete: a reader sees a whole entry or none. The lock
belongs to the process, so one that is killed leaves nothing that could block the next.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import platformdirs

from ..errors import FlaNpuError

__all__ = ["CacheError", "cache_root", "exclusive", "publish", "scratch_directory"]

_WAIT_REPORT_SECONDS = 10.0


class CacheError(FlaNpuError, OSError):
    """The cache directory cannot be used."""

    def __str__(self) -> str:
        return str(self.args[0])


def cache_root() -> Path:
    """FLA_NPU_CACHE_DIR, or the user's cache directory. Not created here."""
    override = os.environ.get("FLA_NPU_CACHE_DIR")
    if override:
        return Path(override).expanduser().absolute()  # the compiler runs in another directory
    return Path(platformdirs.user_cache_dir("fla_npu", appauthor=False))


def _unusable(path: Path, error: OSError) -> CacheError:
    return CacheError(
        f"cannot write to the cache directory {path}: {error.strerror or error}; set FLA_NPU_CACHE_DIR "
        f"to a directory that this user may write to"
    )


@contextlib.contextmanager
def exclusive(entry: Path, say: Callable[[str], None]) -> Iterator[float]:
    """Hold the lock of `entry`; yields the time (epoch) at which this process began to wait."""
    began = time.time()
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(f"{entry}.lock")
        patience = 0.0
        while not lock.is_locked:
            try:
                lock.acquire(timeout=patience)
            except filelock.Timeout:
                say(f"waiting for another process to finish {entry}, {time.time() - began:.0f} s")
                patience = _WAIT_REPORT_SECONDS
    except OSError as error:
        raise _unusable(entry.parent, error) from error
    try:
        yield began
    finally:
        lock.release()


@contextlib.contextmanager
def scratch_directory(entry: Path) -> Iterator[Path]:
    """An empty directory beside `entry` for its maker, who holds the lock; removed afterwards.

    Leftovers of makers that were killed are removed first: nobody else can be using them.
    """
    for stale in entry.parent.glob(f"{entry.name}.tmp-*"):
        shutil.rmtree(stale, ignore_errors=True)
    made = entry.parent / f"{entry.name}.tmp-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        raise _unusable(entry.parent, error) from error
    try:
        yield made
    except CacheError:
        raise
    except OSError as error:  # a full disk, as a rule
        raise _unusable(entry.parent, error) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def publish(made: Path, target: Path) -> None:
    """Move the finished file `made` to `target` in one step, with its content on disk first."""
    with made.open("rb") as handle:
        os.fsync(handle.fileno())
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(made, target)
