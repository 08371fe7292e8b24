# SPDX-License-Identifier: Apache-2.0
"""The six operators' golden models as one differentiable call: exact, or with the published slots rounded.

Exact, the chain equals the adjoint of the token recurrence; rounded, its distance from that is the floor:
what the types of the slots alone must cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from goldens import forward_golden, golden_module
from kda_inputs import KdaInputs, to_bf16, to_dtype
from recurrence import from_head_major, sequence_spans, to_head_major


@dataclass
class Cotangents:
    """Gradients of a call's outputs: out [B, HV, T, V] head-major; final like initial_state, or None."""

    out: np.ndarray
    final: np.ndarray | None = None


def make_cotangents(inputs: KdaInputs, seed: int = 0, final: bool = True) -> Cotangents:
    """Seeded normal cotangents; out holds bf16 values, final (when wanted) float32 ones."""
    rng = np.random.default_rng(seed + 77)
    v = to_head_major(inputs.arrays["v"], inputs.options["layout"])
    cu = inputs.options.get("cu_seqlens")
    count = v.shape[0] if cu is None else len(cu) - 1
    state = to_dtype(rng.standard_normal((count, v.shape[1], 128, 128)), "float32") if final else None
    return Cotangents(to_bf16(rng.standard_normal(v.shape)), state)


def _widen(stages: dict, inputs: KdaInputs) -> dict:
    """Prepare's rounded slots with u as float32: akk @ (beta v) of the rounded akk."""
    layout, cu = inputs.options["layout"], inputs.options.get("cu_seqlens")
    v = to_head_major(inputs.arrays["v"], layout)
    u = np.empty(v.shape)
    for b, first, last in sequence_spans(v.shape[0], v.shape[2], cu):
        for a in range(first, last, 64):
            at = (b, slice(None), slice(a, min(a + 64, last)))
            akk = stages["akk"][at][..., : at[2].stop - a]
            u[at] = akk @ (stages["beta_eff"][at][..., None] * v[at])
    return stages | {"u": to_dtype(u, "float32")}


def _new_values(stages: dict, cu) -> np.ndarray:
    """v_new as two bf16 planes [2, B, HV, T, V], the second the rounding error of the first."""
    u, chunk = stages["u"], np.zeros(stages["u"].shape[0], int)
    wide = np.empty(u.shape)
    for b, first, last in sequence_spans(u.shape[0], u.shape[2], cu):
        for a in range(first, last, 64):
            at = (b, slice(None), slice(a, min(a + 64, last)))
            wide[at] = u[at] - stages["w"][at] @ stages["h"][b, chunk[b]]
            chunk[b] += 1
    return np.stack([stages["v_new"], to_bf16(wide - stages["v_new"])])


def saved_slots(inputs: KdaInputs, round_slots: bool = False, wide: bool = True) -> dict:
    """Head-major rank-4 slots of the forward that the backward reads; states K-first.

    wide: u in float32 and v_new as two planes, as npu_chunk_kda relays them; else the bf16 of the ABI.
    """
    kwargs, cu = inputs.golden_kwargs(), inputs.options.get("cu_seqlens")
    turn = (lambda x: np.swapaxes(x, -1, -2)) if inputs.state_v_first else (lambda x: x)
    state = None if inputs.initial_state is None else turn(inputs.initial_state)
    stages = forward_golden(kwargs, initial_state=state, round_slots=round_slots)
    if not (round_slots and wide):
        return stages
    stages = _widen(stages, inputs)
    stages |= golden_module("chunk_fwd_h").golden(
        k=stages["kg"], w=stages["w"], u=stages["u"], gk=stages["gk"], initial_state=state, cu_seqlens=cu,
        use_exp2=inputs.options["use_exp2"], round_slots=True,
    )  # fmt: skip
    final = golden_module("chunk_kda_fwd_finalize").golden(
        qg_scaled=stages["qg_scaled"], aqk=stages["aqk"], v_new=stages["v_new"], h=stages["h"], cu_seqlens=cu,
        round_slots=True,
    )  # fmt: skip
    return stages | {"o": final["attn_out"], "v_new": _new_values(stages, cu)}


def finalize_kwargs(inputs: KdaInputs, stages: dict) -> dict:
    """Arguments of the bwd_finalize golden, head-major of rank 4, from the slots and earlier gradients."""
    options = {n: inputs.options[n] for n in ("scale", "use_exp2")}
    gate = inputs.options.get("use_gate_in_kernel", False)
    options |= {"use_gate_in_kernel": gate, "safe_gate": inputs.options.get("safe_gate", False)}
    options |= {
        "lower_bound": inputs.options.get("lower_bound"),
        "cu_seqlens": inputs.options.get("cu_seqlens"),
    }
    layout, norm = inputs.options["layout"], inputs.options["use_qk_l2norm_in_kernel"]
    tensors = {
        "q": stages["q_hat"],
        "k": stages["k_hat"],
        "beta": stages["beta_eff"],
        "dv_scan": stages["dv2"],
    }
    tensors |= {
        "v": to_head_major(inputs.arrays["v"], layout),
        "raw_g": to_head_major(inputs.arrays["g"], layout),
    }
    tensors |= {n: stages[n] for n in ("gk", "akk", "v_new", "h", "dh", "d_aqk", "dq_raw")}
    tensors |= {n: inputs.arrays[n] for n in ("a_log", "dt_bias") if n in inputs.arrays}
    tensors |= {n: stages[n] for n in ("q_rstd", "k_rstd") if norm}
    return {**tensors, **options}


def backward_stages(inputs: KdaInputs, slots: dict, seeds: Cotangents, round_slots: bool = False) -> dict:
    """Outputs of bwd_prepare and dhu on saved slots; states K-first."""
    cu, scale = inputs.options.get("cu_seqlens"), inputs.options["scale"]
    v_new = slots["v_new"][0] if slots["v_new"].ndim == 5 else slots["v_new"]
    out = golden_module("chunk_kda_bwd_prepare").golden(
        aqk=slots["aqk"], v_new=v_new, d_o=seeds.out, h=slots["h"], scale=scale, cu_seqlens=cu,
        round_slots=round_slots,
    )  # fmt: skip
    final = seeds.final
    if final is not None and inputs.state_v_first:
        final = np.swapaxes(final, -1, -2)
    return out | golden_module("chunk_gated_delta_rule_bwd_dhu").golden(
        q=slots["qg"], k=slots["kg"], w=slots["w"], d_o=seeds.out, dv=out["dv_local"], gk=slots["gk"],
        scale=scale, h0=True, dht=final, cu_seqlens=cu, use_exp2=inputs.options["use_exp2"],
        round_slots=round_slots,
    )  # fmt: skip


def chain_gradients(
    inputs: KdaInputs, seeds: Cotangents, round_slots: bool = False, wide: bool = True
) -> dict:
    """{"o", "final_state"} and the gradient of every input, named and shaped as the inputs.

    o is token-major. With round_slots each gradient is rounded to its input's type at the end.
    """
    slots = saved_slots(inputs, round_slots, wide)
    stages = slots | backward_stages(inputs, slots, seeds, round_slots)
    last = golden_module("chunk_kda_bwd_finalize").golden(
        **finalize_kwargs(inputs, stages), round_slots=round_slots
    )
    layout = inputs.options["layout"]
    if inputs.options["use_beta_sigmoid_in_kernel"]:
        most = 2.0 if inputs.options["allow_neg_eigval"] else 1.0
        last["dbeta"] = last["dbeta"] * stages["beta_eff"] * (1.0 - stages["beta_eff"] / most)
    grads = {n: from_head_major(last["d" + n], layout) for n in ("q", "k", "v", "g", "beta")}
    for name in ("a_log", "dt_bias"):
        if last["d" + name] is not None:
            grads[name] = last["d" + name].reshape(np.shape(inputs.arrays.get(name, last["d" + name])))
    turn = (lambda x: np.swapaxes(x, -1, -2)) if inputs.state_v_first else (lambda x: x)
    grads["initial_state"] = turn(stages["dh0"])
    if round_slots:
        types = {**inputs.dtypes, "initial_state": inputs.state_dtype}
        grads = {n: to_dtype(x, types.get(n, "float32")) for n, x in grads.items()}
    o = stages["o"][0] if layout in ("NTD", "TND") else stages["o"]
    return {"o": o, "final_state": turn(stages["final_state"])} | grads
