# SPDX-License-Identifier: Apache-2.0
"""The aggregates, and chains of stage operators to compare them with, through the aclnn call on torch tensors."""

from __future__ import annotations

import kda_run
import torch
from kda_inputs import KdaInputs

#: Outputs of the forward that a caller may leave out.
OPTIONAL = (
    "gk", "akk", "w", "u", "qg", "kg", "v_new", "h", "q_hat", "k_hat", "q_rstd", "k_rstd", "beta_eff",
    "final_state",
)  # fmt: skip
FP32 = {"gk", "q_rstd", "k_rstd", "beta_eff", "final_state", "u_wide"}
#: Attributes of prepare; the state and the output take theirs from the chain.
PREPARE_ONLY = {"state_v_first"}


def argument(x: torch.Tensor):
    """A tensor as the aclnn call needs it."""
    from fla_npu import aclnn

    strides = None if x.is_contiguous() else x.stride()
    return aclnn.TensorArg(x.data_ptr(), str(x.dtype).removeprefix("torch."), tuple(x.shape), strides)


def call(op: str, values: dict) -> int:
    """Runs an operator; returns the bytes of workspace it asked for."""
    from fla_npu import aclnn

    sizes = []

    def allocate(size):
        sizes.append(size)
        return aclnn.host_workspace(size)

    aclnn.call(
        op,
        {n: argument(x) if isinstance(x, torch.Tensor) else x for n, x in values.items()},
        allocate=allocate,
    )
    return sizes[0] if sizes else 0


def empty(shape, dtype=torch.bfloat16) -> torch.Tensor:
    """NaN, so that an element nobody wrote cannot pass for a result."""
    return torch.full(shape, float("nan"), dtype=dtype)


def sizes_of(inputs: KdaInputs) -> dict[str, int]:
    """B, T, HK, HV, N, NT of a call."""
    layout = inputs.options["layout"]
    rank3 = layout in ("NTD", "TND")
    heads_axis = {"BNSD": 1, "BSND": 2, "NTD": 0, "TND": 1}[layout]
    token_axis = {"BNSD": 2, "BSND": 1, "NTD": 1, "TND": 0}[layout]
    q, v = inputs.arrays["q"].shape, inputs.arrays["v"].shape
    batch, tokens = 1 if rank3 else q[0], v[token_axis]
    cu = inputs.options.get("cu_seqlens")
    lengths = [b - a for a, b in zip(cu, cu[1:])] if cu else [tokens]
    return {
        "B": batch, "T": tokens, "HK": q[heads_axis], "HV": v[heads_axis],
        "N": len(cu) - 1 if cu else batch, "NT": sum(-(-n // 64) for n in lengths),
    }  # fmt: skip


def forward_shapes(inputs: KdaInputs) -> dict[str, tuple[int, ...]]:
    """Shape of every output of chunk_kda_fwd_v2, by name."""
    n = sizes_of(inputs)
    lead = () if inputs.options["layout"] in ("NTD", "TND") else (n["B"],)
    rows, key_rows = (*lead, n["HV"], n["T"]), (*lead, n["HK"], n["T"])
    shapes = {name: (*rows, 128) for name in ("gk", "w", "u", "qg", "kg", "v_new", "qg_scaled")}
    shapes |= {name: (*rows, 64) for name in ("aqk", "akk")}
    shapes |= {name: (*key_rows, 128) for name in ("q_hat", "k_hat")}
    shapes |= {"q_rstd": key_rows, "k_rstd": key_rows, "beta_eff": rows}
    shapes |= {"attn_out": (*lead, n["T"], n["HV"], 128), "h": (*lead, n["NT"], n["HV"], 128, 128)}
    return shapes | {"final_state": (n["N"], n["HV"], 128, 128)}


def forward_values(inputs: KdaInputs, wanted=OPTIONAL, planes=False) -> tuple[dict, dict]:
    """Inputs and attributes of chunk_kda_fwd_v2, and its outputs, to be filled."""
    shapes = forward_shapes(inputs)
    out = {n: empty(shapes[n], torch.float32 if n in FP32 else torch.bfloat16) for n in ("attn_out", "aqk")}
    for name in wanted:
        lead = (2, *(shapes[name] if len(shapes[name]) == 4 else (1, *shapes[name])))
        shape = lead if name == "v_new" and planes else shapes[name]
        out[name] = empty(shape, torch.float32 if name in FP32 else torch.bfloat16)
    values = kda_run.tensors_of(inputs) | inputs.options
    values["initial_state"] = kda_run.tensor(inputs.initial_state, inputs.state_dtype)
    values["state_v_first"] = inputs.state_v_first
    return values, out


def forward(inputs: KdaInputs, wanted=OPTIONAL, planes=False, **changes) -> dict:
    """chunk_kda_fwd_v2: attn_out, aqk and the `wanted` outputs, by name."""
    values, out = forward_values(inputs, wanted, planes)
    call("chunk_kda_fwd_v2", {**values, **out, **changes})
    return out


def forward_chain(inputs: KdaInputs, planes=False) -> dict:
    """The three stage operators in a row, u in fp32 between the first two; what forward() returns, by name."""
    values, out = forward_values(inputs, planes=planes)
    shapes = forward_shapes(inputs)
    state = values.pop("initial_state")
    v_first = values.pop("state_v_first")
    out |= {"qg_scaled": empty(shapes["qg_scaled"]), "u_wide": empty(shapes["u"], torch.float32)}
    made = {n: out[n] for n in ("gk", "aqk", "akk", "w", "qg", "kg", "qg_scaled", *OPTIONAL[-6:-1])}
    for u in ("u", "u_wide"):
        call("chunk_kda_fwd_prepare", {**values, **made, "u": out[u]})
    lift = (lambda x: x) if out["kg"].dim() == 4 else (lambda x: x[None])
    cu = values.get("cu_seqlens")
    h = lift(out["h"])
    v_new = out["v_new"] if planes else lift(out["v_new"])
    call(
        "chunk_fwd_h",
        {
            "k": lift(out["kg"]), "w": lift(out["w"]), "u": lift(out["u_wide"]), "gk": lift(out["gk"]),
            "initial_state": state, "output_final_state": True, "cu_seqlens": cu,
            "use_exp2": values["use_exp2"], "state_v_first": v_first, "h": h, "v_new": v_new,
            "final_state": out["final_state"],
        },
    )  # fmt: skip
    call(
        "chunk_kda_fwd_finalize",
        {
            "qg_scaled": lift(out["qg_scaled"]), "aqk": lift(out["aqk"]), "h": h,
            "v_new": v_new[0] if planes else v_new, "cu_seqlens": cu, "output_layout": "BSND",
            "state_v_first": v_first, "attn_out": lift(out["attn_out"]),
        },
    )  # fmt: skip
    return {n: x for n, x in out.items() if n not in ("qg_scaled", "u_wide")}


#: What the forward saves for the backward.
SAVED = ("gk", "aqk", "akk", "w", "qg", "kg", "v_new", "h")


def backward_inputs(inputs: KdaInputs, seeds, planes: bool = True) -> tuple[dict, dict]:
    """(tensors and attributes of the backward without what was saved, what was saved) of a head-major call."""
    made = forward(inputs, planes=planes)
    rank3 = inputs.options["layout"] == "NTD"
    tensors, options = kda_run.tensors_of(inputs), inputs.options
    values = {n: tensors.get(n) for n in ("v", "a_log", "dt_bias")} | {"raw_g": tensors["g"]}
    values |= {"q": made["q_hat"], "k": made["k_hat"], "beta": made["beta_eff"]}
    values["d_o"] = kda_run.tensor(seeds.out[0] if rank3 else seeds.out, "bfloat16")
    values["initial_state"] = kda_run.tensor(inputs.initial_state, inputs.state_dtype)
    values["dht"] = kda_run.tensor(seeds.final, "float32")
    values |= {n: options.get(n) for n in ("cu_seqlens", "scale", "use_exp2")}
    values |= {n: options.get(n, False) for n in ("use_gate_in_kernel", "safe_gate")}
    values |= {"lower_bound": options.get("lower_bound", -5.0), "state_v_first": inputs.state_v_first}
    if options["use_qk_l2norm_in_kernel"]:
        values |= {n: made[n] for n in ("q_rstd", "k_rstd")}
    return values, {n: made[n] for n in SAVED}


def gradient_outputs(values: dict, wide: bool = False) -> dict:
    """Gradients to be filled. wide: dq and dk in float32."""
    key = torch.float32 if wide else torch.bfloat16
    out = {n: empty(values[m].shape, key) for n, m in (("dq", "q"), ("dk", "k"))}
    out |= {"dv": empty(values["v"].shape), "dbeta": empty(values["beta"].shape, values["beta"].dtype)}
    out["dg"] = empty(values["raw_g"].shape, torch.float32)
    if values["initial_state"] is not None:
        out["dh0"] = empty(values["initial_state"].shape, values["initial_state"].dtype)
    if values["use_gate_in_kernel"]:
        out["da_log"] = empty(values["a_log"].shape, torch.float32)
        out["ddt_bias"] = empty((values["a_log"].numel(), 128), torch.float32)
    return out


def backward(values: dict, saved: dict | None, op: str = "chunk_kda_bwd_v2", **changes) -> dict:
    """The gradients, from what was saved, or by recompute when that is None."""
    out = gradient_outputs(values, wide=op == "chunk_kda_bwd")
    given = {**values, **(saved or {}), "disable_recompute": saved is not None, **out, **changes}
    if op == "chunk_kda_bwd":
        given = {n: x for n, x in given.items() if n not in ("q_rstd", "k_rstd")}
    call(op, given)
    return {n: x for n, x in out.items() if changes.get(n, x) is not None}


def backward_chain(values: dict, saved: dict, **changes) -> dict:
    """The three backward stage operators in a row."""
    bare = values["q"].dim() == 3
    lift = (lambda x: x[None]) if bare else (lambda x: x)
    meta = {n: values[n] for n in ("cu_seqlens", "scale", "state_v_first")}
    v_new = saved["v_new"]
    plane = v_new if v_new.dim() == values["v"].dim() else (v_new[0, 0] if bare else v_new[0])
    made = {"d_aqk": empty(saved["aqk"].shape, torch.float32), "dv_local": empty(values["v"].shape)}
    made["dq_raw"] = empty(saved["w"].shape, torch.float32)
    call(
        "chunk_kda_bwd_prepare",
        {"aqk": saved["aqk"], "v_new": plane, "d_o": values["d_o"], "h": saved["h"], **meta, **made},
    )
    out = gradient_outputs(values)
    dh, dv2 = empty(saved["h"].shape), empty(values["v"].shape)
    relay = {"q": saved["qg"], "k": saved["kg"], "w": saved["w"], "gk": saved["gk"], "d_o": values["d_o"]}
    relay |= {"dv": made["dv_local"], "dh": dh, "dv2": dv2}
    relay = {n: lift(x) for n, x in relay.items()}
    relay |= {"h0": values["initial_state"], "dht": values["dht"], "dh0": out.get("dh0")}
    call("chunk_gated_delta_rule_bwd_dhu", {**relay, **meta, "use_exp2": values["use_exp2"]})
    last = {n: x for n, x in values.items() if n not in ("d_o", "initial_state", "dht")}
    last |= {"gk": saved["gk"], "akk": saved["akk"], "v_new": v_new, "h": saved["h"], "dh": dh}
    last |= {"dv_scan": dv2, "d_aqk": made["d_aqk"], "dq_raw": made["dq_raw"]}
    call("chunk_kda_bwd_finalize", {**last, **{n: x for n, x in out.items() if n != "dh0"}, **changes})
    return out
