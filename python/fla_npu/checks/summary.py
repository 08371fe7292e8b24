# SPDX-License-Identifier: Apache-2.0
"""Rules of the operators that carry states over ranks: the two summaries, and their merge.

Their cu_seqlens are edges of windows in tokens of the tensors given: they may leave tokens out at
both ends, and each window holds one token or more.
"""

from __future__ import annotations

import numbers

from ..errors import ArgumentError, ArgumentTypeError, NotServed
from ..spec import spec
from .common import Binder, Desc, Output, Plan, finite, flag, only, remembered
from .metadata import host_ints

__all__ = ["plan_merge", "plan_summarize", "plan_summarize_backward"]

FORWARD = "pre_process_fwd_kernel_merged"
BACKWARD = "pre_process_bwd_kernel_merged"
MERGE = "merge_fwd_bwd_kernel"
# Limits of the interface, not of the kernel.
MOST_RANKS, MOST_HEADS = 1024, 256
_CHUNK_RULE = "the kernels work on chunks of 64 rows"


def plan_summarize(
    k: Desc | None,
    w: Desc | None,
    u: Desc | None,
    *,
    g: Desc | None = None,
    gk: Desc | None = None,
    bg: Desc | None = None,
    v: Desc | None = None,
    cu_seqlens=None,
    chunk_size: int = 64,
    label: str = FORWARD,
) -> Plan:
    """Validates a call and says what to allocate. `label` is the function named in messages."""
    attrs, static = _forward_static(label, (k, w, u, g, gk, bg, v), chunk_size)
    if cu_seqlens is None:
        raise ArgumentError(
            f"{label}: cu_seqlens is None; it is required: the edges of the windows, (0, "
            f"{static.letters['T']}) for all tokens"
        )
    edges = _windows(label, cu_seqlens, static.letters["T"])
    bound = static.fork()
    bound.set_counts(len(edges) - 1, 0, True)
    return Plan(FORWARD, attrs, {"cu_seqlens": edges}, (bound.output("hm"),), bound.letters)


@remembered
def _forward_static(label, tensors, chunk_size) -> tuple[dict, Binder]:
    """Everything that does not depend on the windows."""
    attrs = {"chunk_size": only(label, "chunk_size", chunk_size, 64, _CHUNK_RULE)}
    bound = Binder(label, spec(FORWARD))
    k, w, u, g, gk, bg, v = tensors
    for name, desc in (("bg", bg), ("v", v)):
        if desc is not None:
            raise NotServed(f"{label}: {name} is given; {bound.op.param(name).refused}")
    for name, desc in (("k", k), ("w", w), ("u", u), ("g", g)):
        bound.bind(name, desc)
    if gk is None:
        raise ArgumentTypeError(
            f"{label}: gk is None; pass the cumulative decay (first output of chunk_kda_fwd_prepare)"
        )
    bound.bind("gk", gk)
    _check_groups(label, bound.letters)
    return attrs, bound


def plan_summarize_backward(
    q: Desc | None,
    k: Desc | None,
    w: Desc | None,
    d_o: Desc | None,
    dv: Desc | None,
    *,
    scale: float,
    chunk_size: int = 64,
    g: Desc | None = None,
    gk: Desc | None = None,
    cu_seqlens=None,
    label: str = BACKWARD,
) -> Plan:
    """Validates a call and says what to allocate. Of the windows only the first one counts."""
    attrs, bound = _backward_static(label, (q, k, w, d_o, dv, g, gk), scale, chunk_size)
    tokens = bound.letters["T"]
    window = None if cu_seqlens is None else _windows(label, cu_seqlens, tokens, only_first=True)
    return Plan(BACKWARD, attrs, {"cu_seqlens": window}, (bound.output("dhm"),), dict(bound.letters))


@remembered
def _backward_static(label, tensors, scale, chunk_size) -> tuple[dict, Binder]:
    """Everything that does not depend on the window."""
    attrs = {
        "scale": finite(label, "scale", scale),
        "chunk_size": only(label, "chunk_size", chunk_size, 64, _CHUNK_RULE),
    }
    bound = Binder(label, spec(BACKWARD))
    for name, desc in zip(("q", "k", "w", "d_o", "dv", "g", "gk"), tensors):
        bound.bind(name, desc)
    _check_groups(label, bound.letters)
    return attrs, bound


def _check_groups(label: str, letters: dict[str, int]) -> None:
    """Every key head serves the same number of value heads."""
    hk, hv = letters["HK"], letters["HV"]
    if hv % hk:
        raise ArgumentError(
            f"{label}: w has HV = {hv} value heads and k has HK = {hk} key heads; HV must be a multiple of HK"
        )


def _windows(label: str, value, tokens: int, only_first: bool = False) -> tuple[int, ...]:
    """Validated edges of the windows, of the first one alone if it is all that counts."""
    edges = host_ints(label, "cu_seqlens", value)
    if len(edges) < 2:
        raise ArgumentError(
            f"{label}: cu_seqlens = {list(edges)} has {len(edges)} entries; one window needs 2, its first token "
            "and the one behind its last"
        )
    # Callers hand on the offsets of all their fragments; what lies behind the first may be anything.
    edges = edges[:2] if only_first else edges
    if edges[0] < 0:
        raise ArgumentError(f"{label}: cu_seqlens[0] = {edges[0]}; a window begins at token 0 or later")
    for i, (a, b) in enumerate(zip(edges, edges[1:]), 1):
        if b <= a:
            raise ArgumentError(
                f"{label}: cu_seqlens[{i}] = {b} is not above cu_seqlens[{i - 1}] = {a}; a window holds one token "
                "or more"
            )
    if edges[-1] > tokens:
        raise ArgumentError(
            f"{label}: cu_seqlens[{len(edges) - 1}] = {edges[-1]}, but the tensors have T = {tokens} tokens; "
            "edges count tokens of the tensors given"
        )
    return edges


def plan_merge(
    h: Desc | None,
    ag_hm: Desc | None,
    pre_or_post_num_ranks: int,
    rank: int,
    *,
    forward: bool = True,
    state_v_first: bool = False,
    shown: tuple[str, str] = ("h", "ag_hm"),
    label: str = MERGE,
) -> Plan:
    """Validates a call; its one output is h itself. `shown` are the names of the caller's signature."""
    return _merge_static(label, (h, ag_hm), pre_or_post_num_ranks, rank, forward, state_v_first, shown)


@remembered
def _merge_static(label, tensors, pre_or_post_num_ranks, rank, forward, state_v_first, shown) -> Plan:
    attrs = {
        "pre_or_post_num_ranks": _integer(label, "pre_or_post_num_ranks", pre_or_post_num_ranks),
        "rank": _integer(label, "rank", rank),
        "forward": flag(label, "forward", forward),
        "state_v_first": flag(label, "state_v_first", state_v_first),
    }
    bound = Binder(label, spec(MERGE))
    h, ag_hm = tensors
    # First the summaries: theirs are the sizes that h is held to.
    bound.bind("ag_hm", ag_hm, shown=shown[1])
    bound.bind("h", h, shown=shown[0])
    if h.dtype != ag_hm.dtype:
        raise ArgumentTypeError(
            f"{label}: {shown[0]} has dtype {h.dtype} and {shown[1]} {ag_hm.dtype}; they must agree"
        )
    letters = bound.letters
    for letter, what, most in (("S", "ranks", MOST_RANKS), ("HV", "heads", MOST_HEADS)):
        if letters[letter] > most:
            raise ArgumentError(
                f"{label}: {shown[1]} has {letter} = {letters[letter]} {what}; at most {most}, so merge in parts"
            )
    _check_ranks(label, letters["S"], attrs)
    return Plan(MERGE, attrs, {}, (Output("h", h.dtype, tuple(h.shape)),), letters)


def _integer(label: str, name: str, value) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ArgumentTypeError(f"{label}: {name} = {value!r} is a {type(value).__name__}; it must be an int")
    return int(value)


def _check_ranks(label: str, ranks: int, attrs: dict) -> None:
    """The ranks that take part are among those that there are."""
    count, rank = attrs["pre_or_post_num_ranks"], attrs["rank"]
    if not 0 <= rank < ranks:
        raise ArgumentError(
            f"{label}: rank = {rank}, but there are summaries of S = {ranks} ranks; it must be 0 to {ranks - 1}"
        )
    if count < 0:
        raise ArgumentError(f"{label}: pre_or_post_num_ranks = {count}; it must be 0 (zeros) or more")
    there = rank if attrs["forward"] else ranks - 1 - rank
    if count > there and not ranks == count == 1:  # a rank alone may ask for its own E
        where = "before" if attrs["forward"] else "behind"
        raise ArgumentError(
            f"{label}: pre_or_post_num_ranks = {count}, but of S = {ranks} ranks there are {there} {where} "
            f"rank = {rank}; pass {there} or fewer"
        )
