# SPDX-License-Identifier: Apache-2.0
"""What the machine gives besides verdicts: counters, the trace, its environment, threads and recovery."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading

import numpy as np
import probe_harness as harness
import pytest


def test_counters_count_what_the_kernel_did(monkeypatch):
    monkeypatch.setenv("FLA_NPU_TWIN", "checked")
    assert harness.run("groups", 0, fields=(0, 2)).clean
    c = harness.counters("groups")
    assert c["macs"] == 2 * 32**3
    assert c["gm_to_ub"] == 2 * 2 * 4096 and c["ub_to_gm"] == 2 * (2048 + 4096)
    assert c["lanes"] == 2 * 3 * 1024
    assert c["cross_flags"] == 2 * 3, "per step: operand ready by both AIVs, product ready by the AIC"
    assert c["ub_peak"] == 32 * 1024 and c["cycles"] > 0


def test_an_output_that_was_never_written_shows(monkeypatch):
    monkeypatch.setenv("FLA_NPU_TWIN", "checked")
    y = np.zeros(4096, dtype=np.float32)
    assert harness.run("groups", 0, y=y, fields=(0, 2)).clean
    assert np.isfinite(y[:2048]).all() and np.isnan(y[2048:]).all()


def test_trace_is_json_with_a_bar_per_instruction(monkeypatch, tmp_path):
    path = tmp_path / "trace.json"
    monkeypatch.setenv("FLA_NPU_TWIN", "checked")
    monkeypatch.setenv("FLA_NPU_TWIN_TRACE", str(path))
    assert harness.run("groups", 0, fields=(0, 1)).clean
    assert harness.run("groups", 0, fields=(0, 1)).clean
    events = json.loads(path.read_text())["traceEvents"]
    bars = [e for e in events if e["ph"] == "X" and e["name"] == "Mmad"]
    assert len(bars) == 2 and bars[1]["ts"] > bars[0]["ts"], "launches follow one another"
    assert bars[0]["args"]["at"].startswith("groups.cpp:")
    launches = [e for e in events if e["ph"] == "X" and e["pid"] == 0]
    assert [e["args"]["MACs"] for e in launches] == [32**3] * 2
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"MTE1", "FIX", "V"} <= names


def test_trace_that_cannot_be_written_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("FLA_NPU_TWIN", "checked")
    monkeypatch.setenv("FLA_NPU_TWIN_TRACE", str(tmp_path / "absent" / "trace.json"))
    report = harness.run("groups", 0, fields=(0, 1))
    assert not report.clean and "cannot write" in report.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FLA_NPU_TWIN", "quick"),
        ("FLA_NPU_TWIN_THREADS", "0"),
        ("FLA_NPU_TWIN_THREADS", "two"),
        ("FLA_NPU_TWIN_CORES", "-1"),
        ("FLA_NPU_TWIN_COPIES", "soon"),
        ("FLA_NPU_TWIN_SOC", "Ascend310"),
        ("FLA_NPU_TWIN_SKIP", "file.h"),
    ],
)
def test_a_setting_nobody_understands_is_refused(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    report = harness.run("groups", 20)
    assert not report.clean
    assert f"{name}={value} is not understood; use " in report.message


@pytest.mark.parametrize("mode", ["fast", "checked"])
@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_all_core_sync_works_for_any_thread_count(mode, threads, monkeypatch):
    monkeypatch.setenv("FLA_NPU_TWIN", mode)
    monkeypatch.setenv("FLA_NPU_TWIN_THREADS", threads)
    for blocks in (1, 2, 7):
        for which in (19, 20, 31):
            report = harness.run("groups", which, blocks=blocks)
            assert report.clean, report.message


def test_a_fault_leaves_the_machine_usable(monkeypatch):
    monkeypatch.setenv("FLA_NPU_TWIN", "checked")
    for _ in range(20):
        assert not harness.run("rules", 200, fields=(1,), blocks=4).clean
        assert harness.run("rules", 200, blocks=4).clean


@pytest.mark.parametrize("mode", ["fast", "checked"])
def test_launches_from_several_threads_do_not_disturb_each_other(mode, monkeypatch):
    monkeypatch.setenv("FLA_NPU_TWIN", mode)
    monkeypatch.setenv("FLA_NPU_TWIN_THREADS", "2")
    harness.build("groups")
    reports = []

    def work():
        for _ in range(10):
            y = np.full(4096, np.nan, dtype=np.float32)
            report = harness.run("groups", 0, y=y, fields=(0, 2))
            reports.append((report, np.isfinite(y[:2048]).all()))
            reports.append((harness.run("groups", 20, blocks=3), True))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(reports) == 60
    assert all(report.clean and right for report, right in reports)


def _child(queue):
    queue.put(harness.run("groups", 20, blocks=4).status)


def test_the_thread_pool_survives_fork(monkeypatch):
    monkeypatch.setenv("FLA_NPU_TWIN_THREADS", "2")
    assert harness.run("groups", 20, blocks=4).clean  # the pool's threads exist now
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == 0
    child.join()


def test_a_forked_child_can_exit_the_ordinary_way(monkeypatch):
    monkeypatch.setenv("FLA_NPU_TWIN_THREADS", "2")
    program = (
        "import os, sys, probe_harness as harness\n"
        "assert harness.run('groups', 20, blocks=4).clean\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    sys.exit(0)\n"
        "sys.exit(os.waitpid(child, 0)[1])\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", program], env=environment, timeout=120, check=False)
    assert done.returncode == 0
