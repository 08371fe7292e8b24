# SPDX-License-Identifier: Apache-2.0
"""What a build is for: backend, chips, operators, version. Decided once, here.

The version provider of pyproject.toml and CMake both ask this module, so that the label in a wheel's
name can't differ from what is inside. Options come from the environment (FLA_NPU_BACKEND,
FLA_NPU_SOC, FLA_NPU_OPS, FLA_NPU_KERNEL_OPTIONS) or, from CMake, as arguments. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
from fla_npu import elf, machine  # noqa: E402

VERSION = "0.1.0"
OPTIONS = ("FLA_NPU_BACKEND", "FLA_NPU_SOC", "FLA_NPU_OPS", "FLA_NPU_KERNEL_OPTIONS")
BACKENDS = ("auto", "twin", "cann")
SOCS = ("ascend910b", "ascend910_93")
# What the CANN build needs of a toolkit; its absence says that the path is something else.
TOOLKIT_FILES = ("include/aclnn/acl_meta.h", "include/register/op_def.h", "lib64/libnnopbase.so")
# The build functions: newer toolkits have a CMake package, CANN 8.1 to 8.3 a project template.
ASC_PLACES = ("lib64/cmake", "*-linux/lib64/cmake", "compiler/tikcpp/ascendc_kernel_cmake",
              "*-linux/tikcpp/ascendc_kernel_cmake", "tools/tikcpp/ascendc_kernel_cmake")  # fmt: skip
TEMPLATE = "tools/op_project_templates/ascendc/customize/cmake/func.cmake"


class ConfigError(ValueError):
    """The options or the environment describe no build."""


def choose_backend(asked: str) -> tuple[str, str]:
    """(backend, CANN home). CANN is taken when ASCEND_HOME_PATH is set, and never falls back."""
    if asked not in BACKENDS:
        raise ConfigError(f"FLA_NPU_BACKEND = {asked}; it is one of {', '.join(BACKENDS)}")
    home = os.environ.get("ASCEND_HOME_PATH", "")
    if asked == "twin" or (asked == "auto" and not home):
        return "twin", ""
    if not home:
        raise ConfigError(
            "FLA_NPU_BACKEND = cann, but ASCEND_HOME_PATH is not set. Source the toolkit's "
            "set_env.sh first, or build the CPU twin with FLA_NPU_BACKEND=twin"
        )
    missing = [name for name in TOOLKIT_FILES if not (Path(home) / name).exists()]
    if not asc_folder(home) and not (Path(home) / TEMPLATE).exists():
        missing.append(f"ASCConfig.cmake (newer toolkits) or {TEMPLATE} (CANN 8.1 to 8.3)")
    if missing:
        state = "has no " + " and no ".join(missing) if Path(home).is_dir() else "is not a directory"
        raise ConfigError(
            f"ASCEND_HOME_PATH = {home} is no CANN toolkit: it {state}. Point it at an installed toolkit "
            "(source <toolkit>/set_env.sh), or unset it or set FLA_NPU_BACKEND=twin to build the CPU twin"
        )
    return "cann", home


def asc_folder(home: str) -> str:
    """Folder of ASCConfig.cmake, by which newer toolkits are used; '' when there is none."""
    found = [path.parent for place in ASC_PLACES for path in Path(home).glob(f"{place}/**/ASCConfig.cmake")]
    return str(found[0]) if found else ""


def cann_version(home: str) -> str:
    """Version of a toolkit, from the file that its installer writes; '' when it has none."""
    for name in ("version.cfg", "compiler/version.info", "ascend_toolkit_install.info"):
        path = Path(home) / name
        text = path.read_text() if path.is_file() else ""
        found = re.search(r"(?im)version[^\n]*?(\d+\.\d+[.\w]*)", text)
        if found:
            return found.group(1)
    return ""


def choose_socs(text: str) -> list[str]:
    asked = [part for part in re.split(r"[,; ]+", text.lower()) if part]
    socs = list(dict.fromkeys(asked)) or [SOCS[0]]
    strange = [soc for soc in socs if soc not in SOCS]
    if strange:
        raise ConfigError(f"FLA_NPU_SOC = {', '.join(strange)}; known chips are {', '.join(SOCS)}")
    return socs


def choose_kernel_options(text: str, backend: str) -> list[str]:
    """Options for the toolkit's kernel compiler: -g, -O0, -sanitizer, --save-temp-files, -D..."""
    options = [part for part in re.split(r"[; ]+", text) if part]
    strange = [part for part in options if not part.startswith("-")]
    if strange:
        raise ConfigError(f"FLA_NPU_KERNEL_OPTIONS names {', '.join(strange)}; an option begins with '-'")
    if options and backend == "twin":
        raise ConfigError(
            f"FLA_NPU_KERNEL_OPTIONS = {text} is for CANN's kernel compiler, this build is for the CPU twin, "
            "whose checked mode needs no build option; unset it, or build with FLA_NPU_BACKEND=cann"
        )
    return options


def jobs() -> int:
    """Parallel jobs: what MAX_JOBS says, else one per CPU of the process or container, as far as 2 GiB each go."""
    return machine.jobs(2 << 30)


def choose_ops(text: str) -> list[str]:
    known = sorted(path.parent.name for path in (ROOT / "ascendc/ops").glob("*/op.json"))
    asked = [part for part in re.split(r"[,; ]+", text) if part]
    strange = [op for op in asked if op not in known]
    if strange:
        raise ConfigError(f"FLA_NPU_OPS names {', '.join(strange)}; the operators are {', '.join(known)}")
    return sorted(set(asked)) or known


def git_revision() -> str:
    """Commit of the checkout, '-dirty' with local changes; '' outside a checkout (an sdist)."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        there = (ROOT / ".git").exists()  # not a checkout that this folder merely lies in
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True) if there else None
    except (OSError, subprocess.CalledProcessError):
        return ""
    return run.stdout.strip() if run else ""


def local_label(backend: str, home: str, socs: list[str]) -> str:
    """'twin' or, say, 'cann8.1.ascend910b': pip must not mix wheels of two kinds."""
    if backend == "twin":
        return "twin"
    release = ".".join(cann_version(home).split(".")[:2])
    parts = [f"cann{release}", *(soc.replace("_", ".") for soc in socs)]
    return re.sub(r"[^a-z0-9.]+", ".", ".".join(parts).lower()).strip(".")


def pinned() -> str:
    """The label of a source archive that is for one kind of wheel, from its PKG-INFO; '' everywhere else."""
    info = ROOT / "PKG-INFO"
    found = re.search(r"(?m)^Version: [^+\n]+\+(.+)$", info.read_text()) if info.is_file() else None
    return found.group(1) if found else ""


def decide(backend: str, socs: str, ops: str, kernel_options: str = "") -> dict:
    label = pinned()  # 'twin' or 'cann...': its first letters are the backend
    chosen, home = choose_backend((backend if backend != "auto" else "") or label[:4] or "auto")
    places = sorted((label.find(soc.replace("_", ".")), soc) for soc in SOCS)
    names = choose_socs(socs or " ".join(soc for place, soc in places if place > 0))
    made = local_label(chosen, home, names)
    if label not in ("", made):
        raise ConfigError(f"this source archive is for +{label}, not for +{made}; take one without a label")
    return {
        "version": f"{VERSION}+{made}",
        "backend": chosen,
        "socs": names,
        "ops": choose_ops(ops),
        "cann": cann_version(home) if home else "",
        "cann_home": home,
        "cann_asc": asc_folder(home) if home else "",
        "kernel_options": choose_kernel_options(kernel_options, chosen),
        "git": git_revision(),
    }


def from_environment() -> dict:
    return decide(*(os.environ.get(name, "") for name in OPTIONS))


class Version:
    """Version provider of pyproject.toml. An sdist builds for anything, so it carries no label, unless the
    backend is named: it is for that kind then, and pip takes it by name, which compares labels, too."""

    def build_state(self, state: str) -> None:
        self.state = state

    def dynamic_metadata(self, settings: dict, project: dict) -> dict:
        if self.state == "sdist" and os.environ.get(OPTIONS[0], "auto") in ("", "auto") and not pinned():
            return {"version": VERSION}
        try:
            return {"version": from_environment()["version"]}
        except ConfigError as error:
            raise SystemExit(f"fla-npu: step 'options' failed: {error}") from None


def main() -> int:
    parser = argparse.ArgumentParser(description="Decide what to build, as JSON.", allow_abbrev=False)
    for name in ("backend", "soc", "ops", "kernel-options", "compiler", "arch", "build-type", "out"):
        parser.add_argument(f"--{name}", default="")
    asked = parser.parse_args()
    try:
        config = decide(asked.backend, asked.soc, asked.ops, asked.kernel_options)
    except ConfigError as error:
        print(f"fla-npu: step 'options' failed: {error}", file=sys.stderr)
        return 1
    arch = elf.machine_name(asked.arch)
    config |= {"compiler": asked.compiler, "arch": arch, "build_type": asked.build_type}
    text = json.dumps(config, indent=2) + "\n"
    out = Path(asked.out)
    if not out.exists() or out.read_text() != text:
        out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
