# SPDX-License-Identifier: Apache-2.0
"""cu_seqlens and chunk_indices: containers, canonical order, no memory of old values."""

from __future__ import annotations

import pytest
from fla_npu import errors
from fla_npu.checks import canonical_indices, chunk_count, read_chunk_indices, read_cu_seqlens

numpy = pytest.importorskip("numpy")
CU = [0, 65, 70]


def read(value, tokens=70, batch=1):
    return read_cu_seqlens("op", value, tokens, batch)


@pytest.mark.parametrize(
    "value",
    [
        CU,
        tuple(CU),
        numpy.array(CU, dtype=numpy.int32),
        numpy.array(CU, dtype=numpy.int64),
        numpy.array([0, 9, 65, 9, 70], dtype=numpy.int64)[::2],
        [numpy.int64(x) for x in CU],
    ],
    ids=["list", "tuple", "int32", "int64", "strided", "numpy scalars"],
)
def test_containers(value):
    got = read(value)
    assert got == tuple(CU)
    assert all(type(x) is int for x in got)


@pytest.mark.parametrize(
    ("value", "error", "word"),
    [
        (numpy.array(CU, dtype=numpy.float32), TypeError, "float32"),
        (numpy.array(CU, dtype=numpy.int16), TypeError, "int16"),
        (numpy.array([CU]), ValueError, r"\(1, 3\)"),
        (numpy.array(70), ValueError, r"\(\)"),
        ({0, 65, 70}, TypeError, "set"),
        (iter(CU), TypeError, "iterator"),
    ],
)
def test_refused_containers(value, error, word):
    with pytest.raises(error, match=word):
        read(value)


def test_device_tensors_are_refused():
    class OnDevice:
        dtype, shape, device = "int64", (3,), "npu:0"

        def tolist(self):
            raise AssertionError("reading waits for the device")

    with pytest.raises(errors.ArgumentTypeError, match="npu:0.*wait for the device"):
        read(OnDevice())


def test_empty_sequences_are_legal():
    assert read([0, 0, 5, 5, 70, 70]) == (0, 0, 5, 5, 70, 70)
    assert chunk_count(70, (0, 0, 5, 5, 70, 70)) == 3
    assert canonical_indices((0, 0, 5, 5, 70, 70)) == [1, 0, 3, 0, 3, 1]
    assert chunk_count(64, None) == 1
    assert chunk_count(65, None) == 2


FLAT = [0, 0, 0, 1, 1, 0]


@pytest.mark.parametrize(
    "value",
    [
        FLAT,
        tuple(FLAT),
        [(0, 0), (0, 1), (1, 0)],
        [[0, 0], [0, 1], [1, 0]],
        numpy.array(FLAT, dtype=numpy.int32),
        numpy.array(FLAT, dtype=numpy.int64).reshape(3, 2),
    ],
)
def test_canonical_indices_in_any_container(value):
    assert read_chunk_indices("op", value, CU) == tuple(FLAT)


def test_a_refilled_buffer_is_read_again():
    cu = numpy.array([0, 64, 128])
    assert read(cu, 128) == (0, 64, 128)
    cu[1] = 32
    assert read(cu, 128) == (0, 32, 128)


def test_many_sequences():
    cu = list(range(5001))
    assert read(cu, 5000) == tuple(cu)
    assert chunk_count(5000, cu) == 5000
