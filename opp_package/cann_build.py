# SPDX-License-Identifier: Apache-2.0
"""The CANN build, one step after the other: cann_build.py BUILD CMAKE NAME=VALUE...

An operator project is laid out in BUILD/cann, and the toolkit's own functions configure, build and install it
(ascendc/cmake/fla_cann.cmake). BUILD/build_config.json says what is built for; CMAKE is the program to use,
NAME=VALUE are settings of the compiler. The first step that fails stops the build: its name, the operator at
fault, its log and the log's last lines are said. Jobs are bounded by memory.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ASCENDC = Path(__file__).resolve().parents[1] / "ascendc"
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ASCENDC / "codegen")]

from build_config import TEMPLATE, jobs  # noqa: E402
from contract import load  # noqa: E402

FAULT = re.compile(r"\*\*\*|\berror\b|\bfailed\b|No such file", re.I)


def steps(build: Path, config: dict, cmake: str, settings: list[str]) -> list[tuple[str, list]]:
    """(name, command), in order. What newer toolkits do in one function, older ones take three steps for."""
    cann, made, asc = build / "cann", build / "cann/build", config["cann_asc"]
    template = "" if asc else Path(config["cann_home"], TEMPLATE).parent
    # Makefiles: the toolkit's scripts pass $(MAKE) on.
    configure = [cmake, "-GUnix Makefiles", "-C", cann / "options.cmake", "-S", cann / "project", "-B", made]
    older = [
        ("configure", [*configure, "-DFLA_STAGE=registrations"]),
        ("registrations", [cmake, "--build", made, "--target", "ascend_all_ops"]),
        ("opbuild", [cmake, "--build", made, "--target", "fla_opbuild"]),
    ]
    return [
        ("lay out", [sys.executable, ASCENDC / "codegen/cann_project.py", build, template, *settings]),
        *([] if asc else older),
        ("configure package", [*configure, "-DFLA_STAGE=package"]),
        ("host side", [cmake, "--build", made]),
        ("kernels", [cmake, "--build", made, "--target", "binary"]),
        ("install", [cmake, "--install", made]),
    ]


def operator_at_fault(text: str, ops: list[str]) -> str:
    """The first operator that a line about a failure names, by its op type or its own name."""
    for line in text.splitlines():
        if FAULT.search(line):
            words = set(re.split(r"(?<=[a-z0-9])_ascend\w+|[^\w]", line)) | set(re.split(r"\W", line))
            words |= {re.sub(r"^aclnn_|_(?:def|tiling|infershape|l0|contract|plan)$", "", w) for w in words}
            named = [op for op in ops if set(op.split(":")) & words]
            if named:
                return named[0]
    return ""


def succeeds(name: str, command: list, log: Path, ops: list[str]) -> bool:
    """Run one step; when it fails, say what, at which operator ('op type:op'), and where more is written."""
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {"CMAKE_BUILD_PARALLEL_LEVEL": str(jobs()), **os.environ}
    with log.open("wb") as out:
        try:
            status = subprocess.run(command, stdout=out, stderr=out, env=environment).returncode
        except OSError as error:
            out.write(str(error).encode())
            status = 127
    if status:
        text = log.read_text(errors="replace")
        fault = operator_at_fault(text, ops)
        about = f" at operator {fault.replace(':', ', ')}" if fault else ""
        last = "\n".join(text.splitlines()[-25:])
        print(f"{last}\nfla-npu: step '{name}' failed{about} (exit {status}); log: {log}", file=sys.stderr)
    return status == 0


def main(arguments: list[str]) -> int:
    build, cmake, *settings = arguments
    config = json.loads(Path(build, "build_config.json").read_text())
    ops = [f"{load(ASCENDC / f'ops/{op}/op.json').op_type}:{op}" for op in config["ops"]]
    logs = Path(build, "cann/log")
    shutil.rmtree(logs, ignore_errors=True)  # none of an earlier build
    for name, command in steps(Path(build), config, cmake, settings):
        print(f"CANN: {name}", flush=True)
        if not succeeds(name, command, logs / f"{name.replace(' ', '_')}.log", ops):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
