# SPDX-License-Identifier: Apache-2.0
"""The table for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["print_comparison", "print_report"]

COLOURS = {"ok": "green", "unknown": "yellow"}
LEVELS = {"damage": "bold red", "error": "red", "warning": "yellow"}


def _mark(value: bool | str) -> Text:
    """A word of the table with its colour; anything that is not good is red."""
    word = ("missing", "ok")[value] if isinstance(value, bool) else value
    return Text(word, style=COLOURS.get(word, "red"))


def _kernels(kernels: dict[str, bool]) -> Text:
    if not kernels:
        return Text("none", style="red")
    return Text(", ").join(
        Text(soc, style="green") if there else Text(f"{soc}: missing", style="red")
        for soc, there in kernels.items()
    )


def _print_findings(console: Console, findings: list[dict]) -> None:
    """Every finding names its place: several packages may have been given."""
    for finding in findings:
        style = LEVELS.get(finding["level"], "green")
        subject = f"{finding['op']}: " if finding["op"] else ""
        console.print(
            Text.assemble((finding["level"], style), f" {subject}{finding['text']}  [{finding['where']}]")
        )


def _verdict(console: Console, result: dict, good: str, bad: Callable[[int], str]) -> None:
    """One line; warnings and notes do not count."""
    counts = [sum(f["level"] == level for f in result["findings"]) for level in ("damage", "error")]
    parts = [f"damaged in {counts[0]} place{'s' if counts[0] != 1 else ''}"] if counts[0] else []
    parts += [bad(counts[1])] if counts[1] else []
    console.print(Text(", ".join(parts) or good, style="red" if parts else "green"))


def print_comparison(result: dict, file: TextIO | None = None) -> None:
    """What the newer release lacks, changed and added, and the verdict."""
    console = Console(soft_wrap=True, file=file)
    # The operator is part of what such a finding says.
    _print_findings(console, [f | {"op": ""} for f in result["findings"]])
    against = result["compare"]["against"]
    _verdict(console, result, "compatible", lambda number: f"{number} incompatible with {against}")


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
    _print_findings(console, result["findings"])
    _verdict(console, result, "complete", lambda number: f"{number} problem{'s' if number != 1 else ''}")
