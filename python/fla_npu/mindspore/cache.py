# SPDX-License-Identifier: Apache-2.0
"""A per-user cache that several processes may fill at once, also from several machines.

An entry is a directory. One process makes it while it holds an operating system lock, in a temporary
directory of its own, and moves the finished files into place: a reader sees a whole file or none. The
lock belongs to the process, so one that is killed leaves nothing that could block the next. Where the
file system has no locks, or each machine has its own, several make the entry and the first one's stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import platformdirs

from ..errors import FlaNpuError

__all__ = ["CacheError", "cache_root", "exclusive", "publish", "scratch_directory"]

_WAIT_REPORT_SECONDS = 10.0
_LONGEST_WAIT_SECONDS = 900.0  # a machine that died may hold its lock on a file server for good
_STALE_SECONDS = 24 * 3600.0
# What flock says where there are no locks: NFS without its lock service, FUSE, some cluster file systems.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class CacheError(FlaNpuError, OSError):
    """The cache directory cannot be used."""

    def __str__(self) -> str:
        return str(self.args[0])


def cache_root() -> Path:
    """FLA_NPU_CACHE_DIR, or the user's cache directory. Not created here."""
    override = os.environ.get("FLA_NPU_CACHE_DIR", "")
    try:
        path = Path(override or platformdirs.user_cache_dir("fla_npu", appauthor=False)).expanduser()
    except RuntimeError:  # a "~" of nobody
        path = None
    if path is None or not (override or path.is_absolute()):
        raise CacheError(
            f"there is no directory for the cache: {override or 'the default one'} needs a home, which this user "
            "has not; set FLA_NPU_CACHE_DIR to a directory in full"
        )
    return path.absolute()  # the compiler runs in another directory


def _unusable(path: Path, error: OSError) -> CacheError:
    return CacheError(
        f"cannot write to the cache directory {path}: {error.strerror or error}; set FLA_NPU_CACHE_DIR "
        f"to a directory that this user may write to"
    )


def _has_locks(folder: Path) -> bool:
    """Asked here, because filelock takes "there are no locks" for "somebody else has it"."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        try:
            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(probe, fcntl.LOCK_UN)
        except OSError as error:
            return error.errno not in _NO_LOCKS
    return True


def _take(lock: filelock.FileLock, entry: Path, say: Callable[[str], None]) -> bool:
    """Waits for the lock; False when whoever holds it does not come to an end."""
    began, patience = time.monotonic(), 0.0
    while True:
        try:
            lock.acquire(timeout=patience)
            return True
        except filelock.Timeout:
            waited = time.monotonic() - began
        if waited >= _LONGEST_WAIT_SECONDS:
            say(f"nobody finished {entry} in {waited:.0f} s; making it here as well")
            return False
        say(f"waiting for another process to finish {entry}, {waited:.0f} s")
        patience = min(_WAIT_REPORT_SECONDS, _LONGEST_WAIT_SECONDS)


@contextlib.contextmanager
def exclusive(entry: Path, say: Callable[[str], None]) -> Iterator[bool]:
    """Hold the lock of `entry`; yields whether there is one, since not every file system has locks."""
    lock = filelock.FileLock(f"{entry}.lock")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        locked = _has_locks(entry.parent) and _take(lock, entry, say)
    except OSError as error:
        raise _unusable(entry.parent, error) from error
    try:
        yield locked
    finally:
        lock.release()


def _machine() -> str:
    """Where a lock of ours is certainly seen: this start of this machine, this container."""
    parts = [platform.node()]
    for read in (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text(),
        lambda: os.readlink("/proc/self/ns/pid"),
    ):
        with contextlib.suppress(OSError):
            parts.append(read())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]


@contextlib.contextmanager
def scratch_directory(entry: Path, locked: bool) -> Iterator[Path]:
    """An empty directory beside `entry` for its maker alone; removed afterwards.

    Leftovers of makers that were killed are removed: those of this machine when we hold its lock, so that
    nobody can be using them, and others after a day.
    """
    own = f"{entry.name}.tmp-{_machine()}-"
    try:
        made = Path(tempfile.mkdtemp(prefix=own, dir=entry.parent))
        now = made.stat().st_mtime  # by the clock of the file server
    except OSError as error:
        raise _unusable(entry.parent, error) from error
    try:
        for other in set(entry.parent.glob(f"{entry.name}.tmp-*")) - {made}:
            with contextlib.suppress(OSError):
                if (locked and other.name.startswith(own)) or now - other.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(other, ignore_errors=True)
        yield made
    except CacheError:
        raise
    except OSError as error:  # a full disk, as a rule
        raise _unusable(entry.parent, error) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def publish(made: Path, target: Path, replace: bool = True) -> None:
    """Move the finished file `made` to `target` in one step, with its content on disk first.

    Without `replace` a file that is there stays: another machine may have mapped it.
    """
    with made.open("rb") as handle:
        os.fsync(handle.fileno())
    target.parent.mkdir(parents=True, exist_ok=True)
    if not replace:
        try:
            os.link(made, target)
            return
        except FileExistsError:
            return
        except OSError:  # a file system without hard links
            if target.exists():
                return
    os.replace(made, target)
