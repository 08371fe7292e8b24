# SPDX-License-Identifier: Apache-2.0
"""On whose threads a launch runs beside PyTorch: on PyTorch's own while it has them, on ours otherwise.

Each case is a process of its own, because OpenMP keeps its threads for good.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
START = """
    import os, signal, torch
    from torch_calls import kda, make, same_bits
    threads = lambda: len(os.listdir("/proc/self/task"))
    torch.set_num_threads(2)
    torch.ones(1 << 20).exp_()  # PyTorch's team exists now
    inputs = make()  # PyTorch's own operations hang in a forked child, comparisons too
    raw = lambda made: made[0].view(torch.int16).numpy().tobytes()
"""


def run(program: str) -> None:
    helpers = [str(TESTS / "torch"), str(TESTS / "reference"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(helpers).rstrip(os.pathsep)}
    environment["FLA_NPU_TWIN_THREADS"] = "2"
    program = textwrap.dedent(START) + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        timeout=120,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_launch_starts_no_threads_beside_pytorchs():
    run("""
        before = threads()
        kda(inputs)
        assert threads() == before
    """)


def test_a_launch_has_its_threads_where_pytorch_may_use_one():
    run("""
        want = kda(inputs)
        torch.set_num_threads(1)
        before = threads()
        assert same_bits(kda(inputs), want)
        assert threads() == before + 1
    """)


def test_a_forked_child_does_not_wait_for_its_parents_team():
    run("""
        want = kda(inputs)
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # ends a child that hangs
            os._exit(0 if raw(kda(inputs)) == raw(want) else 1)
        assert os.waitpid(child, 0)[1] == 0
    """)


def test_a_forked_child_may_be_the_first_to_launch():
    run("""
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            kda(inputs)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """)
