# SPDX-License-Identifier: Apache-2.0
"""chunk_kda_fwd_v2 in float64 NumPy: the golden models of its three stages, in a row.

    prepare   gk, aqk, akk, w, u, qg, kg, qg_scaled, q_hat, k_hat, q_rstd, k_rstd, beta_eff
    state     h, v_new, final_state
    output    attn_out

u reaches the state unrounded, as in the kernel.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

#: The only list of shapes for this operator. Keys absent from a case take the defaults of the tests' input
#: builder: HK = HV = 1, layout BNSD, no gate in the kernel, dense, no initial state.
CASES = {
    "one_row": {"T": 1},
    "one_chunk": {"T": 64, "HK": 2, "HV": 2, "l2norm": True, "state": "float32"},
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
    "grouped": {"T": 130, "HK": 2, "HV": 6, "gate": "softplus", "beta": "negative", "state": "float32"},
    "natural": {"T": 79, "HV": 3, "layout": "BSND", "gate": "softplus", "use_exp2": False},
    "packed": {
        "cu": [0, 15, 100, 228],
        "HK": 2,
        "HV": 4,
        "layout": "TND",
        "gate": "bounded",
        "l2norm": True,
        "state": "float32",
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
    "packed_rank4": {"cu": [0, 63, 64, 130], "HV": 1, "gate": "softplus", "no_bias": True},
    "v_first": {"T": 150, "HV": 2, "state": "float32", "state_v_first": True},
    "bf16_inputs": {
        "T": 70,
        "HK": 1,
        "HV": 2,
        "layout": "TND",
        "g_dtype": "bfloat16",
        "beta_dtype": "bfloat16",
        "state": "bfloat16",
    },
    "resets": {"T": 200, "HV": 2, "mask": 0.1, "state": "float32"},
}


@cache
def _stage(op: str):
    """The golden module of a stage operator, whose folder lies beside this one."""
    path = Path(__file__).resolve().parents[1] / op / "golden.py"
    spec = importlib.util.spec_from_file_location(f"stage_{op}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def golden(*, initial_state=None, state_v_first=False, round_slots=False, **inputs):
    """All outputs: head-major and of the rank of the input, but attn_out, which is token-major.

    Inputs: those of the prepare stage in `layout`, and initial_state [N, HV, K, V]; with state_v_first the
    last two axes of initial_state, h and final_state are swapped.
    round_slots: round what the stages publish.
    """
    rank3 = inputs.get("layout", "BSND") in ("NTD", "TND")
    drop, lift = ((lambda x: x[0]), (lambda x: x[None])) if rank3 else ((lambda x: x), (lambda x: x))
    prepare = _stage("chunk_kda_fwd_prepare").golden
    exact = prepare(**inputs)
    out = prepare(**inputs, round_slots=True) if round_slots else dict(exact)
    relay = {name: lift(out[name]) for name in ("kg", "w", "gk", "qg_scaled", "aqk")}
    cu_seqlens = inputs.get("cu_seqlens")
    state = _stage("chunk_fwd_h").golden(
        k=relay["kg"], w=relay["w"], u=lift(exact["u"]), gk=relay["gk"], initial_state=initial_state,
        cu_seqlens=cu_seqlens, use_exp2=inputs.get("use_exp2", True), state_v_first=state_v_first,
        round_slots=round_slots,
    )  # fmt: skip
    final = _stage("chunk_kda_fwd_finalize").golden(
        qg_scaled=relay["qg_scaled"], aqk=relay["aqk"], v_new=state["v_new"], h=state["h"],
        cu_seqlens=cu_seqlens, output_layout="BSND", state_v_first=state_v_first, round_slots=round_slots,
    )  # fmt: skip
    out |= {"v_new": drop(state["v_new"]), "h": drop(state["h"]), "final_state": state["final_state"]}
    return out | {"attn_out": drop(final["attn_out"])}
