# SPDX-License-Identifier: Apache-2.0
"""Which operators a call of npu_chunk_kda runs.

Two ways lead to the same numbers, up to one bfloat16 rounding: the chain of stages, one operator
each, and the aggregates, one operator forward and one backward. Hyper-Parallel's rule chooses:

    safe_gate and use_gate_in_kernel and use_exp2 and a_log given             -> stages
    initial_state given, or disable_recompute=False, or state_v_first=True    -> stages
    everything else                                                          -> aggregates

The aggregates are taken only from an OPP that has both.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from .. import loader
from ..errors import SymbolMissing
from ..spec import names

__all__ = ["AGGREGATES", "BACKWARD", "FORWARD", "Route", "aggregates_missing", "explain_route", "rule"]

FORWARD = ("chunk_kda_fwd_prepare", "chunk_fwd_h", "chunk_kda_fwd_finalize")
BACKWARD = ("chunk_kda_bwd_prepare", "chunk_gated_delta_rule_bwd_dhu", "chunk_kda_bwd_finalize")
AGGREGATES = ("chunk_kda_fwd_v2", "chunk_kda_bwd_v2")


class Route(NamedTuple):
    """The operators of a call in the order they are launched, and why these."""

    name: str  # 'stages' or 'aggregates'
    forward: tuple[str, ...]
    backward: tuple[str, ...]
    reason: str


def rule(
    safe_gate: bool, use_gate_in_kernel: bool, use_exp2: bool, a_log, initial_state, disable_recompute: bool,
    state_v_first: bool,
) -> tuple[str, str]:  # fmt: skip
    """(name, reason) by the arguments alone."""
    if safe_gate and use_gate_in_kernel and use_exp2 and a_log is not None:
        return "stages", "safe_gate with the raw gate"
    for asked, reason in (
        (initial_state is not None, "initial_state is given"),
        (not disable_recompute, "disable_recompute=False"),
        (state_v_first, "state_v_first=True"),
    ):
        if asked:
            return "stages", reason
    return "aggregates", "no safe raw gate, no initial_state, nothing to recompute, states K-first"


@lru_cache(maxsize=4)
def _missing(_opened: tuple) -> str:
    """'' when both aggregates can be called, else what is missing. Asked once per set of libraries."""
    for op in AGGREGATES:
        if op not in names():
            return f"this version has no operator {op}"
        try:
            loader.bind(op)
        except SymbolMissing:
            return f"the OPP in use lacks {op}"
    return ""


def aggregates_missing() -> str:
    """'' when the OPP in use has both aggregates, else what is missing."""
    return _missing(loader.libraries())


def explain_route(
    q=None, k=None, v=None, g=None, beta=None, scale=None, chunk_size=64, *, layout="BNSD",
    output_final_state=False, safe_gate=False, lower_bound=-5.0, use_gate_in_kernel=True, a_log=None,
    dt_bias=None, cu_seqlens=None, chunk_indices=None, initial_state=None, disable_recompute=True,
    state_v_first=False, epsilon=1e-6, use_qk_l2norm_in_kernel=False, use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False, use_exp2=True,
) -> Route:  # fmt: skip
    """What npu_chunk_kda with the same arguments runs on the OPP in use.

    Only safe_gate, use_gate_in_kernel, use_exp2, disable_recompute, state_v_first, and whether a_log and
    initial_state are given, decide; the rest may be left out.
    """
    name, reason = rule(
        safe_gate, use_gate_in_kernel, use_exp2, a_log, initial_state, disable_recompute, state_v_first
    )
    if name == "aggregates":
        missing = aggregates_missing()
        if not missing:
            return Route(name, AGGREGATES[:1], AGGREGATES[1:], reason)
        name, reason = "stages", f"{reason}; but {missing}"
    again = () if disable_recompute else FORWARD[:2]
    return Route(name, FORWARD, (*again, *BACKWARD), reason)
