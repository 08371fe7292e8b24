# SPDX-License-Identifier: Apache-2.0
"""The compiled bridge: find it in the cache, or compile it, and import it.

The wheel carries the C++ sources, not a binary: a binary would fix the MindSpore and the Python it
works with. The first use compiles (about a minute, 2 GB of memory); `fla-npu build-bridge` does the
same ahead of time. Cache entry: <cache>/bridge/<key>/, where the key covers MindSpore, Python, the
sources, the operator contracts and the compiler.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import json
import platform
import sys
import threading
import time
from functools import lru_cache
from importlib import resources
from pathlib import Path
from types import ModuleType

from ..spec import names, spec
from . import codegen
from .cache import cache_root, exclusive, publish, scratch_directory
from .compiler import BridgeBuildError, Compiler, compile_module, find_compiler, flags
from .require import CALLS_HAVE_NAMES, mindspore_release, mindspore_version

__all__ = ["build", "load", "location"]

MODULE = "fla_npu_bridge"
_SOURCES = ("acl_call.cc", "program.cc", "graph.cc", "bridge.cc")
_HEADERS = ("acl_call.h", "program.h", "graph.h")
_lock = threading.Lock()


def _say(text: str) -> None:
    print(f"fla_npu: {text}", file=sys.stderr, flush=True)


@lru_cache(maxsize=1)
def _texts() -> dict[str, str]:
    """All sources by file name, the generated one included."""
    folder = resources.files(__package__) / "csrc"
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in (*_HEADERS, *_SOURCES)}
    texts["calls.cc"] = codegen.call_table()
    return texts


def _key() -> str:
    """What the binary depends on besides the compiler."""
    parts = [mindspore_version(), sys.implementation.cache_tag, platform.machine()]
    parts += [f"{name}\n{text}" for name, text in sorted(_texts().items())]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _entry(compiler: Compiler) -> Path:
    return cache_root() / "bridge" / f"{_key()}-{compiler.tag}"


def location() -> Path | None:
    """The compiled bridge that would be used now, or None when it has yet to be compiled.

    Without a compiler any entry with the right key will do: images are often built with one and run
    without.
    """
    compiler = find_compiler()
    if compiler is not None:
        found = [_entry(compiler) / f"{MODULE}.so"]
    else:
        found = []
        with contextlib.suppress(OSError):  # a folder of another user
            found = sorted((cache_root() / "bridge").glob(f"{_key()}-????????/{MODULE}.so"))
    return next((path for path in found if _version(path)), None)


def _compile(compiler: Compiler, entry: Path, locked: bool, force: bool) -> None:
    """Make the entry; the caller holds its lock, where there are locks."""
    with scratch_directory(entry, locked) as made:
        for name, text in _texts().items():
            (made / name).write_text(text, encoding="utf-8")
        tools = flags(MODULE)
        outputs = codegen.max_outputs([spec(name) for name in names()])
        named = str(mindspore_release() >= CALLS_HAVE_NAMES).lower()
        ours = f"-DFLA_BRIDGE_MAX_OUTPUTS={outputs}", f"-DFLA_BRIDGE_NAMED_CALLS={named}"
        tools = type(tools)((*tools.compile, *ours), tools.link)
        order = [made / name for name in ("calls.cc", *_SOURCES)]
        try:
            seconds = compile_module(compiler, tools, order, made, f"{MODULE}.so", _say)
        except BridgeBuildError as error:
            # Left for those who waited for us: they fail with this text instead of trying again.
            with contextlib.suppress(OSError):  # the disk may be full: then they try for themselves
                (made / "failure.txt").write_text(str(error), encoding="utf-8")
                publish(made / "failure.txt", entry / "failure.txt")
            raise
        note = {"mindspore": mindspore_version(), "compiler": compiler.version, "seconds": seconds}
        (made / "build.json").write_text(json.dumps(note, indent=1), encoding="utf-8")
        for name in ("build.log", "build.json", f"{MODULE}.so"):  # the module last: it marks success
            publish(made / name, entry / name, replace=force)
        (entry / "failure.txt").unlink(missing_ok=True)
    _say(f"the MindSpore bridge is ready after {seconds:.0f} s: {entry / (MODULE + '.so')}")


def _version(path: Path) -> tuple[int, int] | None:
    """Which file this is, to see later whether another one took its place. Clocks are not compared."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_ino, state.st_mtime_ns


def build(force: bool = False) -> Path:
    """Compile the bridge unless the cache has it (`force`: compile anyway); returns its path.

    Raises BridgeBuildError with the compiler's text, or CacheError when the cache is not writable.
    """
    ready = location()
    if ready is not None and not force:
        return ready
    compiler = find_compiler()
    if compiler is None:
        raise BridgeBuildError(
            "the MindSpore bridge has to be compiled once, and no C++ compiler was found: install g++ "
            "or set CXX, or run `fla-npu build-bridge` where one is and share FLA_NPU_CACHE_DIR"
        )
    entry = _entry(compiler)
    module = entry / f"{MODULE}.so"
    failure = entry / "failure.txt"
    before = _version(module), _version(failure)
    with exclusive(entry, _say) as locked:
        if _version(module) and (not force or _version(module) != before[0]):
            return module  # made by another process while this one waited
        if _version(failure) not in (None, before[1]):
            with contextlib.suppress(OSError):  # gone: whoever made it has begun again
                raise BridgeBuildError(failure.read_text(encoding="utf-8"))
        _say(
            f"compiling the bridge for MindSpore {mindspore_version()}, once per MindSpore and compiler; "
            f"about a minute, 2 GB of memory; it goes to {entry}"
        )
        _compile(compiler, entry, locked, force)
    return module


@lru_cache(maxsize=1)
def _import() -> ModuleType:
    import mindspore  # noqa: F401  its libraries must be loaded before the bridge

    began = time.monotonic()
    path = build()
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(MODULE, loader))
    try:
        loader.exec_module(module)
    except ImportError as error:
        raise BridgeBuildError(
            f"the compiled bridge {path} does not load: {error}; make it again: fla-npu build-bridge --force"
        ) from error
    module.load_seconds = time.monotonic() - began
    return module


def load() -> ModuleType:
    """The bridge module (`bind`, `call`, `operators`), compiled first if need be."""
    with _lock:
        return _import()
