# SPDX-License-Identifier: Apache-2.0
"""Opens the OPP's libraries and binds operators, each at its first call.

Rules, each of which a real installation has broken once:
* libraries are opened by absolute path with RTLD_LOCAL, so their C++ internals reach nobody else;
* both functions of an operator come from the same library, never one from each of two vendors;
* a copy named libopapi.so beside ours would shadow CANN's and is refused;
* library and manifest must carry one build id, contract and manifest one prototype hash;
* a missing symbol fails the call of that operator, and no other.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shlex
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path

from . import opp as _opp
from .elf import ElfFault, read_elf
from .errors import AbiMismatch, FlaNpuError, FlaNpuWarning, OppNotFound, SymbolMissing
from .manifest import read_file
from .owner import refuse_mixture
from .spec import OpSpec, names, spec

__all__ = ["Acl", "Binding", "Library", "bind", "current", "libraries", "reset"]

ACL_FUNCTIONS = (
    "aclCreateTensor",
    "aclDestroyTensor",
    "aclCreateIntArray",
    "aclDestroyIntArray",
    "aclGetRecentErrMsg",
    "aclDestroyAclOpExecutor",
)
CANN_LIBRARIES = ("libnnopbase.so", "libascendcl.so")
ALIAS = "libopapi.so"
SOCS = ("ascend910b", "ascend910_93")  # chips that the kernels can be built for
DEVICE = Path("/dev/davinci0")  # the driver's first NPU


def _has(cdll: ctypes.CDLL, symbol: str) -> bool:
    """hasattr, also for a library in a path that is no text."""
    try:
        getattr(cdll, symbol)
    except (AttributeError, UnicodeDecodeError):  # the loader's text names a path that is not UTF-8
        return False
    return True


@dataclass(frozen=True, eq=False)
class Library:
    """One opened operator library."""

    path: Path
    cdll: ctypes.CDLL

    def has(self, symbol: str) -> bool:
        return _has(self.cdll, symbol)

    def provides(self) -> list[str]:
        """Operators of this version's contracts that the library has completely."""
        return [n for n in names() if all(self.has(s) for s in spec(n).symbols)]


@dataclass(frozen=True, eq=False)
class Acl:
    """The ACL functions that go with the libraries: the twin's, or CANN's."""

    libraries: tuple[ctypes.CDLL, ...]
    path: str

    def find(self, name: str):
        """The function as a ctypes object; OppNotFound when no library has it."""
        for cdll in self.libraries:
            if _has(cdll, name):
                return getattr(cdll, name)
        raise OppNotFound(f"{self.path} lacks the ACL function {name}; install the OPP again")


@dataclass(frozen=True, eq=False)
class Binding:
    """One operator ready to be called. Addresses are for callers outside Python."""

    op: OpSpec
    library: Library
    acl: Acl
    backend: str

    def addresses(self) -> dict[str, int]:
        """Entry points by name: 'workspace', 'execute', and the ACL functions."""
        first, second = self.op.symbols
        table = {
            "workspace": _address(getattr(self.library.cdll, first)),
            "execute": _address(getattr(self.library.cdll, second)),
        }
        for name in (*ACL_FUNCTIONS, "aclrtSynchronizeStream"):
            function = next((getattr(c, name) for c in self.acl.libraries if _has(c, name)), None)
            table[name] = _address(function) if function is not None else 0
        return table


@dataclass(frozen=True, eq=False)
class _Loaded:
    opp: _opp.Opp
    libraries: tuple[Library, ...]
    acl: Acl


_lock = threading.RLock()
_loaded: _Loaded | None = None
_bound: dict[str, Binding] = {}


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def reset() -> None:
    """Forgets the chosen OPP, so that the next call looks again. Libraries stay mapped."""
    global _loaded
    with _lock:
        _loaded = None
        _bound.clear()


def current() -> _opp.Opp:
    """The OPP in use; the first call chooses it."""
    return _load().opp


def libraries() -> tuple[Library, ...]:
    """The opened operator libraries of the OPP in use."""
    return _load().libraries


def bind(name: str) -> Binding:
    """The operator's entry points, looked up at the first call of each operator."""
    found = _bound.get(name)
    if found is not None:
        return found
    with _lock:
        if name not in _bound:
            _bound[name] = _bind(spec(name), _load())
        return _bound[name]


def _load() -> _Loaded:
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                refuse_mixture()
                chosen = _opp.find()
                _refuse_alias(chosen)
                _refuse_placeholders(chosen)
                acl = _open_acl(chosen)
                _loaded = _Loaded(chosen, _open_vendors(chosen), acl)
                if chosen.backend == "cann":
                    _check_cann(chosen, acl)
                elif DEVICE.exists():
                    _warn_twin_beside_npu(chosen)
    return _loaded


def _refuse_alias(chosen: _opp.Opp) -> None:
    for library in chosen.libraries:
        alias = library.with_name(ALIAS)
        if os.path.lexists(alias):
            raise AbiMismatch(
                f"{alias} lies beside {library.name}: it would be loaded in place of CANN's {ALIAS}. "
                f"It is not part of this package; remove it: rm {shlex.quote(str(alias))}"
            )


def _refuse_placeholders(chosen: _opp.Opp) -> None:
    """An OPP built with a recorded toolkit, for tests of the build, has everything but device code."""
    if any(manifest.get("placeholder") for manifest in chosen.manifests.values()):
        raise AbiMismatch(
            f"the OPP {chosen.root} holds placeholders, no device code: it was built with a recorded toolkit, for "
            "tests of the build. Build it with a real CANN toolkit, or the CPU twin with FLA_NPU_BACKEND=twin"
        )


def _dlopen(path: Path | str, what: str) -> ctypes.CDLL:
    machine, here = "", os.uname().machine
    try:
        if isinstance(path, Path):
            # The system's loader maps a damaged library without complaint, and the process dies of it.
            elf = read_elf(read_file(path))
            machine = elf.machine
            if elf.soname == ALIAS:
                raise OSError(f"it calls itself {ALIAS} and would be taken for CANN's library of that name")
        return ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
    except PermissionError as error:
        raise AbiMismatch(
            f"{what} {path} cannot be loaded: permission denied for uid {os.getuid()}; make it readable "
            "(chmod a+rX) or run as its owner"
        ) from error
    except (OSError, UnicodeDecodeError, ElfFault) as error:
        text = repr(error.object) if isinstance(error, UnicodeDecodeError) else str(error)
        text = f"it {text}" if isinstance(error, ElfFault) else text
        if machine not in ("", here):  # of which the system's loader says that there is no such file
            text = f"it is for {machine}, this machine is {here}"
        if "cannot open shared object" in text and not text.startswith(str(path)):
            raise OppNotFound(
                f"{what} {path} needs a library that is not there: {text}. For a CANN build, source "
                "the toolkit's set_env.sh first"
            ) from error
        # Neither damaged nor of another machine: the system is older than the one that built it.
        if "version `GLIBC" in text:
            raise AbiMismatch(
                f"{what} {path} was built for a newer system: {text}. Build it here: pip install . in a checkout"
            ) from error
        if isinstance(path, str):  # a bare name: found by the system's search, or not at all
            raise OppNotFound(
                f"{what} {path} cannot be loaded: {text}. Source the CANN toolkit's set_env.sh first"
            ) from error
        raise AbiMismatch(
            f"{what} {path} cannot be loaded: {text}. It is damaged or built for another machine; "
            "install again: pip install --force-reinstall --no-deps fla-npu"
        ) from error


def _open_acl(chosen: _opp.Opp) -> Acl:
    if chosen.backend == "cann":
        opened = tuple(_dlopen(name, "the CANN library") for name in CANN_LIBRARIES)
        return Acl(opened, " and ".join(CANN_LIBRARIES))
    path = chosen.twin_library
    if path is None:
        raise OppNotFound(
            f"the OPP {chosen.root} is a twin build without {_opp.TWIN_LIBRARY}; install it again"
        )
    with contextlib.suppress(OSError):  # opening it says why
        _check_packed(chosen, path)
    twin = _dlopen(path, "the twin library")
    _check_build_id(chosen, path, twin)
    return Acl((twin,), str(path))


def _open_vendors(chosen: _opp.Opp) -> tuple[Library, ...]:
    """The operator libraries, first choice first. A foreign one that does not open stops nobody else."""
    opened: list[Library] = []
    failed: list[FlaNpuError] = []
    for path in chosen.libraries:
        try:
            opened.append(_open_operators(chosen, path))
        except FlaNpuError as error:
            if chosen.manifest_of(path):
                raise
            failed.append(error)
    if not opened:
        raise failed[0]
    for error in failed:
        warnings.warn(f"passed over, a vendor of {chosen.source}: {error}", FlaNpuWarning, stacklevel=4)
    return tuple(opened)


def _open_operators(chosen: _opp.Opp, path: Path) -> Library:
    with contextlib.suppress(OSError):  # opening it says why
        _check_packed(chosen, path)
    cdll = _dlopen(path, "the operator library")
    _check_build_id(chosen, path, cdll)
    return Library(path, cdll)


def _check_packed(chosen: _opp.Opp, path: Path) -> None:
    """Is it the file that was packed? The system's loader trusts what it maps: a damaged library kills."""
    manifest = chosen.manifest_of(path)
    vendor = next((v for v in chosen.vendors if v in path.parents), path.parent)
    inside = path.relative_to(vendor).as_posix()
    same = {n: e for n, e in manifest.get("files", {}).items() if n.split("/", 2)[2:] == [inside]}
    renamed = next(iter(same.values()), {})
    recorded = same.get(f"vendors/{vendor.name}/{inside}", renamed)
    data = read_file(path)
    if recorded.get("sha256", "") in ("", hashlib.sha256(data).hexdigest()):
        return
    wanted = manifest.get("build_id", "")
    try:
        found = read_elf(data).build_id
    except ElfFault:
        found = ""
    if found and wanted and found != wanted:
        raise AbiMismatch(_mixed(chosen, path, found, wanted))
    raise AbiMismatch(
        f"{path} is not the file that was packed (its sha256 differs from {chosen.root}/manifest.json): it is "
        "damaged or was replaced. Install the OPP again as a whole"
    )


def _mixed(chosen: _opp.Opp, path: Path, found: str, wanted: str) -> str:
    return (
        f"{path} has build id '{found or 'none'}', but {chosen.root}/manifest.json says "
        f"'{wanted}': pieces of two builds are mixed. Install the OPP again as a whole"
    )


def _check_build_id(chosen: _opp.Opp, path: Path, cdll: ctypes.CDLL) -> None:
    wanted = chosen.manifest_of(path).get("build_id", "")
    if not wanted:
        return
    try:
        embedded = (ctypes.c_char * 33).in_dll(cdll, "fla_build_id").value
    except ValueError:
        embedded = b""
    found = embedded.decode("ascii", "replace")
    if found != wanted:
        raise AbiMismatch(_mixed(chosen, path, found, wanted))


def _check_cann(chosen: _opp.Opp, acl: Acl) -> None:
    """What goes wrong silently on an NPU: CANN does not know our kernels, or the chip is another."""
    entries = [os.path.realpath(e) for e in os.environ.get("ASCEND_CUSTOM_OPP_PATH", "").split(":") if e]
    missing = [str(v) for v in chosen.vendors if str(v) not in entries]
    if missing and chosen.source != "ASCEND_OPP_PATH":
        line = f"export ASCEND_CUSTOM_OPP_PATH={shlex.quote(':'.join(missing))}"
        line += '"${ASCEND_CUSTOM_OPP_PATH:+:$ASCEND_CUSTOM_OPP_PATH}"'
        if any(":" in vendor for vendor in missing):
            line = f"move {missing[0]} to a path without ':', which separates entries there"
        warnings.warn(
            "CANN reads ASCEND_CUSTOM_OPP_PATH once, when it starts; the kernels of this OPP are not on "
            f"it, so calls may fail with 561003 or 561103. Before starting Python:\n  {line}",
            FlaNpuWarning,
            stacklevel=4,
        )
    socs = [str(s).lower() for s in chosen.manifest.get("socs", [])]
    try:
        get_name = acl.find("aclrtGetSocName")
    except OppNotFound:
        return
    get_name.restype = ctypes.c_char_p
    running = (get_name() or b"").decode("ascii", "replace")
    if running and socs and not any(running.lower().startswith(soc) for soc in socs):
        ours = next((soc for soc in SOCS if running.lower().startswith(soc)), "")
        what = (
            f"build it for this chip: FLA_NPU_SOC={ours} pip install ."
            if ours
            else "there are no kernels for it"
        )
        raise AbiMismatch(
            f"this machine has {running}, the OPP {chosen.root} was built for {', '.join(socs)}; {what}"
        )


def _warn_twin_beside_npu(chosen: _opp.Opp) -> None:
    warnings.warn(
        f"this machine has an NPU ({DEVICE}), but the OPP in use is the CPU twin {chosen.root}, chosen by "
        f"{chosen.source}: everything runs on the CPU. For the NPU, source the CANN toolkit's set_env.sh and "
        "build again: FLA_NPU_BACKEND=cann pip install --no-cache-dir --force-reinstall --no-deps .",
        FlaNpuWarning,
        stacklevel=4,
    )


def _bind(op: OpSpec, loaded: _Loaded) -> Binding:
    for library in loaded.libraries:
        if all(library.has(symbol) for symbol in op.symbols):
            _check_prototype(op, loaded.opp, library)
            _check_parts(op, loaded.opp, library)
            return Binding(op, library, loaded.acl, loaded.opp.backend)
    raise SymbolMissing(_missing_text(op, loaded))


def _check_prototype(op: OpSpec, chosen: _opp.Opp, library: Library) -> None:
    entry = chosen.manifest_of(library.path).get("ops", {}).get(op.name, {})
    built = entry.get("prototype_hash", "")
    if built and built != op.prototype_hash:
        raise AbiMismatch(
            f"{library.path} was built with another parameter list of {op.aclnn}: prototype hash {built}, "
            f"this version of fla_npu calls {op.prototype_hash}. Install OPP and wheel from one build"
        )


# check_symbols compares every file; a call looks at those that it opens, each once and before it is opened.
def _check_parts(op: OpSpec, chosen: _opp.Opp, library: Library) -> None:
    """Plan and kernel, which the library opens at the first launch: a damaged one would end the process there."""
    vendor = library.path.parents[2]
    for name in chosen.manifest_of(library.path).get("files", {}):
        if name.endswith(".so") and (f"/{op.name}/" in name or "/op_tiling/" in name):
            path = vendor / name.split("/", 2)[-1]
            try:
                _check_packed(chosen, path)
            except OSError as error:
                why = f"{path} can't be read ({error.strerror}), {op.name} needs it"
                raise AbiMismatch(f"{why}. Install the OPP again as a whole") from error


def _missing_text(op: OpSpec, loaded: _Loaded) -> str:
    lines = []
    for library in loaded.libraries:
        here = [s for s in op.symbols if library.has(s)]
        provides = ", ".join(library.provides()) or "no operator of this version"
        half = f"; of this operator only {here[0]}, which cannot be used alone" if here else ""
        lines.append(f"  {library.path} provides {provides}{half}")
    searched = "\n".join(lines)
    # A subset build holds what it names and no more: what is there must be named again.
    there = {name for library in loaded.libraries for name in library.provides()}
    wanted = [name for name in names() if name == op.name or name in there]
    subset = "" if wanted == list(names()) else f"FLA_NPU_OPS={','.join(wanted)} "
    return (
        f"{op.name} is not in the OPP: symbols {' and '.join(op.symbols)} are needed from one library.\n"
        f"Searched (chosen by {loaded.opp.source}):\n{searched}\n"
        f"Build it in: in a checkout of fla-npu, '{subset}pip install .' (all operators with FLA_NPU_OPS "
        "unset); 'fla-npu check-symbols' lists what an OPP contains"
    )
