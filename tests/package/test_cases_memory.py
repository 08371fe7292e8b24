# SPDX-License-Identifier: Apache-2.0
"""Case 36: a build takes the CPUs and the memory that there are for it, in a container too."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fla_npu import machine

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a control group")


@pytest.fixture
def host(monkeypatch, tmp_path):
    """host(cgroup, files): a machine with 192 CPUs and 1 TiB free, and what its control groups say."""

    def make(cgroup: str, files: dict[str, str], memory: int = 1 << 40) -> None:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"{text}\n")
        proc = {
            "/proc/self/cgroup": cgroup,
            "/proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {memory >> 10} kB\n",
        }
        read = machine._text
        monkeypatch.setattr(machine, "_text", lambda path: proc.get(str(path)) or read(path))

    monkeypatch.setattr(machine, "GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(192))
    monkeypatch.delenv("MAX_JOBS", raising=False)
    return make


NO_LIMIT = str((1 << 63) - 4096)
GROUPS = {
    "version 2, in its own namespace": ("0::/\n", {"memory.max": 9 * GIB, "memory.current": GIB}, 4),
    "version 2, nested, the outer one is narrow": (
        "0::/a/b\n",
        {"a/b/memory.max": "max", "a/b/memory.current": 5, "a/memory.max": 9 * GIB, "a/memory.current": GIB},
        4,
    ),
    "version 2, nested, the inner one is narrow": (
        "0::/a/b\n",
        {"a/b/memory.max": 3 * GIB, "a/b/memory.current": 5, "a/memory.max": 9 * GIB, "a/memory.current": GIB},
        1,
    ),
    "version 2, beside version 1": (
        "1:cpu:/\n0::/x\n",
        {"unified/x/memory.max": 8 * GIB, "unified/x/memory.current": 0},
        4,
    ),
    "version 2, pages of files can go": (
        "0::/\n",
        {"memory.max": 9 * GIB, "memory.current": 9 * GIB - 1, "memory.stat": f"anon 1\ninactive_file {6 * GIB}"},
        3,
    ),
    "version 1": (
        "7:memory:/job\n3:cpu,cpuacct:/job\n",
        {"memory/job/memory.limit_in_bytes": 8 * GIB, "memory/job/memory.usage_in_bytes": GIB,
         "memory/memory.limit_in_bytes": NO_LIMIT, "memory/memory.usage_in_bytes": GIB},
        3,
    ),
    "version 1, the host's path in a container": (
        "7:memory:/docker/0123\n",
        {"memory/memory.limit_in_bytes": 8 * GIB, "memory/memory.usage_in_bytes": GIB},
        3,
    ),
    "version 1, pages of files can go": (
        "7:memory:/\n",
        {"memory/memory.limit_in_bytes": 8 * GIB, "memory/memory.usage_in_bytes": 8 * GIB,
         "memory/memory.stat": f"cache 9\ninactive_file 0\ntotal_inactive_file {6 * GIB}"},
        3,
    ),
    "less than one job needs": ("0::/\n", {"memory.max": GIB, "memory.current": 2 * GIB}, 1),
    "no limit": ("0::/\n", {"memory.max": "max", "memory.current": GIB, "cpu.max": "max 100000"}, 192),
    "CPU time, version 2": ("0::/a\n", {"a/cpu.max": "max 100000", "cpu.max": "250000 100000"}, 3),
    "CPU time, version 1": (
        "2:cpu,cpuacct:/a\n",
        {"cpu/a/cpu.cfs_quota_us": 50000, "cpu/a/cpu.cfs_period_us": 100000, "cpu/cpu.cfs_quota_us": -1,
         "cpu/cpu.cfs_period_us": 100000},
        1,
    ),
    "outside of its namespace": ("0::/../../x\n", {"memory.max": 5 * GIB, "memory.current": 0}, 2),
    "files that say nothing": ("nonsense\n0::/\n", {"memory.max": "", "memory.current": "", "cpu.max": "a b"}, 192),
}  # fmt: skip


@pytest.mark.parametrize("kind", GROUPS)
def test_36_a_container_has_less_than_its_host(host, kind):
    cgroup, files, expected = GROUPS[kind]
    host(cgroup, files)
    assert machine.jobs(2 * GIB) == expected


@pytest.mark.parametrize("memory, expected", [(GIB, 1), (9 * GIB, 4), (1 << 50, 192)])
def test_36_jobs_follow_the_free_memory(host, memory, expected):
    host("", {}, memory)
    assert machine.jobs(2 * GIB) == expected


@pytest.mark.parametrize("asked, expected", [("5", 5), (" 5 ", 5), ("", 4), ("0", 4), ("many", 4), ("-2", 4)])
def test_36_max_jobs_says_how_many_when_it_is_a_number(host, monkeypatch, asked, expected):
    host("", {}, 9 * GIB)
    monkeypatch.setenv("MAX_JOBS", asked)
    assert machine.jobs(2 * GIB) == expected


SETTINGS = "import fla_build, os; fla_build._settings({}); print(os.environ['CMAKE_BUILD_PARALLEL_LEVEL'])"


@pytest.mark.parametrize(
    "given, expected",
    [({"MAX_JOBS": "7"}, "7"), ({"CMAKE_BUILD_PARALLEL_LEVEL": "5", "MAX_JOBS": "7"}, "5"),
     ({"CMAKE_BUILD_PARALLEL_LEVEL": "", "MAX_JOBS": "7"}, "7")],
)  # fmt: skip
def test_36_who_asks_for_jobs_gets_them(given, expected):
    pytest.importorskip("scikit_build_core")
    environment = {k: v for k, v in os.environ.items() if k not in ("MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL")}
    environment |= {**given, "PYTHONPATH": str(ROOT / "opp_package")}
    done = subprocess.run([sys.executable, "-c", SETTINGS], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == expected, done.stderr


@pytest.fixture
def group():
    """A control group of this machine with 5 GiB, and a nested one to run in."""
    for folder, limit in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        outer = Path(folder, f"fla_npu_test_{os.getpid()}")
        try:
            (outer / "inner").mkdir(parents=True)
            (outer / limit).write_text(str(5 * GIB))
        except OSError:
            continue
        break
    else:
        pytest.skip("no right to make a control group with a memory limit")
    yield outer / "inner"
    for made in (outer / "inner", outer):
        made.rmdir()


# Stands before every compiler; notes how many run now.
LAUNCHER = """#!/bin/sh
touch "$RUNNING/$$"; ls "$RUNNING" | wc -l >> "$RUNNING.log"
case "$*" in *" -c "*) sleep 0.2;; esac
"$@"; status=$?
rm "$RUNNING/$$"; exit $status
"""


@pytest.mark.full
@root_only
@pytest.mark.parametrize(
    "asked, most", [({}, 2), ({"MAX_JOBS": "3"}, 3), ({"CMAKE_BUILD_PARALLEL_LEVEL": "1"}, 1)]
)
def test_36_pip_wheel_in_a_control_group(group, tmp_path, asked, most):
    """As on a host with 64 CPUs, in a group of 5 GiB: how many compilers run at once."""
    pytest.importorskip("scikit_build_core")
    launcher, running, patch = tmp_path / "launcher", tmp_path / "running", tmp_path / "path/sitecustomize.py"
    running.mkdir()
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    patch.parent.mkdir()
    patch.write_text("import os\nos.sched_getaffinity = lambda _: set(range(64))\n")
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("FLA_NPU", "ASCEND", "CMAKE_", "MAX_JOBS"))
    }
    kept |= {"FLA_NPU_OPS": "merge_fwd_bwd_kernel", "RUNNING": str(running), "PYTHONPATH": str(patch.parent)}
    kept |= {
        "CMAKE_CXX_COMPILER_LAUNCHER": f"{launcher};{ccache}"
        if (ccache := shutil.which("ccache"))
        else str(launcher)
    }
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        ROOT,
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path / "out",
    ]
    pip += ["-C", f"build-dir={tmp_path}/build"]
    code = (
        "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); os.execvp(sys.argv[2], sys.argv[2:])"
    )
    enter = [sys.executable, "-S", "-c", code, group / "cgroup.procs"]
    done = subprocess.run(list(map(str, [*enter, *pip])), capture_output=True, text=True, env=kept | asked)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    seen = [int(n) for n in re.findall(r"\d+", Path(f"{running}.log").read_text())]
    assert len(seen) > 5 and max(seen) == most, seen
