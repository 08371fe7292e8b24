# SPDX-License-Identifier: Apache-2.0
"""chunk_fwd_h in float64 NumPy: the state that runs over the chunks of a sequence.

Per sequence and value head, with R the running state [K, V] and E(x) = 2^x when use_exp2 else e^x:

    h[c]     = R                                     state on entry of chunk c
    v_new[c] = u[c] - w[c] @ h[c]
    R        = diag(E(gk_last)) R + k[c]^T @ v_new[c]   gk_last: last valid row of the chunk
    final    = R after the last chunk
"""

from __future__ import annotations

import numpy as np

CHUNK = 64

#: The only list of shapes for this operator. `heads` is HV; `state` is the dtype of initial_state.
CASES = {
    "one_row": {"B": 1, "T": 1, "HV": 1},
    "one_chunk": {"B": 1, "T": 64, "HV": 2, "state": "float32"},
    "ragged_tail": {"B": 2, "T": 200, "HV": 3, "state": "float32"},
    "one_row_tail": {"B": 1, "T": 129, "HV": 2, "state": "bfloat16"},
    "natural": {"B": 1, "T": 130, "HV": 2, "state": "float32", "use_exp2": False},
    "v_first": {"B": 1, "T": 150, "HV": 2, "state": "float32", "state_v_first": True},
    "v_first_bf16": {"B": 1, "T": 70, "HV": 1, "state": "bfloat16", "state_v_first": True},
    "no_final": {"B": 1, "T": 100, "HV": 2, "output_final_state": False},
    "packed": {"cu": [0, 15, 100, 228], "HV": 2, "state": "float32"},
    "packed_empty": {
        "cu": [0, 0, 5, 5, 70, 70],
        "HV": 2,
        "state": "float32",
        "state_v_first": True,
    },
    "packed_no_state": {"cu": [0, 0, 64, 65, 65], "HV": 3},
    "gk_bf16": {"B": 1, "T": 130, "HV": 2, "gk_dtype": "bfloat16", "state": "float32"},
    "strong_decay": {"B": 1, "T": 192, "HV": 1, "g_scale": 5.0, "state": "float32"},
    "long": {"B": 1, "T": 640, "HV": 2, "state": "float32"},
}


def bf16(x: np.ndarray) -> np.ndarray:
    """Round float64 to the nearest bfloat16 (8 significant bits, ties to even), kept as float64."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 256.0), exponent - 8)


def golden(
    *,
    k,
    w,
    u,
    gk,
    initial_state=None,
    cu_seqlens=None,
    use_exp2=False,
    state_v_first=False,
    round_slots=False,
):
    """Outputs h [B, NT, HV, K, V] (NT: chunks of all sequences), v_new [B, HV, T, V], final_state [N, HV, K, V].

    Inputs: k (the relayed kg), w, gk [B, HV, T, K]; u [B, HV, T, V]; initial_state [N, HV, K, V]. With
    state_v_first the last two axes of initial_state, h and final_state are swapped. An empty sequence adds
    no chunk and hands its initial state on.
    round_slots: round h and v_new to bf16 where they become outputs; the running state is not rounded.
    """
    to16 = bf16 if round_slots else lambda x: x
    k, w, u, gk = (np.asarray(x, np.float64) for x in (k, w, u, gk))
    batch, heads, tokens, width = k.shape
    spans = [(b, 0, tokens) for b in range(batch)]
    if cu_seqlens is not None:
        spans = [(0, int(a), int(z)) for a, z in zip(cu_seqlens, cu_seqlens[1:])]
    state = np.zeros((len(spans), heads, width, u.shape[3]))
    if initial_state is not None:
        state = np.array(initial_state, np.float64)
        state = np.swapaxes(state, -1, -2).copy() if state_v_first else state
    base = 2.0 if use_exp2 else np.e
    h, v_new = [[] for _ in range(batch)], np.zeros(u.shape)
    for n, (b, first, last) in enumerate(spans):
        for a in range(first, last, CHUNK):
            rows = (b, slice(None), slice(a, min(a + CHUNK, last)))
            entry = to16(state[n].copy())
            h[b].append(entry)
            v_new[rows] = to16(u[rows] - w[rows] @ entry)
            decay = base ** gk[rows][:, -1, :, None]
            state[n] = decay * state[n] + np.swapaxes(k[rows], -1, -2) @ v_new[rows]
    h = np.stack([np.stack(chunks) if chunks else np.zeros((0, *state.shape[1:])) for chunks in h])
    if state_v_first:
        h, state = np.swapaxes(h, -1, -2), np.swapaxes(state, -1, -2)
    return {"h": h, "v_new": v_new, "final_state": state}
