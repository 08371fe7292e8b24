# SPDX-License-Identifier: Apache-2.0
"""cu_seqlens and chunk_indices through PyTorch: containers, refilled buffers, packed against single."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_calls import TOKENWISE, kda, make, same_bits, stages

CU = [0, 65, 65, 70, 133]
FLAT = [0, 0, 0, 1, 2, 0, 3, 0]


@pytest.fixture(scope="module")
def inputs():
    return make(tokens=133)


@pytest.mark.parametrize(
    "cu",
    [
        tuple(CU),
        np.array(CU),
        np.array(CU, np.int32),
        torch.tensor(CU),
        torch.tensor(CU, dtype=torch.int32),
        torch.tensor([x for c in CU for x in (c, -1)])[::2],
        torch.tensor(CU).clone().requires_grad_(False),
    ],
    ids=["tuple", "np64", "np32", "t64", "t32", "strided", "clone"],
)
def test_containers_give_the_same_bits(inputs, cu):
    assert same_bits(kda(inputs, cu_seqlens=cu), kda(inputs, cu_seqlens=CU))


@pytest.mark.parametrize(
    "indices",
    [
        FLAT,
        tuple(FLAT),
        np.array(FLAT).reshape(-1, 2).tolist(),
        torch.tensor(FLAT, dtype=torch.int32),
        torch.tensor(FLAT).reshape(-1, 2),
    ],
)
def test_canonical_indices_give_the_bits_of_none(inputs, indices):
    want = stages(inputs, cu_seqlens=CU)
    got = stages(inputs, cu_seqlens=CU, chunk_indices=indices)
    assert all(same_bits(got[n], want[n]) for n in want)
    assert same_bits(kda(inputs, cu_seqlens=CU, chunk_indices=indices)[0], kda(inputs, cu_seqlens=CU)[0])


def test_a_refilled_buffer_is_read_again():
    t = make(tokens=128)
    cu = torch.tensor([0, 64, 128])
    kda(t, cu_seqlens=cu)
    cu[1] = 32
    assert same_bits(kda(t, cu_seqlens=cu), kda(t, cu_seqlens=[0, 32, 128]))
    assert not same_bits(kda(t, cu_seqlens=cu), kda(t, cu_seqlens=[0, 64, 128]))


def test_packed_equals_one_at_a_time(inputs):
    state = torch.randn(4, 4, 128, 128)
    out, final = kda(inputs, cu_seqlens=CU, initial_state=state)
    for n, (a, b) in enumerate(zip(CU, CU[1:])):
        if a == b:
            assert same_bits(final[n], state[n])
            continue
        piece = {m: (x[:, :, a:b] if m in TOKENWISE else x) for m, x in inputs.items()}
        one, last = kda(piece, initial_state=state[n : n + 1])
        assert same_bits(out[:, a:b], one)
        assert same_bits(final[n], last[0])


def test_many_single_token_sequences():
    t = make(tokens=1025, hk=1, hv=1)
    out, final = kda(t, cu_seqlens=list(range(1026)))
    assert final.shape == (1025, 1, 128, 128)
    assert torch.isfinite(out.float()).all()
