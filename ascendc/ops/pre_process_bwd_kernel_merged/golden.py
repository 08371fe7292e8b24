# SPDX-License-Identifier: Apache-2.0
"""pre_process_bwd_kernel_merged in float64 NumPy: what a window does to the gradient of a state, as an affine map.

Per value head, backwards over the chunks of the window, with E [K, V] and P [K, K]:

    E = 0, P = I
    E = diag(2^gk_last) E + scale q^T @ d_o - w^T @ (dv + k @ E)     gk_last: last row of the chunk
    P = (diag(2^gk_last) - w^T @ k) P

    dhm = [E | P]:   gradient before the window = P @ gradient after it + E
"""

from __future__ import annotations

import numpy as np

CHUNK = 64

#: The only list of shapes for this operator. `cu` are the two edges of the window (the whole of T if left
#: out), `gk_dtype` the type on the device, None without a gate; HK (key heads) is HV if left out.
CASES = {
    "one_row": {"T": 1, "HV": 1},
    "one_chunk": {"T": 64, "HV": 2},
    "ragged_tail": {"T": 200, "HV": 3},
    "one_row_tail": {"T": 129, "HV": 2},
    "window": {"T": 230, "HV": 2, "cu": [37, 200]},
    "window_at_start": {"T": 150, "HV": 2, "cu": [0, 20]},
    "window_at_end": {"T": 150, "HV": 2, "cu": [130, 150]},
    "grouped": {"T": 130, "HV": 4, "HK": 2},
    "grouped_window": {"T": 150, "HV": 6, "HK": 2, "cu": [1, 140]},
    "gk_bf16": {"T": 130, "HV": 2, "gk_dtype": "bfloat16"},
    "no_gate": {"T": 100, "HV": 1, "gk_dtype": None},
    "scale_zero": {"T": 70, "HV": 1, "scale": 0.0},
    "strong_decay": {"T": 192, "HV": 1, "g_scale": 5.0},
    "resets": {"T": 192, "HV": 2, "mask": 0.2},
    "long": {"T": 640, "HV": 2},
}


def bf16(x: np.ndarray) -> np.ndarray:
    """Round float64 to the nearest bfloat16 (8 significant bits, ties to even), kept as float64."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 256.0), exponent - 8)


def golden(*, q, k, w, d_o, dv, scale, gk=None, cu_seqlens=None, round_slots=False):
    """Output dhm [HV, K, V + K].

    Inputs: q (the relayed qg, without scale), k (the relayed kg) [1, HK, T, K] with HV a multiple of HK,
    w, gk [1, HV, T, K], d_o, dv (dv_local) [1, HV, T, V]; gk None is no decay. cu_seqlens: the window is
    [cu_seqlens[0], cu_seqlens[1]); further entries do not matter; None is all of T. Its chunks begin at its
    first token.
    round_slots: every operand of a product is rounded to bf16, the running E and P are not.
    """
    to16 = bf16 if round_slots else lambda x: x
    q, k, w, d_o, dv = (np.asarray(x, np.float64)[0] for x in (q, k, w, d_o, dv))
    heads, tokens, width = w.shape
    gk = np.zeros(w.shape) if gk is None else np.asarray(gk, np.float64)[0]
    q, k = (np.repeat(x, heads // x.shape[0], axis=0) for x in (q, k))
    none = np.zeros((heads, tokens, width))  # P is E without values
    d_o, dv = (np.concatenate([x, none], axis=-1) for x in (d_o, dv))
    first, last = (0, tokens) if cu_seqlens is None else tuple(cu_seqlens)[:2]
    dhm = np.zeros((heads, width, dv.shape[2]))
    dhm[..., -width:] = np.eye(width)
    for a in reversed(range(first, last, CHUNK)):
        rows = (slice(None), slice(a, min(a + CHUNK, last)))
        scan = to16(dv[rows] + k[rows] @ to16(dhm))
        decay = 2.0 ** gk[rows][:, -1, :, None]
        dhm = decay * dhm + scale * np.swapaxes(q[rows], -1, -2) @ d_o[rows]
        dhm -= np.swapaxes(w[rows], -1, -2) @ scan
    return {"dhm": dhm}
