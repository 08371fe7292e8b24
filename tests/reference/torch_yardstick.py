# SPDX-License-Identifier: Apache-2.0
"""Chunk KDA in PyTorch, written from the formulas: the yardstick of tools/bench.

fp32 throughout, head-major tensors: q, k, g [BH, T, K], v [BH, T, V], beta [BH, T]; g is the
natural-log gate step. A chunk has 64 rows in four bands of 16. Between bands the decay factors as
prefix(row) * chain(band, band) * suffix(column), each at most 1; inside a band the middle row is
the anchor, which holds for gates down to about -10 per step.

Work that needs no state is done for `GROUP` chunk-heads at a time, so that it stays in the caches;
the chunk recurrence then runs over all heads at once.

`chunk_forward` writes into buffers, for a forward alone. `chunk_train` is the same as a function
that autograd can go through: tensors are split, not sliced (the gradient of a slice is as large as
the tensor), and nothing is written in place.
"""

from __future__ import annotations

import functools

import torch
from in_step import in_step

CHUNK, BAND, GROUP = 64, 16, 32
BANDS = CHUNK // BAND


def recurrence(q, k, v, g, beta, scale):
    """Token by token, the definition: o [BH, T, V]. Slow; the second yardstick."""
    state = q.new_zeros(q.shape[0], q.shape[2], v.shape[2])
    out = torch.empty_like(v)
    for t in range(q.shape[1]):
        state *= g[:, t, :, None].exp()
        miss = v[:, t] - torch.einsum("bk,bkv->bv", k[:, t], state)
        state += torch.einsum("bk,bv->bkv", k[:, t] * beta[:, t, None], miss)
        out[:, t] = torch.einsum("bk,bkv->bv", q[:, t], state) * scale
    return out


def _scores(q, k, total, scale, lower):
    """Masked scale * q k^T and k k^T with decay, both [n, 64, 64]."""
    n, _, width = k.shape
    bands = total.view(n, BANDS, BAND, width)
    q, k = q.view(n, BANDS, BAND, width), k.view(n, BANDS, BAND, width)
    first, last, middle = bands[:, :, :1], bands[:, :, -1:], bands[:, :, BAND // 2 : BAND // 2 + 1]
    prefix, suffix = (bands - first).exp_(), (last - bands).exp_()
    centred = (bands - middle).exp_()
    rows = torch.cat([q, k], 2)
    near_rows = rows * centred.repeat(1, 1, 2, 1)
    far_rows = rows * prefix.repeat(1, 1, 2, 1)
    near = near_rows @ (k / centred).transpose(2, 3)
    columns = k * suffix
    both = k.new_zeros(n, BANDS, 2 * BAND, CHUNK)
    for i in range(BANDS):
        both[:, i, :, i * BAND : (i + 1) * BAND] = near[:, i]
        if i:
            chain = (first[:, i : i + 1] - last[:, :i]).exp_()
            earlier = (columns[:, :i] * chain).view(n, i * BAND, width)
            torch.bmm(far_rows[:, i], earlier.transpose(1, 2), out=both[:, i, :, : i * BAND])
    aqk = both[:, :, :BAND].reshape(n, CHUNK, CHUNK).mul_(lower * scale)
    return aqk, both[:, :, BAND:].reshape(n, CHUNK, CHUNK)


def _solve(system, right):
    return torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)


def _merge(system, right):
    """Invert the four diagonal bands, merge 16 -> 32 -> 64, multiply once."""
    n = system.shape[0]
    eye = torch.eye(BAND, dtype=system.dtype).expand(n * BANDS, BAND, BAND)
    blocks = system.view(n, BANDS, BAND, BANDS, BAND).diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
    small = _solve(blocks.reshape(-1, BAND, BAND), eye).view(n, BANDS, BAND, BAND)
    inverse = torch.zeros_like(system)
    for i in range(BANDS):
        inverse[:, i * BAND : (i + 1) * BAND, i * BAND : (i + 1) * BAND] = small[:, i]
    for size in (BAND, 2 * BAND):
        for at in range(0, CHUNK, 2 * size):
            a, d = slice(at, at + size), slice(at + size, at + 2 * size)
            inverse[:, d, a] = -(inverse[:, d, d] @ system[:, d, a]) @ inverse[:, a, a]
    return inverse @ right


SOLVERS = {"solve": _solve, "merge": _merge}


def chunk_forward(q, k, v, g, beta, scale, solver="solve"):
    """o [BH, T, V] and the final state [BH, K, V]; T must be a multiple of 64."""
    heads, length, width = q.shape
    chunks = length // CHUNK
    lower = torch.ones(CHUNK, CHUNK).tril_()
    shape = (heads * chunks, CHUNK, width)
    parts = [x.reshape(shape) for x in (q, k, v, g)]
    beta = beta.reshape(-1, CHUNK, 1)
    left = torch.empty(heads * chunks, 2 * CHUNK, width)  # [w ; q exp(G)] share one product with S
    u, kg = torch.empty(shape), torch.empty(shape)
    aqk, decay = torch.empty(heads * chunks, CHUNK, CHUNK), torch.empty(heads * chunks, width, 1)
    solve = SOLVERS[solver]
    for at in range(0, heads * chunks, GROUP):
        here = slice(at, at + GROUP)
        qc, kc, vc, gc = (x[here] for x in parts)
        total = gc.cumsum(1)
        aqk[here], products = _scores(qc, kc, total, scale, lower)
        system = products.mul_(beta[here]).tril_(-1)
        grown = total.exp()
        right = torch.cat([kc * grown, vc], 2).mul_(beta[here])
        both = solve(system + torch.eye(CHUNK), right)
        left[here, :CHUNK], u[here] = both[..., :width], both[..., width:]
        torch.mul(qc, grown.mul_(scale), out=left[here, CHUNK:])
        torch.mul(kc, (total[:, -1:] - total).exp_(), out=kg[here])
        decay[here] = total[:, -1].exp().unsqueeze(-1)
    return _relay(left, u, kg, aqk, decay, (heads, chunks, width))


def _relay(left, u, kg, aqk, decay, sizes):
    heads, chunks, width = sizes
    left, u, kg, aqk, decay = (x.view(heads, chunks, *x.shape[1:]) for x in (left, u, kg, aqk, decay))
    state = left.new_zeros(heads, width, u.shape[-1])
    out = torch.empty(heads, chunks, CHUNK, u.shape[-1])
    for c in range(chunks):
        carried = left[:, c] @ state
        v_new = u[:, c] - carried[:, :CHUNK]
        out[:, c] = torch.baddbmm(carried[:, CHUNK:], aqk[:, c], v_new)
        state = torch.baddbmm(state.mul_(decay[:, c]), kg[:, c].transpose(1, 2), v_new)
    return out.view(heads, chunks * CHUNK, -1), state


def _train_scores(q, k, total, scale, lower):
    """`_scores` as a function: scale * q k^T and k k^T with decay, lower triangles."""
    n, _, width = k.shape
    bands = total.view(n, BANDS, BAND, width)
    q, k = q.view(n, BANDS, BAND, width), k.view(n, BANDS, BAND, width)
    first, last, middle = bands[:, :, :1], bands[:, :, -1:], bands[:, :, BAND // 2 : BAND // 2 + 1]
    rows = torch.cat([q, k], 2)
    centred = (bands - middle).exp()
    near = (rows * centred.repeat(1, 1, 2, 1)) @ (k * (middle - bands).exp()).transpose(2, 3)
    far = (rows * (bands - first).exp().repeat(1, 1, 2, 1)).unbind(1)
    columns = k * (last - bands).exp()
    strips = [torch.nn.functional.pad(near[:, 0], (0, CHUNK - BAND))]
    for i in range(1, BANDS):
        earlier = (columns[:, :i] * (first[:, i : i + 1] - last[:, :i]).exp()).reshape(n, i * BAND, width)
        wide = torch.cat([far[i] @ earlier.transpose(1, 2), near[:, i]], 2)
        strips.append(torch.nn.functional.pad(wide, (0, CHUNK - (i + 1) * BAND)))
    both = torch.stack(strips, 1)
    aqk, products = both.split(BAND, 2)
    return aqk.reshape(n, CHUNK, CHUNK) * (lower * scale), products.reshape(n, CHUNK, CHUNK)


def _train_chunk(q, k, v, g, beta, scale):
    """What needs no state, for one group of chunks: [w ; q exp(G)], u, kg, aqk, decay."""
    lower = torch.ones(CHUNK, CHUNK, dtype=q.dtype).tril()
    total = g.cumsum(1)
    aqk, products = _train_scores(q, k, total, scale, lower)
    system = (products * beta).tril(-1) + torch.eye(CHUNK, dtype=q.dtype)
    grown = total.exp()
    both = _solve(system, torch.cat([k * grown, v], 2) * beta)
    w, u = both.split(v.shape[-1], 2)
    left = torch.cat([w, q * (grown * scale)], 1)
    return left, u, k * (total[:, -1:] - total).exp(), aqk, grown[:, -1].unsqueeze(-1)


def _train_step(state, left, u, kg, aqk, decay):
    """One chunk of every head: its output and the next state."""
    carried, grown = (left @ state).split(CHUNK, 1)
    v_new = u - carried
    return torch.baddbmm(grown, aqk, v_new), torch.baddbmm(state * decay, kg.transpose(1, 2), v_new)


def chunk_train(q, k, v, g, beta, scale, chunk=_train_chunk, step=_train_step):
    """o [BH, T, V] and the final state, for autograd. `chunk` and `step` may be compiled ones."""
    heads, length, width = q.shape
    chunks = length // CHUNK
    parts = [x.reshape(heads * chunks, CHUNK, -1).split(GROUP) for x in (q, k, v, g, beta)]
    made = [chunk(*group, scale) for group in in_step(*parts)]
    relay = [torch.cat(x).unflatten(0, (heads, chunks)).unbind(1) for x in in_step(*made)]
    state, out = q.new_zeros(heads, width, v.shape[-1]), []
    for tensors in in_step(*relay):
        o, state = step(state, *tensors)
        out.append(o)
    return torch.stack(out, 1).view(heads, length, -1), state


def compiled_train():
    """chunk_train with its two parts compiled."""
    parts = {
        "chunk": torch.compile(_train_chunk, dynamic=False),
        "step": torch.compile(_train_step, dynamic=False),
    }
    return functools.partial(chunk_train, **parts)
