# SPDX-License-Identifier: Apache-2.0
"""pre_process_fwd_kernel_merged in float64 NumPy: what a window of tokens does to a state, as an affine map.

Per window and value head, over the chunks of the window, with E [K, V] and M [K, K]:

    E = 0, M = I
    E = diag(2^gk_last) E + k^T @ (u - w @ E)     gk_last: last row of the chunk
    M = (diag(2^gk_last) - k^T @ w) M

    hm = [E | M]:   state after the window = M @ state before it + E
"""

from __future__ import annotations

import numpy as np

CHUNK = 64

#: The only list of shapes for this operator. `cu` are the edges of the windows (the whole of T if left out),
#: `gk_dtype` and `u_dtype` the types on the device; HK (key heads) is HV if left out.
CASES = {
    "one_row": {"T": 1, "HV": 1},
    "one_chunk": {"T": 64, "HV": 2},
    "ragged_tail": {"T": 200, "HV": 3},
    "one_row_tail": {"T": 129, "HV": 2},
    "window": {"T": 230, "HV": 2, "cu": [37, 200]},
    "window_at_end": {"T": 150, "HV": 2, "cu": [130, 150]},
    "windows": {"T": 300, "HV": 2, "cu": [3, 15, 100, 228]},
    "many_windows": {"T": 90, "HV": 1, "cu": [0, 1, 2, 17, 33, 64, 90]},
    "grouped": {"T": 130, "HV": 4, "HK": 2},
    "grouped_windows": {"T": 150, "HV": 6, "HK": 2, "cu": [1, 66, 150]},
    "gk_bf16": {"T": 130, "HV": 2, "gk_dtype": "bfloat16"},
    "wide_u": {"T": 130, "HV": 2, "u_dtype": "float32"},
    "strong_decay": {"T": 192, "HV": 1, "g_scale": 5.0},
    "resets": {"T": 192, "HV": 2, "mask": 0.2},
    "long": {"T": 640, "HV": 2},
}


def bf16(x: np.ndarray) -> np.ndarray:
    """Round float64 to the nearest bfloat16 (8 significant bits, ties to even), kept as float64."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 256.0), exponent - 8)


def golden(*, k, w, u, gk, cu_seqlens=None, round_slots=False):
    """Output hm [N, HV, K, V + K], N windows.

    Inputs: k (the relayed kg) [1, HK, T, K] with HV a multiple of HK, w, gk [1, HV, T, K], u [1, HV, T, V].
    cu_seqlens: edges of the windows in tokens, 0 <= first, last <= T; the chunks of a window begin at its
    edge, and an empty window leaves the state as it is. None is one window over all of T.
    round_slots: every operand of a product is rounded to bf16, the running E and M are not.
    """
    to16 = bf16 if round_slots else lambda x: x
    k, w, u, gk = (np.asarray(x, np.float64)[0] for x in (k, w, u, gk))
    heads, tokens, width = w.shape
    k = np.repeat(k, heads // k.shape[0], axis=0)
    u = np.concatenate([u, np.zeros((heads, tokens, width))], axis=-1)  # M is E without values
    edges = (0, tokens) if cu_seqlens is None else cu_seqlens
    hm = np.zeros((len(edges) - 1, heads, width, u.shape[2]))
    hm[..., -width:] = np.eye(width)
    for n, (first, last) in enumerate(zip(edges, edges[1:])):
        for a in range(first, last, CHUNK):
            rows = (slice(None), slice(a, min(a + CHUNK, last)))
            new = to16(u[rows] - w[rows] @ to16(hm[n]))
            decay = 2.0 ** gk[rows][:, -1, :, None]
            hm[n] = decay * hm[n] + np.swapaxes(k[rows], -1, -2) @ new
    return {"hm": hm}
