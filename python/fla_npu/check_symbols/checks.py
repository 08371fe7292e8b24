# SPDX-License-Identifier: Apache-2.0
"""The comparison: contracts and manifest on one side, the files of each place on the other."""

from __future__ import annotations

import hashlib
import platform
import re

from .. import spec as contracts
from ..opp import parse_manifest
from .elf import Elf, ElfFault, read_elf
from .kernels import check_kernels
from .tree import LIBRARY, Place

__all__ = ["Vendor", "check"]

TILING = re.compile(
    r"op_impl/ai_core/tbe/op_tiling/(?:lib/linux/[^/]+/)?(?:libcust_opmaster[^/]*|liboptiling)\.so$"
)
KERNEL = re.compile(r"op_impl/ai_core/tbe/kernel/(?!config/)([^/]+)/([^/]+)/([^/]+)\.(so|o)$")
CONFIG = "vendors/config.ini"
MACHINES = {"AMD64": "x86_64", "arm64": "aarch64"}


def check(places: list[Place], only: list[str], arch: str | None) -> dict:
    """Everything --json prints: vendors, per operator what was found, findings, ok."""
    names = [contracts.spec(name).name for name in only] or list(contracts.names())
    vendors = [Vendor(place, prefix, arch) for place in places for prefix in place.vendors]
    for vendor in vendors:
        provided = [spec for spec in map(contracts.spec, names) if vendor.provides(spec)]
        vendor.check_metadata(provided)
    findings = [finding for vendor in vendors for finding in vendor.findings]
    ops = {name: _operator(contracts.spec(name), vendors, findings) for name in names}
    for place in places:
        if not place.vendors:
            findings.append(_error(place.path, "holds no vendor directory"))
    return {
        "ok": not any(f["level"] == "error" for f in findings),
        "inputs": [{"path": place.path, "kind": place.kind} for place in places],
        "vendors": [vendor.summary() for vendor in vendors],
        "ops": ops,
        "findings": findings,
    }


# A finding is plain data, as --json prints it: level, the place, the operator ("" for the whole place), text.
def _error(where: str, text: str, op: str = "") -> dict:
    return {"level": "error", "where": where, "op": op, "text": text}


class Vendor:
    """One vendor directory, read: libraries, manifest, kernels."""

    def __init__(self, place: Place, prefix: str, arch: str | None) -> None:
        self.place, self.prefix = place, prefix
        self.name = f"{place.path}:{prefix.rstrip('/')}" if prefix else place.path
        self.findings: list[dict] = []
        # Files by their path inside the vendor; faults (dangling links, directories) are files too.
        own = [f for f in [*place.files, *place.faults] if f.startswith(prefix)]
        self.files = {f[len(prefix) :]: f for f in own}
        self.manifest = self._manifest()
        # A wheel says in its name what it is for; anything else has to run here.
        self.arch = arch or place.arch or MACHINES.get(platform.machine(), platform.machine())
        self.elves = {
            name: elf for name in self.files if name.endswith(".so") and (elf := self._elf(name)) is not None
        }
        self.api = self.elves.get(LIBRARY)
        self.backend = self.manifest.get("backend") or (
            "twin" if "op_api/lib/libfla_twin.so" in self.files else "cann"
        )
        self._check_layout()
        self._check_build_ids()
        self._check_files()
        self._check_config()
        self._check_manifest()

    def error(self, text: str, op: str = "") -> None:
        self.findings.append(_error(self.name, text, op))

    def warn(self, text: str) -> None:
        self.findings.append({"level": "warning", "where": self.name, "op": "", "text": text})

    def provides(self, op: contracts.OpSpec) -> bool:
        return self.api is not None and set(op.symbols) <= self.api.functions

    def read(self, name: str) -> bytes:
        return self.place.files[self.files[name]]()

    def _manifest(self) -> dict:
        """The OPP's manifest. A foreign OPP has none, and a vendor that stands alone doesn't either."""
        # Vendors that share a root keep their manifests in their own directories.
        name = next(
            (n for n in ("manifest.json", self.prefix + "manifest.json") if n in self.place.files), ""
        )
        if not name:
            self.warn("no manifest.json: names are checked, signatures, hashes and build ids can't be")
            return {}
        try:
            return parse_manifest(self.place.files[name]())
        except ValueError as error:
            self.error(f"manifest.json is damaged: {error}")
            return {}

    def _elf(self, name: str) -> Elf | None:
        """One library, or None with a finding that says why not."""
        fault = self.place.faults.get(self.files[name])
        if fault is None:
            try:
                elf = read_elf(self.read(name))
                if elf.machine != self.arch:
                    self.error(f"{name} is for {elf.machine}, needed is {self.arch}")
                return elf
            except ElfFault as why:
                fault = str(why)
            except OSError as why:
                fault = f"can't be read: {why}"
        self.error(f"{name} {fault}")
        return None

    def _check_layout(self) -> None:
        """What every vendor needs, and the one name that must not be there."""
        if LIBRARY not in self.files:
            self.error(f"{LIBRARY} is missing: no operator can be called")
        for name in self.files:
            if name.rsplit("/", 1)[-1] == "libopapi.so":
                target = self.place.links.get(self.files[name])
                what = f" (a link to {target})" if target else ""
                self.error(
                    f"{name}{what} has the name of CANN's own library and would shadow it; delete this file"
                )
        if not any(TILING.match(name) for name in self.files) and self.place.kind != "library":
            self.error("no tiling library (op_impl/.../op_tiling/lib/linux/<arch>/libcust_opmaster_rt2.0.so)")

    def _check_build_ids(self) -> None:
        """Every library of a build carries its id; CANN's own or a foreign library carries none."""
        wanted = self.manifest.get("build_id", "")
        ids = {name: elf.build_id for name, elf in self.elves.items()}
        for name, found in ids.items():
            if wanted and found and found != wanted:
                self.error(
                    f"{name} is of build {found}, the manifest of build {wanted}: two builds are mixed"
                )
            elif wanted and not found and name in self._packed():
                self.error(f"{name} carries no build id, the manifest is of build {wanted}")
        if not wanted and len({i for i in ids.values() if i}) > 1:
            self.error(
                "libraries of several builds are mixed: " + ", ".join(f"{n} {i}" for n, i in ids.items() if i)
            )

    def _packed(self) -> dict:
        """Files of this vendor that the manifest lists: path -> {sha256, size}."""
        listed = self.manifest.get("files", {})
        if not self.prefix:  # the vendor directory alone, under whatever name
            return {
                f.split("/", 2)[2]: v
                for f, v in listed.items()
                if f.startswith("vendors/") and f.count("/") > 1
            }
        return {f[len(self.prefix) :]: v for f, v in listed.items() if f.startswith(self.prefix)}

    def _check_config(self) -> None:
        """The order of the vendors belongs to none of them. Without it they are taken by name."""
        entry = self.manifest.get("files", {}).get(CONFIG)
        if entry is None or "manifest.json" not in self.place.files or not self.prefix:
            return  # nobody's own, where several vendors share a root
        if CONFIG not in self.place.files:
            self.warn(
                f"{CONFIG} is missing: vendors are taken by name, and CANN sees none below ASCEND_OPP_PATH"
            )
        elif hashlib.sha256(self.place.files[CONFIG]()).hexdigest() != entry.get("sha256"):
            self.warn(f"{CONFIG} is not the file that was packed: its order decides which vendor wins")

    def _check_manifest(self) -> None:
        """What the manifest says of the whole OPP against what lies there."""
        twin = "op_api/lib/libfla_twin.so" in self.files
        said = self.manifest.get("backend")
        if said is not None and self.place.kind != "library" and said != ("twin" if twin else "cann"):
            there = "there" if twin else "not there"
            self.error(f"the manifest says backend {said}, but op_api/lib/libfla_twin.so is {there}")
        arch = self.manifest.get("arch")
        others = sorted({elf.machine for elf in self.elves.values()} - {arch})
        if arch is not None and others:
            self.error(f"the manifest says {arch}, but there are libraries for {', '.join(others)}")
        if self.manifest.get("placeholder"):
            self.error(
                "the manifest says that kernels are placeholders of a recorded toolkit: this OPP can't run"
            )
        for name, elf in self.elves.items():
            outside = [path for path in elf.runpath if path.startswith("/")]
            if outside:
                self.error(f"{name} searches {', '.join(outside)}, a folder of the machine it was built on")

    def check_metadata(self, ops: list[contracts.OpSpec]) -> None:
        """CANN's JSON descriptions. The twin finds its kernels by their paths and reads none."""
        if self.backend == "cann":
            for soc in self.socs():
                check_kernels(ops, soc, self.files, self.content, self.error)

    def content(self, name: str) -> bytes | None:
        """A file's bytes, None with a finding where a link dangles or reading fails."""
        fault = self.place.faults.get(self.files[name])
        if fault is None:
            try:
                return self.read(name)
            except OSError as why:
                fault = f"can't be read: {why}"
        self.error(f"{name} {fault}")
        return None

    def _check_files(self) -> None:
        """The manifest lists every file with its hash: what is gone, changed or added shows."""
        packed = self._packed()
        for name, entry in packed.items():
            if name not in self.files:
                self.error(f"{name} is missing; the manifest lists it")
            elif self.files[name] in self.place.files:
                try:
                    found = hashlib.sha256(self.read(name)).hexdigest()
                except OSError as why:
                    if not name.endswith(".so"):  # of a library it has been said
                        self.error(f"{name} can't be read: {why}")
                    continue
                if found != entry.get("sha256"):
                    self.error(
                        f"{name} is not the file that was packed (its sha256 differs from the manifest)"
                    )
        for name in self.files if packed else ():
            if name not in packed and name.endswith((".so", ".o")):
                self.error(f"{name} is not part of this build (the manifest does not list it); delete it")

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

    # The twin finds a plan by its symbol, CANN's library registers its tilings when it is loaded.
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


def _operator(op: contracts.OpSpec, vendors: list[Vendor], findings: list[dict]) -> dict:
    """One row of the table; what is wrong goes to the findings."""
    providers = [v for v in vendors if v.provides(op)]
    # A second library with the same name: which one is called depends on who opens it first.
    foreign = [
        (v, name)
        for v in vendors
        for name, elf in v.elves.items()
        if name != LIBRARY and set(op.symbols) & elf.functions
    ]
    row = {
        "aclnn": op.aclnn,
        "provided_by": [v.name for v in providers],
        "symbols": "missing",
        "header": False,
        "prototype": "unknown",
        "tiling": False,
        "kernels": {},
    }
    for vendor, name in foreign:
        findings.append(
            _error(vendor.name, f"{name} also defines {op.aclnn}; whoever opens it gets that one", op.name)
        )
    if len(providers) > 1:
        others = ", ".join(v.name for v in providers[1:])
        findings.append(
            _error(
                providers[0].name,
                f"{op.aclnn} is in {len(providers)} vendors; this one wins, hidden: {others}",
                op.name,
            )
        )
    if not providers:
        row["symbols"] = _explain_missing(op, vendors, findings)
        return row
    # The first place wins, as in ASCEND_CUSTOM_OPP_PATH; what follows is about the winner alone.
    winner = providers[0]
    row["symbols"] = "ok"
    row["header"] = f"op_api/include/aclnn_{op.name}.h" in winner.files
    row["prototype"] = _check_prototype(op, winner, findings)
    if winner.place.kind == "library":
        return row
    row["tiling"] = winner.tiling(op.name)
    if not row["tiling"]:
        findings.append(_error(winner.name, "the library has it, but no tiling library does", op.name))
    row["kernels"] = {
        soc: bool(files) for soc, files in winner.kernels(op.name, op.aclnn.removeprefix("aclnn")).items()
    }
    for soc, there in row["kernels"].items():
        if not there:
            findings.append(
                _error(winner.name, f"the library has it, but there is no kernel for {soc}", op.name)
            )
    if not row["kernels"]:
        findings.append(_error(winner.name, "the library has it, but there is no kernel at all", op.name))
    if not row["header"]:
        findings.append(_error(winner.name, f"op_api/include/aclnn_{op.name}.h is missing", op.name))
    return row


def _check_prototype(op: contracts.OpSpec, vendor: Vendor, findings: list[dict]) -> str:
    """ok, differs, or unknown when the OPP has no manifest that says."""
    built = vendor.manifest.get("ops", {}).get(op.name, {}).get("prototype_hash", "")
    if not built:
        return "unknown"
    if built != op.prototype_hash:
        findings.append(
            _error(
                vendor.name,
                f"{op.aclnn} was built with another parameter list: hash {built[:12]}, "
                f"the contract has {op.prototype_hash[:12]}",
                op.name,
            )
        )
        return "differs"
    return "ok"


def _explain_missing(op: contracts.OpSpec, vendors: list[Vendor], findings: list[dict]) -> str:
    """Both symbols from one library are needed; says for each library how far it gets."""
    state = "missing"
    for vendor in vendors:
        if vendor.api is None:
            findings.append(_error(vendor.name, f"not provided: {LIBRARY} can't be used", op.name))
            continue
        here = [s for s in op.symbols if s in vendor.api.functions]
        away = [f"{s} is {vendor.api.why_not(s)}" for s in op.symbols if s not in here]
        declared = f"op_api/include/aclnn_{op.name}.h" in vendor.files
        if here:
            state = "incomplete"
            findings.append(_error(vendor.name, f"incomplete: {here[0]} is there, {away[0]}", op.name))
        else:
            note = "; its header declares it" if declared else ""
            findings.append(_error(vendor.name, "not provided: " + ", ".join(away) + note, op.name))
    return state
