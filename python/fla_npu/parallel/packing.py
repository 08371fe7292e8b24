# SPDX-License-Identifier: Apache-2.0
"""From what each rank says about its tokens to the plan of all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from operator import index

from ..checks.metadata import host_ints
from ..errors import ArgumentError
from .handshake import Record, exchange
from .plan import Plan, make_plan

__all__ = ["agreed_plan", "plan_digest"]

LABEL = "ContextParallel"


def plan_digest(plan: Plan) -> str:
    """A short name of a plan's value."""
    return _digest((plan.lengths, plan.cu_seqlens, plan.transport, plan.group_size))


def agreed_plan(
    share: Callable[[bytes], list[bytes]], rank: int, size: int, *, cu_seqlens, lengths, transport: str,
    group_size: int | None,
) -> Plan:  # fmt: skip
    """The plan that all ranks have agreed on; one exchange, none when `size` is 1.

    `lengths`: tokens of every rank, or the number of this rank's, or None: `cu_seqlens[-1]` tokens in parts
    as equal as they can be, the longer ones first. Raises on every rank when one refuses or differs.
    """
    own, plan, error = (), None, None
    try:
        cu = None if cu_seqlens is None else host_ints(LABEL, "cu_seqlens", cu_seqlens)
        if _is_count(lengths):
            own = (index(lengths),)
            if own[0] < 0:
                raise ArgumentError(f"{LABEL}: lengths = {own[0]}; a rank has 0 tokens or more")
        else:
            plan = make_plan(
                _spread(lengths, cu, size), cu, transport=transport, group_size=group_size, label=LABEL
            )
    except Exception as refusal:  # whatever it is, the others must hear of it
        error = refusal
    record = Record(
        LABEL,
        facts={} if error else _facts(cu, plan, transport, group_size),
        refused=str(error) if error else "",
        own=own,
    )
    records = exchange(share, rank, record)
    if error:
        raise error
    if plan is None:
        counts = [r.own[0] for r in records]
        plan = make_plan(counts, cu, transport=transport, group_size=group_size, label=LABEL)
    return plan


def _is_count(lengths) -> bool:
    """A single number: an int, or what a library has for one, of shape ()."""
    single = not isinstance(lengths, bool) and hasattr(lengths, "__index__")
    return single and not tuple(getattr(lengths, "shape", ()))


def _spread(lengths, cu, size: int) -> tuple[int, ...]:
    if lengths is None:
        if not cu:
            raise ArgumentError(
                f"{LABEL}: neither lengths nor cu_seqlens is given; pass this rank's number of tokens as "
                "lengths, or that of every rank"
            )
        return tuple(cu[-1] // size + (r < cu[-1] % size) for r in range(size))
    lengths = host_ints(LABEL, "lengths", lengths)
    if len(lengths) != size:
        raise ArgumentError(
            f"{LABEL}: lengths = {list(lengths)} has {len(lengths)} entries, the group has {size} ranks; pass "
            "one per rank, or this rank's number alone"
        )
    return lengths


def _facts(cu, plan: Plan | None, transport: str, group_size: int | None) -> dict[str, object]:
    """What must be the same on every rank, in a few words each."""
    facts: dict[str, object] = {"transport": str(transport), "group_size": str(group_size)}
    facts["lengths"] = _short(plan.lengths) if plan else "one number per rank"
    facts["cu_seqlens"] = None if cu is None else _short(cu)
    return facts


def _short(values: tuple[int, ...]) -> str:
    """All of them where they are few, else the ends and a digest."""
    if len(values) <= 8:
        return str(list(values))
    ends = f"[{values[0]}, {values[1]}, .. {values[-1]}]"
    return f"{ends} ({len(values)} numbers, digest {_digest(values)})"


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:8]
