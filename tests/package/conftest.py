# SPDX-License-Identifier: Apache-2.0
"""Operator packages to look into, and the tool as a user runs it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import fake_opp
import pytest
from environments import VARIABLES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def good_opp(tmp_path_factory) -> Path:
    """Never changed; a test that changes something takes `opp`."""
    return fake_opp.make_opp(tmp_path_factory.mktemp("good") / "opp")


@pytest.fixture
def opp(good_opp, tmp_path) -> Path:
    return Path(shutil.copytree(good_opp, tmp_path / "opp", symlinks=True))


@pytest.fixture
def vendor(opp) -> Path:
    return opp / "vendors/fla_npu"


@pytest.fixture
def clean(monkeypatch):
    """An environment without an OPP, and a loader that has chosen none."""
    from fla_npu import loader, opp

    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/nowhere")
    monkeypatch.setattr(opp, "own_root", lambda: None)
    loader.reset()
    yield monkeypatch
    loader.reset()


@pytest.fixture
def look(monkeypatch):
    """look(path, ...) -> exit status, JSON, the findings as text. Only chunk_fwd_h is asked for."""
    from fla_npu import check_symbols

    def run(*paths: object, op: str | None = fake_opp.OP, arch: str | None = None) -> SimpleNamespace:
        arguments = [str(path) for path in paths] + ["--json"]
        arguments += ["--op", op] if op else []
        arguments += ["--arch", arch] if arch else []
        import contextlib
        import io

        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = check_symbols.main(arguments)
        data = json.loads(out.getvalue())
        text = "\n".join(f["text"] for f in data.get("findings", [])) + err.getvalue()
        row = data.get("ops", {}).get(fake_opp.OP, {})
        return SimpleNamespace(status=status, data=data, text=text, row=row, reason=err.getvalue())

    return run


@pytest.fixture
def tool():
    """tools/check_symbols as a process."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess:
        import os

        return subprocess.run(
            [sys.executable, str(ROOT / "tools/check_symbols"), *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
        )

    return run
