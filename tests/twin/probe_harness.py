# SPDX-License-Identifier: Apache-2.0
"""Compiles probe kernels against the twin's headers and runs them on the installed machine.

A probe is one kernel source with many cases, chosen by the tiling field `which`, so that few files have
to be compiled. Its four builds (fast and checked, AIC and AIV) and a C launcher go into one library, cached
by content.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from in_step import in_step

REPOSITORY = Path(__file__).resolve().parents[2]
TWIN = REPOSITORY / "ascendc" / "twin"
PROBES = Path(__file__).resolve().parent / "probes"
KINDS = {"in": 0, "out": 1, "inout": 2, "workspace": 3, "tiling": 4}
COUNTERS = ("macs", "lanes", "flags", "cross_flags", "cycles", "ub_peak", "gm_to_ub", "ub_to_gm")


@dataclass(frozen=True)
class Report:
    """What a launch left: status 0 or 507015, and the fault's one line."""

    status: int
    message: str

    @property
    def clean(self) -> bool:
        return self.status == 0


@functools.cache
def machine_library() -> Path:
    """libfla_twin.so of the installed OPP; FLA_NPU_TEST_TWIN_LIB names another one."""
    override = os.environ.get("FLA_NPU_TEST_TWIN_LIB")
    if override:
        return Path(override)
    from fla_npu import opp

    for library in opp.find().libraries:
        candidate = library.parent / "libfla_twin.so"
        if candidate.exists():
            return candidate
    raise FileNotFoundError("libfla_twin.so is not in the installed OPP; run `pip install .`")


def _digest(paths: list[Path], salt: str) -> str:
    h = hashlib.sha256(salt.encode())
    for path in sorted(paths):
        h.update(path.read_bytes())
    return h.hexdigest()[:16]


def _entry_source(name: str, builds: list[str]) -> str:
    """The table of the four renamed entries, as the op generator writes it for a real operator."""
    declare = "\n".join(
        f'extern "C" void {b}(uint8_t *, uint8_t *, uint8_t *, uint8_t *);\n'
        f"static void Call_{b}(void *const *a) {{ {b}((uint8_t *)a[0], (uint8_t *)a[1], "
        f"(uint8_t *)a[2], (uint8_t *)a[3]); }}"
        for b in builds
    )
    calls = ", ".join(f"Call_{b}" for b in builds)
    return (
        f'#include "machine/launch.h"\n{declare}\n'
        f'extern "C" {{ __attribute__((visibility("default"))) extern const twin::KernelEntry Entry; }}\n'
        f'const twin::KernelEntry Entry = {{"{name}", {calls}}};\n'
    )


@functools.cache
def build(name: str) -> ctypes.CDLL:
    """The compiled probe `probes/<name>.cpp`; every probe takes (x, y, workspace, tiling)."""
    library = machine_library()
    headers = [p for d in ("api", "machine", "prims", "include") for p in (TWIN / d).glob("*.h")]
    key = _digest([PROBES / f"{name}.cpp", PROBES / "launcher.cpp", *headers], str(library))
    root = Path(os.environ.get("FLA_NPU_TEST_CACHE", tempfile.gettempdir())) / "fla-npu-probes"
    target = root / f"{name}-{key}.so"
    if target.exists():
        return ctypes.CDLL(str(target))
    root.mkdir(parents=True, exist_ok=True)
    builds = [f"{name}_{mode}_{core}" for mode in ("fast", "checked") for core in ("aic", "aiv")]
    with tempfile.TemporaryDirectory(dir=root) as work:
        entry = Path(work) / "entry.cpp"
        entry.write_text(_entry_source(name, builds))
        jobs, objects = [], []
        common = ["g++", "-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
        for source, flags in [
            *[(PROBES / f"{name}.cpp", _flags(name, b)) for b in builds],
            (entry, []),
            (PROBES / "launcher.cpp", []),
        ]:
            objects.append(f"{work}/{len(objects)}.o")
            include = [f"-I{TWIN}", f"-I{TWIN / 'include'}", f"-I{PROBES}"]
            command = [*common, *include, *flags, "-c", str(source), "-o", objects[-1]]
            jobs.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        for job in jobs:
            _, errors = job.communicate()
            assert job.returncode == 0, errors
        made = f"{work}/probe.so"
        link = ["g++", "-shared", "-o", made, *objects, str(library), f"-Wl,-rpath,{library.parent}"]
        subprocess.run(link, check=True)
        os.replace(made, target)  # atomic: parallel test runs may build the same probe
    return ctypes.CDLL(str(target))


def _flags(name: str, build_name: str) -> list[str]:
    mode, core = build_name.rsplit("_", 2)[1:]
    return [
        f"-DTWIN_CORE={core.upper()}",
        f"-DTWIN_CHECKED={int(mode == 'checked')}",
        f"-D{name}={build_name}",
        f"-Dprobe={build_name}_ns",
    ]


def lines_of(name: str, tag: str) -> str:
    """FLA_NPU_TWIN_SKIP text for every line of the probe marked `// fence: <tag>`."""
    found = [
        f"{name}.cpp:{number}"
        for number, line in enumerate((PROBES / f"{name}.cpp").read_text().splitlines(), 1)
        if re.search(rf"// fence: {re.escape(tag)}$", line)
    ]
    assert found, f"no line of {name}.cpp is marked '// fence: {tag}'"
    return ",".join(found)


def line_of(name: str, text: str) -> int:
    """The one line of the probe that contains `text`."""
    lines = (PROBES / f"{name}.cpp").read_text().splitlines()
    found = [number for number, line in enumerate(lines, 1) if text in line]
    assert len(found) == 1, f"{text!r} is on lines {found} of {name}.cpp"
    return found[0]


def run(
    name: str,
    which: int = 0,
    *,
    x: np.ndarray | None = None,
    y: np.ndarray | None = None,
    blocks: int = 1,
    workspace: int = 1 << 20,
    fields: tuple[int, ...] = (),
) -> Report:
    """Launches a case. Unset x and y are 4096 floats: 0, 1, 2 ... and NaN."""
    library = build(name)
    entry = ctypes.addressof(ctypes.c_char.in_dll(library, "Entry"))
    x = np.arange(4096, dtype=np.float32) if x is None else x
    y = np.full(4096, np.nan, dtype=np.float32) if y is None else y
    scratch = np.zeros(workspace + 512, dtype=np.uint8)
    aligned = (scratch.ctypes.data + 511) // 512 * 512
    tiling = np.frombuffer(struct.pack("8I", which, *fields, *[0] * (7 - len(fields))), np.uint8).copy()
    places = [
        (x.ctypes.data, x.nbytes, "in", b"x"),
        (y.ctypes.data, y.nbytes, "out", b"y"),
        (aligned, workspace, "workspace", b"workspace"),
        (tiling.ctypes.data, tiling.nbytes, "tiling", b"tiling"),
    ]
    count = len(places)
    text = ctypes.create_string_buffer(4096)
    status = library.ProbeLaunch(
        ctypes.c_void_p(entry),
        (ctypes.c_void_p * count)(*[p[0] for p in places]),
        count,
        (ctypes.c_void_p * count)(*[p[0] for p in places]),
        (ctypes.c_uint64 * count)(*[p[1] for p in places]),
        (ctypes.c_int * count)(*[KINDS[p[2]] for p in places]),
        (ctypes.c_char_p * count)(*[p[3] for p in places]),
        blocks,
        text,
        len(text),
    )
    return Report(status, text.value.decode())


def counters(name: str) -> dict[str, int]:
    """What the last checked launch of this thread counted."""
    values = (ctypes.c_uint64 * len(COUNTERS))()
    build(name).ProbeCounters(values)
    return dict(in_step(COUNTERS, values))
