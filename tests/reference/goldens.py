# SPDX-License-Identifier: Apache-2.0
"""The operators' golden models, loaded from their folders, and the three of them as one forward pass."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np

ROOT = Path(__file__).resolve().parents[2]

#: Outputs that Prepare publishes in each mode; the other slots are None.
MODE_SLOTS = {"none": ("gk", "aqk", "w", "u", "kg", "qg_scaled")}
MODE_SLOTS["forward"] = (*MODE_SLOTS["none"], "akk")
MODE_SLOTS["recompute"] = (*MODE_SLOTS["forward"], "q_hat", "k_hat", "q_rstd", "k_rstd", "beta_eff")
MODE_SLOTS["save"] = (*MODE_SLOTS["recompute"], "qg")

#: Order of Prepare's thirteen-tuple.
PREPARE_SLOTS = (
    "gk", "aqk", "akk", "w", "u", "qg", "kg", "qg_scaled", "q_hat", "k_hat", "q_rstd", "k_rstd", "beta_eff",
)  # fmt: skip


@cache
def golden_module(op: str) -> ModuleType:
    """The module `ascendc/ops/<op>/golden.py`."""
    path = ROOT / "ascendc" / "ops" / op / "golden.py"
    spec = importlib.util.spec_from_file_location(f"golden_{op}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def forward_golden(
    inputs: dict,
    *,
    initial_state=None,
    state_v_first: bool = False,
    output_layout: str = "BSND",
    round_slots: bool = False,
) -> dict:
    """Prepare, chunk_fwd_h and finalize golden models in a row.

    inputs: keyword arguments of Prepare's golden. Returns every stage output, all head-major and of rank 4,
    plus `o` in `output_layout` (BSND or BNSD) and `final_state`.
    """
    stages = golden_module("chunk_kda_fwd_prepare").golden(**inputs, round_slots=round_slots)
    if inputs.get("layout", "BSND") in ("NTD", "TND"):
        stages = {name: x[None] for name, x in stages.items()}
    cu_seqlens = inputs.get("cu_seqlens")
    stages |= golden_module("chunk_fwd_h").golden(
        k=stages["kg"], w=stages["w"], u=stages["u"], gk=stages["gk"], initial_state=initial_state,
        cu_seqlens=cu_seqlens, use_exp2=inputs.get("use_exp2", True), state_v_first=state_v_first,
        round_slots=round_slots,
    )  # fmt: skip
    final = golden_module("chunk_kda_fwd_finalize").golden(
        qg_scaled=stages["qg_scaled"], aqk=stages["aqk"], v_new=stages["v_new"], h=stages["h"],
        cu_seqlens=cu_seqlens, output_layout=output_layout, state_v_first=state_v_first,
        round_slots=round_slots,
    )  # fmt: skip
    return stages | {"o": final["attn_out"]}


def relative_l2(got: np.ndarray, want: np.ndarray) -> float:
    """||got - want|| / ||want|| in float64; 0 / 0 is 0."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    error, size = np.linalg.norm(got - want), np.linalg.norm(want)
    return float(error / size) if size > 0 else (0.0 if error == 0 else float("inf"))
