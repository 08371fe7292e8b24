# SPDX-License-Identifier: Apache-2.0
"""chunk_kda_bwd_prepare in float64 NumPy.

Per sequence, value head and chunk c of M <= 64 rows:

    d_aqk[c]    = scale * tril(d_o[c] @ v_new[c]^T)     diagonal kept; columns from M on are zero
    dv_local[c] = tril(aqk[c])^T @ d_o[c]               aqk contains scale
    dq_raw[c]   = d_o[c] @ h[c]^T                       no scale, no gate
"""

from __future__ import annotations

import numpy as np

CHUNK = 64

#: The only list of shapes for this operator. NTD takes rank-3 tensors and a rank-4 h.
CASES = {
    "one_row": {"B": 1, "T": 1, "HV": 1},
    "one_chunk": {"B": 1, "T": 64, "HV": 2},
    "ragged_tail": {"B": 2, "T": 200, "HV": 3},
    "one_row_tail": {"B": 1, "T": 65, "HV": 2},
    "sub_block_tail": {"B": 1, "T": 79, "HV": 1, "scale": -0.5},
    "v_first": {"B": 1, "T": 150, "HV": 2, "state_v_first": True},
    "packed": {"cu": [0, 15, 100, 228], "HV": 2, "layout": "NTD"},
    "packed_v_first": {"cu": [0, 63, 64, 130], "HV": 3, "layout": "NTD", "state_v_first": True},
    "packed_empty": {"cu": [0, 0, 5, 5, 70, 70], "HV": 2, "layout": "NTD"},
    "packed_rank4": {"cu": [0, 65, 131, 202], "HV": 2},
    "one_sequence_rank3": {"cu": [0, 130], "HV": 1, "layout": "NTD"},
    "long": {"B": 1, "T": 640, "HV": 2},
}


def bf16(x: np.ndarray) -> np.ndarray:
    """Round float64 to the nearest bfloat16 (8 significant bits, ties to even), kept as float64."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 256.0), exponent - 8)


def golden(
    *, aqk, v_new, d_o, h, scale, layout="BNSD", cu_seqlens=None, state_v_first=False, round_slots=False
):
    """Outputs d_aqk [B, HV, T, 64], dv_local [B, HV, T, V], dq_raw [B, HV, T, K]; NTD drops B.

    Inputs: aqk [B, HV, T, 64], of which only the causal part of each chunk is read; v_new, d_o
    [B, HV, T, V]; h [B, NT, HV, K, V], or [..., V, K] with state_v_first. NTD drops B from all of them.
    round_slots: round each output to its type (dv_local to bf16, the others to fp32), and nothing else.
    """
    to16 = bf16 if round_slots else lambda x: x
    to32 = (lambda x: np.asarray(x, np.float32).astype(np.float64)) if round_slots else lambda x: x
    aqk, v_new, d_o, h = (np.asarray(x, np.float64) for x in (aqk, v_new, d_o, h))
    rank3 = layout == "NTD"
    aqk, v_new, d_o, h = (x[None] if rank3 else x for x in (aqk, v_new, d_o, h))
    h = np.swapaxes(h, -1, -2) if state_v_first else h
    batch, heads, tokens, _ = d_o.shape
    spans = [(b, 0, tokens) for b in range(batch)]
    if cu_seqlens is not None:
        spans = [(0, int(a), int(z)) for a, z in zip(cu_seqlens, cu_seqlens[1:])]
    d_aqk, seen = np.zeros((batch, heads, tokens, CHUNK)), [0] * batch
    dv_local, dq_raw = np.zeros(v_new.shape), np.zeros((batch, heads, tokens, h.shape[-2]))
    for b, first, last in spans:
        for a in range(first, last, CHUNK):
            rows = (b, slice(None), slice(a, min(a + CHUNK, last)))
            valid, do = rows[2].stop - a, d_o[rows]
            d_aqk[b, :, rows[2], :valid] = to32(scale * np.tril(do @ np.swapaxes(v_new[rows], -1, -2)))
            causal = np.where(np.tri(valid, dtype=bool), aqk[rows][..., :valid], 0.0)
            dv_local[rows] = to16(np.swapaxes(causal, -1, -2) @ do)
            dq_raw[rows] = to32(do @ np.swapaxes(h[b, seen[b]], -1, -2))
            seen[b] += 1
    out = {"d_aqk": d_aqk, "dv_local": dv_local, "dq_raw": dq_raw}
    return {name: x[0] for name, x in out.items()} if rank3 else out
