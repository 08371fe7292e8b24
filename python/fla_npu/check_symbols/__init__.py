# SPDX-License-Identifier: Apache-2.0
"""What an operator package (OPP) really contains, read without loading it.

    check_symbols [PATH ...] [--op NAME] [--format text|json|junit|sarif] [--output FILE]
    check_symbols PATH --against RELEASE

PATH is a wheel, a .run or .tar.gz of `fla-npu opp pack`, an installed package, an OPP root, a vendors
directory, one vendor directory or one library. Without PATH it is the OPP that an operator call would use.
Only what PATH names is read; the environment plays no part then. Exit status:

    0  everything is there
    1  the package is sound, but something asked for is missing or wrong: a symbol or a kernel that is not
       provided, another prototype, a second provider, a foreign library, an incompatible release, a placeholder
    2  what was given can't be trusted to be what was packed: it can't be read, a file of it can't be understood
       (a cut or foreign library, invalid JSON, a damaged archive), is not the one that was packed (hash), or is
       gone although the manifest lists it

Each finding is on a line, those of status 2 as `damage`; the first of these is also on the standard error.

With --against two releases are compared, and nothing else is asked of PATH: RELEASE is an OPP in any shape, or
the manifest of one. Removed or changed symbols, parameter lists, chips and kernels are errors, new ones notes;
damage in either release is damage.

Rules. A library provides a function when its dynamic symbol table defines the exact name as a global or
weak function of visible (default or protected) visibility, with or without a symbol version. A name that
is only imported, hidden, data, or there for old programs only (name@V, not name@@V), does not count.
Nothing is opened with dlopen, so libraries of another machine, or whose own needs are not installed, are
read like any other.
C symbols carry no types: signatures are compared through the prototype hashes of contract and manifest.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path

from ..elf import MACHINES, machine_name
from ..errors import AbiMismatch, FlaNpuError
from .checks import check
from .compare import compare, read_release
from .formats import as_junit, as_sarif
from .tree import InputError, read_input, status_of

__all__ = ["against", "main", "run"]

FORMATS = {"json": lambda result: json.dumps(result, indent=2), "junit": as_junit, "sarif": as_sarif}


def run(paths: list[str], ops: list[str] | None = None, arch: str | None = None) -> dict:
    """Check the given places; the result is what --json prints. InputError when one can't be read."""
    if "" in paths:
        raise InputError("a path is empty: a variable that is not set?")
    if arch and machine_name(arch) not in MACHINES.values():
        raise InputError(f"--arch {arch}: known are {', '.join(MACHINES.values())}")
    places = [read_input(Path(path)) for path in paths or [_default_path()]]
    return check(places, ops or [], machine_name(arch) if arch else None)


def against(old: str, new: str | None = None) -> dict:
    """Compare a release with an older one; `ok` when nothing that callers rely on is gone or changed."""
    compared = compare(read_release(old), read_release(new or _default_path()))
    findings = compared.pop("findings")
    status = status_of(findings)
    return {"ok": status == 0, "status": status, "compare": compared, "findings": findings}


def _default_path() -> str:
    """What a call would use, also when it would refuse it as damaged."""
    from .. import opp

    try:
        return str(opp.find().root)
    except AbiMismatch:
        return next(place.path for place in opp.survey() if place.fault)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="check_symbols",
        description=__doc__.split("\n\n", 1)[0],
        epilog="Exit status: 0 everything is there; 1 sound, but something asked for is missing or wrong; 2 damaged: "
        "it can't be read, or is not what was packed.",
    )
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="wheel, .run, .tar.gz, package, OPP, vendor or library"
    )
    parser.add_argument(
        "--op", action="append", default=[], metavar="NAME", help="only this operator (repeatable)"
    )
    parser.add_argument(
        "--arch", help="machine the libraries must be for (default: this one, or the wheel's tag)"
    )
    parser.add_argument(
        "--against",
        metavar="RELEASE",
        help="compare PATH with this manifest, OPP or wheel of another release",
    )
    parser.add_argument("--format", choices=["text", *FORMATS], default="text", help="default: text")
    parser.add_argument("--json", action="store_const", dest="format", const="json", help="--format json")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there instead of to the terminal")
    asked = parser.parse_args(arguments)
    if asked.against and len(asked.paths) > 1:
        parser.error("--against compares one PATH with another release")
    try:
        if asked.against:
            result = against(asked.against, *asked.paths)
        else:
            result = run(asked.paths, asked.op, asked.arch)
    except (InputError, FlaNpuError, OSError) as error:
        result = {"ok": False, "status": 2, "error": str(error), "findings": []}
    if result["status"] == 2:
        print(f"check_symbols: {_reason(result)}", file=sys.stderr)
    try:
        if asked.format != "text" or "error" not in result:
            _write(result, asked.format, asked.output)
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ImportError) as error:
        hint = (
            "; the table needs rich: pip install rich, or --format json"
            if isinstance(error, ImportError)
            else ""
        )
        print(f"check_symbols: the result can't be written: {error}{hint}", file=sys.stderr)
        return 2
    return result["status"]


def _reason(result: dict) -> str:
    """Why the status is 2, on one line: names of damaged files may hold anything."""
    if "error" in result:
        return result["error"]
    damage = [f for f in result["findings"] if f["level"] == "damage"]
    more = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
    text = f"{damage[0]['where']}: {damage[0]['text']}{more}"
    return re.sub(r"[\x00-\x1f\x7f]", lambda match: repr(match.group())[1:-1], text)


def _write(result: dict, form: str, output: Path | None) -> None:
    """The result to a file or to the terminal. Names in it may be no valid text."""
    if form != "text":
        text = FORMATS[form](result) + "\n"
        if output is None:
            sys.stdout.write(text.encode("utf-8", "replace").decode())
            sys.stdout.flush()
        else:
            output.write_text(text, encoding="utf-8", errors="replace")
        return
    from .report import print_comparison, print_report  # only here: it takes its time to import

    printed = print_comparison if "compare" in result else print_report
    if output is None:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="backslashreplace")
        printed(result)
        sys.stdout.flush()
    else:
        with output.open("w", encoding="utf-8", errors="replace") as file:
            printed(result, file)
