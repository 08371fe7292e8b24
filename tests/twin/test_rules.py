# SPDX-License-Identifier: Apache-2.0
"""Each rule of the checked machine: one probe that keeps it stays silent, one that breaks it says so.

The message must name the rule, the pipe, the line of the probe and the repair.
"""

from __future__ import annotations

from dataclasses import dataclass

import probe_harness as harness
import pytest


@dataclass(frozen=True)
class Case:
    """`good` and `bad` are tiling fields after `which`; `line` is text of the line that must be blamed."""

    which: int
    good: tuple[int, ...]
    bad: tuple[int, ...]
    rule: str
    line: str
    says: tuple[str, ...]  # pipe, operands, repair
    probe: str = "rules"


RULES = [
    # memory
    Case(100, (256,), (257,), "bounds", "// bounds", ("pipe V", "1028 bytes", "has 1024", "cut the count")),
    Case(
        101,
        (8,),
        (4,),
        "alignment",
        "// alignment",
        ("pipe V", "UB 0x10", "multiple of 32", "aligned offset"),
    ),
    Case(102, (64,), (63,), "undefined-read", "// undefined", ("pipe V", "element 63", "write it first")),
    Case(103, (4032,), (4033,), "bounds", "// gm end", ("pipe MTE2", "has 252", "cut the count")),
    Case(104, (0,), (1,), "input-write", "// input write", ("pipe MTE3", "'x'", "workspace")),
    Case(105, (0,), (1,), "gm-range", "absent : x_", ("pipe MTE2", "null", "cut the tail")),
    Case(106, (64,), (60,), "undefined-read", "// tail", ("pipe V", "element 60", "write it first")),
    # order inside a core
    Case(200, (0,), (1,), "race", "// race sink", ("pipe V", "Duplicate", "PipeBarrier<PIPE_V>()")),
    Case(201, (0,), (1,), "race", "// overlapping", ("pipe MTE2", "writes it", "PipeBarrier<PIPE_MTE2>()")),
    Case(204, (0,), (1,), "race", "Adds(b_, a_, 1.0f, 1);", ("SetValue", "pipe S", "HardEvent::S_V")),
    Case(205, (0,), (1,), "race", "Duplicate(a_, 2.0f, kTile);", ("pipe V", "between them")),
    # flags
    Case(300, (0,), (1,), "flag-set-twice", "// set twice", ("pipe MTE2", "MTE2_V", "one WaitFlag")),
    Case(
        301,
        (0,),
        (1,),
        "flag-wait",
        "// wait",
        ("pipe MTE3", "V_MTE3", "SetFlag<HardEvent::V_MTE3>(1) first"),
    ),
    Case(302, (0,), (1,), "flag-leftover", "// leftover", ("V_S", "add the WaitFlag")),
    Case(303, (5,), (6,), "event-id", "SetFlag<HardEvent::V_S>(static_cast", ("(6)", "use 0 to 5")),
    Case(304, (0,), (1,), "event-core", "// wrong core", ("M_FIX", "AIV", "this core type")),
    Case(305, (0,), (1,), "event-pool", "// pool", ("all 8 ids of V_S", "ReleaseEventID")),
    Case(17, (0,), (1,), "event-id", "// id of TPipe", ("M_MTE1", "ids 3 to 5"), "groups"),
    # TPipe and queues
    Case(306, (0,), (1,), "one-tpipe", "// second pipe", ("second TPipe", "one TPipe per kernel")),
    Case(307, (0,), (1,), "capacity", "// too much", ("UB", "188416 are usable", "smaller")),
    Case(308, (0,), (1,), "buffer-count", "// buffers", ("65 buffers", "at most 64", "fewer")),
    Case(320, (1,), (0,), "queue-buffers", "// queue buffers", ("9 queue buffers", "fewer queues")),
    Case(321, (0,), (1,), "queue-alloc", "// third", ("all 2 buffers", "free a tensor first")),
    Case(322, (0,), (1,), "queue-enque", "// enque twice", ("in the queue", "once")),
    Case(323, (0,), (1,), "queue-depth", "// depth", ("depth 1", "DeQue before")),
    Case(324, (0,), (1,), "queue-leftover", "in.EnQue(x);\n", ("never taken out", "DeQue it")),
    Case(325, (0,), (1,), "queue-deque", "// empty", ("empty queue", "EnQue a tensor first")),
    Case(326, (0,), (1,), "queue-free", "// free twice", ("free", "once")),
    Case(327, (0,), (1,), "queue-foreign", "// foreign", ("no buffer of this queue", "AllocTensor or DeQue")),
    # the scalar unit's data cache
    Case(23, (0,), (1,), "race", "// not enqueued", ("pipe MTE1", "Nd2Nz", "MTE2_MTE1"), "groups"),
    Case(500, (0,), (1,), "cache-dirty", "// scalar write", ("pipe S", "DataCacheCleanAndInvalid")),
    Case(501, (0,), (1,), "cache-stale", "// stale read", ("DataCopy", "before the read")),
    Case(502, (0,), (1,), "cache-shared", "// scalar write", ("64-byte line", "own 64-byte line")),
    Case(503, (0,), (1,), "cache-dirty", "// dirty read", ("pipe MTE2", "SetValue", "after SetValue")),
    # between cores
    Case(
        10,
        (0,),
        (1,),
        "race",
        "// neighbours",
        ("pipe MTE3", "of AIV", "CrossCoreSetFlag<1, PIPE_MTE3>"),
        "groups",
    ),
    Case(11, (0,), (1,), "race", "", ("of AIV", "CrossCoreSetFlag<1, PIPE_MTE"), "groups"),
    Case(11, (0,), (2,), "race", "", ("of AIV", "PIPE_MTE3"), "groups"),
    Case(12, (0,), (1,), "cross-id", "// flag id", ("(11)", "0 to 10"), "groups"),
    Case(13, (0,), (1,), "cross-counter", "// counter", ("holds 15", "credits"), "groups"),
    Case(15, (0,), (1,), "cross-leftover", "", ("AIC 0 never waits", "as often as"), "groups"),
    Case(16, (0,), (1,), "cross-mode", "// mode 1 on AIC", ("two AIVs", "mode 2"), "groups"),
    Case(18, (0,), (1,), "cross-mode", "// other mode", ("mode 0", "mode 1", "another flag id"), "groups"),
    Case(20, (0,), (1,), "syncall-kind", "// kind of sync", ("SyncAll<true>", "SyncAll<false>()"), "groups"),
    Case(21, (0, 32), (1, 32), "race", "// accumulates", ("pipe M", "PipeBarrier<PIPE_M>()"), "groups"),
    Case(22, (0,), (1,), "core-type", "// pipe of the cube", ("pipe M", "AIV", "ASCEND_IS_AIC"), "groups"),
    Case(30, (0,), (1,), "cross-kernel-type", "// no flags", ("AIV_ONLY", "MIX_AIV_1_0"), "groups"),
]


@pytest.fixture(autouse=True)
def checked(monkeypatch):
    monkeypatch.setenv("FLA_NPU_TWIN", "checked")


@pytest.mark.parametrize("copies", ["late", "eager"])
@pytest.mark.parametrize("case", RULES, ids=lambda c: f"{c.rule}-{c.which}-{c.bad[0]}")
def test_kept_is_silent_and_broken_is_loud(case, copies, monkeypatch):
    monkeypatch.setenv("FLA_NPU_TWIN_COPIES", copies)
    good = harness.run(case.probe, case.which, fields=case.good)
    assert good.clean, good.message
    bad = harness.run(case.probe, case.which, fields=case.bad)
    assert bad.status == 507015
    assert bad.message.startswith(f"twin fault: {case.rule}: op {case.probe}, core A"), bad.message
    for words in case.says:
        assert words in bad.message, bad.message
    if case.line.endswith("\n"):  # the text also stands on marked lines: take the one without a mark
        source = (harness.PROBES / f"{case.probe}.cpp").read_text().splitlines()
        number = [n for n, text in enumerate(source, 1) if text.strip() == case.line.strip()]
        assert f"{case.probe}.cpp:{number[0]}: " in bad.message, bad.message
    elif case.line:
        number = harness.line_of(case.probe, case.line)
        assert f"{case.probe}.cpp:{number}: " in bad.message, bad.message


@pytest.mark.parametrize("which", [202, 203, 206])
def test_orders_that_are_learnt_indirectly_are_credited(which):
    report = harness.run("rules", which)
    assert report.clean, report.message


def test_a_large_accumulation_orders_itself():
    report = harness.run("groups", 21, fields=(1, 64))
    assert report.clean, report.message


def test_all_core_flags_reach_every_core_in_any_order(monkeypatch):
    for seed in range(5):
        monkeypatch.setenv("FLA_NPU_TWIN_SEED", str(seed))
        for which in (19, 20, 31):
            report = harness.run("groups", which, blocks=5)
            assert report.clean, report.message


def test_all_core_flags_need_every_block_resident(monkeypatch):
    monkeypatch.setenv("FLA_NPU_TWIN_CORES", "4")
    assert harness.run("groups", 20, blocks=4).clean
    report = harness.run("groups", 20, blocks=5)
    assert "twin fault: resident-blocks: " in report.message
    assert "blockDim is 5" in report.message and "at most as many blocks" in report.message


def test_a_wait_that_cannot_end_names_every_core_and_line():
    report = harness.run("groups", 14, fields=(1,), blocks=2)
    assert report.message.startswith("twin fault: deadlock: op groups: no core can go on: ")
    number = harness.line_of("groups", "// never arrives")
    for core in (0, 1):
        assert f"AIC {core} waits for flag 2 at groups.cpp:{number}" in report.message
    assert "both AIVs must set" in report.message
    assert harness.run("groups", 14, fields=(0,)).clean, "the machine is usable after a deadlock"


def test_the_fast_machine_reports_deadlock_and_capacity(monkeypatch):
    monkeypatch.setenv("FLA_NPU_TWIN", "fast")
    report = harness.run("groups", 14, fields=(1,), blocks=3)
    assert report.message.startswith("twin fault: deadlock: op groups: no core can go on: ")
    report = harness.run("rules", 307, fields=(1,))
    assert report.message.startswith("twin fault: capacity: op rules, core AIV ")
    assert harness.run("rules", 307, fields=(0,)).clean
