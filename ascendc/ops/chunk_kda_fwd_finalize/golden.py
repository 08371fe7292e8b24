# SPDX-License-Identifier: Apache-2.0
"""chunk_kda_fwd_finalize in float64 NumPy.

Per sequence, value head and chunk c:

    attn_out[c] = qg_scaled[c] @ h[c] + tril(aqk[c]) @ v_new[c]
"""

from __future__ import annotations

import numpy as np

CHUNK = 64

#: The only list of shapes for this operator. `layout` is output_layout; NTD and TND take rank-3 inputs.
CASES = {
    "one_row": {"B": 1, "T": 1, "HV": 1, "layout": "BSND"},
    "one_chunk": {"B": 1, "T": 64, "HV": 2, "layout": "BNSD"},
    "ragged_tail": {"B": 2, "T": 200, "HV": 3, "layout": "BSND"},
    "one_row_tail": {"B": 1, "T": 65, "HV": 2, "layout": "BSND"},
    "v_first": {"B": 1, "T": 150, "HV": 2, "layout": "BNSD", "state_v_first": True},
    "packed_tnd": {"cu": [0, 15, 100, 228], "HV": 2, "layout": "TND"},
    "packed_ntd": {"cu": [0, 15, 100, 228], "HV": 3, "layout": "NTD", "state_v_first": True},
    "packed_empty": {"cu": [0, 0, 5, 5, 70, 70], "HV": 2, "layout": "BSND"},
    "packed_empty_v_first": {
        "cu": [0, 64, 64, 128],
        "HV": 1,
        "layout": "TND",
        "state_v_first": True,
    },
    "v_new_rank3": {"cu": [0, 63, 130], "HV": 2, "layout": "TND", "v_new_rank": 3},
    "long": {"B": 1, "T": 640, "HV": 2, "layout": "BSND"},
}


def bf16(x: np.ndarray) -> np.ndarray:
    """Round float64 to the nearest bfloat16 (8 significant bits, ties to even), kept as float64."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 256.0), exponent - 8)


def golden(
    *,
    qg_scaled,
    aqk,
    v_new,
    h,
    cu_seqlens=None,
    output_layout="BSND",
    state_v_first=False,
    round_slots=False,
):
    """Output attn_out: [B, T, HV, V] (BSND), [B, HV, T, V] (BNSD), [T, HV, V] (TND) or [HV, T, V] (NTD).

    Inputs: qg_scaled [B, HV, T, K]; aqk [B, HV, T, 64], of which only the causal part of each chunk is
    read; v_new [B, HV, T, V]; h [B, NT, HV, K, V], or [..., V, K] with state_v_first. Rank-3 layouts drop B
    from qg_scaled and aqk, and may drop it from v_new.
    round_slots: round attn_out to bf16, the only rounding this operator has.
    """
    qg_scaled, aqk, v_new, h = (np.asarray(x, np.float64) for x in (qg_scaled, aqk, v_new, h))
    rank3 = output_layout in ("NTD", "TND")
    qg_scaled, aqk = (qg_scaled[None], aqk[None]) if rank3 else (qg_scaled, aqk)
    v_new = v_new[None] if v_new.ndim == 3 else v_new
    h = np.swapaxes(h, -1, -2) if state_v_first else h
    batch, _, tokens, _ = v_new.shape
    spans = [(b, 0, tokens) for b in range(batch)]
    if cu_seqlens is not None:
        spans = [(0, int(a), int(z)) for a, z in zip(cu_seqlens, cu_seqlens[1:])]
    out, seen = np.zeros(v_new.shape), [0] * batch
    for b, first, last in spans:
        for a in range(first, last, CHUNK):
            rows = (b, slice(None), slice(a, min(a + CHUNK, last)))
            valid = rows[2].stop - a
            scores = np.tril(aqk[rows][..., :valid])
            out[rows] = qg_scaled[rows] @ h[b, seen[b]] + scores @ v_new[rows]
            seen[b] += 1
    out = bf16(out) if round_slots else out
    out = np.swapaxes(out, 1, 2) if output_layout in ("BSND", "TND") else out
    return {"attn_out": out[0] if rank3 else out}
