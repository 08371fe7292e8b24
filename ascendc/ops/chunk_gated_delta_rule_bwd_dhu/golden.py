# SPDX-License-Identifier: Apache-2.0
"""chunk_gated_delta_rule_bwd_dhu in float64 NumPy, for one decay per key channel.

Per sequence and value head, backwards over its chunks, with running state gradient D [K, V] and
E(x) = 2^x when use_exp2 else e^x:

    D      = dht or 0                                       gradient of the state after the last chunk
    dh[c]  = D                                              gradient of the state on exit of chunk c
    dv2[c] = dv[c] + k[c] @ dh[c]
    D      = diag(E(gk_last)) D + scale q[c]^T @ d_o[c] - w[c]^T @ dv2[c]
    dh0    = D after the first chunk
"""

from __future__ import annotations

import numpy as np

CHUNK = 64

#: The only list of shapes for this operator. `state` and `dht` are the dtypes of h0 and dht, absent if None.
CASES = {
    "one_row": {"B": 1, "T": 1, "HV": 1, "state": "float32", "dht": "float32"},
    "one_chunk": {"B": 1, "T": 64, "HV": 2},
    "ragged_tail": {"B": 2, "T": 200, "HV": 3, "state": "float32", "dht": "float32"},
    "one_row_tail": {"B": 1, "T": 129, "HV": 2, "state": "bfloat16", "dht": "bfloat16"},
    "dht_only": {"B": 1, "T": 130, "HV": 2, "dht": "float32"},
    "h0_only": {"B": 1, "T": 130, "HV": 2, "state": "float32"},
    "narrow_dht_wide_h0": {"B": 1, "T": 70, "HV": 1, "state": "float32", "dht": "bfloat16"},
    "natural": {"B": 1, "T": 130, "HV": 2, "state": "float32", "dht": "float32", "use_exp2": False},
    "v_first": {
        "B": 1,
        "T": 150,
        "HV": 2,
        "state": "float32",
        "dht": "float32",
        "state_v_first": True,
    },
    "v_first_bf16": {
        "B": 1,
        "T": 70,
        "HV": 1,
        "state": "bfloat16",
        "dht": "bfloat16",
        "state_v_first": True,
    },
    "packed": {"cu": [0, 15, 100, 228], "HV": 2, "state": "float32", "dht": "float32"},
    "packed_empty": {
        "cu": [0, 0, 5, 5, 70, 70],
        "HV": 2,
        "state": "float32",
        "dht": "float32",
        "state_v_first": True,
    },
    "packed_no_state": {"cu": [0, 0, 64, 65, 65], "HV": 3},
    "gk_bf16": {"B": 1, "T": 130, "HV": 2, "gk_dtype": "bfloat16", "dht": "float32"},
    "strong_decay": {"B": 1, "T": 192, "HV": 1, "g_scale": 5.0, "state": "float32", "dht": "float32"},
    "resets": {"B": 1, "T": 130, "HV": 1, "mask": 0.3, "state": "float32", "dht": "float32"},
    "long": {"B": 1, "T": 640, "HV": 2, "state": "float32", "dht": "float32"},
}


def bf16(x: np.ndarray) -> np.ndarray:
    """Round float64 to the nearest bfloat16 (8 significant bits, ties to even), kept as float64."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 256.0), exponent - 8)


def golden(
    *, q, k, w, d_o, dv, gk, scale, h0=None, dht=None, cu_seqlens=None, use_exp2=False,
    state_v_first=False, round_slots=False,
):  # fmt: skip
    """Outputs dh [B, NT, HV, K, V] (NT: chunks of all sequences), dh0 [N, HV, K, V] or None, dv2 [B, HV, T, V].

    Inputs: q (the relayed qg, without scale), k (the relayed kg), w, gk [B, HV, T, K]; d_o, dv (dv_local)
    [B, HV, T, V]; h0, dht [N, HV, K, V]. state_v_first swaps the last two axes of h0, dht and dh0, never
    of dh. dh0 is made iff h0 is given; its values do not depend on h0. An empty sequence adds no chunk
    and hands dht on.
    round_slots: round dh and dv2 to bf16 where they become outputs; the running gradient is not rounded.
    """
    to16 = bf16 if round_slots else lambda x: x
    q, k, w, d_o, dv, gk = (np.asarray(x, np.float64) for x in (q, k, w, d_o, dv, gk))
    batch, heads, tokens, width = k.shape
    spans = [(b, 0, tokens) for b in range(batch)]
    if cu_seqlens is not None:
        spans = [(0, int(a), int(z)) for a, z in zip(cu_seqlens, cu_seqlens[1:])]
    state = np.zeros((len(spans), heads, width, dv.shape[3]))
    if dht is not None:
        state = np.array(dht, np.float64)
        state = np.swapaxes(state, -1, -2).copy() if state_v_first else state
    base = 2.0 if use_exp2 else np.e
    dh, dv2 = [[] for _ in range(batch)], np.zeros(dv.shape)
    for n, (b, first, last) in enumerate(spans):
        exits = []
        for a in reversed(range(first, last, CHUNK)):
            rows = (b, slice(None), slice(a, min(a + CHUNK, last)))
            exits.append(to16(state[n].copy()))
            dv2[rows] = to16(dv[rows] + k[rows] @ exits[-1])
            decay = base ** gk[rows][:, -1, :, None]
            state[n] = decay * state[n] + scale * np.swapaxes(q[rows], -1, -2) @ d_o[rows]
            state[n] -= np.swapaxes(w[rows], -1, -2) @ dv2[rows]
        dh[b] += reversed(exits)
    dh = np.stack([np.stack(chunks) if chunks else np.zeros((0, *state.shape[1:])) for chunks in dh])
    dh0 = None if h0 is None else np.swapaxes(state, -1, -2) if state_v_first else state
    return {"dh": dh, "dh0": dh0, "dv2": dv2}
