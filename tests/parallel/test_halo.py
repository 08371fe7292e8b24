# SPDX-License-Identifier: Apache-2.0
"""The halo of a causal convolution against the convolution of the whole stream, forward and gradient."""

from __future__ import annotations

import random

import numpy as np
import pytest
from fla_npu.errors import ArgumentError, ArgumentTypeError
from fla_npu.parallel import Piece, conv_halo, make_plan
from in_step import in_step
from packings import NAMED, draw

CHANNELS = 3


def convolve(x, weight, cu):
    """y[t] = sum_j w[j] x[t - j] within the sequence; x [T, D], w [W, D]."""
    y = np.zeros_like(x)
    for low, high in zip(cu, cu[1:]):
        for t in range(low, high):
            for j in range(min(len(weight), t - low + 1)):
                y[t] += weight[j] * x[t - j]
    return y


def convolve_grad(dy, weight, cu):
    dx = np.zeros_like(dy)
    for low, high in zip(cu, cu[1:]):
        for t in range(low, high):
            for j in range(min(len(weight), t - low + 1)):
                dx[t - j] += weight[j] * dy[t]
    return dx


def exchange(halos, rows):
    """Delivers `rows(rank, piece)` of every piece that is sent; by receiver, in order of its pieces."""
    sent = {(r, piece.peer): rows(r, piece) for r, halo in enumerate(halos) for piece in halo.sends}
    out = [[sent.pop((piece.peer, r)) for piece in halo.receives] for r, halo in enumerate(halos)]
    assert not sent, f"never received: {list(sent)}"
    return out


def give_back(halos, grads):
    """The mirror: rows of the halo's gradient to their owners, by owner, in order of its pieces."""
    sent = {(r, p.peer): grads[r][p.start : p.stop] for r, halo in enumerate(halos) for p in halo.receives}
    return [[sent.pop((piece.peer, r)) for piece in halo.sends] for r, halo in enumerate(halos)]


def with_halo(shard, length):
    """cu_seqlens of a rank's tokens with its halo put before the first fragment."""
    return (0, *(edge + length for edge in shard.cu_seqlens[1:]))


def check(lengths, cu, width, seed=0):
    rng = np.random.default_rng(seed)
    x, dy = rng.standard_normal((2, cu[-1], CHANNELS))
    weight = rng.standard_normal((width, CHANNELS))
    plan = make_plan(lengths, cu)
    shards = [plan.shard(r) for r in range(plan.size)]
    halos = [conv_halo(plan, r, width) for r in range(plan.size)]
    local = [x[s.start : s.stop] for s in shards]
    arrived = exchange(halos, lambda r, piece: local[r][piece.start : piece.stop])
    found, gradient, before = [], [], []
    for shard, halo, rows in in_step(shards, halos, arrived):
        assert [len(part) for part in rows] == [p.stop - p.start for p in halo.receives]
        assert halo.length == sum(map(len, rows)) <= width - 1
        edges = with_halo(shard, halo.length)
        padded = np.concatenate([*rows, x[shard.start : shard.stop]])
        found.append(convolve(padded, weight, edges)[halo.length :])
        d_padded = np.concatenate([np.zeros((halo.length, CHANNELS)), dy[shard.start : shard.stop]])
        d_padded = convolve_grad(d_padded, weight, edges)
        before.append(d_padded[: halo.length])
        gradient.append(d_padded[halo.length :])
    for halo, dx, rows in in_step(halos, gradient, give_back(halos, before)):
        for piece, part in in_step(halo.sends, rows):
            dx[piece.start : piece.stop] += part
    np.testing.assert_allclose(np.concatenate(found), convolve(x, weight, cu), atol=1e-12)
    np.testing.assert_allclose(np.concatenate(gradient), convolve_grad(dy, weight, cu), atol=1e-12)


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("cu", [(0, 1, 8), (0, 8), (0, 8, 8)], ids=str)
def test_two_tokens_per_rank(cu, width):
    """Four taps reach two ranks back."""
    check((2, 2, 2, 2), cu, width)


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("name", NAMED)
def test_named(name, width):
    check(*NAMED[name], width)


@pytest.mark.parametrize("seed", range(100))
def test_random(seed):
    rng = random.Random(seed)
    check(*draw(rng), rng.choice((2, 3, 4)), seed)


def test_pieces_of_several_owners():
    plan = make_plan((2, 1, 0, 3))
    halo = conv_halo(plan, 3, 4)
    assert halo.length == 3
    assert halo.receives == (Piece(0, 0, 2), Piece(1, 2, 3))
    assert conv_halo(plan, 0, 4).sends == (Piece(1, 0, 2), Piece(3, 0, 2))
    assert conv_halo(plan, 2, 4).sends == conv_halo(plan, 2, 4).receives == ()


@pytest.mark.parametrize("width", [1, 5])
def test_widths(width):
    with pytest.raises(ArgumentError, match=f"width = {width}; it must be 2 to 4"):
        conv_halo(make_plan((4, 4)), 0, width)
    with pytest.raises(ArgumentTypeError, match="width = 3.0"):
        conv_halo(make_plan((4, 4)), 0, 3.0)
