# SPDX-License-Identifier: Apache-2.0
"""One step of the CANN build: step.py NAME LOG "op type:op ..." COMMAND...

The output goes to LOG. When the command fails, the step's name, the operator at fault, the log and its
last lines are said; the status is 1, so that the build stops. Jobs are bounded by memory.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from build_config import jobs

FAULT = re.compile(r"\*\*\*|\berror\b|\bfailed\b|No such file", re.I)


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


def main() -> int:
    name, log, ops, *command = sys.argv[1:]
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    environment = {"CMAKE_BUILD_PARALLEL_LEVEL": str(jobs()), **os.environ}
    with open(log, "wb") as out:
        try:
            status = subprocess.run(command, stdout=out, stderr=out, env=environment).returncode
        except OSError as error:
            out.write(str(error).encode())
            status = 127
    if status == 0:
        return 0
    text = Path(log).read_text(errors="replace")
    fault = operator_at_fault(text, ops.split())
    about = f" at operator {fault.replace(':', ', ')}" if fault else ""
    last = "\n".join(text.splitlines()[-25:])
    print(f"{last}\nfla-npu: step '{name}' failed{about} (exit {status}); log: {log}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
