# SPDX-License-Identifier: Apache-2.0
"""One vendor directory, read: its libraries and kernels, and what its manifest says of them."""

from __future__ import annotations

import hashlib
import platform
import re

from .. import spec as contracts
from ..elf import Elf, ElfFault, machine_name, read_elf
from ..manifest import parse_manifest, vendors_of
from ..manylinux import platform_tag
from .kernels import check_kernels
from .tree import CONFIG, LIBRARY, Place, finding

__all__ = ["Vendor"]

TILING = re.compile(
    r"op_impl/ai_core/tbe/op_tiling/(?:lib/linux/[^/]+/)?(?:libcust_opmaster[^/]*|liboptiling)\.so$"
)
KERNEL = re.compile(r"op_impl/ai_core/tbe/kernel/(?!config/)([^/]+)/([^/]+)/([^/]+)\.(so|o)$")
ALIAS = "libopapi.so"
TWIN = "op_api/lib/libfla_twin.so"


class Vendor:
    """What one vendor provides; `findings` is what is wrong with it, whoever asks for which operator."""

    def __init__(self, place: Place, prefix: str, arch: str | None) -> None:
        self.place, self.prefix = place, prefix
        self.name = f"{place.path}:{prefix.rstrip('/')}" if prefix else place.path
        self.findings: list[dict] = []
        # Everything below is by its path inside the vendor.
        self.files = {f[len(prefix) :]: f for f in place.files if f.startswith(prefix)}
        # What is there and is no file: the place has said so.
        others = {*place.faults, *place.folders}
        self.others = {f[len(prefix) :] for f in others if f.startswith(prefix)}
        self.packed: dict[str, dict] = {}  # files that the manifest lists: path -> {sha256, size}
        self.unreadable: set[str] = set()
        self.damaged = self.listed_by_root = False  # the manifest
        self.hashes: dict[str, str] = {}
        self.elves: dict[str, Elf] = {}
        self.tags: set[str] = set()  # of a wheel: what the name may promise of each library
        self.manifest = self._manifest()
        # A wheel says in its name what it is for; anything else has to run here.
        self.arch = arch or place.arch or machine_name(platform.machine())
        self._read_files()
        self.api = self.elves.get(LIBRARY)
        self.backend = self.manifest.get("backend") or ("twin" if TWIN in self.files else "cann")
        self._check_layout()
        self._check_build_ids()
        self._check_files()
        self._check_manifest()

    def report(self, level: str, text: str, op: str = "") -> None:
        self.findings.append(finding(level, self.name, text, op))

    def provides(self, op: contracts.OpSpec) -> bool:
        return self.api is not None and set(op.symbols) <= self.api.functions

    def has(self, name: str) -> bool:
        """Is there something of that name, of whatever kind?"""
        return name in self.files or name in self.others

    def content(self, name: str) -> bytes | None:
        """A file's bytes, None with a finding when it can't be read."""
        return self._read(name, self.files[name])

    def read_config(self) -> bytes | None:
        return self._read(CONFIG, CONFIG)

    def _read(self, name: str, path: str) -> bytes | None:
        if path in self.unreadable:
            return None  # it has been said
        try:
            return self.place.files[path]()
        except OSError as error:
            self.unreadable.add(path)
            self.report("damage", f"{name} can't be read: {error.strerror or error}")
            return None

    def _manifest(self) -> dict:
        """The OPP's manifest when it speaks of this vendor, or the vendor's own; a foreign vendor has none."""
        for name in dict.fromkeys(("manifest.json", f"{self.prefix}manifest.json")):
            manifest = self._parse(name)
            own = self.prefix.split("/")[1] if self.prefix else ""
            listed = vendors_of(manifest)
            # Vendors that share a root: its manifest is for those whose files it lists. None: one was renamed.
            there = listed & {vendor.split("/")[1] for vendor in self.place.vendors if vendor}
            if manifest and (not own or name.startswith("vendors/") or own in listed or not there):
                self.listed_by_root = name == "manifest.json"
                self.packed = {
                    f.split("/", 2)[2]: entry
                    for f, entry in manifest.get("files", {}).items()
                    if f.count("/") > 1 and (own not in listed or f.split("/")[1] == own)
                }
                return manifest
        return {}

    def _parse(self, name: str) -> dict:
        """A manifest; {} with a finding when it is damaged, and without one when there is none."""
        self.damaged |= name in self.place.folders or name in self.place.faults
        if name in self.place.folders:
            self.report("damage", f"{name} is a directory")
        if name not in self.place.files:
            return {}
        try:
            manifest = parse_manifest(self.place.files[name]())
            if not {"build_id", "files", "ops"} <= manifest.keys():
                raise ValueError("it lists no files, no operators or no build")
            return manifest
        except (OSError, ValueError) as error:
            self.damaged = True
            self.report("damage", f"{name} is damaged: {getattr(error, 'strerror', None) or error}")
            return {}

    def _read_files(self) -> None:
        """Each file that matters once: its hash, and what kind of library it is."""
        for name in self.files:
            if name not in self.packed and not name.endswith(".so"):
                continue
            data = self.content(name)
            if data is None:
                continue
            self.hashes[name] = hashlib.sha256(data).hexdigest()
            if name.endswith(".so"):
                try:
                    self.elves[name] = elf = read_elf(data)
                except ElfFault as why:
                    self.report("damage", f"{name} {why}")
                    continue
                if elf.soname == ALIAS:
                    text = f"{name} calls itself {ALIAS} (SONAME): it would be taken for CANN's own library"
                    self.report("error", text)
                if self.place.kind == "wheel":
                    self.tags.add(platform_tag([data], elf.machine))
                if elf.machine != self.arch:
                    self.report("error", f"{name} is for {elf.machine}, needed is {self.arch}")

    def _check_layout(self) -> None:
        """What every vendor needs, and the one name that must not be there."""
        if not self.has(LIBRARY):
            self.report("error", f"{LIBRARY} is missing: no operator can be called")
        for name in sorted({*self.files, *self.others}):
            if name.rsplit("/", 1)[-1] == ALIAS:
                target = self.place.links.get(self.prefix + name)
                what = f" (a link to {target})" if target else ""
                text = "has the name of CANN's own library and would shadow it; delete this file"
                self.report("error", f"{name}{what} {text}")
            if name.endswith(".so") and self.prefix + name in self.place.folders:
                self.report("damage", f"{name} is a directory")
        if not any(TILING.match(name) for name in self.files) and self.place.kind != "library":
            text = "no tiling library (op_impl/.../op_tiling/lib/linux/<arch>/libcust_opmaster_rt2.0.so)"
            self.report("error", text)

    def _check_build_ids(self) -> None:
        """Every library of a build carries its id; CANN's own or a foreign library carries none."""
        wanted = self.manifest.get("build_id", "")
        ids = {name: elf.build_id for name, elf in self.elves.items()}
        for name, found in ids.items():
            if wanted and found and found != wanted:
                text = f"{name} is of build {found}, the manifest of build {wanted}: two builds are mixed"
                self.report("error", text)
            elif wanted and not found and name in self.packed:
                self.report("error", f"{name} carries no build id, the manifest is of build {wanted}")
        ours = {name: found for name, found in ids.items() if found}
        if not wanted and len(set(ours.values())) > 1:
            listing = ", ".join(f"{name} {found}" for name, found in ours.items())
            self.report("error", f"libraries of several builds are mixed: {listing}")
        if self.manifest or self.damaged:
            return
        lost = ours and self.place.kind in ("wheel", "archive", "OPP")
        text = "manifest.json is gone, which these libraries' build packs" if lost else "no manifest.json"
        text += ": names are checked, signatures, hashes and build ids can't be"
        self.report("damage" if lost else "warning", text)

    def _check_files(self) -> None:
        """The manifest lists every file with its hash: what is gone, changed or added shows."""
        for name, entry in self.packed.items():
            if name in self.others:
                if self.prefix + name in self.place.folders and not name.endswith(".so"):
                    self.report("damage", f"{name} is a directory; the manifest lists a file")
            elif name not in self.files:
                self.report("damage", f"{name} is missing; the manifest lists it")
            elif name in self.hashes and self.hashes[name] != entry.get("sha256"):
                text = f"{name} is not the file that was packed (its sha256 differs from the manifest)"
                self.report("damage", text)
        for name in self.files if self.packed else ():
            if name not in self.packed and name.endswith((".so", ".o")):
                text = f"{name} is not part of this build (the manifest does not list it); delete it"
                self.report("error", text)

    def _check_manifest(self) -> None:
        """What the manifest says of the whole OPP against what lies there."""
        said, arch = self.manifest.get("backend"), self.manifest.get("arch")
        found = "twin" if TWIN in self.files else "cann"
        if said not in (None, found) and self.place.kind != "library":
            there = "there" if TWIN in self.files else "not there"
            self.report("error", f"the manifest says backend {said}, but {TWIN} is {there}")
        others = sorted({elf.machine for elf in self.elves.values()} - {arch})
        if arch is not None and others:
            self.report("error", f"the manifest says {arch}, but there are libraries for {', '.join(others)}")
        if self.manifest.get("placeholder"):
            text = "the manifest says that kernels are placeholders of a recorded toolkit: this OPP can't run"
            self.report("error", text)
        for name, elf in self.elves.items():
            outside = [path for path in elf.runpath if path.startswith("/")]
            if outside:
                text = f"{name} searches {', '.join(outside)}, a folder of the machine it was built on"
                self.report("error", text)

    def check_metadata(self, ops: list[contracts.OpSpec]) -> None:
        """CANN's JSON descriptions. The twin finds its kernels by their paths and reads none."""
        if self.backend == "cann":
            for soc in self.socs():
                check_kernels(ops, soc, self.files, self.content, self.report)

    def kernels(self, op: str, op_type: str) -> dict[str, list[str]]:
        """SoC -> kernel files of one operator. A twin kernel must define its entry table."""
        found: dict[str, list[str]] = {soc: [] for soc in self.socs()}
        for name in self.files:
            kernel = KERNEL.match(name)
            if kernel and kernel.group(2) == op and kernel.group(3).split("_")[0] == op_type:
                elf = self.elves.get(name)
                if kernel.group(4) == "o" or (elf and f"fla_kernel_{op}" in elf.data):
                    found.setdefault(kernel.group(1), []).append(name)
        return found

    def socs(self) -> list[str]:
        """SoCs of the manifest and of the kernel folders. The twin's one folder serves every chip."""
        # A SoC of the manifest without a folder is a finding of every operator, so both are listed.
        folders = {m.group(1) for name in self.files if (m := KERNEL.match(name))}
        listed = self.manifest.get("socs", [])
        return sorted(folders | set(listed[:1] if self.backend == "twin" else listed))

    def tiling(self, op: str) -> bool:
        """Is there tiling? The twin's is a symbol; in CANN's library it registers itself at load."""
        if self.backend == "twin":
            return any(f"fla_plan_{op}" in elf.functions for n, elf in self.elves.items() if TILING.match(n))
        return any(TILING.match(name) for name in self.elves)

    def summary(self) -> dict:
        keys = ("version", "build_id", "git", "cann")
        return {
            "name": self.name,
            "backend": self.backend,
            "socs": self.socs(),
            "arch": self.arch,
            **{key: self.manifest.get(key, "") for key in keys},
        }
