# SPDX-License-Identifier: Apache-2.0
"""Memory stays flat, temporaries live long enough, threads do not disturb each other."""

from __future__ import annotations

import gc
import threading

import torch
from in_step import in_step
from torch_calls import TOKENWISE, kda, make, same_bits


def resident() -> int:
    with open("/proc/self/statm") as handle:
        return int(handle.read().split()[1]) * 4096


def test_memory_is_flat_over_300_lengths():
    longest = make(tokens=300, hk=1, hv=2)

    def round_trip(lengths):
        for tokens in lengths:
            kda({n: (x[:, :, :tokens].clone() if n in TOKENWISE else x) for n, x in longest.items()})

    round_trip(range(1, 301, 3))
    gc.collect()
    before = resident()
    round_trip(range(1, 301))
    gc.collect()
    assert resident() - before < 24 << 20


def test_inputs_may_be_temporaries():
    t = make()
    want = kda(t)
    for _ in range(5):
        got = kda({name: x.clone() for name, x in t.items()})
        torch.empty(1 << 20).fill_(float("nan"))
        assert same_bits(got, want)


def test_calls_from_threads():
    cases = [make(tokens=60 + 7 * i, seed=i) for i in range(4)]
    want = [kda(t) for t in cases]
    got: list = [None] * len(cases)

    def work(i):
        for _ in range(3):
            got[i] = kda(cases[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same_bits(a, b) for a, b in in_step(got, want))


def test_runs_are_bitwise_repeatable(twin):
    t = make(tokens=143, hk=2, hv=6)
    want = kda(t)
    for threads in (1, 2, 3):
        twin(threads=threads)
        assert same_bits(kda(t), want)
