# SPDX-License-Identifier: Apache-2.0
"""The truth for gradients: the adjoint of the token recurrence in float64 NumPy.

One token of the recurrence, with decay d = exp(step) per key channel:

    S' = diag(d) S;   e = v - S'^T k;   S'' = S' + beta k e^T;   o = scale S''^T q

and its adjoint, given the gradient dS of S'' and do:

    dS += scale q do^T;           dq = scale S'' do
    de  = beta dS^T k;            dbeta = k . (dS e);      dk = beta dS e - S' de;      dv = de
    dS' = dS - k de^T;            dstep = rowsum(dS' * S')         (0 where d is 0);    dS = diag(d) dS'

No chunk, no cumulative gate and no triangular solve appears, so nothing of the kernels can repeat here.
"""

from __future__ import annotations

import numpy as np
from recurrence import (
    beta_effective,
    from_head_major,
    gate_steps,
    l2_normalise,
    sequence_spans,
    sigmoid,
    to_head_major,
)

#: States kept of a sequence: one every STRIDE tokens; those in between are made again.
STRIDE = 32

#: Gradients in the order of npu_chunk_kda's tensors.
NAMES = ("q", "k", "v", "g", "beta", "a_log", "dt_bias", "initial_state")


def _advance(state, k, v, decay, write):
    """State after one token, and what was used on the way: (S'', S', e)."""
    decayed = decay[:, :, None] * state
    error = v - (k[:, None, :] @ decayed)[:, 0]
    return decayed + write[:, :, None] * error[:, None, :], decayed, error


def _run_back(q, k, v, step, beta, state, scale, d_out, d_state):
    """Gradients of one sequence over stacked heads.

    q, k, step [H, T, K]; v, d_out [H, T, V]; beta [H, T]; state, d_state [H, K, V].
    Returns dq, dk, dv, dstep, dbeta and the gradient of the first state.
    """
    decay, write = np.exp(step), k * beta[..., None]
    tokens, kept = q.shape[1], []
    for t in range(tokens):
        if t % STRIDE == 0:
            kept.append(state)
        state = _advance(state, k[:, t], v[:, t], decay[:, t], write[:, t])[0]
    dq, dk, dv, dstep = (np.empty(x.shape) for x in (q, k, v, step))
    dbeta, d_state = np.empty(beta.shape), d_state.copy()
    for first in reversed(range(0, tokens, STRIDE)):
        span, state = range(first, min(first + STRIDE, tokens)), kept.pop()
        steps = []
        for t in span:
            steps.append(_advance(state, k[:, t], v[:, t], decay[:, t], write[:, t]))
            state = steps[-1][0]
        for t in reversed(span):
            after, decayed, error = steps.pop()
            dq[:, t] = scale * (after @ d_out[:, t, :, None])[..., 0]
            d_state += scale * q[:, t, :, None] * d_out[:, t, None, :]
            received = (d_state @ error[..., None])[..., 0]
            de = (write[:, t, None, :] @ d_state)[:, 0]
            dbeta[:, t] = (k[:, t] * received).sum(-1)
            dk[:, t] = beta[:, t, None] * received - (decayed @ de[..., None])[..., 0]
            dv[:, t] = de
            d_state -= k[:, t, :, None] * de[:, None, :]
            dstep[:, t] = (d_state * decayed).sum(-1)
            d_state *= decay[:, t, :, None]
    return dq, dk, dv, dstep, dbeta, d_state


def _through_norm(x, dx, epsilon):
    """Gradient of x from that of x / sqrt(sum(x^2) + epsilon)."""
    unit, rstd = l2_normalise(x, epsilon), (np.sum(x * x, -1, keepdims=True) + epsilon) ** -0.5
    return rstd * (dx - unit * np.sum(unit * dx, -1, keepdims=True))


def _through_gate(g, dstep, a_log, dt_bias, safe_gate, lower_bound):
    """Gradients of the raw gate, a_log [HV] and the bias [HV, K]."""
    heads, width = g.shape[1], g.shape[3]
    bias = 0.0 if dt_bias is None else np.asarray(dt_bias, np.float64).reshape(1, heads, 1, width)
    rate = np.exp(np.asarray(a_log, np.float64)).reshape(1, heads, 1, 1)
    x = g + bias
    if safe_gate:
        bound = -5.0 if lower_bound is None else lower_bound
        inner = dstep * bound * sigmoid(rate * x) * sigmoid(-rate * x) * rate  # d / dx
        return inner, (inner * x).sum((0, 2, 3)), inner.sum((0, 2))
    inner = -rate * dstep * sigmoid(x)
    return inner, (dstep * -rate * np.logaddexp(0.0, x)).sum((0, 2, 3)), inner.sum((0, 2))


def kda_gradients(
    q, k, v, g, beta, *, d_out, d_final=None, scale, layout="BSND", a_log=None, dt_bias=None, epsilon=1e-6,
    use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False, safe_gate=False, lower_bound=None, cu_seqlens=None,
    initial_state=None, state_v_first=False,
):  # fmt: skip
    """Float64 gradients of sum(o * d_out) + sum(final_state * d_final).

    Arguments as `recurrence.kda_recurrence`; d_out is like v in `layout`, d_final like initial_state (None:
    zero). Returns a dict over NAMES, each shaped as the input it belongs to; a_log and dt_bias only
    with the gate in the kernel (dt_bias also when it was absent: [HV, K]), initial_state always.
    """
    q, k, v, g, beta, d_out = (to_head_major(x, layout) for x in (q, k, v, g, beta, d_out))
    norm = use_qk_l2norm_in_kernel
    group = v.shape[1] // q.shape[1]
    qh, kh = (np.repeat(l2_normalise(x, epsilon) if norm else x, group, axis=1) for x in (q, k))
    step = gate_steps(g, a_log=a_log, dt_bias=dt_bias, use_gate_in_kernel=use_gate_in_kernel,
                      safe_gate=safe_gate, lower_bound=lower_bound)  # fmt: skip
    options = {"use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel, "allow_neg_eigval": allow_neg_eigval}
    effective = beta_effective(beta, **options)
    spans = sequence_spans(q.shape[0], q.shape[2], cu_seqlens)
    first, last = np.zeros((2, len(spans), v.shape[1], q.shape[3], v.shape[3]))
    turn = (lambda x: np.swapaxes(x, -1, -2)) if state_v_first else (lambda x: x)
    first = first if initial_state is None else turn(np.asarray(initial_state, np.float64))
    last = last if d_final is None else turn(np.asarray(d_final, np.float64))
    dq, dk, dv, dstep, dbeta = (np.zeros(x.shape) for x in (qh, kh, v, step, effective))
    d_first = np.zeros(first.shape)
    for n, (b, a, z) in enumerate(spans):
        at = (b, slice(None), slice(a, z))
        dq[at], dk[at], dv[at], dstep[at], dbeta[at], d_first[n] = _run_back(
            qh[at], kh[at], v[at], step[at], effective[at], first[n], scale, d_out[at], last[n]
        )
    dq, dk = (x.reshape(*q.shape[:2], group, *q.shape[2:]).sum(2) for x in (dq, dk))
    if norm:
        dq, dk = _through_norm(q, dq, epsilon), _through_norm(k, dk, epsilon)
    if use_beta_sigmoid_in_kernel:
        dbeta = dbeta * effective * sigmoid(-beta)
    out = {"q": dq, "k": dk, "v": dv, "g": dstep, "beta": dbeta}
    if use_gate_in_kernel:
        out["g"], d_a_log, d_bias = _through_gate(g, dstep, a_log, dt_bias, safe_gate, lower_bound)
        small = {
            "a_log": d_a_log,
            "dt_bias": d_bias if dt_bias is None else d_bias.reshape(np.shape(dt_bias)),
        }
    out = {name: from_head_major(x, layout) for name, x in out.items()}
    return out | (small if use_gate_in_kernel else {}) | {"initial_state": turn(d_first)}
