# SPDX-License-Identifier: Apache-2.0
"""What an operator package (OPP) really contains, read without loading it.

    check_symbols [PATH ...] [--op NAME] [--json]

PATH is a wheel, an installed package, an OPP root, a vendors directory, one vendor directory or one
library. Without PATH it is the OPP that an operator call would use. Only what PATH names is read; the
environment plays no part then. Exit status: 0 all is there, 1 something is missing or wrong (each finding
on a line), 2 the input could not be read.

Rules. A library provides a function when its dynamic symbol table defines the exact name as a global or
weak function of visible (default or protected) visibility, with or without a symbol version. A name that
is only imported, hidden, or that is data, does not count. Nothing is opened with dlopen, so libraries of
another machine, or whose own needs are not installed, are read like any other.
C symbols carry no types: signatures are compared through the prototype hashes of contract and manifest.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ..errors import FlaNpuError
from .checks import check
from .report import print_report
from .tree import InputError, read_input

__all__ = ["main", "run"]


def run(paths: list[str], ops: list[str] | None = None, arch: str | None = None) -> dict:
    """Check the given places; the result is what --json prints. InputError when one can't be read."""
    return check([read_input(Path(path)) for path in paths or [_default_path()]], ops or [], arch)


def _default_path() -> str:
    from .. import opp

    return str(opp.find().root)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="check_symbols",
        description=__doc__.split("\n\n", 1)[0],
        epilog="Exit status: 0 complete, 1 something is missing or wrong, 2 the input could not be read.",
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="wheel, package, OPP, vendor or library")
    parser.add_argument(
        "--op", action="append", default=[], metavar="NAME", help="only this operator (repeatable)"
    )
    parser.add_argument(
        "--arch", help="machine the libraries must be for (default: this one, or the wheel's tag)"
    )
    parser.add_argument("--json", action="store_true", help="plain data for programs")
    asked = parser.parse_args(arguments)
    try:
        result = run(asked.paths, asked.op, asked.arch)
    except (InputError, FlaNpuError, OSError) as error:
        if asked.json:
            print(json.dumps({"ok": False, "error": str(error)}))
        print(f"check_symbols: {error}", file=sys.stderr)
        return 2
    if asked.json:
        print(json.dumps(result, indent=2))
    else:
        print_report(result)
    return 0 if result["ok"] else 1
