# SPDX-License-Identifier: Apache-2.0
"""Make everything that follows from an op.json.

    generate.py twin <op.json> <out-dir>     header, contract table, entry points, plan and kernel entry
    generate.py cann <op.json> <out-dir>     header, contract table, OpDef, infershape, tiling, L0 and L2
    generate.py docs <op.json> <page.md>     refresh the parameter table of a page
    generate.py show <op.json>               name, op type and cores; twin and cann print that, too

Files are written only when their text changes, so that a build recompiles nothing in vain.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import emit_api
import emit_docs
import emit_twin
from contract import ContractError, Op, load


def common_files(op: Op) -> dict[str, str]:
    return {
        emit_api.header_name(op): emit_api.header(op),
        f"{op.name}_contract.h": emit_api.contract_header(op),
        f"{op.name}_contract.cpp": emit_api.contract_source(op),
    }


def twin_files(op: Op) -> dict[str, str]:
    return common_files(op) | {
        f"{op.name}_aclnn.cpp": emit_twin.entry_points(op),
        f"{op.name}_plan_entry.cpp": emit_twin.plan_entry(op),
        f"{op.name}_kernel_entry.cpp": emit_twin.kernel_entry(op),
    }


def shown(op: Op) -> str:
    """Name, op type and cores, as a list of CMake."""
    return ";".join([op.name, op.op_type, *op.cores])


def write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def main(arguments: list[str]) -> int:
    kinds = {"twin": 3, "cann": 3, "docs": 3, "show": 2}
    if not arguments or kinds.get(arguments[0]) != len(arguments):
        print(__doc__, file=sys.stderr)
        return 2
    kind, spec = arguments[0], Path(arguments[1])
    try:
        op = load(spec)
        if kind == "show":
            print(shown(op))
        elif kind == "docs":
            page = Path(arguments[2])
            write(page, emit_docs.refresh(page.read_text(), op))
        else:
            files = twin_files(op) if kind == "twin" else cann_files(op)
            for name, text in files.items():
                write(Path(arguments[2]) / name, text)
            print(shown(op))
    except (ContractError, ValueError, OSError) as error:
        print(f"fla-npu: step 'generate' failed: {error}", file=sys.stderr)
        return 1
    return 0


def cann_files(op: Op) -> dict[str, str]:
    import emit_cann

    return common_files(op) | emit_cann.files(op)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
