# SPDX-License-Identifier: Apache-2.0
"""chunk_kda_fwd_prepare in float64 NumPy, formula by formula.

Per sequence, value head h (key head h // (HV / HK)) and chunk of M <= 64 rows, with E(x) = 2^x when
use_exp2 else e^x:

    gate   gamma_t from g, a_log, dt_bias;  gk_t = c * sum of gamma over the chunk's rows up to t
    intra  P_ij = sum_d k_id k_jd E(gk_id - gk_jd);  aqk_ij = scale * (the same with q_i), i >= j
    solve  akk = (I + strict_lower(diag(beta) P))^-1
    wy     w = akk @ (beta k E(gk));  u = akk @ (beta v)
    relay  qg = q E(gk);  qg_scaled = scale * qg;  kg = k E(gk_last - gk)
"""

from __future__ import annotations

import numpy as np

CHUNK = 64

#: The only list of shapes for this operator. Keys absent from a case take the defaults of the tests' input
#: builder: HK = HV = 1, layout BNSD, no gate in the kernel, mode "save", dense.
CASES = {
    "one_row": {"B": 1, "T": 1},
    "one_chunk": {"B": 1, "T": 64, "HK": 2, "HV": 2, "l2norm": True},
    "ragged_tail": {
        "B": 2,
        "T": 200,
        "HK": 1,
        "HV": 2,
        "layout": "BSND",
        "gate": "bounded",
        "l2norm": True,
        "beta": "sigmoid",
    },
    "one_row_tail": {"B": 1, "T": 65, "HK": 2, "HV": 4, "gate": "softplus", "beta": "sigmoid"},
    "sub_block_tail": {
        "B": 1,
        "T": 79,
        "HK": 1,
        "HV": 3,
        "layout": "BSND",
        "gate": "softplus",
        "use_exp2": False,
    },
    "packed": {
        "cu": [0, 15, 100, 228],
        "HK": 2,
        "HV": 4,
        "layout": "TND",
        "gate": "bounded",
        "l2norm": True,
        "beta": "negative",
    },
    "packed_empty": {
        "cu": [0, 0, 5, 5, 70, 70],
        "HK": 1,
        "HV": 2,
        "layout": "NTD",
        "l2norm": True,
        "gate": "bounded",
    },
    "packed_rank4": {
        "cu": [0, 63, 64, 130],
        "HK": 1,
        "HV": 1,
        "layout": "BNSD",
        "gate": "softplus",
        "no_bias": True,
    },
    "grouped_eight": {
        "B": 1,
        "T": 66,
        "HK": 1,
        "HV": 8,
        "layout": "BSND",
        "l2norm": True,
        "gate": "bounded",
        "lower_bound": -1.0,
    },
    "bf16_gate": {
        "B": 1,
        "T": 100,
        "HK": 1,
        "HV": 2,
        "g_dtype": "bfloat16",
        "beta_dtype": "bfloat16",
        "gate": "bounded",
    },
    "mode_none": {
        "B": 1,
        "T": 130,
        "HK": 1,
        "HV": 2,
        "mode": "none",
        "l2norm": True,
        "gate": "bounded",
    },
    "mode_forward": {
        "B": 1,
        "T": 130,
        "HK": 1,
        "HV": 2,
        "mode": "forward",
        "gate": "softplus",
        "use_exp2": False,
    },
    "mode_recompute": {
        "B": 1,
        "T": 70,
        "HK": 2,
        "HV": 2,
        "mode": "recompute",
        "l2norm": True,
        "layout": "BSND",
    },
    "strong_decay": {"B": 1, "T": 128, "HK": 1, "HV": 2, "gate": "none", "g_scale": 5.0},
    "reset_gates": {"B": 1, "T": 128, "HK": 1, "HV": 1, "gate": "none", "mask": 0.3},
}


def bf16(x: np.ndarray) -> np.ndarray:
    """Round float64 to the nearest bfloat16 (8 significant bits, ties to even), kept as float64."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 256.0), exponent - 8)


def _head_major(x, layout):
    """[B, H, T, ...] float64 view of an input in `layout`."""
    x = np.asarray(x, np.float64)
    x = x[None] if layout in ("NTD", "TND") else x
    return np.swapaxes(x, 1, 2) if layout in ("BSND", "TND") else x


def _chunks(batch, tokens, cu_seqlens):
    """(batch row, first token, end token) of every chunk; chunks restart at each sequence."""
    spans = [(b, 0, tokens) for b in range(batch)]
    if cu_seqlens is not None:
        spans = [(0, int(a), int(z)) for a, z in zip(cu_seqlens, cu_seqlens[1:])]
    return [(b, i, min(i + CHUNK, z)) for b, a, z in spans for i in range(a, z, CHUNK)]


def _gate(g, a_log, dt_bias, use_gate_in_kernel, safe_gate, lower_bound):
    """Natural-log step of every token; g [B, HV, T, K]."""
    if not use_gate_in_kernel:
        return g
    _, heads, _, width = g.shape
    bias = 0.0 if dt_bias is None else np.asarray(dt_bias, np.float64).reshape(1, heads, 1, width)
    rate = np.exp(np.asarray(a_log, np.float64)).reshape(1, heads, 1, 1)
    x = g + bias
    if safe_gate:
        return (-5.0 if lower_bound is None else lower_bound) / (1.0 + np.exp(np.minimum(-rate * x, 700.0)))
    return -rate * (np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))))


def _intra(q, k, steps, beta, scale, base):
    """Scores and decays of one chunk. q, k, steps [HV, M, K]; beta [HV, M].

    A step of -inf resets the state: rows on two sides of it have weight zero, and so has everything that
    came from before the chunk. The running sum skips such steps and counts them instead.
    """
    resets = np.cumsum(np.isneginf(steps), axis=1)
    total = np.cumsum(np.where(np.isneginf(steps), 0.0, steps), axis=1)

    def decay(i, j):
        """E(gk_i - gk_j) for row indices or slices i, j."""
        return np.where(resets[:, i] == resets[:, j], base ** (total[:, i] - total[:, j]), 0.0)

    rows = q.shape[1]
    aqk, low = np.zeros((q.shape[0], rows, rows)), np.zeros((q.shape[0], rows, rows))
    for i in range(rows):
        weighted = k[:, : i + 1] * decay(slice(i, i + 1), slice(0, i + 1))
        aqk[:, i, : i + 1] = scale * np.einsum("hd,hjd->hj", q[:, i], weighted)
        low[:, i, :i] = beta[:, i, None] * np.einsum("hd,hjd->hj", k[:, i], weighted[:, :i])
    gk = np.where(resets > 0, -np.inf, total)
    return gk, aqk, low, decay(slice(rows - 1, rows), slice(0, rows))


def _solve(low):
    """(I + low)^-1 for strictly lower triangular [HV, M, M], row after row."""
    inverse, unit = np.zeros_like(low), np.eye(low.shape[1])
    for i in range(low.shape[1]):
        inverse[:, i] = unit[i] - np.einsum("hj,hjc->hc", low[:, i, :i], inverse[:, :i])
    return inverse


def golden(
    *, q, k, v, g, beta, a_log=None, dt_bias=None, cu_seqlens=None, layout="BSND", scale, epsilon=1e-6,
    use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False, safe_gate=False, lower_bound=None, use_exp2=True, round_slots=False,
):  # fmt: skip
    """All thirteen outputs, head-major, of the rank of the input.

    Inputs: q, k [B, HK, T, K]; v [B, HV, T, V]; g [B, HV, T, K]; beta [B, HV, T], permuted to `layout`
    (rank-3 layouts drop B); a_log [HV]; dt_bias [HV * K] or [HV, K].
    Outputs: gk, w, qg, kg, qg_scaled [B, HV, T, K]; u [B, HV, T, V]; aqk, akk [B, HV, T, 64];
    q_hat, k_hat [B, HK, T, K]; q_rstd, k_rstd [B, HK, T]; beta_eff [B, HV, T].
    round_slots: round each value at the moment it becomes a published output (bf16 or fp32), and nowhere
    else. The distance of that result from the exact one is the least error a kernel of this ABI can have.
    """
    to16 = bf16 if round_slots else lambda x: x
    to32 = (lambda x: np.asarray(x, np.float32).astype(np.float64)) if round_slots else lambda x: x
    q, k, v, g, beta = (_head_major(x, layout) for x in (q, k, v, g, beta))
    batch, heads, tokens, width = g.shape
    rstd = {"q": np.ones(q.shape[:3]), "k": np.ones(k.shape[:3])}
    if use_qk_l2norm_in_kernel:
        rstd = {name: to32((np.sum(x * x, -1) + epsilon) ** -0.5) for name, x in (("q", q), ("k", k))}
    q_hat, k_hat = to16(q * rstd["q"][..., None]), to16(k * rstd["k"][..., None])
    group = heads // q.shape[1]
    qh, kh = np.repeat(q_hat, group, axis=1), np.repeat(k_hat, group, axis=1)
    if use_beta_sigmoid_in_kernel:
        beta = to32((2.0 if allow_neg_eigval else 1.0) / (1.0 + np.exp(-beta)))
    steps = _gate(g, a_log, dt_bias, use_gate_in_kernel, safe_gate, lower_bound)
    unit, base = (1.0 / np.log(2.0), 2.0) if use_exp2 else (1.0, np.e)
    out = {name: np.zeros((batch, heads, tokens, width)) for name in ("gk", "w", "qg", "kg")}
    out |= {"u": np.zeros(v.shape), "aqk": np.zeros((batch, heads, tokens, CHUNK))}
    out["akk"] = np.zeros((batch, heads, tokens, CHUNK))
    for b, a, z in _chunks(batch, tokens, cu_seqlens):
        rows = (b, slice(None), slice(a, z))
        qc, kc, bc = qh[rows], kh[rows], beta[rows]
        gk, aqk, low, to_last = _intra(qc, kc, steps[rows] * unit, bc, scale, base)
        akk = to16(_solve(low))
        out["gk"][rows], from_start = to32(gk), base**gk
        out["aqk"][b, :, a:z, : z - a], out["akk"][b, :, a:z, : z - a] = to16(aqk), akk
        out["w"][rows] = to16(akk @ (bc[..., None] * kc * from_start))
        out["u"][rows] = to16(akk @ (bc[..., None] * v[rows]))
        out["qg"][rows], out["kg"][rows] = to16(qc * from_start), to16(kc * to_last)
    out |= {"qg_scaled": to16(scale * out["qg"]), "q_hat": q_hat, "k_hat": k_hat}
    out |= {"q_rstd": rstd["q"], "k_rstd": rstd["k"], "beta_eff": beta}
    return {name: x[0] for name, x in out.items()} if layout in ("NTD", "TND") else out
