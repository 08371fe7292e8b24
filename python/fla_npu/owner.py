# SPDX-License-Identifier: Apache-2.0
"""Whose files lie in the folder `fla_npu`: ours, or those of another distribution too, or of nobody any more.

pip lets two distributions write into one import package. The one installed last wins file by file, and
uninstalling either removes files of both. This is found out at the first operator call, by every
`fla-npu` command, and when an attribute is missing; an import looks at nothing. In a checkout the build
asks, before it packs what an old build or an editor left there.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from .errors import AbiMismatch
from .manifest import record_hash

__all__ = ["NAME", "before_build", "claimants", "hidden", "mixture", "refuse_mixture"]

NAME = "fla-npu"
PACKAGE = "fla_npu"
SOURCES = {".py", ".cc", ".h", ".sh"}
PASSED_OVER = ("*~", "*.orig", "*.rej", "*.bak", ".*", "__pycache__")  # wheel.exclude has these, too
UNBUILDABLE = '[]|<>;"\\'  # tried one by one; spaces, quotes, $, &, #, % and the like do no harm
MADE = ("opp", "_contract", "_built")  # what a build adds: never there before it


def claimants() -> dict[str, list[str]]:
    """Distribution -> its files below `fla_npu/`, of every installed distribution but ours. Slow."""
    found: dict[str, list[str]] = {}
    for other in metadata.distributions():
        name = (other.metadata or {}).get("Name") or "?"  # a damaged dist-info has no metadata
        if name.lower().replace("_", "-") != NAME:
            files = [str(f) for f in other.files or () if f.parts[:1] == (PACKAGE,)]
            if files:
                found[name] = files
    return found


def _record() -> tuple[metadata.Distribution, dict[str, str]] | None:
    """Our distribution and its recorded hashes, when the package in use is the one it installed."""
    import fla_npu

    try:
        own = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        return None  # a checkout on PYTHONPATH
    rows = (line.rsplit(",", 2) for line in (own.read_text("RECORD") or "").splitlines())
    listed = {row[0]: row[1] for row in rows if len(row) == 3 and row[0].startswith(PACKAGE + "/")}
    place = Path(str(own.locate_file(PACKAGE)))
    if f"{PACKAGE}/__init__.py" not in listed or str(place) not in map(str, fla_npu.__path__):
        return None  # an editable install, or another copy comes first on sys.path
    return own, listed


def _is_ours(path: Path, recorded: str) -> bool:
    algorithm = recorded.partition("=")[0]
    if algorithm not in hashlib.algorithms_guaranteed:
        return True  # recorded without a hash: nothing to compare with
    return record_hash(path.read_bytes(), algorithm) == recorded


def mixture() -> str:
    """What is wrong with the installed files, in words; '' when they are ours and nobody else's.

    Costs a millisecond while all is well: our RECORD, one hash, one directory listing.
    """
    try:
        known = _record()
        return _look(*known) if known else ""
    except OSError:  # what may not be read can't be judged; the import itself went well
        return ""


def _look(own: metadata.Distribution, listed: dict[str, str]) -> str:
    start = Path(str(own.locate_file(f"{PACKAGE}/__init__.py")))
    repair = f"pip install --force-reinstall --no-deps {NAME}"
    archive = next((p for p in start.parents if p.is_file()), None)
    if archive:  # put on sys.path as it is
        text = f"{PACKAGE} is imported from the archive {archive}, in which no library can be opened"
        return f"{text}: pip install {archive}"
    if not start.is_file():
        return (
            f"{start} is missing: another distribution that wrote into the folder {PACKAGE} was probably "
            f"uninstalled and took it along. Install again: {repair}"
        )
    tops = {name.split("/")[1] for name in listed} | {"__pycache__"}
    strangers = sorted(p.name for p in start.parent.iterdir() if p.name not in tops)
    replaced = not _is_ours(start, listed[f"{PACKAGE}/__init__.py"])
    others = claimants() if strangers or replaced else {}
    if not others:
        return ""
    names = ", ".join(sorted(others))
    state = f"{start} is theirs" if replaced else f"{', '.join(strangers)} in {start.parent} are theirs"
    return (
        f"the import name {PACKAGE} is also used by the installed distribution {names}; {state}, so that "
        f"what runs is half of each. Keep one: pip uninstall -y {NAME} {' '.join(sorted(others))}, then "
        "install the one you want"
    )


def hidden() -> str:
    """The installed package's folder when another copy comes before it on sys.path, as in a checkout; else ''."""
    import fla_npu

    try:
        place = Path(str(metadata.distribution(NAME).locate_file(PACKAGE)))
        return str(place) if place.is_dir() and str(place) not in map(str, fla_npu.__path__) else ""
    except (metadata.PackageNotFoundError, OSError):
        return ""


def refuse_mixture() -> None:
    """AbiMismatch when files of another distribution are mixed with ours."""
    text = mixture()
    if text:
        raise AbiMismatch(text)


def before_build(package: Path) -> None:
    """SystemExit when a build of the checkout with this package folder can't end well, with the reason."""
    paths = {
        "the checkout": str(package.parents[1]),
        "ASCEND_HOME_PATH": os.environ.get("ASCEND_HOME_PATH", ""),
        "TMPDIR": tempfile.gettempdir(),
    }
    for what, path in paths.items():
        strange = [c for c in path if c in UNBUILDABLE or not (c.isprintable() or "\udc80" <= c)]
        if strange:
            raise SystemExit(
                f"fla-npu cannot be built, step 'paths' failed: {what} is {path!r}, and CMake or the compiler's tools "
                f"take the {strange[0]!r} in it for something else; use a path without {' '.join(UNBUILDABLE)}"
            )
    _forget_compilers(package.parents[1])
    leftover = next(_leftovers(package), None)
    if leftover:
        raise SystemExit(
            f"fla-npu cannot be built, step 'sources' failed: {leftover} is none of this package's sources and would "
            "go into the wheel; an old build, an editor or another tool left it there. Remove it"
        )


def _forget_compilers(root: Path) -> None:
    """Lets go of a build tree's memory of a compiler that is gone, or is not the one that CXX names now."""
    words = shlex.split(os.environ.get("CXX", ""))
    for cache in root.glob("build/*/CMakeCache.txt"):
        found = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.+)$", cache.read_text(errors="replace"), re.M)
        had = os.path.realpath(found.group(1)) if found else ""
        now = os.path.realpath(shutil.which(words[0]) or words[0]) if words else had
        if found and (now != had or not os.path.exists(had)):
            cache.unlink()
            shutil.rmtree(cache.parent / "CMakeFiles", ignore_errors=True)


def _leftovers(package: Path) -> Iterator[Path]:
    """What would be packed from the checkout's package folder, and is no source."""
    for path in sorted(package.rglob("*")):
        parts = path.relative_to(package).parts
        if any(fnmatch.fnmatch(part, pattern) for part in parts for pattern in PASSED_OVER):
            continue
        if path.is_symlink() or parts[0] in MADE or (path.is_file() and path.suffix not in SOURCES):
            yield path
