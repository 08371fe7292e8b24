# SPDX-License-Identifier: Apache-2.0
"""Rules of chunk_fwd_h, and of the boundary state wherever it is taken.

K and V are equal here, so [K, V] and [V, K] states cannot be told apart by shape: `state_v_first`
alone says which one it is.
"""

from __future__ import annotations

from ..errors import ArgumentError, ArgumentTypeError
from ..spec import spec
from .common import CAST_HINT, Binder, Desc, Plan, flag, only, remembered
from .metadata import read_chunk_indices, read_cu_seqlens

__all__ = ["check_state", "plan_fwd_h"]

OP = "chunk_fwd_h"


def plan_fwd_h(
    k: Desc | None,
    w: Desc | None,
    u: Desc | None,
    *,
    g: Desc | None = None,
    gk: Desc | None = None,
    initial_state: Desc | None = None,
    output_final_state: bool = False,
    chunk_size: int = 64,
    save_new_value: bool = True,
    cu_seqlens=None,
    chunk_indices=None,
    use_exp2: bool = False,
    state_v_first: bool = False,
    wide_relay: bool = False,
    label: str = OP,
) -> Plan:
    """Validates a call and says what to allocate. `label` is the function named in messages.

    `wide_relay`: v_new is [2, B, HV, T, V]; the planes add up to it, and plane 0 alone is the ABI's.
    """
    key = (
        label, (k, w, u, g, gk), output_final_state, chunk_size, save_new_value, use_exp2, state_v_first,
        wide_relay,
    )  # fmt: skip
    attrs, static = _static(*key)
    letters = static.letters
    cu = read_cu_seqlens(label, cu_seqlens, letters["T"], letters["B"])
    indices = read_chunk_indices(label, chunk_indices, cu)
    letters, outputs = _sized(key, initial_state, *static.counts(cu))
    return Plan(OP, attrs, {"cu_seqlens": cu, "chunk_indices": indices}, outputs, letters)


@remembered
def _static(
    label, tensors, output_final_state, chunk_size, save_new_value, use_exp2, state_v_first, wide_relay
) -> tuple[dict, Binder]:
    """Everything that does not depend on the metadata."""
    attrs = {
        "output_final_state": flag(label, "output_final_state", output_final_state),
        "chunk_size": only(label, "chunk_size", chunk_size, 64, "the kernels work on chunks of 64 rows"),
        "save_new_value": only(label, "save_new_value", save_new_value, True, "v_new is always written"),
        "use_exp2": flag(label, "use_exp2", use_exp2),
        "state_v_first": flag(label, "state_v_first", state_v_first),
    }
    bound = Binder(label, spec(OP))
    k, w, u, g, gk = tensors
    for name, desc in (("k", k), ("w", w), ("u", u), ("g", g)):
        bound.bind(name, desc)
    if gk is None:
        raise ArgumentTypeError(
            f"{label}: gk is None; pass the cumulative decay (first output of chunk_kda_fwd_prepare)"
        )
    bound.bind("gk", gk)
    return attrs, bound


@remembered
def _sized(key: tuple, initial_state, sequences: int, chunks: int, packed: bool) -> tuple[dict, tuple]:
    """What follows once the offsets have said how many sequences and chunks there are."""
    attrs, static = _static(*key)
    bound = static.fork()
    bound.set_counts(sequences, chunks, packed)
    bound.bind("initial_state", initial_state)
    # The final state keeps the type of the state it started from.
    state_dtype = initial_state.dtype if initial_state is not None else "float32"
    last = bound.output("final_state", state_dtype) if attrs["output_final_state"] else None
    v_new = bound.output("v_new", rank=5 if key[-1] else 4)
    return bound.letters, (bound.output("h"), v_new, last)


def check_state(
    label: str, state: Desc | None, sequences: int, heads: int, v_first: bool, device: str
) -> None:
    """The initial state of a composed call, checked before its first stage is launched."""
    if state is None:
        return
    if state.dtype not in ("float32", "bfloat16"):
        raise ArgumentTypeError(
            f"{label}: initial_state has dtype {state.dtype}; it must be float32 or bfloat16. "
            f"Cast it first: {CAST_HINT.format('initial_state', 'float32')}"
        )
    want = (sequences, heads, 128, 128)
    if tuple(state.shape) != want:
        letters = "[N, HV, V, K]" if v_first else "[N, HV, K, V]"
        raise ArgumentError(
            f"{label}: initial_state has shape {tuple(state.shape)}; it must be {letters} = {list(want)} "
            "(one state per sequence and value head)"
        )
    if state.device != device:
        raise ArgumentError(
            f"{label}: initial_state is on device '{state.device}', but q is on '{device}'; move them "
            "to one device"
        )
