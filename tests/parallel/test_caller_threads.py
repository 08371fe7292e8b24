# SPDX-License-Identifier: Apache-2.0
"""The caller with its own exchange, its ranks as threads of one process: no collective library in between."""

from __future__ import annotations

import threading

import pytest
import torch
import torch_caller
from torch_work import Case, judge

CASES = {
    "one_document": Case((70, 60), (0, 130), hk=2, hv=2, layout="BSND"),
    "over_all": Case((30, 65, 1, 44), (0, 10, 135, 140), hk=2, hv=2, layout="BSND"),
    "aligned": Case((64, 64), (0, 64, 128), hk=2, hv=2, layout="BSND"),
}


def in_threads(monkeypatch, case: Case) -> list[dict]:
    """torch_caller.run on every rank; its all_gather is a box and a barrier."""
    size = len(case.lengths)
    barrier, box, results = threading.Barrier(size, timeout=60), [None] * size, [None] * size
    this, faults = threading.local(), []

    def gathered(x: torch.Tensor, ranks: int) -> torch.Tensor:
        assert ranks == size
        box[this.rank] = x
        barrier.wait()
        stacked = torch.stack(box)
        barrier.wait()
        return stacked

    def work(rank: int) -> None:
        this.rank = rank
        try:
            results[rank] = torch_caller.run(rank, size, case)
        except BaseException as error:
            faults.append(error)
            barrier.abort()

    monkeypatch.setattr(torch_caller, "gathered", gathered)
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise next((f for f in faults if not isinstance(f, threading.BrokenBarrierError)), faults[0])
    return results


@pytest.mark.parametrize("name", CASES)
def test_sharded_equals_unsharded(name, monkeypatch):
    case = CASES[name]
    results = in_threads(monkeypatch, case)
    scores = judge(Case(**{**case.__dict__, "options": {"output_final_state": False}}), results, factor=2.5)
    for n in ("o", "dq", "dk", "dv", "dg"):
        assert scores[n][0] < 8e-3, n
    if name == "aligned":
        # Ranks that share no sequence: what a rank alone computes, bit for bit.
        alone = Case((128,), case.cu, hk=2, hv=2, layout="BSND")
        (whole,) = in_threads(monkeypatch, alone)
        for n in ("o", "dq", "dk", "dv", "dg", "dbeta"):
            assert torch.equal(torch.cat([part[n] for part in results], 1), whole[n]), n
