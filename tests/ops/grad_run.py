# SPDX-License-Identifier: Apache-2.0
"""The backward operators and the gradients of npu_chunk_kda through the public PyTorch functions."""

from __future__ import annotations

import copy

import kda_run
import numpy as np
import torch
from backward import Cotangents, chain_gradients, make_cotangents
from backward_inputs import StageCase
from goldens import relative_l2
from gradients import kda_gradients
from in_step import in_step
from kda_compare import FACTOR, GUARD, judge
from kda_inputs import KdaInputs
from recurrence import from_head_major, kda_recurrence, sigmoid, to_head_major

FINALIZE_ORDER = (
    "q", "k", "v", "gk", "raw_g", "beta", "a_log", "dt_bias", "akk", "v_new", "h", "dh", "dv_scan", "d_aqk",
    "dq_raw",
)  # fmt: skip
FINALIZE_OUT = ("dq", "dk", "dv", "dbeta", "dg", "da_log", "ddt_bias")


def tensors_of(case: StageCase) -> dict[str, torch.Tensor]:
    return {name: kda_run.tensor(x, case.dtypes[name]) for name, x in case.arrays.items()}


def bwd_prepare(t: dict, **options) -> dict:
    """chunk_kda_bwd_prepare: {"d_aqk", "dv_local", "dq_raw"}."""
    from fla_npu.ops.ascendc import chunk_kda_bwd_prepare

    out = chunk_kda_bwd_prepare(t["aqk"], t["v_new"], t["d_o"], t["h"], **options)
    assert isinstance(out, tuple) and len(out) == 3
    return dict(in_step(("d_aqk", "dv_local", "dq_raw"), out))


def dhu(t: dict, *, scale, state_v_first=False, **options) -> dict:
    """chunk_gated_delta_rule_bwd_dhu: {"dh", "dh0", "dv2"}, dh0 left out when it is None."""
    from fla_npu.ops.ascendc import chunk_gated_delta_rule_bwd_dhu

    out = chunk_gated_delta_rule_bwd_dhu(
        t["q"], t["k"], t["w"], t["d_o"], t["dv"], scale, 64, gK=t["gk"], h0=t.get("h0"), dht=t.get("dht"),
        transpose_state_layout=state_v_first, **options,
    )  # fmt: skip
    assert isinstance(out, tuple) and len(out) == 3
    named = dict(in_step(("dh", "dh0", "dv2"), out))
    if t.get("h0") is None:
        assert named.pop("dh0") is None, "dh0 without h0"
    return named


def bwd_finalize(t: dict, **options) -> dict:
    """chunk_kda_bwd_finalize: its seven outputs by name, those of absent gate parameters left out."""
    from fla_npu.ops.ascendc import chunk_kda_bwd_finalize

    rstd = {n: t.get(n) for n in ("q_rstd", "k_rstd")}
    out = chunk_kda_bwd_finalize(*(t.get(n) for n in FINALIZE_ORDER), **rstd, **options)
    assert isinstance(out, tuple) and len(out) == 7
    named = dict(in_step(FINALIZE_OUT, out))
    for grad, name in (("da_log", "a_log"), ("ddt_bias", "dt_bias")):
        if t.get(name) is None:
            assert named.pop(grad) is None, f"{grad} without {name}"
    return named


def chain(inputs: KdaInputs, seeds: Cotangents) -> dict:
    """All six stage operators in a row with the ABI's bf16 slots: {slot: tensor}. Head-major inputs only."""
    rank3 = inputs.options["layout"] == "NTD"
    drop, lift = ((lambda x: x[0]), (lambda x: x[None])) if rank3 else ((lambda x: x), (lambda x: x))
    meta = {"cu_seqlens": inputs.options.get("cu_seqlens")}
    scale, v_first = inputs.options["scale"], inputs.state_v_first
    exp2 = inputs.options["use_exp2"]
    tensors = kda_run.tensors_of(inputs)
    state = kda_run.tensor(inputs.initial_state, inputs.state_dtype)
    s = kda_run.prepare(inputs, tensors, "save")
    s |= kda_run.fwd_h(s, inputs, state)
    s["d_o"] = kda_run.tensor(drop(seeds.out), "bfloat16")
    t = {"aqk": s["aqk"], "v_new": drop(s["v_new"]), "d_o": s["d_o"], "h": drop(s["h"])}
    layout = inputs.options["layout"]
    s |= bwd_prepare(t, scale=scale, state_v_first=v_first, layout=layout, **meta)
    relay = {"q": "qg", "k": "kg", "w": "w", "gk": "gk", "d_o": "d_o", "dv": "dv_local"}
    t = {n: lift(s[m]) for n, m in relay.items()}
    t |= {"h0": state, "dht": kda_run.tensor(seeds.final, "float32")}
    s |= dhu(t, scale=scale, state_v_first=v_first, use_exp2=exp2, **meta)
    t = {n: s[n] for n in ("gk", "akk", "d_aqk", "dq_raw")} | {
        n: tensors.get(n) for n in ("a_log", "dt_bias", "v")
    }
    t |= {"q": s["q_hat"], "k": s["k_hat"], "beta": s["beta_eff"], "raw_g": tensors["g"]}
    t |= {"v_new": drop(s["v_new"]), "h": drop(s["h"]), "dh": drop(s["dh"]), "dv_scan": drop(s["dv2"])}
    if inputs.options["use_qk_l2norm_in_kernel"]:
        t |= {n: s[n] for n in ("q_rstd", "k_rstd")}
    gate = {n: inputs.options.get(n, False) for n in ("use_gate_in_kernel", "safe_gate")}
    gate["lower_bound"] = inputs.options.get("lower_bound")
    last = bwd_finalize(
        t, scale=scale, state_v_first=v_first, use_exp2=exp2, output_layout=layout, **gate, **meta
    )
    return s | last


def requiring(tensors: dict, *names: str) -> dict:
    """Copies of the tensors as leaves; those named (all, when none is) require grad."""
    return {n: x.detach().clone().requires_grad_(not names or n in names) for n, x in tensors.items()}


def token_major(x: np.ndarray, layout: str) -> np.ndarray:
    """[B, H, T, D] as attn_out comes: BSND, or TND for the layouts of rank 3."""
    return from_head_major(x, "TND" if layout in ("NTD", "TND") else "BSND")


def gradients(inputs: KdaInputs, seeds: Cotangents, leaves: dict | None = None, **changes) -> dict:
    """npu_chunk_kda forward and backward: {"o", "final_state"} and the gradient of every input by its name."""
    from fla_npu.torch import npu_chunk_kda

    if leaves is None:
        leaves = kda_run.tensors_of(inputs)
        if inputs.initial_state is not None:
            leaves["initial_state"] = kda_run.tensor(inputs.initial_state, inputs.state_dtype)
        leaves = requiring(leaves)
    options = {
        "use_gate_in_kernel": False,
        "state_v_first": inputs.state_v_first,
        **inputs.options,
        **changes,
    }
    o, final = npu_chunk_kda(**leaves, **options, output_final_state=seeds.final is not None)
    outputs, cotangents = [o], [kda_run.tensor(token_major(seeds.out, options["layout"]), "bfloat16")]
    if seeds.final is not None:
        outputs, cotangents = [o, final], [*cotangents, kda_run.tensor(seeds.final, "float32")]
    wanted = {n: x for n, x in leaves.items() if x.requires_grad}
    grads = torch.autograd.grad(outputs, list(wanted.values()), cotangents)
    out = {"o": o.detach()} | ({} if final is None else {"final_state": final.detach()})
    for (name, x), grad in in_step(wanted.items(), grads):
        assert grad.dtype == x.dtype and grad.shape == x.shape, (
            f"gradient of {name}: {grad.dtype} {grad.shape}"
        )
        out[name] = grad
    return out


#: Factors on v and on the cotangents under which gradients scale: each pair is another draw of the roundings.
DRAWS = ((1.13, 1.0), (1.31, 1.17), (1.57, 1.87))


def scaled_chain(inputs: KdaInputs, seeds: Cotangents, values: float, cotangents: float) -> dict:
    """The rounded chain of inputs with larger v, state and cotangents, scaled back."""
    other = copy.copy(inputs)
    other.arrays = {**inputs.arrays, "v": inputs.arrays["v"] * values}
    if inputs.initial_state is not None:
        other.initial_state = inputs.initial_state * values
    final = None if seeds.final is None else seeds.final * cotangents
    out = chain_gradients(other, Cotangents(seeds.out * cotangents, final), round_slots=True)
    factor = {"o": values, "final_state": values, "v": cotangents, "initial_state": cotangents}
    return {name: x / factor.get(name, values * cotangents) for name, x in out.items()}


def reference(inputs: KdaInputs, seeds: Cotangents, floor: bool = True) -> tuple[dict, dict]:
    """(exact, rounded): the recurrence with its adjoint, and, unless not wanted, the chain with rounded slots."""
    layout = inputs.options["layout"]
    kwargs = inputs.recurrence_kwargs()
    exact = kda_recurrence(**kwargs)
    exact["o"] = token_major(to_head_major(exact["o"], layout), layout)
    exact |= kda_gradients(**kwargs, d_out=from_head_major(seeds.out, layout), d_final=seeds.final)
    return exact, chain_gradients(inputs, seeds, round_slots=True) if floor else {}


def gate_weights(inputs: KdaInputs) -> tuple[np.ndarray, np.ndarray]:
    """|d step / d raw gate| and |d step / d a_log| of every entry, [B, HV, T, K]."""
    x = to_head_major(inputs.arrays["g"], inputs.options["layout"])
    if not inputs.options.get("use_gate_in_kernel"):
        return np.ones(x.shape), np.zeros(x.shape)
    heads, width = x.shape[1], x.shape[3]
    x = x + np.reshape(inputs.arrays.get("dt_bias", np.zeros(heads * width)), (1, heads, 1, width))
    rate = np.exp(inputs.arrays["a_log"]).reshape(1, heads, 1, 1)
    if inputs.options.get("safe_gate"):
        slope = -(inputs.options["lower_bound"] or -5.0) * sigmoid(rate * x) * sigmoid(-rate * x) * rate
        return slope, slope * np.abs(x)
    # The kernel's softplus is right to fp32's resolution of 1 + e^x, not of e^x.
    return rate * sigmoid(x), rate * (np.logaddexp(0.0, x) + 2.0**-23)


def gate_noise(inputs: KdaInputs, seeds: Cotangents, exact: dict) -> dict:
    """Absolute errors (L2) that fp32 may leave in dg, ddt_bias and da_log.

    The gradient of a step is a difference of terms as large as |v||dv| + |o||do| of its token. Where the gate is
    all but shut, next to nothing is left of them, and fp32 ends before that.
    """
    layout = inputs.options["layout"]
    o = to_head_major(exact["o"], "TND" if layout in ("NTD", "TND") else "BSND")
    v, dv = (to_head_major(x, layout) for x in (inputs.arrays["v"], exact["v"]))
    size = sum(
        np.linalg.norm(x, axis=-1) * np.linalg.norm(dx, axis=-1) for x, dx in ((v, dv), (o, seeds.out))
    )
    if inputs.initial_state is not None:
        kept = np.linalg.norm(inputs.initial_state) * np.linalg.norm(exact["initial_state"])
        size = size + kept / np.sqrt(size.size)
    slopes = [np.linalg.norm(size * x.max(-1)) for x in gate_weights(inputs)]
    noise = GUARD["float32"] * np.array([slopes[0], slopes[0], slopes[1]])
    return dict(in_step(("g", "dt_bias", "a_log"), noise))


def a_log_scale(inputs: KdaInputs, exact: dict, rounded: dict) -> float:
    """What the floor's error of dg comes to in da_log, were its entries independent: root mean square over heads."""
    layout, (slope, weight) = inputs.options["layout"], gate_weights(inputs)
    error = to_head_major(rounded["g"], layout) - to_head_major(exact["g"], layout)
    error = error * weight / np.maximum(slope, 1e-300)
    return float(np.sqrt(np.mean((error**2).sum((0, 2, 3)))))


def judge_a_log(
    got, inputs: KdaInputs, seeds: Cotangents, exact: dict, rounded: dict, noise: float, draws=()
) -> None:
    """da_log: one number per head, left over by cancellation.

    The errors of dg hang together through the state, so they add up to about four times what independent ones
    would: three sigma of that. With `draws`, sigma is measured over other draws of the roundings instead.
    """
    error = np.sqrt(np.mean((got - exact["a_log"]) ** 2))
    sigma = 4.0 * a_log_scale(inputs, exact, rounded)
    if draws:
        samples = [rounded["a_log"], *(scaled_chain(inputs, seeds, *d)["a_log"] for d in draws)]
        sigma = np.sqrt(np.mean([(x - exact["a_log"]) ** 2 for x in samples]))
    assert np.isfinite(got).all() and error <= 3.0 * sigma + noise + 1e-6 * np.abs(exact["a_log"]).max(), (
        f"a_log: off by {error:.3e}, the slots alone by {sigma:.3e}"
    )


def check_gradients(
    inputs: KdaInputs, seeds: Cotangents | None = None, factor=FACTOR, draws=(), **changes
) -> dict:
    """Run npu_chunk_kda both ways and hold every result to its floor; returns {name: tensor}."""
    seeds = seeds or make_cotangents(inputs)
    got = gradients(inputs, seeds, **changes)
    exact, rounded = reference(inputs, seeds)
    noise = gate_noise(inputs, seeds, exact)
    for name, x in got.items():
        if name == "a_log":
            judge_a_log(kda_run.array(x), inputs, seeds, exact, rounded, noise[name], draws)
            continue
        label, kind = name if name in ("o", "final_state") else f"d{name}", str(x.dtype)[6:]
        judge(label, kda_run.array(x), exact[name], rounded[name], kind, factor, noise.get(name, 0.0))
    return got


def worst_error(got: dict, exact: dict, names=None) -> dict:
    """Relative L2 of each result."""
    return {n: relative_l2(kda_run.array(got[n]), exact[n]) for n in names or got}
