# SPDX-License-Identifier: Apache-2.0
"""How much of this machine a build may take: CPUs and memory, as far as the control groups leave them.

A container sees the host's CPUs and memory; what it may use stands in its control group and those around
it. Both versions of control groups are read, wherever the process stands in them. Standard library only:
the build backend asks, too.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

__all__ = ["jobs"]

GROUPS = Path("/sys/fs/cgroup")
MEMORY = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
CPU = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""


def _groups() -> list[Path]:
    """The folders of this process's control groups, with those around them; some do not exist."""
    folders = []
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        fields = line.split(":", 2)  # 0::/path for version 2, 4:cpu,cpuacct:/path for version 1
        for kind in fields[1].split(",") if len(fields) == 3 else ():
            for root in (GROUPS / kind,) if kind else (GROUPS, GROUPS / "unified"):
                # In a container without a namespace of its own the path is the host's: its root is ours.
                folder = root / fields[2].strip("/")
                folders += [folder, *(p for p in folder.parents if p.is_relative_to(root))]
    return folders


def _pair(folder: Path, names: tuple[str, ...]) -> tuple[int, int] | None:
    """Limit and its counterpart; None without a limit ('max', -1)."""
    words = " ".join(_text(folder / name) for name in names).split()
    return (int(words[0]), int(words[1])) if len(words) == 2 and all(w.isdigit() for w in words) else None


def _reclaimable(folder: Path) -> int:
    """Pages of files that the kernel drops when memory is needed; they count as used."""
    found = re.findall(r"(?m)^(?:total_)?inactive_file (\d+)", _text(folder / "memory.stat"))
    return max(map(int, found), default=0)


def _free_memory() -> float:
    """Bytes that this process can still take; infinite when nothing says."""
    found = re.search(r"MemAvailable:\s+(\d+)", _text(Path("/proc/meminfo")))
    free = float(int(found.group(1)) << 10) if found else math.inf
    for folder in _groups():
        for names in MEMORY:
            pair = _pair(folder, names)
            free = min(free, pair[0] - pair[1] + _reclaimable(folder)) if pair else free
    return free


def _cpus() -> float:
    """CPUs this process may use: its affinity, and the share of time that its groups grant."""
    count = float(len(os.sched_getaffinity(0)))
    quotas = [pair for folder in _groups() for names in CPU if (pair := _pair(folder, names))]
    return min([count, *(quota / period for quota, period in quotas if period)])


def jobs(each: int) -> int:
    """Parallel jobs of `each` bytes: what MAX_JOBS says, else one per CPU as far as the memory goes."""
    asked = os.environ.get("MAX_JOBS", "").strip()
    if asked.isdigit() and int(asked):
        return int(asked)
    return int(max(1, min(math.ceil(_cpus()), _free_memory() / each)))
