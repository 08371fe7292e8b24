# SPDX-License-Identifier: Apache-2.0
"""Fences by formula: a correct kernel is clean exactly when every one of its fences is there.

The kernel is probes/groups.cpp, class Pipeline: V -> GM -> cube -> GM -> V, four rounds. A fence is a
flag with all its SetFlag and WaitFlag lines; FLA_NPU_TWIN_SKIP takes them out together, so that counts stay
balanced and only the order is missing.
"""

from __future__ import annotations

import itertools

import numpy as np
import probe_harness as harness
import pytest
from in_step import in_step

VECTOR = ["in free", "half free", "out free", "loaded", "added", "cast", "fetched", "scaled"]
CUBE = ["l1 free", "l0 free", "l0c free", "nz", "l0 ready", "accumulated"]
CROSS = ["operand ready", "operand free", "product ready", "product free"]
STEPS = 4


def _skip(tags) -> str:
    return ",".join(harness.lines_of("groups", tag) for tag in tags)


def _expected(x: np.ndarray) -> np.ndarray:
    operand = _bf16(x[:1024] + 1).reshape(32, 32).astype(np.float64)
    return (2 * operand @ operand).astype(np.float32).ravel()


def _bf16(x: np.ndarray) -> np.ndarray:
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def _run():
    y = np.full(4096, np.nan, dtype=np.float32)
    x = (np.arange(4096) % 17 / 16).astype(np.float32)
    return harness.run("groups", 0, x=x, y=y, fields=(0, STEPS)), x, y


@pytest.fixture
def checked(monkeypatch):
    monkeypatch.setenv("FLA_NPU_TWIN", "checked")


@pytest.mark.parametrize("copies", ["late", "eager"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_complete_kernel_is_clean_and_right(checked, copies, seed, monkeypatch):
    monkeypatch.setenv("FLA_NPU_TWIN_COPIES", copies)
    monkeypatch.setenv("FLA_NPU_TWIN_SEED", str(seed))
    report, x, y = _run()
    assert report.clean, report.message
    for step in range(STEPS):
        np.testing.assert_allclose(y[step * 1024 : (step + 1) * 1024], _expected(x), rtol=1e-5)


def test_fast_and_checked_agree_bitwise(monkeypatch):
    results = []
    for mode in ("fast", "checked"):
        monkeypatch.setenv("FLA_NPU_TWIN", mode)
        report, _, y = _run()
        assert report.clean, report.message
        results.append(y[: STEPS * 1024].tobytes())
    assert results[0] == results[1]


@pytest.mark.parametrize("copies", ["late", "eager"])
@pytest.mark.parametrize("tag", VECTOR + CUBE + CROSS)
def test_each_fence_alone_is_needed(checked, tag, copies, monkeypatch):
    monkeypatch.setenv("FLA_NPU_TWIN_COPIES", copies)
    for seed in range(3):
        monkeypatch.setenv("FLA_NPU_TWIN_SEED", str(seed))
        monkeypatch.setenv("FLA_NPU_TWIN_SKIP", _skip([tag]))
        report, _, _ = _run()
        assert not report.clean, f"nothing noticed that '{tag}' is gone"


@pytest.mark.parametrize("copies", ["late", "eager"])
@pytest.mark.parametrize("family", [VECTOR, CUBE + CROSS], ids=["vector", "cube"])
def test_clean_exactly_when_all_fences_are_there(checked, family, copies, monkeypatch):
    monkeypatch.setenv("FLA_NPU_TWIN_COPIES", copies)
    for seed, present in enumerate(itertools.product([True, False], repeat=len(family))):
        monkeypatch.setenv("FLA_NPU_TWIN_SEED", str(seed))
        missing = [tag for tag, there in in_step(family, present) if not there]
        if missing:
            monkeypatch.setenv("FLA_NPU_TWIN_SKIP", _skip(missing))
        else:
            monkeypatch.delenv("FLA_NPU_TWIN_SKIP", raising=False)
        report, _, _ = _run()
        assert report.clean == (not missing), f"missing {missing}: {report.message or 'clean'}"


@pytest.mark.parametrize("tag", ["loaded", "nz", "operand ready"])
def test_half_a_fence_is_refused(checked, tag, monkeypatch):
    """One call deleted, as a slip of the pen would: the count is off, whatever the data do."""
    for line in harness.lines_of("groups", tag).split(","):
        monkeypatch.setenv("FLA_NPU_TWIN_SKIP", line)
        report, _, _ = _run()
        assert not report.clean
