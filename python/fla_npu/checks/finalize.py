# SPDX-License-Identifier: Apache-2.0
"""Rules of chunk_kda_fwd_finalize.

The state relay h is rank 5 also where the tokens are rank 3, so that one producer serves both.
"""

from __future__ import annotations

from ..spec import spec
from .common import Binder, Desc, Plan, flag, one_of, remembered
from .metadata import read_chunk_indices, read_cu_seqlens

__all__ = ["plan_finalize"]

OP = "chunk_kda_fwd_finalize"


def plan_finalize(
    qg_scaled: Desc | None,
    aqk: Desc | None,
    v_new: Desc | None,
    h: Desc | None,
    *,
    output_layout: str = "BSND",
    state_v_first: bool = False,
    cu_seqlens=None,
    chunk_indices=None,
    label: str = OP,
) -> Plan:
    """Validates a call and says what to allocate. `label` is the function named in messages."""
    key = (label, (qg_scaled, aqk, v_new), output_layout, state_v_first)
    attrs, static = _static(*key)
    letters = static.letters
    cu = read_cu_seqlens(label, cu_seqlens, letters["T"], letters.get("B"))
    indices = read_chunk_indices(label, chunk_indices, cu)
    letters, outputs = _sized(key, h, *static.counts(cu))
    return Plan(OP, attrs, {"cu_seqlens": cu, "chunk_indices": indices}, outputs, letters)


@remembered
def _sized(key: tuple, h, sequences: int, chunks: int, packed: bool) -> tuple[dict, tuple]:
    """h is checked last: how many chunks it must have follows from the offsets."""
    bound = _static(*key)[1].fork()
    bound.set_counts(sequences, chunks, packed)
    bound.bind("h", h)
    return bound.letters, (bound.output("attn_out"),)


@remembered
def _static(label, tensors, output_layout, state_v_first) -> tuple[dict, Binder]:
    """Everything that does not depend on the metadata."""
    op = spec(OP)
    one_of(label, "output_layout", output_layout, op.param("output_layout").values)
    attrs = {
        "output_layout": output_layout,
        "state_v_first": flag(label, "state_v_first", state_v_first),
    }
    bound = Binder(label, op, output_layout)
    for name, desc in zip(("qg_scaled", "aqk", "v_new"), tensors):
        bound.bind(name, desc)
    return attrs, bound
