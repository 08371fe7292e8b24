# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the Python layer's tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture
def fresh_loader(monkeypatch):
    """A loader that has chosen nothing yet, and an environment that names no OPP."""
    from fla_npu import loader

    for name in ("FLA_NPU_OPP_PATH", "ASCEND_CUSTOM_OPP_PATH", "ASCEND_OPP_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/nowhere")  # what this user installed plays no part
    loader.reset()
    yield loader
    loader.reset()


@pytest.fixture
def use_opp(fresh_loader, monkeypatch):
    """Makes the given OPP the explicit choice."""

    def choose(root):
        monkeypatch.setenv("FLA_NPU_OPP_PATH", str(root))
        fresh_loader.reset()
        return root

    return choose
