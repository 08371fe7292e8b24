# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other before a call, without processes: rows of bytes in the order of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from fla_npu import errors
from fla_npu.parallel.handshake import SIZE, Record, exchange
from fla_npu.parallel.packing import agreed_plan


def meeting(*records: Record) -> list:
    """What each rank gets, or the error it raises."""
    rows, out = [r.encode() for r in records], []
    for rank, record in enumerate(records):
        try:
            out.append(exchange(lambda _: rows, rank, record))
        except errors.ParallelError as error:
            out.append(error)
    return out


def test_records_survive_the_way():
    a = Record("f", {"scale": 0.5, "layout": "BNSD", "a": None, "b": True}, wanted=True, own=(3, 4), number=7)
    b = Record("f", dict(a.facts), own=(5, 6))
    assert meeting(a, b) == [[a, b], [a, b]]


@pytest.mark.parametrize("reason", ["x" * 10_000, "\u7ef4" * 10_000, '"' * 10_000, "\\" * 10_000])
def test_a_record_always_fits(reason):
    facts = {f"name {i}": "value" * 20 for i in range(50)}
    for record in (Record("f", refused=reason), Record("f", facts), Record("f", facts, refused=reason)):
        data = record.encode()
        assert len(data) == SIZE and Record.decode(data).call == "f"
        assert bool(Record.decode(data).refused) == bool(record.refused)
    assert "dtype" in Record.decode(Record("f", {"dtype": np.dtype("int64")}).encode()).facts
    other = {**facts, "name 49": "another"}
    assert all("digest" in str(e) for e in meeting(Record("f", facts), Record("f", other)))


def test_a_refusal_is_named_and_the_refusing_rank_goes_on_to_its_own_error():
    first, second, third = meeting(Record("f"), Record("f", refused="q is None"), Record("f"))
    assert isinstance(second, list)
    for rank, error in ((0, first), (2, third)):
        assert "rank 1: q is None" in str(error)
        assert (error.rank, error.peers, error.step) == (rank, (1,), "handshake")


def test_disagreement_names_both():
    a, b = meeting(Record("f", {"HV": 4}), Record("f", {"HV": 8}))
    assert "HV = 4 on rank 0, 8 on rank 1" in str(a) and "HV = 8 on rank 1, 4 on rank 0" in str(b)
    a, _ = meeting(Record("f"), Record("g"))
    assert "rank 0 calls f while rank 1 calls g" in str(a)
    a, b = meeting(Record("f", wanted=True), Record("f", able=False))
    assert "rank 0 wants a gradient, but rank 1 runs without recording" in str(a)
    assert isinstance(meeting(Record("f"), Record("f", able=False))[0], list)


def packing(*arguments: dict) -> list:
    """agreed_plan on several ranks: each one's plan, or what it raises."""
    sent: list[bytes] = []
    for rank, given in enumerate(arguments):  # what each would send
        with pytest.raises(InterruptedError):
            agreed_plan(
                lambda data: sent.append(data) or _stop(), rank, len(arguments), **{**DEFAULT, **given}
            )
    out = []
    for rank, given in enumerate(arguments):
        try:
            out.append(agreed_plan(lambda _: sent, rank, len(arguments), **{**DEFAULT, **given}))
        except errors.FlaNpuError as error:
            out.append(error)
    return out


DEFAULT = {"cu_seqlens": None, "lengths": None, "transport": "gather", "group_size": None}


def _stop():
    raise InterruptedError


def test_packings():
    a, b = packing({"lengths": 3}, {"lengths": 0})
    assert a == b and a.lengths == (3, 0) and a.cu_seqlens == (0, 3)
    assert packing({"lengths": np.int64(3)}, {"lengths": np.array(0)}) == [a, b]
    assert packing({"lengths": np.array([3, 0])}, {"lengths": (3, 0)}) == [a, b]
    a, b = packing(*[{"lengths": (3, 0), "transport": "grouped", "group_size": n} for n in (2, np.int64(2))])
    assert a == b and a.group_size == 2
    a, b, c = packing(*[{"cu_seqlens": [0, 4, 10]}] * 3)
    assert a == b == c and a.lengths == (4, 3, 3)
    a, b = packing({"lengths": (1, 2)}, {"lengths": (2, 1)})
    assert "lengths = [1, 2] on rank 0, [2, 1] on rank 1" in str(a)
    many = tuple(range(100))
    a, b = packing({"cu_seqlens": many}, {"cu_seqlens": (*many[:50], 50, *many[51:-1], 98, 99)})
    assert "100 numbers, digest" in str(a) and "101 numbers, digest" in str(a)
    a, b = packing({"lengths": 3, "cu_seqlens": [0, 5]}, {"lengths": 3, "cu_seqlens": [0, 5]})
    assert isinstance(a, errors.ArgumentError) and isinstance(b, errors.ArgumentError)
    a, b = packing({"lengths": -1}, {"lengths": 3})
    assert isinstance(a, errors.ArgumentError) and "rank 0: ContextParallel: lengths = -1" in str(b)
