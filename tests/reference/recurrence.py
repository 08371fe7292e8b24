# SPDX-License-Identifier: Apache-2.0
"""The truth: Kimi Delta Attention token by token in float64 NumPy.

Per value head h with key head h // (HV / HK), state S of shape [K, V]:

    S   <- diag(exp(gamma_t)) S
    S   <- S + beta_t k_t (v_t - k_t^T S)^T
    o_t  = scale * q_t^T S

There are no chunks, no log-space differences and no rounding here, so nothing that the kernels do can
be wrong in the same way.
"""

from __future__ import annotations

import numpy as np

#: Axis order that turns each layout into [B, H, T, ...]; rank-3 layouts get a batch axis of one.
LAYOUTS = ("BNSD", "BSND", "NTD", "TND")


def to_head_major(x: np.ndarray, layout: str) -> np.ndarray:
    """Return `x` as float64 [B, H, T, ...] whatever its layout (q, k, v, g with D; beta without)."""
    x = np.asarray(x, dtype=np.float64)
    if layout in ("NTD", "TND"):
        x = x[None]
    if layout in ("BSND", "TND"):
        x = np.swapaxes(x, 1, 2)
    return x


def from_head_major(x: np.ndarray, layout: str) -> np.ndarray:
    """Inverse of `to_head_major`."""
    if layout in ("BSND", "TND"):
        x = np.swapaxes(x, 1, 2)
    return x[0] if layout in ("NTD", "TND") else x


def l2_normalise(x: np.ndarray, epsilon: float) -> np.ndarray:
    """x / sqrt(sum(x^2) + epsilon) over the last axis; epsilon is added to the sum, inside the root."""
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + epsilon)


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + exp(x)) without overflow."""
    return np.logaddexp(0.0, x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))


def gate_steps(g, *, a_log=None, dt_bias=None, use_gate_in_kernel=False, safe_gate=False, lower_bound=None):
    """Natural-log decay of every step, [B, HV, T, K], from the raw gate of the same shape."""
    if not use_gate_in_kernel:
        return g
    heads, width = g.shape[1], g.shape[3]
    bias = (
        np.zeros((heads, width)) if dt_bias is None else np.asarray(dt_bias, np.float64).reshape(heads, width)
    )
    rate = np.exp(np.asarray(a_log, np.float64)).reshape(1, heads, 1, 1)
    x = g + bias[None, :, None, :]
    if safe_gate:
        return (-5.0 if lower_bound is None else lower_bound) * sigmoid(rate * x)
    return -rate * softplus(x)


def beta_effective(beta, *, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False):
    """The write strength: beta itself, its sigmoid, or twice its sigmoid."""
    if not use_beta_sigmoid_in_kernel:
        return beta
    return sigmoid(beta) * (2.0 if allow_neg_eigval else 1.0)


def sequence_spans(batch: int, tokens: int, cu_seqlens=None):
    """(batch row, first token, end token) of every sequence, empty ones included."""
    if cu_seqlens is None:
        return [(b, 0, tokens) for b in range(batch)]
    return [(0, int(a), int(z)) for a, z in zip(cu_seqlens, cu_seqlens[1:])]


def run_sequence(q, k, v, step, beta, state, scale):
    """One recurrence over stacked heads.

    q, k, step: [H, T, K]; v: [H, T, V]; beta: [H, T]; state: [H, K, V] (not modified).
    Returns (o [H, T, V], state after the last token [H, K, V]).
    """
    state = state.copy()
    out = np.empty(v.shape)
    decay = np.exp(step)
    write = k * beta[..., None]
    for t in range(q.shape[1]):
        state *= decay[:, t, :, None]
        error = v[:, t] - (k[:, t, None, :] @ state)[:, 0]
        state += write[:, t, :, None] * error[:, None, :]
        out[:, t] = scale * (q[:, t, None, :] @ state)[:, 0]
    return out, state


def kda_recurrence(
    q, k, v, g, beta, *, scale, layout="BSND", a_log=None, dt_bias=None, epsilon=1e-6,
    use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False, safe_gate=False, lower_bound=None, cu_seqlens=None,
    initial_state=None, state_v_first=False,
):  # fmt: skip
    """Float64 KDA forward.

    q, k: [B, HK, T, K]; v: [B, HV, T, V]; g: [B, HV, T, K]; beta: [B, HV, T], each permuted to `layout`
    (rank-3 layouts drop B). initial_state: [N, HV, K, V] or, with state_v_first, [N, HV, V, K].
    Returns {"o": in `layout`, "final_state": like initial_state}.
    """
    q, k, v, g, beta = (to_head_major(x, layout) for x in (q, k, v, g, beta))
    if use_qk_l2norm_in_kernel:
        q, k = l2_normalise(q, epsilon), l2_normalise(k, epsilon)
    group = v.shape[1] // q.shape[1]
    q, k = np.repeat(q, group, axis=1), np.repeat(k, group, axis=1)
    step = gate_steps(g, a_log=a_log, dt_bias=dt_bias, use_gate_in_kernel=use_gate_in_kernel,
                      safe_gate=safe_gate, lower_bound=lower_bound)  # fmt: skip
    beta = beta_effective(
        beta,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
    )
    spans = sequence_spans(q.shape[0], q.shape[2], cu_seqlens)
    state_shape = (len(spans), v.shape[1], q.shape[3], v.shape[3])
    if initial_state is None:
        first = np.zeros(state_shape)
    else:
        first = np.asarray(initial_state, np.float64)
        first = np.swapaxes(first, -1, -2) if state_v_first else first
    out, final = np.zeros(v.shape), np.empty(state_shape)
    for n, (b, a, z) in enumerate(spans):
        out[b, :, a:z], final[n] = run_sequence(
            q[b, :, a:z],
            k[b, :, a:z],
            v[b, :, a:z],
            step[b, :, a:z],
            beta[b, :, a:z],
            first[n],
            scale,
        )
    final = np.swapaxes(final, -1, -2) if state_v_first else final
    return {"o": from_head_major(out, layout), "final_state": final}
