# SPDX-License-Identifier: Apache-2.0
"""A single process: one affine map per token, all sequences scanned from end to end in float64."""

from __future__ import annotations

import numpy as np
from fla_npu.parallel import STATE


class Scan:
    """Random maps that do not commute, initial states, and cotangents, for a packing."""

    def __init__(self, cu, shape, seed):
        rng, tokens, sequences = np.random.default_rng(seed), cu[-1], len(cu) - 1
        self.cu, self.shape, (keys, values) = cu, shape, shape
        # Orthogonal, so that products over many tokens neither vanish nor grow.
        self.m = np.linalg.qr(rng.standard_normal((tokens, keys, keys)))[0]
        self.e = rng.standard_normal((tokens, keys, values))
        self.d = rng.standard_normal((tokens, keys, values))
        self.h0 = rng.standard_normal((sequences, keys, values))
        self.dht = rng.standard_normal((sequences, keys, values))
        # before[t]: the state before token t; grad[t]: the gradient of the state after token t.
        self.before, self.grad = np.zeros_like(self.e), np.zeros_like(self.e)
        for s in range(sequences):
            state, grad = self.h0[s], self.dht[s]
            for t in range(cu[s], cu[s + 1]):
                self.before[t] = state
                state = self.m[t] @ state + self.e[t]
            for t in reversed(range(cu[s], cu[s + 1])):
                self.grad[t] = grad
                grad = self.m[t].T @ grad + self.d[t]

    def gift(self, shard, kind, backward):
        """What a rank contributes, made of its own tokens only."""
        if kind is None:
            return None
        cu, i = shard.cu_seqlens, 0 if backward else len(shard.sequences) - 1
        tokens = list(range(shard.start + cu[i], shard.start + cu[i + 1]))
        inner, matrices = (self.dht, self.m.transpose(0, 2, 1)) if backward else (self.h0, self.m)
        state = inner[shard.sequences[i]] if kind == STATE else np.zeros(self.shape)
        m, add = np.eye(self.shape[0]), self.d if backward else self.e
        for t in reversed(tokens) if backward else tokens:
            state, m = matrices[t] @ state + add[t], matrices[t] @ m
        return state if kind == STATE else np.hstack([state, m])

    def want(self, shard, backward):
        """The state that enters a rank, or None."""
        if backward:
            return self.grad[shard.stop - 1] if shard.goes_on else None
        return self.before[shard.start] if shard.continues else None
