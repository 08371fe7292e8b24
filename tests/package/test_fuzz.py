# SPDX-License-Identifier: Apache-2.0
"""Damaged files and folders, by the hundred, from a seed: check_symbols and the loader say what is wrong.

Every case runs in a process of its own, so that a crash or a hang of one is its failure and no more. Each must
end with status 2 and a reason, and the loader must refuse it, unless the case is one of these, compared with
the package as it was before; they are counted:

    the same        no file that the manifest lists, nor what it says, has changed
    same members    a wheel whose members are what they were: dates, comments or rights in its directory differ
    same symbols    one library without a manifest, whose symbols are what they were: code or data differ
"""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import io
import json
import os
import random
import shutil
import zipfile
from pathlib import Path

import fake_cann
import fake_opp
import pytest
from apart import in_a_process
from fla_npu.elf import read_elf

CASES = {"fast": 40, "full": 1000}
EXCUSED = 0.1  # of all cases at most
TEXTS = [
    "",
    "{",
    "null",
    "[]",
    "\0" * 50,
    "[" * 5000,
    '{"ops": {"chunk_fwd_h": []}}',
    "load_priority",
    "=" * 300,
    "\ud7ff",
    "1e999",
]
NAMES = [
    "",
    "vendors",
    "opp",
    "fla_npu",
    "op_api",
    "op_impl",
    "lib",
    "manifest.json",
    "libcust_opapi.so",
    "x" * 200,
    "\udcff",
    "a\nb",
    "$HOME",
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> list[Path]:
    """Good packages of both backends, to damage."""
    root = tmp_path_factory.mktemp("good")
    return [fake_opp.make_opp(root / "twin"), fake_cann.make_opp(root / "cann")]


def files_of(root: Path) -> list[Path]:
    return sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink())


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Bytes flipped, cut, doubled, inserted or exchanged; headers more often than the rest."""
    data = bytearray(data or b"\0")
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        end = min(len(data), rng.choice([64, 1024, len(data)]))
        at = rng.randrange(max(1, end))
        kind = rng.randrange(6)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + rng.choice([1, 2, 4, 8])] = rng.choice([b"\xff", b"\0", b"\x7f\xff\xff\xff"]) * 2
        elif kind == 2:
            del data[at : at + rng.choice([1, 16, len(data)])]
        elif kind == 3:
            data[at:at] = rng.randbytes(rng.choice([1, 16, 4096]))
        elif kind == 4:
            data += data[:at]
        else:
            data[at:] = rng.randbytes(min(len(data) - at, 4096))
        data = data or bytearray(b"\0")
    return bytes(data)


def damage(rng: random.Random, root: Path) -> None:
    """One to three files or folders of the package, each in one way."""
    for _ in range(rng.randrange(1, 4)):
        files = files_of(root)
        if not files:
            return
        path, how = rng.choice(files), rng.randrange(11)
        if how < 4:
            path.write_bytes(mutated(rng, path.read_bytes()))
        elif how == 4:
            path.write_bytes(rng.choice(TEXTS).encode("utf-8", "surrogateescape"))
        elif how == 5:
            path.unlink()
            path.mkdir()
        elif how == 6:
            path.unlink()
            path.symlink_to(rng.choice(["nowhere", path.name, "..", "/dev/null", "/"]))
        elif how == 7:
            shutil.rmtree(
                rng.choice([p for p in path.parents if root in p.parents] or [path.parent]),
                ignore_errors=True,
            )
        elif how == 8:
            path.unlink()
            os.mkfifo(path)
        elif how == 9:
            path.write_bytes(mutated(rng, path.read_bytes()))
            (root / "manifest.json").unlink(missing_ok=True)  # nothing to compare with
        else:
            other = rng.choice(files)
            path.write_bytes(other.read_bytes() if other.is_file() else b"")


def rubbish(rng: random.Random, root: Path) -> None:
    """A tree of random names, some of them those that are looked for."""
    place = root
    for _ in range(rng.randrange(1, 12)):
        place = rng.choice([root, place]) / (rng.choice(NAMES) or "x")
        with contextlib.suppress(OSError):
            if rng.random() < 0.6:
                place.mkdir(parents=True)
            elif rng.random() < 0.1:
                os.mkfifo(place)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(rng.randbytes(rng.choice([0, 4, 300])))


def make_input(rng: random.Random, sources: list[Path], work: Path) -> tuple[Path, Path | None]:
    """A damaged OPP, one of its files, a damaged wheel, a damaged manifest, or rubbish; and what it was made of."""
    kind = rng.randrange(10)
    root = work / "opp"
    if kind == 0:
        root.mkdir()
        rubbish(rng, root)
        return root, None
    source = rng.choice(sources)
    shutil.copytree(source, root)
    if kind <= 5:
        damage(rng, root)
        return rng.choice([root, root, root / "vendors", root / "vendors/fla_npu"]), source
    if kind == 6:
        path = rng.choice(files_of(root))
        path.write_bytes(mutated(rng, path.read_bytes()))
        return path, source / path.relative_to(root)
    if kind == 7:
        manifest = root / "manifest.json"
        manifest.write_bytes(mutated(rng, manifest.read_bytes()))
        return rng.choice([(root, source), (manifest, source / "manifest.json")])
    wheel, whole = work / f"fla_npu-1-py3-none-linux_{fake_opp.ARCH}.whl", work / "whole"
    with zipfile.ZipFile(wheel, "w", rng.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])) as archive:
        for path in files_of(root):
            archive.write(path, f"fla_npu/opp/{path.relative_to(root).as_posix()}")
    shutil.copy(wheel, whole)
    wheel.write_bytes(mutated(rng, wheel.read_bytes()))
    return wheel, whole


def content(path: Path) -> object:
    """A file's bytes, of a manifest what it says; None for anything else."""
    if path.is_symlink() or not path.is_file():
        return None
    data = path.read_bytes()
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(data) if path.name == "manifest.json" else data
    return data


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def changed(path: Path, source: Path) -> set[str]:
    """Files of a package that are not what they were."""
    root = path.parent if path.name == "vendors" else path if path.name == "opp" else path.parents[1]
    names = [p.relative_to(source) for p in files_of(source)]
    return {name.as_posix() for name in names if content(source / name) != content(root / name)}


def excuse(path: Path, source: Path | None) -> str:
    """Why the damage can't be seen; '' when it can."""
    if source is None:
        return ""
    if source.is_dir():
        return "" if changed(path, source) else "the same"
    if path.read_bytes() == source.read_bytes() and path.suffix in (".so", ".whl"):
        return "the same"
    with contextlib.suppress(Exception):
        if path.suffix == ".whl":
            return "same members" if members(path) == members(source) else ""
        if path.suffix == ".so":
            return "same symbols" if read_elf(path.read_bytes()) == read_elf(source.read_bytes()) else ""
    return ""


def look(rng: random.Random, path: Path) -> str:
    """check_symbols, plain or as a comparison, in some format; its status and its reason."""
    from fla_npu import check_symbols

    options = rng.choice([[], ["--op", fake_opp.OP], ["--op", fake_cann.OP], ["--against", str(path)]])
    form = rng.choice(["text", "json", "junit", "sarif"])
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = check_symbols.main([str(path), *options, "--format", form])
    reason = err.getvalue()
    assert status in (0, 1, 2), status
    assert (status == 2) == reason.startswith("check_symbols: "), reason
    assert status != 2 or (len(reason) > 20 and (reason.count("\n") == 1 or "\n" in str(path))), reason
    assert status != 1 or out.getvalue().strip()
    return f"status {status}: {reason}"


def load(path: Path, opened: set[str]) -> str:
    """The loader on a place: the operator is bound when what it opens is whole, or refused with a reason."""
    import warnings

    from fla_npu import loader, opp
    from fla_npu.errors import FlaNpuError

    opp.own_root = lambda: None  # an installed package would fall back on its own
    os.environ["FLA_NPU_OPP_PATH"] = str(path)
    loader.reset()  # from what another test chose before the fork
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader.bind(fake_opp.OP)
    except FlaNpuError as error:
        assert str(error).strip()
        return "refused"
    assert not opened, f"bound, although {opened} changed"
    return "bound"


def is_opened(name: str) -> bool:
    """Does a call of the operator open this file of the twin's package?"""
    return (
        name == "manifest.json"
        or (name.endswith(".so") and f"kernel/ascend910b/{fake_opp.OP}" in name)
        or (name.endswith(".so") and "/kernel/" not in name)
    )


@pytest.mark.parametrize("tier", ["fast", pytest.param("full", marks=pytest.mark.full)])
def test_damaged_input_is_explained(sources, tmp_path, tier):
    for module in ("check_symbols", "check_symbols.report", "loader"):
        importlib.import_module(f"fla_npu.{module}")  # once, and not in every process
    outcomes: collections.Counter[str] = collections.Counter()
    failed = []
    for seed in range(CASES[tier]):
        rng = random.Random(seed if tier == "fast" else seed + 10_000)
        work = tmp_path / str(seed)
        work.mkdir()
        path, source = make_input(rng, sources, work)
        why = excuse(path, source)
        opened = {str(path)}  # no package
        if source and source.is_dir():
            opened = {name for name in changed(path, source) if is_opened(name)}
            if not os.path.lexists(work / "opp/manifest.json"):
                opened = set()  # the loader takes a library without one as far as it can be used
        said = in_a_process(functools.partial(look, rng, path), functools.partial(load, path, opened))
        outcomes.update([text.split(":")[0] for text in said] + ([why] if why else []))
        bad = [text for text in said if text.startswith(("CRASH", "DEAD"))]
        if not why and not said[0].startswith("status 2"):
            bad.append(f"{said[0]}, and the damage can be seen")
        failed += [f"seed {seed} {path}: {text}" for text in bad]
        shutil.rmtree(work, ignore_errors=True)
    assert not failed, f"{len(failed)} of {CASES[tier]}: {outcomes}\n" + "\n".join(failed[:10])
    excused = sum(outcomes[why] for why in ("the same", "same members", "same symbols"))
    assert excused <= EXCUSED * CASES[tier], outcomes
    assert outcomes["status 2"] >= (1 - EXCUSED) * CASES[tier] and outcomes["refused"] > 0, outcomes


@pytest.mark.full
def test_damaged_libraries_of_this_build_without_their_manifest(tmp_path):
    """Nothing to compare them with: opened when they can be, refused when opening would end the process."""
    from fla_npu import opp

    root = Path(shutil.copytree(opp.find().root, tmp_path / "opp"))
    (root / "manifest.json").unlink()
    libraries = [root / "vendors/fla_npu" / name for name in (opp.LIBRARY, opp.TWIN_LIBRARY)]
    importlib.import_module("fla_npu.loader")
    outcomes: collections.Counter[str] = collections.Counter()
    for seed in range(300):
        rng = random.Random(seed)
        path = rng.choice(libraries)
        whole = path.read_bytes()
        path.write_bytes(mutated(rng, whole))
        outcomes.update(in_a_process(functools.partial(load, root, set())))
        path.write_bytes(whole)
    assert set(outcomes) == {"refused", "bound"} and outcomes["refused"] > 200, outcomes
