# SPDX-License-Identifier: Apache-2.0
"""Rules of the three backward operators.

Their C layer tells layouts apart by rank: rank 4 with a batch axis, rank 3 without. `layout` is a
word of the Python layer only, and must agree with the rank.
"""

from __future__ import annotations

from ..errors import ArgumentError, ArgumentTypeError
from ..spec import spec
from .common import Binder, Desc, Plan, finite, flag, one_of, only, remembered
from .metadata import read_chunk_indices, read_cu_seqlens
from .prepare import bound_of_gate, check_gate, check_groups

__all__ = ["one_rank", "plan_backward_finalize", "plan_backward_prepare", "plan_dhu"]

PREPARE = "chunk_kda_bwd_prepare"
DHU = "chunk_gated_delta_rule_bwd_dhu"
FINALIZE = "chunk_kda_bwd_finalize"
_CHUNK_RULE = "the kernels work on chunks of 64 rows"


def _metadata(label: str, bound: Binder, cu_seqlens, chunk_indices) -> dict:
    letters = bound.letters
    cu = read_cu_seqlens(label, cu_seqlens, letters["T"], letters.get("B"))
    return {"cu_seqlens": cu, "chunk_indices": read_chunk_indices(label, chunk_indices, cu)}


def _layout(label: str, name: str, layout, words: tuple[str, ...], first: str, desc: Desc | None) -> None:
    """A layout word, and the rank it stands for."""
    one_of(label, name, layout, words)
    rank = 3 if layout in ("NTD", "TND") else 4
    if desc is not None and len(desc.shape) != rank and len(desc.shape) in (3, 4):
        fitting = [word for word in words if (word in ("NTD", "TND")) is (len(desc.shape) == 3)]
        raise ArgumentError(
            f"{label}: {first} has shape {tuple(desc.shape)} (rank {len(desc.shape)}), but {name} = "
            f"'{layout}' is of rank {rank}; rank {len(desc.shape)} is {fitting}"
        )


def one_rank(label: str, tensors: dict[str, Desc | None], rank: int, first: str) -> None:
    """Inputs with a token axis all have a batch axis, or none has."""
    for name, desc in tensors.items():
        if desc is not None and len(desc.shape) != rank:
            raise ArgumentError(
                f"{label}: {name} has shape {tuple(desc.shape)} (rank {len(desc.shape)}), but it must be of "
                f"rank {rank}, because {first} has {'a' if rank >= 4 else 'no'} batch axis"
            )


def plan_backward_prepare(
    aqk: Desc | None,
    v_new: Desc | None,
    d_o: Desc | None,
    h: Desc | None,
    *,
    scale: float,
    layout: str = "BNSD",
    chunk_size: int = 64,
    state_v_first: bool = False,
    cu_seqlens=None,
    chunk_indices=None,
    label: str = PREPARE,
) -> Plan:
    """Validates a call and says what to allocate. `label` is the function named in messages."""
    key = (label, (aqk, v_new, d_o), scale, layout, chunk_size, state_v_first)
    attrs, static = _prepare_static(*key)
    ints = _metadata(label, static, cu_seqlens, chunk_indices)
    letters, outputs = _prepare_sized(key, h, *static.counts(ints["cu_seqlens"]))
    return Plan(PREPARE, attrs, ints, outputs, letters)


@remembered
def _prepare_static(label, tensors, scale, layout, chunk_size, state_v_first) -> tuple[dict, Binder]:
    """Everything that does not depend on the metadata."""
    aqk, v_new, d_o = tensors
    _layout(label, "layout", layout, ("BNSD", "NTD"), "aqk", aqk)
    attrs = {
        "scale": finite(label, "scale", scale),
        "chunk_size": only(label, "chunk_size", chunk_size, 64, _CHUNK_RULE),
        "state_v_first": flag(label, "state_v_first", state_v_first),
    }
    bound = Binder(label, spec(PREPARE))
    bound.bind("aqk", aqk)
    one_rank(label, {"v_new": v_new, "d_o": d_o}, len(aqk.shape), "aqk")
    bound.bind("v_new", v_new)
    bound.bind("d_o", d_o)
    return attrs, bound


@remembered
def _prepare_sized(key: tuple, h, sequences: int, chunks: int, packed: bool) -> tuple[dict, tuple]:
    """h is checked last: how many chunks it must have follows from the offsets."""
    label, tensors = key[:2]
    bound = _prepare_static(*key)[1].fork()
    bound.set_counts(sequences, chunks, packed)
    if h is not None:
        one_rank(label, {"h": h}, len(tensors[0].shape) + 1, "aqk")
    bound.bind("h", h)
    return bound.letters, tuple(bound.output(name) for name in ("d_aqk", "dv_local", "dq_raw"))


def plan_dhu(
    q: Desc | None,
    k: Desc | None,
    w: Desc | None,
    d_o: Desc | None,
    dv: Desc | None,
    *,
    g: Desc | None = None,
    gk: Desc | None = None,
    h0: Desc | None = None,
    dht: Desc | None = None,
    scale: float,
    chunk_size: int = 64,
    cu_seqlens=None,
    chunk_indices=None,
    use_exp2: bool = False,
    state_v_first: bool = False,
    gk_name: str = "gk",
    state_flag: str = "state_v_first",
    label: str = DHU,
) -> Plan:
    """Validates a call and says what to allocate. The two names are those of the caller's signature."""
    key = (
        label, (q, k, w, d_o, dv, g, gk), scale, chunk_size, use_exp2, state_v_first, gk_name, state_flag,
    )  # fmt: skip
    attrs, static = _dhu_static(*key)
    ints = _metadata(label, static, cu_seqlens, chunk_indices)
    letters, outputs = _dhu_sized(key, h0, dht, *static.counts(ints["cu_seqlens"]))
    return Plan(DHU, attrs, ints, outputs, letters)


@remembered
def _dhu_static(
    label, tensors, scale, chunk_size, use_exp2, state_v_first, gk_name, state_flag
) -> tuple[dict, Binder]:
    """Everything that does not depend on the metadata."""
    attrs = {
        "scale": finite(label, "scale", scale),
        "chunk_size": only(label, "chunk_size", chunk_size, 64, _CHUNK_RULE),
        "use_exp2": flag(label, "use_exp2", use_exp2),
        "state_v_first": flag(label, state_flag, state_v_first),
    }
    bound = Binder(label, spec(DHU))
    q, k, w, d_o, dv, g, gk = tensors
    for name, desc in (("q", q), ("k", k), ("w", w), ("d_o", d_o), ("dv", dv), ("g", g)):
        bound.bind(name, desc)
    if gk is None:
        raise ArgumentTypeError(
            f"{label}: {gk_name} is None; pass the cumulative decay (first output of chunk_kda_fwd_prepare)"
        )
    bound.bind("gk", gk)
    return attrs, bound


@remembered
def _dhu_sized(key: tuple, h0, dht, sequences: int, chunks: int, packed: bool) -> tuple[dict, tuple]:
    """What follows once the offsets have said how many sequences and chunks there are."""
    bound = _dhu_static(*key)[1].fork()
    bound.set_counts(sequences, chunks, packed)
    bound.bind("h0", h0)
    bound.bind("dht", dht)
    # The gradient of a state has the type of the state; without a state nobody asks for it.
    dh0 = bound.output("dh0", h0.dtype) if h0 is not None else None
    return bound.letters, (bound.output("dh"), dh0, bound.output("dv2"))


# Inputs with a token axis and one more.
_ROWS = ("v", "gk", "raw_g", "akk", "dv_scan", "d_aqk", "dq_raw")


def plan_backward_finalize(
    tensors: dict[str, Desc | None],
    *,
    scale: float,
    lower_bound: float | None = -5.0,
    chunk_size: int = 64,
    safe_gate: bool = True,
    use_gate_in_kernel: bool = True,
    use_exp2: bool = True,
    state_v_first: bool = False,
    cu_seqlens=None,
    chunk_indices=None,
    output_layout: str = "BNSD",
    label: str = FINALIZE,
) -> Plan:
    """Validates a call and says what to allocate. `tensors` has every input of the contract by name."""
    key = (
        label, tuple(tensors.items()), scale, lower_bound, chunk_size, safe_gate, use_gate_in_kernel,
        use_exp2, state_v_first, output_layout,
    )  # fmt: skip
    attrs, static, casts = _finalize_static(*key)
    ints = _metadata(label, static, cu_seqlens, chunk_indices)
    letters, outputs = _finalize_sized(key, *static.counts(ints["cu_seqlens"]))
    return Plan(FINALIZE, attrs, ints, outputs, letters, casts)


@remembered
def _finalize_static(
    label, items, scale, lower_bound, chunk_size, safe_gate, gate_in_kernel, use_exp2, v_first, output_layout
) -> tuple[dict, Binder, dict]:
    """Everything that does not depend on the metadata.

    Ranks first: a batch axis too many or too few would make every other shape look wrong.
    """
    t = dict(items)
    q = t["q"]
    _layout(label, "output_layout", output_layout, ("BNSD", "BSND", "NTD", "TND"), "q", q)
    attrs = {
        "scale": finite(label, "scale", scale),
        "lower_bound": bound_of_gate(label, lower_bound),
        "chunk_size": only(label, "chunk_size", chunk_size, 64, _CHUNK_RULE),
        "safe_gate": flag(label, "safe_gate", safe_gate),
        "use_gate_in_kernel": flag(label, "use_gate_in_kernel", gate_in_kernel),
        "use_exp2": flag(label, "use_exp2", use_exp2),
        "state_v_first": flag(label, "state_v_first", v_first),
    }
    check_gate(label, gate_in_kernel, safe_gate, t["a_log"], t["dt_bias"])
    bound = Binder(label, spec(FINALIZE))
    bound.bind("q", q)
    rank = len(q.shape)
    one_rank(label, {n: t[n] for n in ("k", *_ROWS)}, rank, "q")
    one_rank(label, {n: t[n] for n in ("beta", "q_rstd", "k_rstd")}, rank - 1, "q")
    for name in ("k", "v", "gk", "raw_g", "beta"):
        bound.bind(name, t[name])
    check_groups(label, bound.letters)
    v_new = t["v_new"]
    # Of rank 5 it is the pair of planes, which always have a batch axis.
    if v_new is not None and len(v_new.shape) != 5:
        one_rank(label, {"v_new": v_new}, rank, "q")
    for name in ("a_log", "akk", "v_new", "dv_scan", "d_aqk", "dq_raw", "q_rstd", "k_rstd"):
        bound.bind(name, t[name])
    bound.bind("dt_bias", t["dt_bias"], ("bfloat16",))
    for given, absent in (("q_rstd", "k_rstd"), ("k_rstd", "q_rstd")):
        if t[given] is not None and t[absent] is None:
            raise ArgumentError(
                f"{label}: {given} is given without {absent}; pass both (q and k were normalised) or neither"
            )
    bias = t["dt_bias"]
    return attrs, bound, {"dt_bias": "float32"} if bias is not None and bias.dtype != "float32" else {}


@remembered
def _finalize_sized(key: tuple, sequences: int, chunks: int, packed: bool) -> tuple[dict, tuple]:
    """States are checked last, and say nothing about the outputs; the parameters' gradients follow them."""
    label, t = key[0], dict(key[1])
    attrs, static, _ = _finalize_static(*key)
    bound = static.fork()
    bound.set_counts(sequences, chunks, packed)
    rank = len(t["q"].shape)
    one_rank(label, {n: t[n] for n in ("h", "dh")}, rank + 1, "q")
    bound.bind("h", t["h"])
    bound.bind("dh", t["dh"])
    outputs = [bound.output(n) for n in ("dq", "dk", "dv")]
    outputs += [bound.output("dbeta", t["beta"].dtype), bound.output("dg")]
    gate, bias = attrs["use_gate_in_kernel"], t["dt_bias"]
    outputs.append(bound.output("da_log") if gate else None)
    outputs.append(bound.output("ddt_bias", rank=len(bias.shape)) if bias is not None else None)
    return bound.letters, tuple(outputs)
