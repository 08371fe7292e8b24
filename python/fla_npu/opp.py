# SPDX-License-Identifier: Apache-2.0
"""Which operator package (OPP) is used, and why.

Places, in order; the first that holds an operator library wins and is the only one used:

    FLA_NPU_OPP_PATH       a path; when set, nothing else is looked at
    fla-npu opp install    what this user installed outside the package
    the installed package  fla_npu/opp
    ASCEND_CUSTOM_OPP_PATH vendor directories, separated by ':'
    ASCEND_OPP_PATH        CANN's OPP, its vendors in the order of vendors/config.ini

The environment is read when an operator is first called, not at import. A path may name an OPP
root, its `vendors` directory or one vendor directory. A manifest lies in the OPP's root or, where
several vendors share a root, in the vendor's own directory, and speaks of the vendors it lists only.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from .errors import AbiMismatch, FlaNpuError, OppNotFound
from .manifest import MAX_CONFIG, MAX_JSON, parse_manifest, parse_priority, read_file, vendors_of
from .owner import hidden

__all__ = ["Opp", "Place", "find", "own_root", "read_manifest", "split", "survey", "user_root"]

LIBRARY = Path("op_api", "lib", "libcust_opapi.so")
TWIN_LIBRARY = Path("op_api", "lib", "libfla_twin.so")
OWN = "the installed package"
USER = "fla-npu opp install"


@dataclass(frozen=True)
class Opp:
    """A usable OPP: at least one vendor directory with an operator library."""

    root: Path
    vendors: tuple[Path, ...]
    source: str
    manifests: dict[Path, dict] = field(default_factory=dict)  # vendor directory -> what describes it

    @property
    def manifest(self) -> dict:
        """What is known of the first vendor that says anything of itself."""
        return next((self.manifests[v] for v in self.vendors if v in self.manifests), {})

    def manifest_of(self, file: Path) -> dict:
        """The manifest that speaks of a file below a vendor directory; {} for a foreign vendor."""
        return next((m for v, m in self.manifests.items() if v in file.parents), {})

    @property
    def libraries(self) -> tuple[Path, ...]:
        return tuple(vendor / LIBRARY for vendor in self.vendors)

    @property
    def twin_library(self) -> Path | None:
        """libfla_twin.so of a twin build: the twin's machine and its ACL."""
        return next((v / TWIN_LIBRARY for v in self.vendors if (v / TWIN_LIBRARY).exists()), None)

    @property
    def backend(self) -> str:
        """'twin' (runs on the CPU) or 'cann' (runs on an NPU)."""
        known = self.manifest.get("backend")
        return known or ("twin" if self.twin_library else "cann")

    @property
    def build_id(self) -> str:
        return self.manifest.get("build_id", "")


@dataclass
class Place:
    """One place that was considered, for OppNotFound and `fla-npu info`."""

    source: str
    path: str
    state: str  # what was found there, in words
    opp: Opp | None = None
    fault: FlaNpuError | None = None  # there is an OPP, but a damaged one


def own_root() -> Path | None:
    """The OPP inside this package. An editable install keeps it apart from the Python files."""
    import fla_npu

    return next((p for p in (Path(d) / "opp" for d in fla_npu.__path__) if p.is_dir()), None)


def user_root() -> Path | None:
    """Where `fla-npu opp install` puts an OPP for this user; None for a user without a home."""
    data = os.environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(data):  # a relative one does not count, by the specification of this variable
        data = os.path.expanduser("~/.local/share") if os.environ.get("HOME") != "" else ""
    return Path(data, "fla_npu/opp") if os.path.isabs(data) else None


def read_manifest(root: Path) -> dict:
    """manifest.json of an OPP root or vendor, {} when there is none (a foreign or hand-made OPP)."""
    path = root / "manifest.json"
    if not os.path.lexists(path):
        return {}
    try:
        return parse_manifest(read_file(path, MAX_JSON))
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        text = f"{path} can't be understood ({why}); the OPP is damaged, reinstall it"
        raise AbiMismatch(text) from error


def _vendor_order(vendors: Path) -> list[Path]:
    """Vendor directories, those named by config.ini first and in its order."""
    # An installer's unfinished copy has a dot in front: no vendor yet, or no longer one.
    found = sorted(p for p in vendors.iterdir() if p.name[0] != "." and p.is_dir())
    config = vendors / "config.ini"
    order = (parse_priority(read_file(config, MAX_CONFIG)) if config.is_file() else None) or []
    rank = {name: i for i, name in enumerate(order)}
    return sorted(found, key=lambda p: rank.get(p.name, len(rank)))


def split(path: Path) -> tuple[Path, list[Path]]:
    """(OPP root, vendor directories) for any of the three kinds of path."""
    if (path / "op_api").is_dir():
        inside = path.parent.name == "vendors"
        return (path.parent.parent if inside else path), [path]
    if (path / "vendors").is_dir():
        return path, _vendor_order(path / "vendors")
    return (path.parent if path.name == "vendors" else path), _vendor_order(path)


def _denied(error: PermissionError) -> str:
    return (
        f"permission denied for uid {os.getuid()} at {error.filename}; make it readable "
        "(chmod a+rX) or run as its owner"
    )


def _manifests(root: Path, vendors: list[Path]) -> dict[Path, dict]:
    """The manifest of each vendor that has one. The root's is for those whose files it lists."""
    shared = read_manifest(root)
    named = vendors_of(shared) & {vendor.name for vendor in vendors}  # none: the vendor was renamed
    found = {}
    for vendor in vendors:
        manifest = shared if not named or vendor.name in named else {}
        manifest = manifest or (read_manifest(vendor) if vendor != root else {})
        if manifest:
            found[vendor] = manifest
    return found


def _odd(text: str) -> str:
    """A hint at what a shell leaves in a variable, or a hand puts there."""
    quotes = "'\"\u2018\u2019\u201c\u201d"
    if not text.isprintable():
        return f"; it has a character that is not shown: {text!a}"
    if text != text.strip():
        return "; there is a space at its end or beginning"
    if text[:1] in quotes and text[-1:] in quotes:
        return "; the quotation marks are part of the path"
    if text[:1] in "~$":
        return "; '~' and '$' are not expanded here, write the path in full"
    return "; one path is looked for here, not several with ':'" if ":/" in text else ""


def _below(path: Path) -> str:
    """A hint for a path that goes too far, or is a package that is not installed."""
    if path.name.endswith((".whl", ".run", ".tar.gz")):
        return f"; it is a package, install it: fla-npu opp install {path}"
    vendor = next((p for p in path.parents if (p / LIBRARY).is_file()), None)
    return f"; the vendor directory is {vendor}" if vendor else ""


def _exchange(path: Path) -> list[tuple[int, int]]:
    """Our vendor and the one before it, near `path`, as inodes: what an installation exchanges."""

    def inode(entry: Path) -> int:
        try:
            return entry.lstat().st_ino
        except OSError:
            return 0

    folders = (path, path / "vendors", path.parent)
    return [(inode(folder / "fla_npu"), inode(folder / ".fla_npu.old")) for folder in folders]


def _look(source: str, path: Path) -> Place:
    """What a path holds. Waits for an installation that is exchanging the vendor: two renames."""
    for _ in range(100):
        before = _exchange(path)
        place = _inspect(source, path)
        between = any(old and not new for new, old in before)
        if before == _exchange(path) and not between:
            return place
        time.sleep(0.01)
    if between and place.opp is None:
        place.state += "; an installation was interrupted there, install again"
    return place


def _inspect(source: str, path: Path) -> Place:
    """What a path holds, told apart: absent, not readable, no library, damaged, usable."""
    place = Place(source, str(path), "")
    try:
        path = path.resolve()
        os.stat(path)
        root, vendors = split(path)
        usable = []
        for vendor in vendors:
            try:
                os.stat(vendor / LIBRARY)
                usable.append(vendor)
            except (FileNotFoundError, NotADirectoryError):
                continue
        if not usable:
            place.state = f"holds no operator library ({LIBRARY} below a vendor directory)" + _below(path)
            return place
        for vendor in usable:
            if not os.access(vendor / LIBRARY, os.R_OK):
                raise PermissionError(13, "Permission denied", str(vendor / LIBRARY))
        place.opp = Opp(root, tuple(usable), source, _manifests(root, usable))
        place.state = "usable"
    except AbiMismatch as error:
        place.state, place.fault = f"damaged: {error}", error
    except PermissionError as error:
        place.state = _denied(error)
    except FileNotFoundError:
        place.state = "no such directory" + _odd(place.path)
    except NotADirectoryError:
        place.state = "not a directory" + _below(path)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        place.state = f"can't be read: {getattr(error, 'strerror', None) or error}"
    return place


def _merged(source: str, text: str) -> list[Place]:
    """Places of a ':'-separated variable, their usable vendors joined into the first one."""
    places = [_look(source, Path(entry)) for entry in text.split(":") if entry.strip()]
    usable = [p.opp for p in places if p.opp]
    if len(usable) > 1:
        vendors = tuple(dict.fromkeys(vendor for opp in usable for vendor in opp.vendors))
        manifests = {vendor: m for opp in usable for vendor, m in opp.manifests.items()}
        joined = Opp(usable[0].root, vendors, source, manifests)
        for place in places:
            place.opp = joined if place.opp else None
    return places


def _shadow() -> str:
    """A hint when it is not the installed package that runs."""
    import fla_npu

    place = hidden()
    if not place:
        return ""
    here = next(iter(fla_npu.__path__), "")
    return f": it is the copy in {here}, which hides the installed one in {place}; leave PYTHONPATH or that folder"


def survey() -> list[Place]:
    """Every place in search order with what it holds. Opens no library."""
    places: list[Place] = []
    explicit = os.environ.get("FLA_NPU_OPP_PATH", "")
    if explicit:
        places.append(_look("FLA_NPU_OPP_PATH", Path(explicit)))
    else:
        places.append(Place("FLA_NPU_OPP_PATH", "", "not set"))
    user = user_root()
    places.append(_look(USER, user) if user else Place(USER, "", "this user has no home directory"))
    own = own_root()
    places.append(_look(OWN, own) if own else Place(OWN, "", "built without an OPP" + _shadow()))
    for variable in ("ASCEND_CUSTOM_OPP_PATH", "ASCEND_OPP_PATH"):
        text = os.environ.get(variable, "")
        places += _merged(variable, text) if text else [Place(variable, "", "not set")]
    return places


def find() -> Opp:
    """The OPP to use; OppNotFound lists every place and what was found there."""
    places = survey()
    explicit = places[0]
    if explicit.path and explicit.opp is None and explicit.fault is None:
        # An explicit choice is never replaced by another OPP behind the user's back.
        raise OppNotFound(
            f"FLA_NPU_OPP_PATH = {explicit.path}: {explicit.state}. Correct the variable, or "
            "unset it to use the OPP of the installed package"
        )
    for place in places:
        if place.fault is not None:  # nor is a damaged OPP passed over for one further down
            raise place.fault
        if place.opp is not None:
            return place.opp
    tried = "\n".join(f"  {p.source} {p.path}: {p.state}".replace(" :", ":") for p in places)
    raise OppNotFound(
        f"no operator package (OPP) found:\n{tried}\nInstall one with 'pip install .' in a checkout of "
        "fla-npu, or set FLA_NPU_OPP_PATH to an OPP"
    )
