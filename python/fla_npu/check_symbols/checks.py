# SPDX-License-Identifier: Apache-2.0
"""The comparison: contracts on one side, what each vendor provides on the other."""

from __future__ import annotations

import os
from collections.abc import Callable

from .. import spec as contracts
from .places import read_place
from .tree import LIBRARY, Place, finding, status_of
from .vendor import Vendor

__all__ = ["check"]

Report = Callable[[Vendor, str], None]


def check(places: list[Place], only: list[str], arch: str | None) -> dict:
    """Everything --json prints: vendors, per operator what was found, findings, ok and the exit status.

    The first vendor that provides an operator is the one that a call would use; metadata is looked at for what
    a vendor provides, whoever wins.
    """
    names = [contracts.spec(name).name for name in only] or list(contracts.names())
    vendors: list[Vendor] = []
    findings: list[dict] = []
    seen: set[str] = set()
    for place in places:
        inside, found = read_place(place, arch)
        # A place that comes under two names is one place.
        here = {os.path.realpath(f"{place.path}/{vendor.prefix}") for vendor in inside}
        if inside and here <= seen:
            continue
        seen |= here
        for vendor in inside:
            told = len(vendor.findings)
            vendor.check_metadata([spec for spec in map(contracts.spec, names) if vendor.provides(spec)])
            found += vendor.findings[told:]
        vendors += inside
        findings += found
    ops = {name: _operator(contracts.spec(name), vendors, findings) for name in names}
    return {
        "ok": status_of(findings) == 0,
        "status": status_of(findings),
        "inputs": [{"path": place.path, "kind": place.kind} for place in places],
        "vendors": [vendor.summary() for vendor in vendors],
        "ops": ops,
        "findings": findings,
    }


# One row of the table: how far an operator gets. The findings, by `report(vendor, text)`, say why it gets no further.
def _operator(op: contracts.OpSpec, vendors: list[Vendor], findings: list[dict]) -> dict:
    """What the vendors have of one operator; what follows the symbols is about the vendor that a call would use."""

    def report(vendor: Vendor, text: str) -> None:
        findings.append(finding("error", vendor.name, text, op.name))

    header = f"op_api/include/aclnn_{op.name}.h"
    providers = [vendor for vendor in vendors if vendor.provides(op)]
    row = {
        "aclnn": op.aclnn,
        "provided_by": [vendor.name for vendor in providers],
        "symbols": "ok",
        "header": False,
        "prototype": "unknown",
        "tiling": False,
        "kernels": {},
    }
    # A second library with the same name: which one is called depends on who opens it first.
    for vendor in vendors:
        for name, elf in vendor.elves.items():
            if name != LIBRARY and set(op.symbols) & elf.functions:
                report(vendor, f"{name} also defines {op.aclnn}; whoever opens it gets that one")
    if not providers:
        return row | {"symbols": _explain_missing(op, vendors, report)}
    # The first place wins, as in ASCEND_CUSTOM_OPP_PATH.
    winner, *others = providers
    if others:
        hidden = ", ".join(vendor.name for vendor in others)
        report(winner, f"{op.aclnn} is in {len(providers)} vendors; this one wins, hidden: {hidden}")
    row |= {"header": header in winner.files, "prototype": _check_prototype(op, winner, report)}
    if winner.place.kind == "library":
        return row
    kernels = winner.kernels(op.name, op.aclnn.removeprefix("aclnn"))
    row |= {"tiling": winner.tiling(op.name), "kernels": {soc: bool(files) for soc, files in kernels.items()}}
    if not row["tiling"]:
        report(winner, "the library has it, but no tiling library does")
    for soc, there in row["kernels"].items():
        if not there:
            report(winner, f"the library has it, but there is no kernel for {soc}")
    if not row["kernels"]:
        report(winner, "the library has it, but there is no kernel at all")
    if not row["header"]:
        report(winner, f"{header} is missing")
    return row


# C symbols carry no types: the manifest says with which parameters a library was built.
def _check_prototype(op: contracts.OpSpec, vendor: Vendor, report: Report) -> str:
    """ok, differs, or unknown when the OPP has no manifest that says."""
    built = vendor.manifest.get("ops", {}).get(op.name, {}).get("prototype_hash", "")
    if built in ("", op.prototype_hash):
        return "ok" if built else "unknown"
    report(
        vendor,
        f"{op.aclnn} was built with another parameter list: hash {built[:12]}, "
        f"the contract has {op.prototype_hash[:12]}",
    )
    return "differs"


def _explain_missing(op: contracts.OpSpec, vendors: list[Vendor], report: Report) -> str:
    """Both symbols from one library are needed; says for each library how far it gets."""
    state = "missing"
    for vendor in vendors:
        if vendor.api is None:
            report(vendor, f"not provided: {LIBRARY} can't be used")
            continue
        here = [s for s in op.symbols if s in vendor.api.functions]
        away = [f"{s} is {vendor.api.why_not(s)}" for s in op.symbols if s not in here]
        if here:
            state = "incomplete"
            report(vendor, f"incomplete: {here[0]} is there, {away[0]}")
        else:
            declared = f"op_api/include/aclnn_{op.name}.h" in vendor.files
            note = "; its header declares it" if declared else ""
            report(vendor, "not provided: " + ", ".join(away) + note)
    return state
