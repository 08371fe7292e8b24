# SPDX-License-Identifier: Apache-2.0
"""Processes that stay for a module of tests: starting them takes longer than most tests.

    pool = Pool(4)
    results = pool.run(function, *arguments)      function(rank, size, *arguments) on every rank

They are forked from a server that has PyTorch loaded. What functions raise fails the test, with the
rank's own traceback; afterwards the pool starts again, since ranks are out of step.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta

import ranks
from ranks import RankFailed

# A rank that does not answer in this time has failed the test, in seconds.
PATIENCE = 120


class Pool:
    """`timeout`: of the process group, in seconds."""

    def __init__(self, size: int, timeout: float = 60.0) -> None:
        self.size, self.timeout = size, timeout
        self.workers: list = []

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed", "fla_npu.torch.parallel", "torch_pool"])
        self.folder = tempfile.mkdtemp(prefix="fla-npu-test-")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            arguments = (rank, self.size, f"{self.folder}/store", self.timeout, theirs, dict(os.environ))
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.workers.append((process, ours))

    def run(self, function: Callable, *arguments, ending: tuple[int, ...] = ()) -> list:
        """Results in the order of ranks; None of those in `ending`, which are to end instead."""
        if not self.workers:
            self._start()
        pipes = [pipe for _, pipe in self.workers]
        results, failed = ranks.call(pipes, function, arguments, ending, PATIENCE)
        if failed or ending:
            self.close()
        if failed:
            raise RankFailed("\n".join(failed))
        return results

    def close(self) -> None:
        for _, pipe in self.workers:
            try:
                pipe.send_bytes(b"")
            except OSError:
                pass
            pipe.close()
        for process, _ in self.workers:
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join()
        if self.workers:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.workers = []


def serve(rank: int, size: int, store: str, timeout: float, pipe, environment: dict) -> None:
    """A rank: joins the group, then does what it is told until the pipe is empty."""
    import torch
    import torch.distributed as dist

    os.environ.update(environment)
    os.environ["FLA_NPU_TWIN_THREADS"] = "1"
    torch.set_num_threads(1)
    limit = timedelta(seconds=timeout)
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=limit
    )
    ranks.serve(pipe, rank, size)
    os._exit(0)  # peers may have ended: nothing to say goodbye to
