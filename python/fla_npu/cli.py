# SPDX-License-Identifier: Apache-2.0
"""The `fla-npu` command.

Each subcommand imports what it needs when it runs, so that `fla-npu info` works where no framework,
no NumPy and no usable OPP are installed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .errors import FlaNpuError

__all__ = ["main"]

PASS_THROUGH = {"ignore_unknown_options": True, "help_option_names": []}


class _Group(click.Group):
    """Errors of this package are messages for the user, not tracebacks."""

    def invoke(self, ctx: click.Context):
        from .owner import refuse_mixture

        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # a path may hold what the terminal can't show
                stream.reconfigure(errors="backslashreplace")
        try:
            refuse_mixture()
            return super().invoke(ctx)
        except FlaNpuError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fla-npu", prog_name="fla-npu")
def main() -> None:
    """Chunk KDA operators for Ascend, with a CPU twin."""


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print plain data for programs.")
def info(as_json: bool) -> None:
    """Which OPP would be used, why, from where, and what is missing.

    Exit code 0 when every operator can be called, 1 when something is missing.
    """
    from .info import collect

    facts = collect()
    if as_json:
        click.echo(json.dumps(facts, indent=1))
    else:
        _print_info(Console(), facts)
    missing = bool(facts["problem"]) or any(facts["operators"].values())
    sys.exit(1 if missing else 0)


def _rows(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    """A plain table; without column names it is a list of key and value."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.show_header = bool(columns)
    for column in columns or ("", ""):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _words(value) -> str:
    """A value of the report as text; lists without brackets."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _print_info(console: Console, facts: dict) -> None:
    from .info import TWIN_SETTINGS

    build = [(key, _words(value)) for key, value in facts["build"].items() if value]
    console.print(_rows("Installed", (), build))
    places = [
        (("-> " if p["used"] else "   ") + p["source"], p["path"] or "-", p["state"]) for p in facts["places"]
    ]
    console.print(_rows("\nPlaces an OPP is looked for, in order", ("place", "path", "found"), places))
    if facts["problem"]:
        console.print(Text("\n" + facts["problem"], style="red"))
        return
    used = [(key, _words(value)) for key, value in facts["opp"].items()]
    console.print(_rows("\nIn use", (), used))
    others = [(name, version or "not installed") for name, version in facts["beside"].items()]
    console.print(_rows("\nBeside it", (), others))
    if facts["advice"]:
        console.print(Text(facts["advice"], style="yellow"))
    operators = [(name, reason or "ok") for name, reason in facts["operators"].items()]
    console.print(_rows("\nOperators", (), operators))
    if "twin" in facts:
        rows = [
            (name, value or f"(not set: {TWIN_SETTINGS[name]})")
            for name, value in facts["twin"]["settings"].items()
        ]
        rows.insert(0, ("instruction set in use", facts["twin"]["isa"] or "unknown"))
        console.print(_rows("\nTwin", (), rows))


@main.command("check-symbols", context_settings=PASS_THROUGH, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def check_symbols(arguments: tuple[str, ...]) -> None:
    """Compare an OPP, a wheel or an installed package with the contracts, without loading it."""
    from . import check_symbols as tool

    sys.exit(tool.main(list(arguments)))


@main.group("opp")
def opp_group() -> None:
    """Operator packages outside the installed one: install, remove, list, env, pack.

    Which OPP a call uses: FLA_NPU_OPP_PATH, else what 'opp install' installed for this user, else the
    installed package's own, else ASCEND_CUSTOM_OPP_PATH, else ASCEND_OPP_PATH. 'fla-npu info' shows it.
    """


_PLACE = click.option(
    "--path",
    type=click.Path(file_okay=False, path_type=Path),
    help="An OPP root, for instance CANN's (ASCEND_OPP_PATH). Default: this user's own, found without any variable.",
)
_SOURCE = click.argument("source", type=click.Path(path_type=Path))


@opp_group.command("install")
@_SOURCE
@_PLACE
def opp_install(source: Path, path: Path | None) -> None:
    """Install the OPP of SOURCE (a wheel, .run, .tar.gz or folder), or replace the one that is there."""
    from . import vendors

    click.echo(vendors.install(source, path))


@opp_group.command("remove")
@_PLACE
def opp_remove(path: Path | None) -> None:
    """Remove what 'opp install' or a .run installed, without a trace."""
    from . import vendors

    click.echo(vendors.remove(path))


@opp_group.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print plain data for programs.")
def opp_list(as_json: bool) -> None:
    """Every OPP that could be used, first choice first."""
    from . import vendors

    rows = vendors.listing()
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    keys = ("state", "source", "version", "backend", "socs", "path")
    table = [tuple(_words(row.get(key, "")) for key in keys) for row in rows]
    Console().print(_rows("OPPs, in order of precedence", keys, table))


@opp_group.command("env")
@click.option(
    "--shell", default="", help="bash (also sh, zsh), csh (also tcsh) or fish; default: from $SHELL."
)
def opp_env(shell: str) -> None:
    """Print the lines that make CANN find the kernels of the OPP in use; run them before Python starts.

    bash: eval "$(fla-npu opp env)"    csh: eval "`fla-npu opp env`"    fish: fla-npu opp env | source
    """
    from . import vendors

    shell = Path(shell or os.environ.get("SHELL", "bash")).name
    known = {"sh": "bash", "dash": "bash", "zsh": "bash", "ksh": "bash", "tcsh": "csh"}
    click.echo(vendors.environment(known.get(shell, shell)))


@opp_group.command("pack")
@_SOURCE
@click.option("--form", type=click.Choice(["run", "tar.gz", "tree"]), default="run", show_default=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("."), show_default=True)
def opp_pack(source: Path, form: str, out: Path) -> None:
    """Write the OPP of SOURCE as a self-extracting .run, a .tar.gz or the plain tree: the same files."""
    from . import vendors

    click.echo(str(vendors.pack(source, out, form)))


@main.command("build-bridge")
@click.option("--force", is_flag=True, help="Compile even when the cache has it.")
def build_bridge(force: bool) -> None:
    """Compile the MindSpore bridge into the per-user cache now, instead of at its first use."""
    from .mindspore import bridge

    click.echo(str(bridge.build(force=force)))


@main.command()
@click.option("--framework", type=click.Choice(["auto", "torch", "mindspore"]), default="auto")
@click.option("--tokens", type=click.IntRange(1, 65536), default=2048, show_default=True)
@click.option("--heads", type=click.IntRange(1, 64), default=8, show_default=True)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("fla_npu_demo.png"),
    show_default=True,
    help="The picture.",
)
def demo(framework: str, tokens: int, heads: int, out: Path) -> None:
    """Run npu_chunk_kda on a real-sized input and compare with the float64 recurrence."""
    for module in ("numpy", "matplotlib"):
        _need(module)
    there = next(p for p in (out.absolute(), *out.absolute().parents) if os.path.exists(p))
    if not os.access(there, os.W_OK) or there != out.absolute() and not there.is_dir():  # before all the work
        raise click.ClickException(f"the picture cannot be written to {out}: choose another --out")
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from . import demo as work

    chosen = work.pick_framework(framework)
    console = Console()
    columns = (TextColumn("{task.description:32s}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:

        def stage(text: str, total: int):
            task = progress.add_task(text, total=total)
            return lambda done: progress.update(task, completed=done)

        outcome = work.run(chosen, tokens, heads, stage)
        tick = stage("drawing", 1)
        work.draw(outcome, out)
        tick(1)
    _print_demo(console, outcome, tokens, heads, out)


def _need(module: str) -> None:
    """The demo's own dependencies are an extra; say which command brings them."""
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise click.ClickException(f"the demo needs {module}: pip install 'fla-npu[demo]'")


def _print_demo(console: Console, outcome, tokens: int, heads: int, out: Path) -> None:
    from .loader import current

    rate = tokens * heads / outcome.median_ms / 1e3
    rows = [
        ("input", f"B 1, T {tokens}, heads {heads}, K = V = 128, bf16 ({outcome.framework})"),
        ("OPP", f"{current().backend}, {current().root}"),
        ("first call (opens the OPP)", f"{outcome.first_ms:.1f} ms"),
        ("median of the next calls", f"{outcome.median_ms:.1f} ms  ({rate:.2f} M token-heads/s)"),
        ("float64 recurrence (NumPy)", f"{1e3 * outcome.reference_s:.0f} ms"),
    ]
    rows += [(f"relative L2 error of {name}", f"{100 * e:.3f} %") for name, e in outcome.errors.items()]
    rows.append(("picture", str(out)))
    console.print(_rows("npu_chunk_kda, forward", (), rows))


if __name__ == "__main__":
    main()
