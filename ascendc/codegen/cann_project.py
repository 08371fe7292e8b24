# SPDX-License-Identifier: Apache-2.0
"""Lay out the operator project for the CANN toolkit: cann_project.py <ascendc> <generated> <project> <op>...

op_host/ and op_api/ are one folder each, op_kernel/ has one per operator, because the toolkit's kernel
compiler is given no include path of ours: headers are found beside the file that includes them, so an
include of a stage's header loses its folder. Files are written only when they change; what an earlier
layout left is removed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from contract import ContractError, load


class LayoutError(ValueError):
    """Two files would get one place."""


class Project:
    """Place in the project -> text."""

    def __init__(self, ascendc: Path, generated: Path) -> None:
        self.ascendc, self.generated = ascendc, generated
        self.files: dict[str, str] = {}
        self.origin: dict[str, Path] = {}
        stages = sorted(p.name for p in (ascendc / "common/stages").iterdir() if p.is_dir())
        self.folders = re.compile(r'#include "(?:' + "|".join(["stages", *stages]) + ")/")

    def add(self, folder: str, *patterns: str, base: Path | None = None) -> None:
        base = base or self.ascendc
        for pattern in patterns:
            for path in sorted(p for p in base.glob(pattern) if p.is_file()):
                place = f"{folder}/{path.name}"
                if self.origin.setdefault(place, path) != path:
                    raise LayoutError(
                        f"{self.origin[place]} and {path} would both become {place}; rename one"
                    )
                self.files[place] = self.folders.sub('#include "', path.read_text())

    def add_shared(self) -> None:
        """What operators have in common: contract, plans, CANN's adapters."""
        host = (
            "common/host/*.cpp",
            "common/host/*.h",
            "common/host/stages/*",
            "common/stages/*/*_tiling_data.h",
        )
        self.add("op_host", *host, "common/cann/host_entry.*")
        self.add("op_api", *host, "common/cann/l2_call.*")

    def add_op(self, name: str) -> str:
        """The files of one operator; returns its op type."""
        made, plans = (
            self.generated / name,
            (f"ops/{name}/op_host/*", f"ops/{name}/op_kernel/*_tiling_data.h"),
        )
        for folder in ("op_host", "op_api"):
            self.add(folder, *plans)
            self.add(folder, f"{name}_contract.*", base=made)
        self.add("op_host", f"{name}_def.cpp", f"{name}_tiling.cpp", f"{name}_infershape.cpp", base=made)
        self.add("op_api", f"aclnn_{name}.*", f"{name}_l0.*", base=made)
        kernel = (f"ops/{name}/op_kernel/*", "common/kernel/*.h", "common/stages/*/*.h")
        self.add(f"op_kernel/{name}", *kernel)
        return load(self.ascendc / f"ops/{name}/op.json").op_type

    def write(self, out: Path) -> None:
        for old in (p for folder in ("op_host", "op_api", "op_kernel") for p in (out / folder).rglob("*")):
            if old.is_file() and old.relative_to(out).as_posix() not in self.files:
                old.unlink()
        for name, text in self.files.items():
            path = out / name
            if not path.is_file() or path.read_text() != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)


def main(arguments: list[str]) -> int:
    ascendc, generated, out, *names = arguments
    project = Project(Path(ascendc), Path(generated))
    try:
        project.add_shared()
        types = [project.add_op(name) for name in names]
        lists = f"set(FLA_OPS {' '.join(names)})\nset(FLA_OP_TYPES {' '.join(types)})\n"
        project.files["ops.cmake"] = lists
        project.write(Path(out))
    except (LayoutError, ContractError, OSError) as error:
        print(f"fla-npu: step 'lay out' failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
