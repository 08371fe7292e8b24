# SPDX-License-Identifier: Apache-2.0
"""chunk_kda_bwd_finalize in float64 NumPy, formula by formula.

Per sequence, value head h (key head h // (HV / HK)) and chunk of M <= 64 rows, with E(x) = 2^x when use_exp2
else e^x, G the chunk's running sum of gate steps, S = h[c], D = dh[c], A = akk[c], dU = dv_scan[c]:

    wy      dW = -dU @ S^T;  Rv = A^T @ dU;  Rk = A^T @ dW;  dv = beta Rv
    solve   dA = dU @ (beta v)^T + dW @ (beta k E(G))^T;  dL = -strict_lower(A^T @ strict_lower(dA) @ A^T)
    beta    dbeta = rowsum(Rv v) + rowsum(Rk k E(G)) + rowsum(dL P),  P_ij = sum_d k_id k_jd E(G_id - G_jd)
    scores  dq = scale E(G) dq_raw + sum_j d_aqk_ij k_j E(G_i - G_j)
            dk = E(G_last - G) (v_new @ D^T) + beta Rk E(G) + sum_j beta_i dL_ij k_j E(G_i - G_j)
               + sum_i (d_aqk_ij q_i + beta_i dL_ij k_i) E(G_i - G_j)
    gate    dG from each term's exponent;  dstep_t = sum of dG over the chunk's rows from t on;  then the
            activation's slope gives dg, da_log, ddt_bias
    group   dq and dk are summed over the value heads of a key head, then go through the l2norm

Decays are sums of steps, never differences of a running sum, so that -1000 and -inf are exact.
"""

from __future__ import annotations

import numpy as np

CHUNK = 64

#: The only list of shapes for this operator. Keys as in the forward's CASES; `planes` is the two-plane v_new,
#: `output_layout` differs from the layout of the inputs when given.
CASES = {
    "one_row": {"B": 1, "T": 1},
    "one_chunk": {"B": 1, "T": 64, "HK": 2, "HV": 2, "l2norm": True, "gate": "bounded", "beta": "sigmoid"},
    "ragged_tail": {
        "B": 2,
        "T": 200,
        "HK": 1,
        "HV": 2,
        "gate": "bounded",
        "l2norm": True,
        "beta": "sigmoid",
        "state": "float32",
    },
    "one_row_tail": {"B": 1, "T": 65, "HK": 2, "HV": 4, "gate": "softplus", "beta": "sigmoid"},
    "sub_block_tail": {"B": 1, "T": 79, "HK": 1, "HV": 3, "gate": "softplus", "use_exp2": False},
    "no_gate_natural": {"B": 1, "T": 130, "HK": 1, "HV": 2, "use_exp2": False, "l2norm": True},
    "packed": {
        "cu": [0, 15, 100, 228],
        "HK": 2,
        "HV": 4,
        "layout": "NTD",
        "gate": "bounded",
        "l2norm": True,
        "beta": "negative",
        "state": "float32",
    },
    "packed_empty": {
        "cu": [0, 0, 5, 5, 70, 70],
        "HK": 1,
        "HV": 2,
        "layout": "NTD",
        "l2norm": True,
        "gate": "bounded",
        "state": "float32",
    },
    "packed_rank4": {"cu": [0, 63, 64, 130], "gate": "softplus", "no_bias": True, "planes": True},
    "grouped_eight": {
        "B": 1,
        "T": 66,
        "HK": 1,
        "HV": 8,
        "l2norm": True,
        "gate": "bounded",
        "lower_bound": -1.0,
        "planes": True,
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
    "v_first": {
        "B": 1,
        "T": 130,
        "HK": 1,
        "HV": 2,
        "l2norm": True,
        "gate": "bounded",
        "state": "float32",
        "state_v_first": True,
    },
    "planes": {"B": 2, "T": 70, "HK": 1, "HV": 2, "gate": "softplus", "state": "float32", "planes": True},
    "token_major_out": {"B": 1, "T": 100, "HK": 1, "HV": 2, "l2norm": True, "output_layout": "BSND"},
    "strong_decay": {"B": 1, "T": 128, "HK": 1, "HV": 2, "gate": "none", "g_scale": 5.0, "state": "float32"},
    "reset_gates": {"B": 1, "T": 128, "gate": "none", "mask": 0.3, "state": "float32"},
}


def bf16(x: np.ndarray) -> np.ndarray:
    """Round float64 to the nearest bfloat16 (8 significant bits, ties to even), kept as float64."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 256.0), exponent - 8)


def _sigmoid(x):
    """1 / (1 + exp(-x)); sigmoid(-x) is 1 - sigmoid(x) without its cancellation."""
    return np.exp(-np.logaddexp(0.0, -x))


class _Gate:
    """Steps of the gate and the gradient of its inputs; raw [B, HV, T, K]."""

    def __init__(self, raw, a_log, dt_bias, use_gate_in_kernel, safe_gate, lower_bound):
        _, heads, _, width = raw.shape
        self.used, self.safe, self.bound = use_gate_in_kernel, safe_gate, lower_bound
        self.steps = raw
        if use_gate_in_kernel:
            bias = 0.0 if dt_bias is None else np.asarray(dt_bias, np.float64).reshape(1, heads, 1, width)
            self.rate = np.exp(np.asarray(a_log, np.float64)).reshape(1, heads, 1, 1)
            self.x = raw + bias
            if safe_gate:
                self.steps = lower_bound * _sigmoid(self.rate * self.x)
            else:
                self.steps = -self.rate * np.logaddexp(0.0, self.x)

    def backward(self, dstep):
        """dg, and da_log [HV] and ddt_bias [HV, K] or None without a gate in the kernel."""
        if not self.used:
            return np.where(np.isneginf(self.steps), 0.0, dstep), None, None
        if self.safe:
            open_part = _sigmoid(self.rate * self.x)
            slope = self.bound * open_part * _sigmoid(-self.rate * self.x) * self.rate
            return dstep * slope, (dstep * slope * self.x).sum((0, 2, 3)), (dstep * slope).sum((0, 2))
        dx = -self.rate * dstep * _sigmoid(self.x)
        return dx, (dstep * self.steps).sum((0, 2, 3)), dx.sum((0, 2))


def _decays(steps, power):
    """E(G) [HV, M, K] and the function (i, j) -> E(G_i - G_j) of one chunk, E = power; steps [HV, M, K].

    A step of -inf resets: rows on two sides of it have weight zero, and so has what came before the chunk.
    """
    resets = np.cumsum(np.isneginf(steps), axis=1)
    total = np.cumsum(np.where(np.isneginf(steps), 0.0, steps), axis=1)

    def between(i, j):
        weight = power(total[:, i] - total[:, j])
        return np.where(resets[:, i] == resets[:, j], weight, 0.0) if resets.any() else weight

    return np.where(resets > 0, 0.0, power(total)), between


def _turn(x):
    return np.swapaxes(x, -1, -2)


def _scores(q, k, beta, d_aqk, d_low, between):
    """P [HV, M, M] and the intra-chunk parts of dq and dk, the latter as (row part, column part)."""
    heads, rows, _ = q.shape
    p = np.zeros((heads, rows, rows))
    dq, dk_row, dk_col = np.zeros(q.shape), np.zeros(q.shape), np.zeros(q.shape)
    for i in range(rows):
        upto = slice(0, i + 1)
        weight = between(slice(i, i + 1), upto)
        keys, low = k[:, upto] * weight, beta[:, i, None] * d_low[:, i, upto]
        p[:, i, :i] = (keys[:, :i] @ k[:, i, :, None])[..., 0]
        dq[:, i] = (d_aqk[:, i, None, upto] @ keys)[:, 0]
        dk_row[:, i] = (low[:, None] @ keys)[:, 0]
        sent = d_aqk[:, i, upto, None] * q[:, i, None] + low[..., None] * k[:, i, None]
        dk_col[:, upto] += sent * weight
    return p, dq, dk_row, dk_col


def _chunk(q, k, v, beta, steps, akk, v_new, h, dh, dv_scan, d_aqk, dq_raw, scale, power):
    """dq, dk, dv, dbeta and the gradient of each step, of one chunk; everything on value heads."""
    rows = q.shape[1]
    from_start, between = _decays(steps, power)
    to_last = between(slice(rows - 1, rows), slice(0, rows))
    akk_t, write = _turn(np.tril(akk)), beta[..., None]
    dw = -dv_scan @ _turn(h)
    rv, rk = akk_t @ dv_scan, akk_t @ dw
    k_start = k * from_start
    da = np.tril(dv_scan @ _turn(write * v) + dw @ _turn(write * k_start), -1)
    d_low = -np.tril(akk_t @ da @ akk_t, -1)
    p, dq_intra, dk_row, dk_col = _scores(q, k, beta, np.tril(d_aqk), d_low, between)
    dbeta = (rv * v).sum(-1) + (rk * k_start).sum(-1) + (d_low * p).sum(-1)
    dq_inter = scale * from_start * dq_raw
    dk_state, dk_w = to_last * (v_new @ _turn(dh)), write * rk * from_start
    dsum = q * (dq_inter + dq_intra) + k * (dk_w + dk_row - dk_col - dk_state)
    dsum[:, -1] += from_start[:, -1] * (h * dh).sum(-1) + (k * dk_state).sum(1)
    dstep = np.cumsum(dsum[:, ::-1], axis=1)[:, ::-1]
    return dq_inter + dq_intra, dk_state + dk_w + dk_row + dk_col, write * rv, dbeta, dstep


def _spans(batch, tokens, cu_seqlens):
    """(batch row, chunk number in it, first token, end token) of every chunk."""
    spans = [(b, 0, tokens) for b in range(batch)]
    if cu_seqlens is not None:
        spans = [(0, int(a), int(z)) for a, z in zip(cu_seqlens, cu_seqlens[1:])]
    seen = [0] * batch
    for b, first, last in spans:
        for a in range(first, last, CHUNK):
            yield b, seen[b], a, min(a + CHUNK, last)
            seen[b] += 1


def golden(
    *, q, k, v, gk=None, raw_g, beta, a_log=None, dt_bias=None, akk, v_new, h, dh, dv_scan, d_aqk, dq_raw,
    q_rstd=None, k_rstd=None, cu_seqlens=None, scale, lower_bound=-5.0, safe_gate=True,
    use_gate_in_kernel=True, use_exp2=True, state_v_first=False, use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False, output_layout="BNSD", round_slots=False,
):  # fmt: skip
    """Outputs dq, dk [B, HK, T, K], dv [B, HV, T, V], dbeta [B, HV, T], dg [B, HV, T, K], da_log [HV] and
    ddt_bias [HV, K] (None without a gate in the kernel); the first five permuted to `output_layout`.

    Inputs: q, k (normalised) [B, HK, T, K]; v, dv_scan [B, HV, T, V]; raw_g, dq_raw [B, HV, T, K]; beta
    [B, HV, T]; akk, d_aqk [B, HV, T, 64]; v_new [B, HV, T, V], or [2, B, HV, T, V] as a sum of two planes;
    h, dh [B, NT, HV, K, V], h with its last axes swapped by state_v_first; q_rstd, k_rstd [B, HK, T].
    Rank-3 input drops B everywhere. gk is in the ABI only: it is made from the same raw_g.
    use_beta_sigmoid_in_kernel: beta is the logit, otherwise the effective beta.
    round_slots: round each output to its type (dq, dk, dv bf16, the rest fp32), and nothing else.
    """
    to16 = bf16 if round_slots else lambda x: x
    to32 = (lambda x: np.asarray(x, np.float32).astype(np.float64)) if round_slots else lambda x: x
    rank3 = np.ndim(q) == 3
    lift = (lambda x: np.asarray(x, np.float64)[None]) if rank3 else (lambda x: np.asarray(x, np.float64))
    v_new = np.asarray(v_new, np.float64)
    v_new = v_new.sum(0) if v_new.ndim > np.ndim(v) else v_new
    q, k, v, raw_g, beta, akk, v_new = (lift(x) for x in (q, k, v, raw_g, beta, akk, v_new))
    h, dh, dv_scan, d_aqk, dq_raw = (lift(x) for x in (h, dh, dv_scan, d_aqk, dq_raw))
    h = _turn(h) if state_v_first else h
    group = v.shape[1] // q.shape[1]
    qh, kh = np.repeat(q, group, axis=1), np.repeat(k, group, axis=1)
    most = 2.0 if allow_neg_eigval else 1.0
    effective = most * _sigmoid(beta) if use_beta_sigmoid_in_kernel else beta
    gate = _Gate(
        raw_g, a_log, dt_bias, use_gate_in_kernel, safe_gate, -5.0 if lower_bound is None else lower_bound
    )
    unit, power = (1.0 / np.log(2.0), np.exp2) if use_exp2 else (1.0, np.exp)
    dq, dk, dv, dstep = (np.zeros(x.shape) for x in (qh, kh, v, raw_g))
    dbeta = np.zeros(beta.shape)
    for b, chunk, a, z in _spans(v.shape[0], v.shape[2], cu_seqlens):
        at = (b, slice(None), slice(a, z))
        square = (*at, slice(0, z - a))
        dq[at], dk[at], dv[at], dbeta[at], dstep[at] = _chunk(
            qh[at], kh[at], v[at], effective[at], gate.steps[at] * unit, akk[square], v_new[at], h[b, chunk],
            dh[b, chunk], dv_scan[at], d_aqk[square], dq_raw[at], scale, power,
        )  # fmt: skip
    if use_beta_sigmoid_in_kernel:
        dbeta = dbeta * effective * _sigmoid(-beta)
    pairs = {}
    for name, x, dx, rstd in (("dq", q, dq, q_rstd), ("dk", k, dk, k_rstd)):
        dx = dx.reshape(*x.shape[:2], group, *x.shape[2:]).sum(2)
        if rstd is not None:
            dx = lift(rstd)[..., None] * (dx - x * (x * dx).sum(-1, keepdims=True))
        pairs[name] = to16(dx)
    dg, da_log, ddt_bias = gate.backward(dstep)
    out = {**pairs, "dv": to16(dv), "dbeta": to32(dbeta), "dg": to32(dg)}
    if output_layout in ("BSND", "TND"):
        out = {name: np.swapaxes(x, 1, 2) for name, x in out.items()}
    out = {name: x[0] for name, x in out.items()} if rank3 else out
    small = {"da_log": da_log, "ddt_bias": ddt_bias}
    return out | {name: x if x is None else to32(x) for name, x in small.items()}
