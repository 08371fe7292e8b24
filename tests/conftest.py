# SPDX-License-Identifier: Apache-2.0
"""What every test shares: where the references live, markers, and a clean twin environment per test."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

# Two test processes on a small machine: the references' matrices are too small to share them out further.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

TESTS = Path(__file__).resolve().parent
for folder in (TESTS / "reference", TESTS / "ops"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


CHECKOUT = str(TESTS.parent / "python")
CHECKOUT_GIVEN = CHECKOUT in sys.path  # by PYTHONPATH


def pytest_runtest_setup():
    """The build's scripts, once imported, leave the checkout's package, which has no OPP, before the installed one."""
    if not CHECKOUT_GIVEN and CHECKOUT in sys.path:
        sys.path[:] = [entry for entry in sys.path if entry != CHECKOUT]


def pytest_configure(config):
    config.addinivalue_line("markers", "full: long test; left out of the fast tier (-m 'not full')")
    config.addinivalue_line("markers", "npu: needs an Ascend NPU and CANN")


def pytest_collection_modifyitems(config, items):
    """Tests marked npu run only where they can: FLA_NPU_TEST_DEVICE=npu."""
    if os.environ.get("FLA_NPU_TEST_DEVICE") == "npu":
        return
    skip = pytest.mark.skip(reason="needs an NPU; set FLA_NPU_TEST_DEVICE=npu on a machine that has one")
    for item in items:
        if "npu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def clean_twin_environment(monkeypatch):
    """Every test starts from the twin's defaults; what it sets is gone afterwards."""
    for name in list(os.environ):
        if name.startswith("FLA_NPU_TWIN"):
            monkeypatch.delenv(name)


@pytest.fixture
def twin(monkeypatch):
    """Set twin options for the rest of the test: twin(mode="checked", threads=2, cores=3, seed=7, skip=...)."""
    names = {"mode": "FLA_NPU_TWIN"}

    def configure(**options):
        for key, value in options.items():
            name = names.get(key, f"FLA_NPU_TWIN_{key.upper()}")
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, str(value))

    return configure


def pytest_terminal_summary(terminalreporter):
    """Worst error of each quantity against its floor, when operator tests have judged any."""
    compare = sys.modules.get("kda_compare")
    if compare is not None and compare.SCORES:
        terminalreporter.section("relative L2 against float64")
        for line in compare.score_table():
            terminalreporter.write_line(line)
