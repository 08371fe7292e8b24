# SPDX-License-Identifier: Apache-2.0
"""The comparison: contracts on one side, what each vendor provides on the other."""

from __future__ import annotations

import os

from .. import spec as contracts
from .places import read_place
from .tree import LIBRARY, Place, finding, status_of
from .vendor import Vendor

__all__ = ["check"]


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


# One row of the table; a row says how far an operator gets, the findings say why it gets no further.
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
            finding(
                "error",
                vendor.name,
                f"{name} also defines {op.aclnn}; whoever opens it gets that one",
                op.name,
            )
        )
    if len(providers) > 1:
        others = ", ".join(v.name for v in providers[1:])
        findings.append(
            finding(
                "error",
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
        findings.append(
            finding("error", winner.name, "the library has it, but no tiling library does", op.name)
        )
    row["kernels"] = {
        soc: bool(files) for soc, files in winner.kernels(op.name, op.aclnn.removeprefix("aclnn")).items()
    }
    for soc, there in row["kernels"].items():
        if not there:
            findings.append(
                finding(
                    "error", winner.name, f"the library has it, but there is no kernel for {soc}", op.name
                )
            )
    if not row["kernels"]:
        findings.append(
            finding("error", winner.name, "the library has it, but there is no kernel at all", op.name)
        )
    if not row["header"]:
        findings.append(
            finding("error", winner.name, f"op_api/include/aclnn_{op.name}.h is missing", op.name)
        )
    return row


# C symbols carry no types: the manifest says with which parameters a library was built.
def _check_prototype(op: contracts.OpSpec, vendor: Vendor, findings: list[dict]) -> str:
    """ok, differs, or unknown when the OPP has no manifest that says."""
    built = vendor.manifest.get("ops", {}).get(op.name, {}).get("prototype_hash", "")
    if not built:
        return "unknown"
    if built != op.prototype_hash:
        findings.append(
            finding(
                "error",
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
            findings.append(finding("error", vendor.name, f"not provided: {LIBRARY} can't be used", op.name))
            continue
        here = [s for s in op.symbols if s in vendor.api.functions]
        away = [f"{s} is {vendor.api.why_not(s)}" for s in op.symbols if s not in here]
        declared = f"op_api/include/aclnn_{op.name}.h" in vendor.files
        if here:
            state = "incomplete"
            findings.append(
                finding("error", vendor.name, f"incomplete: {here[0]} is there, {away[0]}", op.name)
            )
        else:
            note = "; its header declares it" if declared else ""
            findings.append(finding("error", vendor.name, "not provided: " + ", ".join(away) + note, op.name))
    return state
