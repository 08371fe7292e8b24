# SPDX-License-Identifier: Apache-2.0
"""The table for people."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["print_comparison", "print_report"]

COLOURS = {"ok": "green", "unknown": "yellow"}


def _mark(value: object) -> Text:
    """A word of the table with its colour; anything that is not good is red."""
    word = {True: "ok", False: "missing"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    return Text(word, style=COLOURS.get(word, "red"))


def _kernels(kernels: dict[str, bool]) -> Text:
    if not kernels:
        return Text("none", style="red")
    return Text(", ").join(
        Text(soc, style="green") if there else Text(f"{soc}: missing", style="red")
        for soc, there in kernels.items()
    )


def print_comparison(result: dict, file: TextIO | None = None) -> None:
    """What the newer release lacks, changed and added, and the verdict."""
    console = Console(soft_wrap=True, file=file)
    for finding in result["findings"]:
        style = {"error": "red", "warning": "yellow"}.get(finding["level"], "green")
        console.print(Text.assemble((finding["level"], style), f" {finding['text']}  [{finding['where']}]"))
    errors = sum(f["level"] == "error" for f in result["findings"])
    verdict = f"{errors} incompatible with {result['compare']['against']}" if errors else "compatible"
    console.print(Text(verdict, style="red" if errors else "green"))


def print_report(result: dict, file: TextIO | None = None) -> None:
    """Vendors, one row per operator, findings, verdict."""
    console = Console(soft_wrap=True, file=file)
    for vendor in result["vendors"]:
        about = [vendor["backend"], *vendor["socs"], vendor["arch"], vendor["version"]]
        about += [f"build {vendor['build_id']}"] if vendor["build_id"] else []
        console.print(Text(f"{vendor['name']}: " + ", ".join(part for part in about if part)))
    # One row per operator; further columns say nothing while the symbols are missing.
    table = Table()
    for heading in ("operator", "symbols", "prototype", "header", "tiling", "kernels"):
        table.add_column(heading)
    alone = all(place["kind"] == "library" for place in result["inputs"])
    for name, row in result["ops"].items():
        there = row["symbols"] == "ok"
        rest = there and not alone  # of a single library only the symbols can be looked at
        table.add_row(
            name,
            _mark(row["symbols"]),
            _mark(row["prototype"]) if there else "",
            _mark(row["header"]) if rest else "",
            _mark(row["tiling"]) if rest else "",
            _kernels(row["kernels"]) if rest else "",
        )
    console.print(table)
    # Every finding names its place: several packages may have been given.
    for finding in result["findings"]:
        subject = f"{finding['op']}: " if finding["op"] else ""
        style = "red" if finding["level"] == "error" else "yellow"
        console.print(
            Text.assemble((finding["level"], style), f" {subject}{finding['text']}  [{finding['where']}]")
        )
    # Warnings do not make a package incomplete; only errors count.
    errors = sum(f["level"] == "error" for f in result["findings"])
    console.print(
        Text(
            "complete" if result["ok"] else f"{errors} problem{'s' if errors != 1 else ''}",
            style="green" if result["ok"] else "red",
        )
    )
