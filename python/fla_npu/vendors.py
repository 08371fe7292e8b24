# SPDX-License-Identifier: Apache-2.0
"""OPPs outside the installed package: what `fla-npu opp` does.

    source     a wheel, a .run, a .tar.gz of the plain tree, or a folder: all have the same files
    install    source -> DIR/vendors/fla_npu, beside the vendors that are there, first in config.ini
    pack       source -> a self-extracting .run, a .tar.gz or the plain tree

A source is verified against its manifest, file by file, before anything is changed. Laying the files into
place is the work of installer.sh, which a .run carries too: there is one way to install.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from . import opp
from .errors import AbiMismatch, ArgumentError, FlaNpuError, OppNotFound
from .manifest import parse_manifest, read_file
from .manylinux import platform_tag

__all__ = ["environment", "install", "listing", "pack", "read_source", "remove"]

VENDOR = "vendors/fla_npu/"
MANIFEST = "manifest.json"
RECORDS = (".created", ".config.before", ".config.after")  # what installer.sh keeps for the removal


class InstallError(FlaNpuError, OSError):
    """An OPP could not be put into place or removed; the message says why."""

    def __str__(self) -> str:
        return str(self.args[0])


def read_source(source: Path) -> dict[str, bytes]:
    """Every file of an OPP by its path below the OPP's root, verified against its manifest.

    OppNotFound when `source` is nothing of the kind, AbiMismatch when it is damaged.
    """
    from .check_symbols.tree import InputError, read_input  # only here: it takes its time to import

    try:
        if source.is_dir():
            files = _folder(source)
        else:
            place = read_input(source)
            if place.faults:
                name, fault = next(iter(place.faults.items()))
                raise AbiMismatch(f"{name} in {source} {fault}; fetch it again")
            files = {name: read() for name, read in place.files.items()}
    except InputError as error:
        raise OppNotFound(str(error)) from error
    except OSError as error:
        raise OppNotFound(f"{source} can't be read: {error.strerror or error}") from error
    _verify(source, files)
    return files


def _folder(source: Path) -> dict[str, bytes]:
    root, vendors = opp.split(source.resolve())
    found = next((v for v in vendors if v.name == "fla_npu"), None)
    if found is None:
        return {}
    files = {VENDOR + p.relative_to(found).as_posix(): read_file(p) for p in found.rglob("*") if p.is_file()}
    # What an installer adds to the vendor is not part of the package.
    own = files.pop(VENDOR + MANIFEST, None)
    for name in ("bin/set_env.bash", "bin/set_env.csh", "bin/set_env.fish", *RECORDS):
        files.pop(VENDOR + name, None)
    if own is None and (root / MANIFEST).is_file():
        own = read_file(root / MANIFEST)
    files.update({MANIFEST: own} if own else {})
    files["vendors/config.ini"] = b"load_priority=fla_npu\n"
    return files


def _verify(source: Path, files: dict[str, bytes]) -> None:
    """Every file the manifest lists is there and unchanged, and no other library is."""
    if MANIFEST not in files:
        raise OppNotFound(f"{source} has no OPP of fla-npu in it (vendors/fla_npu with its {MANIFEST})")
    try:
        listed = parse_manifest(files[MANIFEST])["files"]
    except (KeyError, ValueError) as error:
        raise AbiMismatch(f"the {MANIFEST} of {source} can't be understood: {error}") from error
    for name, data in files.items():
        if name.startswith("/") or ".." in name.split("/"):
            raise AbiMismatch(
                f"{source} has a file outside its tree: {name}; it was not made by this program"
            )
        if name.endswith((".so", ".o")) and name not in listed:
            raise AbiMismatch(
                f"{source} has {name}, which its manifest does not list; it is not of one build"
            )
        recorded = listed.get(name, {}).get("sha256")
        if recorded and recorded != hashlib.sha256(data).hexdigest() and name != "vendors/config.ini":
            raise AbiMismatch(f"{name} in {source} is not the file that was packed (sha256); fetch it again")
    lost = sorted(set(listed) - set(files))
    if lost:
        raise AbiMismatch(
            f"{source} lacks {lost[0]} and {len(lost) - 1} more; it is incomplete, fetch it again"
        )


def _glibc_needed(files: dict[str, bytes]) -> int:
    """Minor version of the C library that the newest need of any library in `files` has; 0 when unknown."""
    libraries = [data for name, data in files.items() if name.endswith(".so")]
    tag = re.match(r"manylinux_2_(\d+)_", platform_tag(libraries, "any"))
    return int(tag.group(1)) if tag else 0


def _installer() -> str:
    return (resources.files("fla_npu") / "installer.sh").read_text(encoding="utf-8")


def _run_installer(*options: str) -> str:
    """Runs installer.sh; its complaint becomes the error."""
    done = subprocess.run(
        ["sh", "-c", _installer(), "fla-npu", *options],
        capture_output=True,
        encoding=sys.getfilesystemencoding(),
        errors="surrogateescape",  # a path may be no text
        check=False,
    )
    if done.returncode:
        raise InstallError(
            done.stderr.strip().removeprefix("fla-npu: ") or f"sh ended with {done.returncode}"
        )
    return done.stdout.rstrip("\n")


def _place(path: Path | None) -> Path:
    place = Path(os.path.expanduser(path)).absolute() if path else opp.user_root()
    if place is None:
        raise InstallError("this user has no home directory to install to; name a folder with --path")
    if place.parts[-2:] == ("vendors", "fla_npu"):
        return place.parents[1]
    return place.parent if place.name == "vendors" else place


def install(source: Path, path: Path | None = None) -> str:
    """Installs or replaces the OPP below `path` (default: where fla_npu looks by itself)."""
    files = read_source(source)
    arch = parse_manifest(files[MANIFEST]).get("arch", "")
    if arch and arch != platform.machine():
        raise ArgumentError(f"{source} is for {arch}, this machine is {platform.machine()}")
    needed = _glibc_needed(files)
    here = re.fullmatch(r"glibc 2\.(\d+).*", os.confstr("CS_GNU_LIBC_VERSION") or "")
    if here and int(here.group(1)) < needed:
        raise ArgumentError(
            f"{source} needs glibc 2.{needed}, this system has {here.group()}; build here: pip install . in a checkout"
        )
    place = _place(path)
    try:
        with tempfile.TemporaryDirectory() as folder:
            _write_tree(files, Path(folder))
            text = _run_installer(f"--from={folder}", f"--install-path={place}")
    except InstallError:
        raise
    except OSError as error:
        raise InstallError(f"cannot unpack {source}: {error.strerror or error}; set TMPDIR") from error
    first = opp.survey()[0]
    if first.path and first.opp is None or first.opp and first.opp.root != place.resolve():
        text += f"\nFLA_NPU_OPP_PATH = {first.path} comes before it; unset it to use what was installed"
    return text


def remove(path: Path | None = None) -> str:
    """Removes what `install` or a .run put below `path`, its directories and its place in config.ini."""
    return _run_installer("--uninstall", f"--install-path={_place(path)}")


def environment(shell: str) -> str:
    """Lines for `shell` that make the OPP in use known to CANN and to processes of another user."""
    used = opp.find()
    return _run_installer(f"--print-env={shell}", f"--vendor={used.vendors[0]}")


def listing() -> list[dict]:
    """Every vendor of every place, in the order of precedence, with what its manifest says."""
    rows: list[dict] = []
    shown: list[opp.Opp] = []
    for place in opp.survey():
        if place.fault is not None:
            rows.append({"source": place.source, "path": place.path, "state": place.state})
        if place.opp is None or place.opp in shown:  # the places of one variable are one OPP
            continue
        state = "hidden" if rows else "used"  # nothing is used behind a damaged one
        for vendor in place.opp.vendors:
            manifest = place.opp.manifest_of(vendor / MANIFEST)
            says = {
                key: manifest[key] for key in ("version", "backend", "build_id", "socs") if key in manifest
            }
            rows.append({"source": place.source, "path": str(vendor), "state": state, **says})
        shown.append(place.opp)
    return rows


def _write_tree(files: dict[str, bytes], root: Path) -> None:
    for name, data in sorted(files.items()):
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _archive(files: dict[str, bytes]) -> bytes:
    """The tree as .tar.gz; the same files give the same bytes (SOURCE_DATE_EPOCH, or the epoch)."""
    stamp = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(data), stamp, 0o644
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)


def pack(source: Path, out: Path, form: str = "run") -> Path:
    """The OPP of `source` in another form, below `out`; returns what was written."""
    files = read_source(source)
    manifest = parse_manifest(files[MANIFEST])
    version, arch = manifest.get("version", "0"), manifest.get("arch", "")
    target = out / f"fla_npu-{version}-linux_{arch}{'' if form == 'tree' else '.' + form}"
    if form == "tree":
        if target.exists():
            raise InstallError(f"{target} exists; remove it, or choose another --out")
        _deliver(target, lambda made: _write_tree(files, made))
        return target
    data = _archive(files)
    if form == "run":
        script = _installer()
        values = {
            "about": f"'fla-npu {version} for {', '.join(manifest.get('socs', []))} ({arch})'",
            "payload_at": script.count("\n") + 1,
            "payload_sha256": f"'{hashlib.sha256(data).hexdigest()}'",
            "payload_arch": f"'{arch}'",
            "payload_glibc": _glibc_needed(files),
        }
        for name, value in values.items():
            script = re.sub(
                rf"^{name}=\S+", lambda _, n=name, v=value: f"{n}={v}", script, count=1, flags=re.M
            )
        data = script.encode() + data

    def write(made: Path) -> None:
        made.write_bytes(data)
        made.chmod(0o755 if form == "run" else 0o644)

    _deliver(target, write)
    return target


def _deliver(target: Path, write: Callable[[Path], object]) -> None:
    """Writes beside `target` and moves what is complete into place; InstallError leaves nothing behind."""
    made = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write(made)
        os.replace(made, target)
    except OSError as error:
        raise InstallError(
            f"cannot write {target}: {error.strerror or error}; choose another --out"
        ) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
        with contextlib.suppress(OSError):
            made.unlink()
