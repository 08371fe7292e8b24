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

__all__ = ["AGGREGATES", "BACKWARD", "FORWARD", "Route", "explain_route", "rule"]

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
    *, safe_gate=False, use_gate_in_kernel=True, use_exp2=True, a_log=None, initial_state=None,
    disable_recompute=True, state_v_first=False, **_,
) -> tuple[str, str]:  # fmt: skip
    """(name, reason) by the arguments alone. Takes the options of npu_chunk_kda and ignores the rest."""
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
def _missing(_opp: object) -> str:
    """'' when both aggregates can be called, else what is missing. Asked once per OPP."""
    for op in AGGREGATES:
        if op not in names():
            return f"this version has no operator {op}"
        try:
            loader.bind(op)
        except SymbolMissing:
            return f"the OPP in use lacks {op}"
    return ""


def explain_route(**options) -> Route:
    """What npu_chunk_kda runs for these options (its keywords; tensors that do not decide may be left out)."""
    name, reason = rule(**options)
    if name == "aggregates":
        missing = _missing(loader.current())
        if not missing:
            return Route(name, AGGREGATES[:1], AGGREGATES[1:], reason)
        name, reason = "stages", f"{reason}; but {missing}"
    again = () if options.get("disable_recompute", True) else FORWARD[:2]
    return Route(name, FORWARD, (*again, *BACKWARD), reason)
