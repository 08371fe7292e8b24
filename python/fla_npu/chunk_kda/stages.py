# SPDX-License-Identifier: Apache-2.0
"""The stages of Chunk KDA.

Each function validates its arguments and launches one operator:

    prepare            gate, norms, chunk scores, WY operands    -> gk aqk akk w u qg kg ... beta_eff
    fwd_h              state recurrence over chunks              -> h v_new final_state
    finalize           qg_scaled @ h + tril(aqk) @ v_new         -> attn_out
    backward_prepare   gradients of that product                 -> d_aqk dv_local dq_raw
    dhu                state recurrence backwards                -> dh dh0 dv_scan
    backward_finalize  gradients of what prepare read            -> dq dk dv dbeta dg dA_log ddt_bias

    whole_forward      the first three in one launch, whole_backward the others

    summarize           what a window of tokens does to a state      -> hm, [E | M]
    summarize_backward  what it does to the gradient of a state      -> dhm
    merge               several such maps, one after another         -> h, in place
"""

from __future__ import annotations

from ..checks import (
    Desc,
    plan_backward_finalize,
    plan_backward_prepare,
    plan_dhu,
    plan_finalize,
    plan_fwd_h,
    plan_merge,
    plan_prepare,
    plan_summarize,
    plan_summarize_backward,
    plan_whole_backward,
    plan_whole_forward,
)
from ..checks.common import flag
from ..checks.prepare import check_sigmoid
from .adapter import Adapter, launch

__all__ = [
    "backward_finalize",
    "backward_prepare",
    "dhu",
    "finalize",
    "fwd_h",
    "merge",
    "prepare",
    "summarize",
    "summarize_backward",
    "whole_backward",
    "whole_forward",
]


def _described(adapter: Adapter, label: str, tensors: dict) -> dict[str, Desc | None]:
    return {name: adapter.describe(label, name, tensor) for name, tensor in tensors.items()}


def prepare(adapter: Adapter, q, k, v, g, beta, *, a_log=None, dt_bias=None, **options) -> tuple:
    """13 outputs in contract order, None in the slots `backward_mode` leaves out.

    `options` are the keywords of `checks.plan_prepare` (scale, chunk_size, layout, ...).
    """
    tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "a_log": a_log, "dt_bias": dt_bias}
    label = options.setdefault("label", "chunk_kda_fwd_prepare")
    return launch(adapter, plan_prepare(**_described(adapter, label, tensors), **options), tensors)


def fwd_h(adapter: Adapter, k, w, u, *, g=None, gk=None, initial_state=None, **options) -> tuple:
    """(h, v_new, final_state or None). `options` are the keywords of `checks.plan_fwd_h`."""
    tensors = {"k": k, "w": w, "u": u, "g": g, "gk": gk, "initial_state": initial_state}
    label = options.setdefault("label", "chunk_fwd_h")
    return launch(adapter, plan_fwd_h(**_described(adapter, label, tensors), **options), tensors)


def finalize(adapter: Adapter, qg_scaled, aqk, v_new, h, **options):
    """attn_out. `options` are the keywords of `checks.plan_finalize`."""
    tensors = {"qg_scaled": qg_scaled, "aqk": aqk, "v_new": v_new, "h": h}
    label = options.setdefault("label", "chunk_kda_fwd_finalize")
    return launch(adapter, plan_finalize(**_described(adapter, label, tensors), **options), tensors)[0]


def backward_prepare(adapter: Adapter, aqk, v_new, d_o, h, **options) -> tuple:
    """(d_aqk, dv_local, dq_raw). `options` are the keywords of `checks.plan_backward_prepare`."""
    tensors = {"aqk": aqk, "v_new": v_new, "d_o": d_o, "h": h}
    label = options.setdefault("label", "chunk_kda_bwd_prepare")
    return launch(adapter, plan_backward_prepare(**_described(adapter, label, tensors), **options), tensors)


def dhu(adapter: Adapter, q, k, w, d_o, dv, *, g=None, gk=None, h0=None, dht=None, **options) -> tuple:
    """(dh, dh0 or None, dv_scan). `options` are the keywords of `checks.plan_dhu`."""
    tensors = {"q": q, "k": k, "w": w, "d_o": d_o, "dv": dv, "g": g, "gk": gk, "h0": h0, "dht": dht}
    label = options.setdefault("label", "chunk_gated_delta_rule_bwd_dhu")
    return launch(adapter, plan_dhu(**_described(adapter, label, tensors), **options), tensors)


def backward_finalize(
    adapter: Adapter, q, k, v, gk, raw_g, beta, a_log, dt_bias, akk, v_new, h, dh, dv_scan, d_aqk, dq_raw,
    *, q_rstd=None, k_rstd=None, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False,
    output_layout="BNSD", label="chunk_kda_bwd_finalize", **options,
) -> tuple:  # fmt: skip
    """(dq, dk, dv, dbeta, dg, dA_log or None, ddt_bias or None).

    The operator knows neither the sigmoid of beta nor token-major layouts: with
    `use_beta_sigmoid_in_kernel` beta is the logit, and dbeta its gradient; `output_layout` says where
    the token axis of the five gradients is. `options` are those of `checks.plan_backward_finalize`.
    """
    tensors = {
        "q": q, "k": k, "v": v, "gk": gk, "raw_g": raw_g, "beta": beta, "a_log": a_log, "dt_bias": dt_bias,
        "akk": akk, "v_new": v_new, "h": h, "dh": dh, "dv_scan": dv_scan, "d_aqk": d_aqk, "dq_raw": dq_raw,
        "q_rstd": q_rstd, "k_rstd": k_rstd,
    }  # fmt: skip
    descs = _described(adapter, label, tensors)
    plan = plan_backward_finalize(descs, output_layout=output_layout, label=label, **options)
    sigmoid = flag(label, "use_beta_sigmoid_in_kernel", use_beta_sigmoid_in_kernel)
    negative = flag(label, "allow_neg_eigval", allow_neg_eigval)
    check_sigmoid(label, sigmoid, negative)
    factor = 2.0 if negative else 1.0
    if sigmoid:
        tensors["beta"] = adapter.sigmoid(beta, factor)
        if descs["beta"].dtype != "float32":
            wide = {**descs, "beta": descs["beta"]._replace(dtype="float32")}
            plan = plan_backward_finalize(wide, output_layout=output_layout, label=label, **options)
    dq, dk, dv, dbeta, dg, da_log, ddt_bias = launch(adapter, plan, tensors)
    if sigmoid:
        dbeta = adapter.cast(adapter.sigmoid_grad(dbeta, beta, factor), descs["beta"].dtype)
    if output_layout in ("BSND", "TND"):
        token = len(descs["q"].shape) - 2
        dq, dk, dv, dbeta, dg = (adapter.swap(x, token - 1, token) for x in (dq, dk, dv, dbeta, dg))
    return dq, dk, dv, dbeta, dg, da_log, ddt_bias


def summarize(adapter: Adapter, k, w, u, *, g=None, gk=None, bg=None, v=None, **options):
    """hm, float32 [N, HV, K, V + K]. `options` are the keywords of `checks.plan_summarize`."""
    tensors = {"k": k, "w": w, "u": u, "g": g, "gk": gk, "bg": bg, "v": v}
    label = options.setdefault("label", "pre_process_fwd_kernel_merged")
    return launch(adapter, plan_summarize(**_described(adapter, label, tensors), **options), tensors)[0]


def summarize_backward(adapter: Adapter, q, k, w, d_o, dv, *, g=None, gk=None, **options):
    """dhm, float32 [HV, K, V + K]. `options` are the keywords of `checks.plan_summarize_backward`."""
    tensors = {"q": q, "k": k, "w": w, "d_o": d_o, "dv": dv, "g": g, "gk": gk}
    label = options.setdefault("label", "pre_process_bwd_kernel_merged")
    plan = plan_summarize_backward(**_described(adapter, label, tensors), **options)
    return launch(adapter, plan, tensors)[0]


def merge(adapter: Adapter, h, summaries, count: int, rank: int, *, shown=("h", "ag_hm"), **options):
    """h itself, written in place. `options` are the keywords of `checks.plan_merge`.

    `count` summaries of [S, HV, K, V + K], those before `rank`, or behind it with forward=False.
    """
    label = options.setdefault("label", "merge_fwd_bwd_kernel")
    descs = (adapter.describe(label, name, x) for name, x in zip(shown, (h, summaries)))
    plan = plan_merge(*descs, count, rank, shown=shown, **options)
    return launch(adapter, plan, {"h": h, "ag_hm": summaries})[0]


def whole_forward(adapter: Adapter, tensors: dict, **options) -> dict:
    """Outputs by name, those that were not wanted left out. `options`: those of `plan_whole_forward`."""
    label = options.setdefault("label", "chunk_kda_fwd")
    plan = plan_whole_forward(_described(adapter, label, tensors), **options)
    made = launch(adapter, plan, dict(tensors))
    return {slot.name: x for slot, x in zip(plan.outputs, made) if slot is not None}


def whole_backward(adapter: Adapter, tensors: dict, **options) -> tuple:
    """(dq, dk, dv, dbeta, dg, dh0, dA_log, ddt_bias). `options`: those of `plan_whole_backward`."""
    label = options.setdefault("label", "chunk_kda_bwd")
    plan = plan_whole_backward(_described(adapter, label, tensors), **options)
    return launch(adapter, plan, dict(tensors))
