# SPDX-License-Identifier: Apache-2.0
"""The fla-npu command, on OPPs made for the purpose."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from fakes import FakeOpp
from fla_npu import cli, opp
from fla_npu.spec import names


def run(*arguments: str):
    return CliRunner().invoke(cli.main, list(arguments))


@pytest.fixture
def partial(tmp_path, use_opp):
    """An OPP with one operator."""
    fake = FakeOpp(tmp_path / "opp", ops=("chunk_fwd_h",))
    use_opp(fake.root)
    return fake


def test_info_tells_what_is_used_and_missing(partial):
    result = run("info", "--json")
    assert result.exit_code == 1
    facts = json.loads(result.output)
    assert facts["opp"]["chosen_by"] == "FLA_NPU_OPP_PATH"
    assert facts["opp"]["libraries"] == [str(partial.path)]
    assert facts["operators"]["chunk_fwd_h"] == ""
    assert "aclnnChunkKdaFwdPrepare" in facts["operators"]["chunk_kda_fwd_prepare"]
    assert facts["places"][0]["used"]
    assert "FLA_NPU_TWIN_ISA" in facts["twin"]["settings"]


def test_info_for_people(partial):
    result = run("info")
    assert result.exit_code == 1
    for word in ("FLA_NPU_OPP_PATH", "chunk_fwd_h", "ok", "not set", "Operators", "Twin"):
        assert word in result.output


def test_info_is_content_when_all_is_there(tmp_path, use_opp):
    use_opp(FakeOpp(tmp_path / "opp").root)
    result = run("info", "--json")
    assert result.exit_code == 0
    assert set(json.loads(result.output)["operators"]) == set(names())


def test_info_without_an_opp(fresh_loader, monkeypatch):
    monkeypatch.setattr(opp, "own_root", lambda: None)
    result = run("info")
    assert result.exit_code == 1
    assert "no operator package (OPP) found" in result.output


def test_errors_are_messages(monkeypatch):
    from fla_npu import demo

    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None)
    result = run("demo", "--framework", "torch")
    assert result.exit_code == 1
    assert "Error:" in result.output
    assert "pip install" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "arguments", [("--help",), ("info", "--help"), ("demo", "-h"), ("build-bridge", "--help")]
)
def test_help(arguments):
    result = run(*arguments)
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_bad_sizes_are_refused():
    for arguments in (("--tokens", "0"), ("--heads", "0"), ("--framework", "jax")):
        result = run("demo", *arguments)
        assert result.exit_code == 2
