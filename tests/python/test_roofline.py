# SPDX-License-Identifier: Apache-2.0
"""The roofline reads the checked twin's counters and leaves the environment as it was."""

from __future__ import annotations

import json
import os

import pytest
from fla_npu import roofline


def fake_launch():
    """Writes the trace that a checked launch would."""
    args = {"GM->UB bytes": 1_600_000, "UB->UB bytes": 9, "MACs": 0, "lanes": 0}
    bar = {"name": "op", "ph": "X", "ts": 0.0, "dur": 3.0, "pid": 0, "tid": 0, "args": args}
    other = {"name": "Add", "ph": "X", "ts": 0.0, "dur": 1.0, "pid": 1, "tid": 1, "args": {}}
    with open(os.environ["FLA_NPU_TWIN_TRACE"], "w") as file:
        json.dump({"traceEvents": [{"name": "n", "ph": "M", "pid": 0, "args": {}}, bar, other]}, file)
    assert os.environ["FLA_NPU_TWIN"] == "checked"


def test_counts_become_floors(monkeypatch):
    monkeypatch.setenv("FLA_NPU_TWIN", "fast")
    (bound,) = roofline.measure(fake_launch)
    assert bound.op == "op" and bound.by == "HBM"
    assert bound.memory == pytest.approx(1.0) and bound.estimate == 3.0  # 1.6 MB at 1.6 TB/s; simulated 3 us
    assert os.environ["FLA_NPU_TWIN"] == "fast" and "FLA_NPU_TWIN_TRACE" not in os.environ
    assert len(roofline.table([bound]).rows) == 1


def test_environment_survives_a_failure(monkeypatch):
    monkeypatch.delenv("FLA_NPU_TWIN", raising=False)
    with pytest.raises(ZeroDivisionError):
        roofline.measure(lambda: 1 // 0)
    assert "FLA_NPU_TWIN" not in os.environ
