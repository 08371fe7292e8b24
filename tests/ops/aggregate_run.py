# SPDX-License-Identifier: Apache-2.0
"""The aggregates, and chains of stage operators to compare them with, through the aclnn call on torch tensors."""

from __future__ import annotations

import itertools

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
    lengths = [b - a for a, b in itertools.pairwise(cu)] if cu else [tokens]
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
