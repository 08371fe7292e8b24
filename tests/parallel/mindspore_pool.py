# SPDX-License-Identifier: Apache-2.0
"""MindSpore processes that stay for a module of tests: starting them takes longer than most tests.

    pool = Pool(4)
    results = pool.run(function, *arguments)      function(rank, size, *arguments) on every rank

Workers and their scheduler are processes of their own (MindSpore does not survive a fork). What
functions raise fails the test, with the rank's own traceback; afterwards the pool starts again, since
ranks are out of step.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from pathlib import Path

import ranks
from ranks import RankFailed

HERE = Path(__file__).resolve().parent
# A rank that does not start, or does not answer, in these times has failed the test, in seconds.
START, PATIENCE = 120, 300


class Pool:
    """`environment`: more variables for the processes."""

    def __init__(self, size: int, **environment: str) -> None:
        self.size, self.environment = size, environment
        self.pipes: list = []
        self.processes: list[subprocess.Popen] = []
        self._home = tempfile.TemporaryDirectory(prefix="fla-npu-test-")  # removed with the pool
        self.folder = self._home.name

    def _start(self) -> None:
        """Under load MindSpore's own start may fail; then once more."""
        for _ in range(3):
            if self._started():
                return
            self.close()
        raise RankFailed(f"ranks did not start:\n{self.logs()}")

    def _started(self) -> bool:
        listener = Listener(f"{self.folder}/pool-{os.urandom(4).hex()}", "AF_UNIX", backlog=self.size)
        listener._listener._socket.settimeout(1.0)
        common = {
            **os.environ, "FLA_NPU_TWIN_THREADS": "1", "OMP_NUM_THREADS": "1", "GLOG_v": "3",
            "MS_WORKER_NUM": str(self.size), "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": str(_free_port()),
            "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]), **self.environment,
        }  # fmt: skip
        for rank in range(-1, self.size):
            role = {"MS_ROLE": "MS_SCHED"} if rank < 0 else {"MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank)}
            command = [sys.executable, str(HERE / "mindspore_pool.py"), listener.address]
            with open(f"{self.folder}/{'scheduler' if rank < 0 else rank}.log", "ab") as log:
                started = subprocess.Popen(
                    command,
                    env={**common, **role},
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self.processes.append(started)
        found, end = {}, time.monotonic() + START
        with listener:
            while len(found) < self.size and time.monotonic() < end:
                if any(process.poll() is not None for process in self.processes):
                    break
                try:
                    pipe = listener.accept()
                    found[pipe.recv()] = pipe
                except TimeoutError:
                    continue
        self.pipes = list(found.values())
        if len(found) < self.size:
            return False
        self.pipes = [found[rank] for rank in range(self.size)]
        return True

    def logs(self) -> str:
        texts = sorted(Path(self.folder).glob("*.log"))
        return "\n".join(f"{p.name}: {p.read_text(errors='replace')[-2000:]}" for p in texts)

    def run(self, function: Callable, *arguments, ending: tuple[int, ...] = ()) -> list:
        """Results in the order of ranks; None of those in `ending`, which are to end instead."""
        if not self.pipes:
            self._start()
        results, failed = ranks.call(self.pipes, function, arguments, ending, PATIENCE)
        if failed or ending:
            self.close()
        if failed:
            raise RankFailed("\n".join(failed))
        return results

    def close(self) -> None:
        """Ends all processes; they have nothing to say goodbye with, since peers may have ended."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self.pipes, self.processes = [], []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve(address: str) -> None:
    """A rank: joins the job, then does what it is told until the pipe is closed."""
    import mindspore
    import mindspore.communication

    _end_with_parent()
    mindspore.set_device("CPU")
    mindspore.communication.init()
    if os.environ["MS_ROLE"] == "MS_SCHED":
        return
    rank, size = mindspore.communication.get_rank(), mindspore.communication.get_group_size()
    pipe = Client(address, "AF_UNIX")
    pipe.send(rank)
    ranks.serve(pipe, rank, size)
    os._exit(0)


def _end_with_parent() -> None:
    """By the kernel: a scheduler waits inside of MindSpore, where no Python of its own would run."""
    if sys.platform == "linux":
        set_signal_of_parents_death = 1
        ctypes.CDLL(None).prctl(set_signal_of_parents_death, signal.SIGKILL)


if __name__ == "__main__":
    serve(sys.argv[1])
