# SPDX-License-Identifier: Apache-2.0
"""chunk_kda_bwd_v2 in float64 NumPy: the golden models of its stages, in a row.

    prepare, state   gk, aqk, akk, w, qg, kg, v_new, h        only with recompute
    output_grad      d_aqk, dv_local, dq_raw
    state_grad       dh, dv_scan, dh0
    chunk_grad       dq, dk, dv, dbeta, dg, da_log, ddt_bias

A recompute rounds nothing that the forward would not round: the state gets u as it is.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import numpy as np

#: The only list of shapes for this operator; all are head-major. Keys as in the forward's cases.
CASES = {
    "one_row": {"T": 1, "state": "float32"},
    "one_chunk": {"T": 64, "HK": 2, "HV": 2, "l2norm": True},
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
    "grouped": {"T": 130, "HK": 2, "HV": 6, "gate": "softplus", "state": "float32"},
    "natural": {
        "T": 79,
        "HV": 3,
        "gate": "softplus",
        "use_exp2": False,
        "l2norm": True,
    },
    "packed_empty": {
        "cu": [0, 0, 5, 5, 70, 70],
        "HV": 2,
        "layout": "NTD",
        "l2norm": True,
        "gate": "bounded",
        "state": "float32",
        "state_v_first": True,
    },
    "packed_rank4": {
        "cu": [0, 63, 64, 130],
        "HV": 1,
        "gate": "softplus",
        "no_bias": True,
    },
    "bf16_inputs": {
        "T": 70,
        "HK": 1,
        "HV": 2,
        "g_dtype": "bfloat16",
        "state": "bfloat16",
        "gate": "bounded",
    },
}


@cache
def _stage(op: str):
    """The golden function of a stage operator, whose folder lies beside this one."""
    path = Path(__file__).resolve().parents[1] / op / "golden.py"
    spec = importlib.util.spec_from_file_location(f"stage_{op}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.golden


def _forward(c: dict, gate: dict, lift, drop, round_slots: bool) -> dict:
    """What the forward saves, from the inputs of the backward."""
    prepare = _stage("chunk_kda_fwd_prepare")
    inputs = {
        n: c[n]
        for n in (
            "q",
            "k",
            "v",
            "beta",
            "a_log",
            "dt_bias",
            "cu_seqlens",
            "scale",
            "use_exp2",
        )
    }
    inputs |= {
        **gate,
        "g": c["raw_g"],
        "layout": "NTD" if np.ndim(c["q"]) == 3 else "BNSD",
    }
    exact = prepare(**inputs)
    made = prepare(**inputs, round_slots=True) if round_slots else exact
    state = _stage("chunk_fwd_h")(
        k=lift(made["kg"]), w=lift(made["w"]), u=lift(exact["u"]), gk=lift(made["gk"]),
        initial_state=c["initial_state"], cu_seqlens=c["cu_seqlens"], use_exp2=c["use_exp2"],
        state_v_first=c["state_v_first"], round_slots=round_slots,
    )  # fmt: skip
    return made | {n: drop(state[n]) for n in ("h", "v_new")}


def golden(
    *, q, k, v, beta, d_o, raw_g, scale, gk=None, aqk=None, akk=None, w=None, qg=None, kg=None, v_new=None,
    h=None, a_log=None, dt_bias=None, initial_state=None, dht=None, cu_seqlens=None, safe_gate=True,
    use_gate_in_kernel=False, lower_bound=-5.0, disable_recompute=True, use_exp2=True, state_v_first=False,
    q_rstd=None, k_rstd=None, round_slots=False,
):  # fmt: skip
    """dq, dk, dv, dbeta, dg, dh0 (None without initial_state), da_log, ddt_bias (None without a gate).

    Inputs: q, k (as the scores saw them) [B, HK, T, K]; v, d_o [B, HV, T, V]; raw_g [B, HV, T, K]; beta
    (effective) [B, HV, T]; what the forward saved, or, with disable_recompute false, None. Rank 3 drops B.
    round_slots: round what the stages publish to its type.
    """
    c = dict(locals())
    rank3 = np.ndim(q) == 3
    lift = (lambda x: np.asarray(x)[None]) if rank3 else np.asarray
    drop = (lambda x: x[0]) if rank3 else (lambda x: x)
    gate = {n: c[n] for n in ("use_gate_in_kernel", "safe_gate", "lower_bound")}
    if disable_recompute:
        made = {n: c[n] for n in ("gk", "aqk", "akk", "w", "qg", "kg", "v_new", "h")}
    else:
        made = _forward(c, gate, lift, drop, round_slots)
    meta = {"scale": scale, "cu_seqlens": cu_seqlens, "state_v_first": state_v_first}
    planes = np.ndim(made["v_new"]) == 5
    if planes and rank3:
        made["v_new"] = np.asarray(made["v_new"])[:, 0]
    plane = made["v_new"][0] if planes else made["v_new"]
    made |= _stage("chunk_kda_bwd_prepare")(
        aqk=made["aqk"], v_new=plane, d_o=d_o, h=made["h"], layout="NTD" if rank3 else "BNSD",
        round_slots=round_slots, **meta,
    )  # fmt: skip
    state = _stage("chunk_gated_delta_rule_bwd_dhu")(
        q=lift(made["qg"]), k=lift(made["kg"]), w=lift(made["w"]), d_o=lift(d_o), dv=lift(made["dv_local"]),
        gk=lift(made["gk"]), h0=initial_state, dht=dht, use_exp2=use_exp2, round_slots=round_slots, **meta,
    )  # fmt: skip
    out = _stage("chunk_kda_bwd_finalize")(
        q=q, k=k, v=v, raw_g=raw_g, beta=beta, a_log=a_log, dt_bias=dt_bias, akk=made["akk"],
        v_new=made["v_new"], h=made["h"], dh=drop(state["dh"]), dv_scan=drop(state["dv2"]),
        d_aqk=made["d_aqk"], dq_raw=made["dq_raw"], q_rstd=q_rstd, k_rstd=k_rstd, use_exp2=use_exp2,
        output_layout="NTD" if rank3 else "BNSD", round_slots=round_slots, **gate, **meta,
    )  # fmt: skip
    return out | {"dh0": state["dh0"]}
