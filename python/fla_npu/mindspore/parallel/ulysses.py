# SPDX-License-Identifier: Apache-2.0
"""Heads instead of tokens: all-to-all around a function that works on every head by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mindspore
from mindspore import Tensor, mint
from mindspore.common._grad_function import _Function

from ...errors import ArgumentTypeError
from ...parallel.context import meet, meet_backward
from ...parallel.heads import LABEL, Way, axes_of, check_heads, check_layout, way_back, ways, wrong_output
from ..guard import python_function, recording, refuse_jit
from .group import Group, as_group

__all__ = ["ulysses"]

_BACK = f"{LABEL}, its function"


def ulysses(fn: Callable, group: Any, *, layout: str = "BSND", output_layout: str | None = None) -> Callable:
    """`fn`, called with some of the heads and all tokens, as a function of all heads and this rank's tokens.

    The result takes the same arguments. Its positional tensors are exchanged: rank r of n gets the tokens of
    all ranks, in the order of ranks, and the r-th n-th of the heads. Then it calls `fn`, and brings the
    first output (or the only one) back to all heads and this rank's tokens. Further outputs, such as a final
    state, stay as they are, with this rank's heads. Keyword arguments and None are handed on; parameters
    per head need `head_slice(parameter, group)`.

        attend = ulysses(lambda q, k, v, g, beta: npu_chunk_kda(
            q, k, v, g, beta, scale, layout="BSND", a_log=head_slice(a_log, group), cu_seqlens=cu, ...)[0], group)

    With `parallel.npu_chunk_kda` and a context over the other dimension of a mesh as `fn`, heads and sequence
    are both shared: rank (s, h) first has block s * n + h of the tokens, and the context's lengths are those
    of n blocks together.

    Args:
        fn: works on each head by itself (of grouped value heads: on each group).
        group: of the ranks that share the heads; as in `ContextParallel`, or a context.
        layout: of the positional tensors: BNSD, BSND, NTD or TND, further axes as they come. The largest
            number of heads must be a multiple of n. A tensor with fewer heads than n, of which n is a
            multiple, has each sent to all ranks that need it.
        output_layout: of the first output; token-major (BSND, TND) when None, as npu_chunk_kda has it.

    Ranks may have different numbers of tokens, also none. Gradients take the way back; as for all functions
    of this package every rank must differentiate, in the same tensors.

    Raises: as `parallel.npu_chunk_kda`. When `fn` raises on one rank, the others raise ParallelError.
    """
    refuse_jit(python_function, "parallel.ulysses")
    return _wrapped(fn, group, layout, output_layout)


def _wrapped(fn: Callable, group: Any, layout: str, output_layout: str | None) -> Callable:
    group, back = as_group(group), check_layout(layout, output_layout)
    if not callable(fn):
        raise ArgumentTypeError(f"{LABEL}: fn is a {type(fn).__name__}; it must be callable")

    def call(*tensors: Tensor | None, **keywords: Any):
        refuse_jit(python_function, "parallel.ulysses")
        return _around(fn, group, layout, back, tensors, keywords)

    return call


def _around(fn: Callable, group: Group, layout: str, back: str, tensors: tuple, keywords: dict):
    """The exchange, the function, and the exchange back."""
    if group.size == 1:
        return fn(*tensors, **keywords)
    wide, tokens = _spread(group, tensors, layout)
    error = outputs = None
    try:
        outputs = fn(*wide, **keywords)
    except Exception as failure:  # the others wait for this rank's output
        error = failure
    return _collected(group, outputs, error, tokens, back)


def _spread(group: Group, tensors: tuple, layout: str) -> tuple[list, list[int]]:
    """(arguments of fn, tokens of every rank)."""
    given = [x for x in tensors if x is not None]
    note: dict[str, Any] = {"there": str([x is not None for x in tensors])}
    if recording():
        made = _ToHeads.apply(group, layout, note, *given)
        made = made if isinstance(made, tuple) else (made,)
    else:
        note["needs"] = [False] * len(given)
        made = _to_heads(group, _meet(group, layout, note, given), given, layout)
    wide = iter(made)
    return [None if x is None else next(wide) for x in tensors], note["tokens"]


def _meet(group: Group, layout: str, note: dict[str, Any], given: Sequence[Any]) -> list[Way]:
    """The ways of the tensors, once all ranks have come with fitting ones; `note` gets everybody's tokens and
    the number of the call."""
    error, facts, own = None, {}, ()
    try:
        for i, x in enumerate(given):
            if not isinstance(x, Tensor):
                raise ArgumentTypeError(
                    f"{LABEL}: positional argument {i} is a {type(x).__name__}; positional arguments are tensors "
                    "to exchange or None, hand on the rest by keyword"
                )
        shapes = [tuple(x.shape) for x in given]
        check_heads(shapes, layout, group.size)
        token, head = axes_of(layout)
        kinds = [(shape[head], str(x.dtype)) for shape, x in zip(shapes, given)]
        wants = [int(need) for need in note["needs"]]
        facts = {
            "layout": layout, "tensors": note["there"], "heads": str(kinds)[:400], "gradients": str(wants),
        }  # fmt: skip
        own = (shapes[0][token],)
    except Exception as refusal:  # whatever it is, the others must hear of it
        error = refusal
    records = meet(group, LABEL, facts, error, own=own)
    note["tokens"], note["number"] = [r.own[0] for r in records], records[0].number
    return ways(shapes, layout, note["tokens"], group.size)


def _collected(group: Group, outputs: Any, error: Exception | None, tokens: Sequence[int], layout: str):
    """The outputs of fn with the first one brought back."""
    several = isinstance(outputs, (tuple, list))
    out = outputs[0] if several and outputs else outputs
    token, head = axes_of(layout)
    if error is None:
        shape = out.shape if isinstance(out, Tensor) else None
        error = wrong_output(shape, type(out).__name__, layout, sum(tokens))
    facts = {} if error else {"output": f"{out.shape[head]} heads, {out.dtype}"}
    number = meet(group, _BACK, facts, error)[0].number
    way = way_back(out.shape, layout, tokens, group.size)
    y = (
        _ToTokens.apply((group, _BACK, number), way, layout, out)
        if recording()
        else _to_tokens(group, way, out, layout)
    )
    return type(outputs)([y, *outputs[1:]]) if several else y


# tensors as rows [tokens, heads, ...] and back


def _as_rows(x: Tensor, layout: str) -> Tensor:
    first = axes_of(layout)
    rest = [i for i in range(len(x.shape)) if i not in first]
    return mint.permute(x, (*first, *rest)).contiguous()


def _as_given(rows: Tensor, layout: str) -> Tensor:
    first = axes_of(layout)
    order = [*first, *(i for i in range(len(rows.shape)) if i not in first)]
    return mint.permute(rows, tuple(order.index(i) for i in range(len(order)))).contiguous()


def _to_heads(group: Group, paths: Sequence[Way], tensors: Sequence[Tensor], layout: str) -> tuple:
    """Tensors with my tokens and all heads -> all tokens, my heads. One message each."""
    out = []
    for way, x in zip(paths, tensors):
        rows = _as_rows(x, layout)
        mine, (_, count) = way.tokens[group.rank], way.heads[group.rank]
        parts = [mint.narrow(rows, 1, *span).contiguous().reshape(-1) for span in way.heads] if mine else []
        flat = mint.cat(parts, 0) if parts else mint.zeros((0,), dtype=x.dtype)
        sizes = [way.volume(mine, n) for _, n in way.heads]
        counts = [way.volume(n, count) for n in way.tokens]
        arrived = group.scatter(flat, sizes, counts).wait()
        out.append(_as_given(arrived.reshape((sum(way.tokens), count, *way.rest)), layout))
    return tuple(out)


def _to_tokens(group: Group, way: Way, x: Tensor, layout: str) -> Tensor:
    """All tokens, my heads -> my tokens, all heads; heads that several ranks had are summed."""
    rows = _as_rows(x, layout)
    mine, (_, count) = way.tokens[group.rank], way.heads[group.rank]
    sizes = [way.volume(n, count) for n in way.tokens]
    counts = [way.volume(mine, n) for _, n in way.heads]
    arrived = group.scatter(rows.reshape(-1), sizes, counts).wait()
    if not mine:
        return _as_given(mint.zeros((0, way.total, *way.rest), dtype=x.dtype), layout)
    parts, at = [], 0
    for (_, n), size in zip(way.heads, counts):
        parts.append(mint.narrow(arrived, 0, at, size).reshape((mine, n, *way.rest)))
        at += size
    if way.shared:
        parts = _summed(way, parts)
    return _as_given(mint.cat(parts, 1) if len(parts) > 1 else parts[0], layout)


def _summed(way: Way, parts: Sequence[Tensor]) -> list[Tensor]:
    """One part per head, the ranks' parts of it added in float32."""
    sums: dict[int, Tensor] = {}
    for (first, _), part in zip(way.heads, parts):
        wide = part.astype(mindspore.float32)
        sums[first] = sums[first] + wide if first in sums else wide
    return [sums[first].astype(parts[0].dtype) for first in sorted(sums)]


class _ToHeads(_Function):
    """The ranks meet in `forward`, since only there MindSpore says which gradients are wanted."""

    @staticmethod
    def forward(ctx, group: Group, layout: str, note: dict, *tensors):
        ctx.group, ctx.layout = group, layout
        ctx.needs = note["needs"] = list(ctx.needs_input_grad[3:])
        ctx.ways = _meet(group, layout, note, tensors)
        ctx.number = note["number"]
        made = _to_heads(group, ctx.ways, tensors, layout)
        ctx.mark_non_differentiable(*(x for x, need in zip(made, ctx.needs) if not need))
        return made if len(made) > 1 else made[0]

    @staticmethod
    def backward(ctx, *grads):
        meet_backward(ctx.group, LABEL, ctx.number)
        found = [
            _to_tokens(ctx.group, way, grad, ctx.layout) if need else None
            for way, grad, need in zip(ctx.ways, grads, ctx.needs)
        ]
        return None, None, None, *found


class _ToTokens(_Function):
    """The way back, and its gradient the way there. `call`: the group, and what the backward is known by."""

    @staticmethod
    def forward(ctx, call: tuple, way: Way, layout: str, out):
        ctx.call, ctx.way, ctx.layout = call, way, layout
        return _to_tokens(call[0], way, out, layout)

    @staticmethod
    def backward(ctx, grad):
        meet_backward(*ctx.call)
        return None, None, None, _to_heads(ctx.call[0], [ctx.way], [grad], ctx.layout)[0]
