# SPDX-License-Identifier: Apache-2.0
"""The same findings for pipelines: JUnit XML (one test case per operator and place) and SARIF 2.1.0.

Damage is an error of a case in JUnit, where what is missing is a failure, and a rule of its own in SARIF. Both
take the data that --json prints, of a check or of a comparison, and that of an input that can't be read.
"""

from __future__ import annotations

import json
import re
from urllib.parse import quote
from xml.etree import ElementTree

__all__ = ["as_junit", "as_sarif"]

SARIF_LEVEL = {"damage": "error", "error": "error", "warning": "warning", "note": "note"}
RULES = {
    "damage": "Every file is the one that was packed, and can be read.",
    "package": "A place holds what an operator package must hold, whole and of one build.",
    "operator": "An operator's symbols, header, tiling, kernels and metadata are there and agree.",
    "release": "A release keeps what programs made for another one rely on.",
}
# What XML 1.0 cannot hold, in file names of damaged packages.
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _rule(finding: dict) -> str:
    if finding["level"] == "damage":
        return "damage"
    if re.match(r"(added|removed|changed): ", finding["text"]):
        return "release"
    return "operator" if finding["op"] else "package"


def as_junit(result: dict) -> str:
    """One case per operator, per place and per comparison; its errors are a failure, the rest is its output."""
    # A case for everything that was looked at, so that what is in order is seen to have been.
    cases: dict[tuple[str, str], list[dict]] = {}
    for vendor in result.get("vendors", []):
        cases[("package", vendor["name"])] = []
    for op in result.get("ops", {}):
        cases[("operator", op)] = []
    if "compare" in result:
        cases[("release", f"against {result['compare']['against']}")] = []
    for finding in result["findings"]:
        rule = _rule(finding)
        known = {"operator": finding["op"], "package": finding["where"], "damage": finding["where"]}
        name = known.get(rule) or next((n for kind, n in cases if kind == rule), finding["where"])
        cases.setdefault((rule, name), []).append(finding)
    if result.get("error"):
        cases[("input", "input")] = [{"level": "damage", "text": result["error"]}]
    suite = ElementTree.Element("testsuite", name="check_symbols", tests=str(len(cases)))
    counts = {"error": 0, "failure": 0}  # of cases, not of findings
    for (rule, name), findings in cases.items():
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"check_symbols.{rule}", name=NOT_XML.sub("?", name)
        )
        for level, kind in (("damage", "error"), ("error", "failure")):
            texts = [NOT_XML.sub("?", f["text"]) for f in findings if f["level"] == level]
            if texts:
                counts[kind] += 1
                node = ElementTree.SubElement(case, kind, message=texts[0])
                node.text = "\n".join(texts)
        rest = [f"{f['level']}: {f['text']}" for f in findings if f["level"] not in ("damage", "error")]
        if rest:
            ElementTree.SubElement(case, "system-out").text = NOT_XML.sub("?", "\n".join(rest))
    suite.set("failures", str(counts["failure"]))
    suite.set("errors", str(counts["error"]))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode")


def as_sarif(result: dict) -> str:
    """One result per finding, at the place it is about."""
    # The place stays a plain path: what was looked at need not lie in the repository.
    results = [
        {
            "ruleId": _rule(finding),
            "level": SARIF_LEVEL[finding["level"]],
            "message": {"text": (f"{finding['op']}: " if finding["op"] else "") + finding["text"]},
            "locations": [
                {"physicalLocation": {"artifactLocation": {"uri": quote(finding["where"], errors="replace")}}}
            ],
        }
        for finding in result["findings"]
    ]
    rules = [{"id": name, "shortDescription": {"text": text}} for name, text in RULES.items()]
    # An input that can't be read is no finding about it, the run failed.
    invocation: dict = {"executionSuccessful": not result.get("error"), "exitCode": result["status"]}
    if result.get("error"):
        told = {"level": "error", "message": {"text": result["error"]}}
        invocation["toolExecutionNotifications"] = [told]
    run = {
        "tool": {"driver": {"name": "check_symbols", "rules": rules}},
        "invocations": [invocation],
        "results": results,
    }
    document = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2)
