# SPDX-License-Identifier: Apache-2.0
"""check_symbols as a gate: two releases compared, and reports that pipelines read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import fake_opp
import pytest
from fake_opp import API, BOTH, OP, functions, identity, library
from fla_npu import check_symbols, spec

API_LIB = "op_api/lib/libcust_opapi.so"
PROTOTYPE = "const aclTensor *k, double scale, int64_t chunkSize"


def entry(prototype: str = PROTOTYPE, **kernels: list[str]) -> dict:
    return {"aclnn": API, "prototype": prototype, "kernels": kernels or {"ascend910b": ["a.so"]}}


@pytest.fixture
def release(good_opp, tmp_path):
    """release(name, source=, **manifest) -> an OPP whose operator library is made from C text."""

    def make(name: str, source: str | None = None, **changes: object) -> Path:
        root = Path(shutil.copytree(good_opp, tmp_path / name))
        if source is not None:
            library(root / "vendors/fla_npu" / API_LIB, identity() + source)
        fake_opp.write_manifest(root, **{"ops": {OP: entry()}, "version": "1", **changes})
        return root

    return make


@pytest.fixture
def against(capsys):
    def run(old: Path, new: Path, *options: str) -> tuple[int, dict]:
        status = check_symbols.main([str(new), "--against", str(old), "--json", *options])
        return status, json.loads(capsys.readouterr().out)

    return run


def test_same(release, against):
    status, seen = against(release("a"), release("b"))
    assert status == 0 and seen["ok"]
    assert seen["compare"]["added"] == seen["compare"]["removed"] == seen["compare"]["changed"] == []


def test_symbol_removed(release, against):
    status, seen = against(release("a"), release("b", functions(API)))
    assert status == 1 and seen["compare"]["removed"] == [f"symbol {BOTH[0]}"]


def test_symbol_added_is_compatible(release, against):
    status, seen = against(release("a"), release("b", functions(*BOTH, "aclnnNew", "helper")))
    assert status == 0 and seen["compare"]["added"] == ["symbol aclnnNew"]
    assert [f["level"] for f in seen["findings"]] == ["note"]


@pytest.mark.parametrize(
    ("prototype", "text"),
    [
        (
            PROTOTYPE.replace("double scale", "float scale"),
            "parameter 2 was 'double scale' and is 'float scale'",
        ),
        (PROTOTYPE + ", bool flag", "3 parameters became 4"),
        (
            PROTOTYPE.replace("double scale, ", ""),
            "parameter 2 was 'double scale' and is 'int64_t chunkSize'",
        ),
    ],
)
def test_parameters_changed(release, against, prototype, text):
    status, seen = against(release("a"), release("b", ops={OP: entry(prototype)}))
    assert status == 1 and len(seen["compare"]["changed"]) == 1
    assert f"parameters of {API}: " in seen["compare"]["changed"][0] and text in seen["compare"]["changed"][0]


def test_chip_removed_and_added(release, against):
    both = {OP: entry(ascend910b=["a.o"], ascend910_93=["a.o"])}
    status, seen = against(release("a", ops=both), release("b"))
    assert status == 1 and seen["compare"]["removed"] == [f"kernels of {OP} for ascend910_93"]
    status, seen = against(release("c"), release("d", ops=both))
    assert status == 0 and seen["compare"]["added"] == [f"kernels of {OP} for ascend910_93"]


def test_backend_and_version(release, against):
    status, seen = against(release("a"), release("b", version="2"))
    assert status == 0 and seen["compare"]["changed"] == ["version: was 1, is 2"]
    status, seen = against(release("c"), release("d", backend="cann"))
    assert status == 1 and seen["compare"]["changed"] == ["backend: was twin, is cann"]


def test_manifest_alone_on_either_side(release, against):
    old, new = release("a"), release("b", ops={})
    assert against(old / "manifest.json", old)[0] == 0
    assert against(old, old / "manifest.json")[0] == 0
    status, seen = against(old / "manifest.json", new / "manifest.json")
    assert status == 1 and seen["compare"]["removed"] == [f"symbol {API}", f"symbol {BOTH[0]}"]


def test_without_a_manifest_symbols_are_compared(release, against):
    old, new = release("a"), release("b", functions(API))
    (old / "manifest.json").unlink()
    for path in old.rglob("*.so"):  # not even a build id: the release of somebody else
        library(path, functions(*BOTH) if path.name == "libcust_opapi.so" else "")
    status, seen = against(old, new)
    assert status == 1 and f"{old} has no manifest" in json.dumps(seen["findings"])


def test_the_built_opp_agrees_with_itself_and_its_manifest(against):
    from fla_npu import opp

    root = opp.find().root
    for old in (root, root / "manifest.json"):
        status, seen = against(old, root)
        assert status == 0 and not seen["findings"], seen["findings"]


@pytest.mark.parametrize("which", ["older", "newer"])
@pytest.mark.parametrize("how", ["library", "manifest", "gone"])
def test_damage_in_either_release(release, against, capsys, which, how):
    """Not comparable: which of the two, and what; the comparison is still made as far as it goes."""
    places = {"older": release("a"), "newer": release("b", functions(API))}
    library_of = places[which] / "vendors/fla_npu" / API_LIB
    if how == "library":
        library_of.write_bytes(library_of.read_bytes() + b"\0")
    elif how == "manifest":
        manifest = places[which] / "manifest.json"
        manifest.write_text(manifest.read_text().replace("ascend910b", "ascend910_93"))
    else:
        library_of.unlink()
    assert check_symbols.main([str(places["newer"]), "--against", str(places["older"])]) == 2
    assert f"the {which} release: " in capsys.readouterr().err
    status, seen = against(places["older"], places["newer"])
    damage = [f for f in seen["findings"] if f["level"] == "damage"]
    assert status == 2 and damage and all(f["text"].startswith(f"the {which} release: ") for f in damage)
    assert all(f["where"].startswith(str(places[which])) for f in damage)
    assert how == "gone" or seen["compare"]["removed"] == [f"symbol {BOTH[0]}"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"ops": []}', "[" * 100_000])
def test_against_something_that_is_no_release(release, tmp_path, capsys, text):
    (tmp_path / "x.json").write_text(text)
    assert check_symbols.main([str(release("a")), "--against", str(tmp_path / "x.json")]) == 2
    assert "is no manifest of an OPP" in capsys.readouterr().err


# Reports


def test_junit(release, tmp_path):
    out, broken = tmp_path / "report.xml", release("b", functions(API))
    assert check_symbols.main([str(broken), "--op", OP, "--format", "junit", "--output", str(out)]) == 1
    suite = ElementTree.parse(out).getroot()
    failed = {
        case.get("name"): case.find("failure").text for case in suite if case.find("failure") is not None
    }
    assert suite.get("failures") == "1" and f"incomplete: {API} is there" in failed[OP]
    assert check_symbols.main(
        [str(broken), "--against", str(release("a")), "--format", "junit", "--output", str(out)]
    )
    case = ElementTree.parse(out).getroot().find("testcase[@classname='check_symbols.release']")
    assert f"removed: symbol {BOTH[0]}" in case.find("failure").text


def test_sarif(release, tmp_path):
    out, broken = tmp_path / "report.sarif", release("b", functions(API))
    assert check_symbols.main([str(broken), "--op", OP, "--format", "sarif", "--output", str(out)]) == 1
    report = json.loads(out.read_text())
    run = report["runs"][0]
    assert report["version"] == "2.1.0" and run["invocations"][0]["executionSuccessful"]
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert run["results"] and {r["ruleId"] for r in run["results"]} <= rules
    assert any(r["ruleId"] == "operator" and r["level"] == "error" for r in run["results"])
    places = {r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in run["results"]}
    assert places == {f"{broken}%3Avendors/fla_npu"}  # a colon would make what is before it a scheme


def test_damage_has_a_kind_of_its_own_in_every_report(release, tmp_path, capsys):
    """An error where what is missing is a failure; both are there, and so is the rest."""
    out, broken = tmp_path / "report", release("b", functions(API))
    path = broken / "vendors/fla_npu/op_api/include/aclnn_chunk_fwd_h.h"
    path.write_text(path.read_text() + " ")

    def report(form: str) -> str:
        assert check_symbols.main([str(broken), "--op", OP, "--format", form, "--output", str(out)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        return out.read_text()

    seen = json.loads(report("json"))
    assert [f["level"] for f in seen["findings"]] == ["damage", "error"] and seen["status"] == 2
    suite = ElementTree.fromstring(report("junit").split("\n", 1)[1])
    assert (suite.get("errors"), suite.get("failures")) == ("1", "1")
    assert (
        "is not the file that was packed"
        in suite.find("testcase[@classname='check_symbols.damage']/error").text
    )
    assert "incomplete" in suite.find(f"testcase[@name='{OP}']/failure").text
    run = json.loads(report("sarif"))["runs"][0]
    assert [r["ruleId"] for r in run["results"]] == ["damage", "operator"]
    assert run["invocations"][0]["exitCode"] == 2
    text = report("text")
    assert (
        "damage op_api/include/aclnn_chunk_fwd_h.h is not the file" in text
        and "error chunk_fwd_h: inc" in text
    )
    assert text.endswith("damaged in 1 place, 1 problem\n")


@pytest.mark.parametrize("form", ["json", "junit", "sarif"])
def test_input_that_can_not_be_read_is_in_the_report(tmp_path, form):
    out = tmp_path / "report"
    assert check_symbols.main([str(tmp_path / "nowhere"), "--format", form, "--output", str(out)]) == 2
    assert "does not exist" in out.read_text()


def test_text_of_a_comparison(release, tool):
    done = tool(release("b", functions(API)), "--against", release("a"))
    assert done.returncode == 1 and "1 incompatible with" in done.stdout and BOTH[0] in done.stdout
    assert tool(release("c"), release("d"), "--against", release("e")).returncode == 2


def test_every_contract_is_in_the_built_manifest():
    """The names that a later release will be held to."""
    from fla_npu import opp

    listed = opp.find().manifest["ops"]
    assert {name: spec.spec(name).prototype_hash for name in listed} == {
        name: value["prototype_hash"] for name, value in listed.items()
    }
