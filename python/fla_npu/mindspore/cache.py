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

from ..errors import FlaNpuError
from ..opp import user_folder

__all__ = ["CacheError", "cache_root", "exclusive", "publish", "scratch_directory"]

_WAIT_REPORT_SECONDS = 10.0
_LOOK_AGAIN_SECONDS = 0.1
_LONGEST_WAIT_SECONDS = 900.0  # a machine that died may hold its lock on a file server for good
_STALE_SECONDS = 24 * 3600.0
# What flock says where there are no locks: NFS without its lock service, FUSE, some cluster file systems.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_held: set[int] = set()


def _forget_locks() -> None:
    """A forked child does not keep its parent's locks alive."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_forget_locks)


class CacheError(FlaNpuError, OSError):
    """The cache directory cannot be used."""

    def __str__(self) -> str:
        return str(self.args[0])


def cache_root() -> Path:
    """FLA_NPU_CACHE_DIR, or the user's cache directory. Not created here."""
    override = os.environ.get("FLA_NPU_CACHE_DIR", "")
    common = user_folder("XDG_CACHE_HOME", ".cache")
    path = os.path.expanduser(override) if override else str(common and common / "fla_npu")
    if path.startswith("~") or not (override or common):
        raise CacheError(
            f"there is no directory for the cache: {override or 'the default one'} needs a home, which this user "
            "has not; set FLA_NPU_CACHE_DIR to a directory in full"
        )
    return Path(path).absolute()  # the compiler runs in another directory


def _unusable(path: Path, error: OSError) -> CacheError:
    return CacheError(
        f"cannot write to the cache directory {path}: {error.strerror or error}; set FLA_NPU_CACHE_DIR "
        f"to a directory that this user may write to"
    )


def _take(handle: int, entry: Path, say: Callable[[str], None]) -> bool:
    """Waits for the lock; False where the file system has none, or whoever holds it does not come to an end."""
    began = told = time.monotonic()
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        now = time.monotonic()
        if now - began >= _LONGEST_WAIT_SECONDS:
            say(f"nobody finished {entry} in {now - began:.0f} s; making it here as well")
            return False
        if now - told >= _WAIT_REPORT_SECONDS or told == began:
            say(f"waiting for another process to finish {entry}, {now - began:.0f} s")
            told = now
        time.sleep(_LOOK_AGAIN_SECONDS)


@contextlib.contextmanager
def exclusive(entry: Path, say: Callable[[str], None]) -> Iterator[bool]:
    """Hold the lock of `entry`; yields whether there is one, since not every file system has locks."""
    handle = -1
    try:
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(f"{entry}.lock", os.O_RDWR | os.O_CREAT, 0o666)
            _held.add(handle)
            locked = _take(handle, entry, say)
        except OSError as error:
            raise _unusable(entry.parent, error) from error
        yield locked
    finally:
        if handle in _held:
            _held.discard(handle)
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)  # closing alone leaves it to a child that has a copy
            os.close(handle)


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
            return os.link(made, target)
        except FileExistsError:
            return None
        except OSError:  # a file system without hard links
            if target.exists():
                return None
    os.replace(made, target)
