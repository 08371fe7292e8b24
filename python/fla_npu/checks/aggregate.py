# SPDX-License-Identifier: Apache-2.0
"""Rules of the operators that run all forward stages, or all backward stages, in one launch."""

from __future__ import annotations

from ..errors import ArgumentError
from ..spec import spec
from .backward import one_rank
from .common import Binder, Desc, Plan, finite, flag, only, remembered
from .metadata import read_chunk_indices, read_cu_seqlens
from .prepare import bound_of_gate, check_gate, check_groups, plan_prepare

__all__ = ["plan_whole_backward", "plan_whole_forward"]

FORWARD = "chunk_kda_fwd_v2"
BACKWARD = {"legacy": "chunk_kda_bwd", "optimized": "chunk_kda_bwd_v2"}
# Inputs of the backward that only the forward can make again.
KEPT = ("w", "qg", "kg", "v_new", "h")
SCORES = ("gk", "aqk", "akk")


def plan_whole_forward(
    tensors: dict[str, Desc | None], *, wanted: tuple[str, ...], state_v_first: bool = False, planes: bool = False,
    label: str = FORWARD, **options,
) -> Plan:  # fmt: skip
    """Validates a call and says what to allocate. `tensors`: the inputs of the contract by name.

    `wanted`: the optional outputs; `planes`: v_new as the sum of two. `options` are those of prepare.
    """
    # The rules of prepare hold for its arguments here, too; its outputs are not looked at.
    given = dict(tensors)
    state = given.pop("initial_state")
    first = plan_prepare(**given, **options, backward_mode="none", label=label)
    flag(label, "state_v_first", state_v_first)
    key = (label, tuple(given.items()), first.attrs["layout"])
    bound = _forward_static(*key)
    cu = first.ints["cu_seqlens"]
    letters, outputs = _forward_sized(key, state, wanted, planes, *bound.counts(cu))
    attrs = {**first.attrs, "state_v_first": state_v_first}
    return Plan(FORWARD, attrs, first.ints, outputs, letters, first.casts, first.reshapes)


@remembered
def _forward_static(label: str, items: tuple, layout: str) -> Binder:
    """The inputs bound once more, to the names of this contract."""
    bound = Binder(label, spec(FORWARD), layout)
    for name, desc in items:
        bound.bind(name, desc, ("bfloat16",) if name in ("a_log", "dt_bias") else ())
    return bound


@remembered
def _forward_sized(key: tuple, state, wanted: tuple, planes: bool, sequences: int, chunks: int, packed: bool):
    """What follows once the offsets have said how many sequences and chunks there are."""
    bound = _forward_static(*key).fork()
    bound.set_counts(sequences, chunks, packed)
    bound.bind("initial_state", state)
    # Both forms of v_new are legal; every other output has one.
    ranks = {"v_new": 5} if planes else {}
    outputs = tuple(
        bound.output(p.name, rank=ranks.get(p.name)) if not p.optional or p.name in wanted else None
        for p in bound.op.of("out")
    )
    return bound.letters, outputs


def plan_whole_backward(
    tensors: dict[str, Desc | None],
    *,
    implementation: str = "optimized",
    scale: float,
    chunk_size: int = 64,
    safe_gate: bool = True,
    lower_bound: float | None = -5.0,
    use_gate_in_kernel: bool = False,
    disable_recompute: bool = True,
    use_exp2: bool = True,
    state_v_first: bool = False,
    cu_seqlens=None,
    chunk_indices=None,
    label: str = BACKWARD["optimized"],
) -> Plan:
    """Validates a call and says what to allocate. `tensors`: every input of the contract by name."""
    key = (
        label, tuple(tensors.items()), implementation, scale, chunk_size, safe_gate, lower_bound,
        use_gate_in_kernel, disable_recompute, use_exp2, state_v_first,
    )  # fmt: skip
    attrs, bound, casts = _backward_static(*key)
    cu = read_cu_seqlens(label, cu_seqlens, bound.letters["T"], bound.letters.get("B"))
    ints = {"cu_seqlens": cu, "chunk_indices": read_chunk_indices(label, chunk_indices, cu)}
    letters, outputs = _backward_sized(key, *bound.counts(cu))
    return Plan(BACKWARD[implementation], attrs, ints, outputs, letters, casts)


@remembered
def _backward_static(
    label, items, implementation, scale, chunk_size, safe_gate, lower_bound, gate_in_kernel, save, use_exp2,
    v_first,
):  # fmt: skip
    """Everything that does not depend on the metadata: words and numbers, what goes together, shapes."""
    t = dict(items)
    attrs = {
        "scale": finite(label, "scale", scale),
        "chunk_size": only(label, "chunk_size", chunk_size, 64, "the kernels work on chunks of 64 rows"),
        "safe_gate": flag(label, "safe_gate", safe_gate)
        and flag(label, "use_gate_in_kernel", gate_in_kernel),
        "lower_bound": bound_of_gate(label, lower_bound),
        "use_gate_in_kernel": flag(label, "use_gate_in_kernel", gate_in_kernel),
        "disable_recompute": flag(label, "disable_recompute", save),
        "use_exp2": flag(label, "use_exp2", use_exp2),
        "state_v_first": flag(label, "state_v_first", v_first),
    }
    check_gate(label, gate_in_kernel, attrs["safe_gate"], t["a_log"], t["dt_bias"])
    _check_saved(label, t, save, implementation == "legacy")
    bound = Binder(label, spec(BACKWARD[implementation]))
    bound.bind("q", t["q"])
    rank = len(t["q"].shape)
    rows = ("k", "v", "gk", "aqk", "akk", "w", "qg", "kg", "d_o", "raw_g")
    one_rank(label, {n: t[n] for n in rows}, rank, "q")
    one_rank(label, {n: t[n] for n in ("beta", "q_rstd", "k_rstd")}, rank - 1, "q")
    for name in ("k", "v", "beta", "raw_g"):
        bound.bind(name, t[name])
    check_groups(label, bound.letters)
    for name in ("gk", "aqk", "akk", "w", "qg", "kg", "v_new", "d_o"):
        bound.bind(name, t[name])
    casts = {}
    for name in ("a_log", "dt_bias"):
        if bound.bind(name, t[name], ("bfloat16",)) and t[name].dtype != "float32":
            casts[name] = "float32"
    if implementation == "optimized":
        bound.bind("q_rstd", t["q_rstd"])
        bound.bind("k_rstd", t["k_rstd"])
    return attrs, bound, casts


def _check_saved(label: str, t: dict, save: bool, legacy: bool) -> None:
    """Either the forward kept its results, or they are made again: not some of them."""
    if t["raw_g"] is None:
        raise ArgumentError(
            f"{label}: raw_g is None; pass the g that the forward took (without the gate in the kernel, the "
            "decay steps themselves): decays are made again from it"
        )
    for name in (*SCORES, *KEPT) if save else ():
        if t[name] is None:
            raise ArgumentError(
                f"{label}: {name} is None; disable_recompute = True takes it from the forward. Pass it, or "
                "have it made again with disable_recompute = False"
            )
    for name in () if save else KEPT:
        if t[name] is not None:
            raise ArgumentError(
                f"{label}: {name} is given, but disable_recompute = False makes it again; pass None"
            )
    if legacy and t["q_rstd"] is not None:
        raise ArgumentError(
            f"{label}: q_rstd is given, but implementation = 'legacy' knows no norm; use 'optimized' or 'auto'"
        )
    for given, absent in (("q_rstd", "k_rstd"), ("k_rstd", "q_rstd")):
        if t[given] is not None and t[absent] is None:
            raise ArgumentError(f"{label}: {given} is given without {absent}; pass both or neither")


@remembered
def _backward_sized(key: tuple, sequences: int, chunks: int, packed: bool) -> tuple[dict, tuple]:
    """States last; dh0 and the parameters' gradients exist where their argument does."""
    label, t = key[0], dict(key[1])
    attrs, static, _ = _backward_static(*key)
    bound = static.fork()
    bound.set_counts(sequences, chunks, packed)
    one_rank(label, {"h": t["h"]}, len(t["q"].shape) + 1, "q")
    for name in ("h", "initial_state", "dht"):
        bound.bind(name, t[name])
    state, bias = t["initial_state"], t["dt_bias"]
    outputs = [bound.output(n) for n in ("dq", "dk", "dv")]
    wide = bound.op.name == BACKWARD["legacy"]
    outputs += [bound.output("dbeta", None if wide else t["beta"].dtype), bound.output("dg")]
    outputs.append(bound.output("dh0", state.dtype) if state is not None else None)
    outputs.append(bound.output("da_log") if attrs["use_gate_in_kernel"] else None)
    outputs.append(bound.output("ddt_bias", rank=len(bias.shape)) if bias is not None else None)
    return bound.letters, tuple(outputs)
