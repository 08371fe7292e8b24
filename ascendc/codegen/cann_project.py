# SPDX-License-Identifier: Apache-2.0
"""Lay out what the CANN toolkit builds: cann_project.py BUILD TEMPLATE NAME=VALUE...

BUILD/build_config.json says what it is; NAME=VALUE are settings of the compiler. Made in BUILD/cann:

    project/        fla_cann.cmake as CMakeLists.txt; op_host/, op_api/ and op_kernel/, one folder each; cmake/,
                    the functions of an older toolkit's project template, where TEMPLATE names one
    options.cmake   the project's settings
    build/          what the same toolkit has compiled stays there; what it only adds to, or half did, does not

The toolkit's kernel compiler is given no include path of ours: headers are found beside the file that
includes them, so an include of a stage's header loses its folder. Files are written only when they change;
what an earlier layout left is removed.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

ASCENDC = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ASCENDC / "codegen"))

from contract import ContractError, load  # noqa: E402


class LayoutError(ValueError):
    """Two files would get one place."""


class Project:
    """Place in the project -> text."""

    def __init__(self, generated: Path) -> None:
        self.generated = generated
        self.files: dict[str, str] = {}
        self.origin: dict[str, Path] = {}
        stages = sorted(p.name for p in (ASCENDC / "common/stages").iterdir() if p.is_dir())
        self.folders = re.compile(r'#include "(?:' + "|".join(["stages", *stages]) + ")/")

    def add(self, folder: str, *patterns: str, base: Path | None = None) -> None:
        for pattern in patterns:
            for path in sorted(p for p in (base or ASCENDC).glob(pattern) if p.is_file()):
                place = f"{folder}/{path.name}"
                if self.origin.setdefault(place, path) != path:
                    raise LayoutError(
                        f"{self.origin[place]} and {path} would both become {place}; rename one"
                    )
                self.files[place] = self.folders.sub('#include "', path.read_text())

    def add_shared(self) -> None:
        """What operators have in common: contract, plans, CANN's adapters, the kernels' vocabulary."""
        host = (
            "common/host/*.cpp",
            "common/host/*.h",
            "common/host/stages/*",
            "common/stages/*/*_tiling_data.h",
        )
        self.add("op_host", *host, "common/cann/host_entry.*")
        self.add("op_api", *host, "common/cann/l2_call.*")
        self.add("op_kernel", "common/kernel/*.h", "common/stages/*/*.h")
        self.files["CMakeLists.txt"] = (ASCENDC / "cmake/fla_cann.cmake").read_text()

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
        self.add("op_kernel", f"ops/{name}/op_kernel/*")
        return load(ASCENDC / f"ops/{name}/op.json").op_type

    def write(self, out: Path) -> None:
        for old in (p for folder in ("op_host", "op_api", "op_kernel") for p in (out / folder).rglob("*")):
            if old.is_file() and old.relative_to(out).as_posix() not in self.files:
                old.unlink()
        for name, text in self.files.items():
            path = out / name
            if not path.is_file() or path.read_text() != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)


def options(build: Path, config: dict, settings: list[str]) -> str:
    """The project's settings as a cache file, in which lists stay lists. The first line is the toolkit."""
    values = dict(setting.split("=", 1) for setting in settings)
    values["CMAKE_CXX_FLAGS"] += f' "-ffile-prefix-map={build}/cann/project/="'
    values |= {
        "CMAKE_BUILD_TYPE": config["build_type"],
        "CMAKE_INSTALL_PREFIX": f"{build}/cann/install",
        "vendor_name": "fla_npu",
        "ASC_DIR": config["cann_asc"],
        "ASCEND_CANN_PACKAGE_PATH": config["cann_home"],
        "ASCEND_PYTHON_EXECUTABLE": sys.executable,
        "ASCEND_COMPUTE_UNIT": ";".join(config["socs"]),
        "ENABLE_SOURCE_PACKAGE": "ON",
        "ENABLE_BINARY_PACKAGE": "ON",
        "FLA_KERNEL_OPTIONS": ";".join(config["kernel_options"]),
        "FLA_BUILD_ID_SOURCE": f"{build}/build_id.cpp",
    }
    lines = [f'set({name} [==[{value}]==] CACHE STRING "")' for name, value in values.items()]
    return "\n".join([f"# {config['cann_home']} {config['cann']} {config['cann_asc']}", *lines, ""])


def prepare(cann: Path, settings: str) -> None:
    """Keep what this toolkit compiled, and its cache while the settings are the same; nothing half done."""
    made, kept = cann / "build", cann / "options.cmake"
    before = kept.read_text() if kept.is_file() else ""
    stale = [cann / "install", cann / "project/cmake"]
    stale += [made / name for name in ("autogen", "info", "binary", "fla_kernels")]
    # The kernel compiler works in <OpType>_<chip>, and stops where one that was killed left such a folder.
    stale += made.glob("*_ascend*")
    if before.partition("\n")[0] != settings.partition("\n")[0]:
        stale.append(made)
    for folder in stale:
        if folder.exists():
            shutil.rmtree(folder)
    if before != settings:
        (made / "CMakeCache.txt").unlink(missing_ok=True)
        cann.mkdir(exist_ok=True)
        kept.write_text(settings)


def copy_template(template: Path, place: Path) -> None:
    """The template's files with their own modes; folders may be read-only there, and get ours here."""
    for path in (p for p in template.rglob("*") if p.is_file()):
        copy = place / path.relative_to(template)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)


def main(arguments: list[str]) -> int:
    build, template, *settings = arguments
    try:
        config = json.loads(Path(build, "build_config.json").read_text())
        project = Project(Path(build, "generated"))
        project.add_shared()
        types = [project.add_op(name) for name in config["ops"]]
        lists = f"set(FLA_OPS {' '.join(config['ops'])})\nset(FLA_OP_TYPES {' '.join(types)})\n"
        project.files["ops.cmake"] = lists
        prepare(Path(build, "cann"), options(Path(build), config, settings))
        project.write(Path(build, "cann/project"))
        if template:
            copy_template(Path(template), Path(build, "cann/project/cmake"))
    except (LayoutError, ContractError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
