# SPDX-License-Identifier: Apache-2.0
"""Which OPP is chosen, and what is said about the ones that are not."""

from __future__ import annotations

import os

import pytest
from fakes import FakeOpp, copy_opp
from fla_npu import errors, opp


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    return FakeOpp(tmp_path_factory.mktemp("opp") / "opp")


@pytest.fixture
def no_own(monkeypatch):
    monkeypatch.setattr(opp, "own_root", lambda: None)


@pytest.mark.parametrize("inside", ["", "vendors", "vendors/fla_npu"])
def test_a_path_may_name_root_vendors_or_vendor(fresh_loader, monkeypatch, fake, inside):
    monkeypatch.setenv("FLA_NPU_OPP_PATH", str(fake.root / inside))
    found = opp.find()
    assert found.root == fake.root
    assert found.libraries == (fake.path,)
    assert found.source == "FLA_NPU_OPP_PATH"
    assert found.backend == "twin"


def test_order_of_places(fresh_loader, monkeypatch, fake, tmp_path):
    copies = {name: copy_opp(fake, tmp_path / name) for name in ("own", "custom", "ascend")}
    monkeypatch.setenv("ASCEND_OPP_PATH", str(copies["ascend"]))
    monkeypatch.setattr(opp, "own_root", lambda: None)
    assert opp.find().root == copies["ascend"]
    monkeypatch.setenv("ASCEND_CUSTOM_OPP_PATH", f":/nowhere:{copies['custom']}/vendors/fla_npu")
    assert opp.find().root == copies["custom"]
    monkeypatch.setattr(opp, "own_root", lambda: copies["own"])
    assert opp.find().root == copies["own"]
    monkeypatch.setenv("FLA_NPU_OPP_PATH", str(fake.root))
    assert opp.find().root == fake.root


def test_an_explicit_path_is_never_replaced(fresh_loader, monkeypatch, fake):
    monkeypatch.setattr(opp, "own_root", lambda: fake.root)
    monkeypatch.setenv("FLA_NPU_OPP_PATH", "/nowhere/at/all")
    with pytest.raises(errors.OppNotFound, match=r"FLA_NPU_OPP_PATH = /nowhere/at/all: no such directory"):
        opp.find()


def test_nothing_found_lists_every_place(fresh_loader, monkeypatch, no_own, tmp_path):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("ASCEND_OPP_PATH", str(tmp_path / "empty"))
    with pytest.raises(errors.OppNotFound) as raised:
        opp.find()
    text = str(raised.value)
    for word in (
        "FLA_NPU_OPP_PATH: not set",
        "ASCEND_CUSTOM_OPP_PATH",
        "holds no operator library",
        "pip install",
    ):
        assert word in text


def test_permission_is_not_absence(fresh_loader, monkeypatch, fake):
    def refuse(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(opp.os, "stat", refuse)
    place = opp._look("FLA_NPU_OPP_PATH", fake.root)
    assert place.opp is None
    assert "permission denied" in place.state
    assert str(fake.root) in place.state


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permission_for_real(fresh_loader, monkeypatch, fake, tmp_path):
    root = copy_opp(fake, tmp_path / "closed")
    (root / "vendors").chmod(0)
    try:
        assert "permission denied" in opp._look("x", root).state
    finally:
        (root / "vendors").chmod(0o755)


def test_vendor_priority_of_config_ini(fresh_loader, monkeypatch, no_own, fake, tmp_path):
    root = copy_opp(fake, tmp_path / "cann")
    (root / "vendors/fla_npu").rename(root / "vendors/zeta")
    copy_opp(fake, tmp_path / "other").joinpath("vendors/fla_npu").rename(root / "vendors/alpha")
    monkeypatch.setenv("ASCEND_OPP_PATH", str(root))
    assert [v.name for v in opp.find().vendors] == ["alpha", "zeta"]
    (root / "vendors/config.ini").write_text("load_priority=zeta,alpha\n")
    assert [v.name for v in opp.find().vendors] == ["zeta", "alpha"]


def test_relative_path_survives_chdir(use_opp, fake, monkeypatch, tmp_path):
    monkeypatch.chdir(fake.root.parent)
    use_opp("opp")
    found = opp.find()
    monkeypatch.chdir(tmp_path)
    assert found.root.is_absolute()
    assert found.libraries[0].exists()


@pytest.mark.parametrize("text", ["{", "", "[]", "null", '{"ops": []}', '{"files": {"a": 1}}'])
def test_damaged_manifest(use_opp, fake, tmp_path, text):
    root = copy_opp(fake, tmp_path / "damaged")
    (root / "manifest.json").write_text(text)
    use_opp(root)
    with pytest.raises(errors.AbiMismatch, match=r"manifest.json"):
        opp.find()
