# SPDX-License-Identifier: Apache-2.0
"""Heads instead of tokens: all-to-all around a function that works on every head by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...errors import ArgumentTypeError
from ...parallel.heads import LABEL, Way, axes_of, check_heads, check_layout, way_back, ways, wrong_output
from .context import meet, meet_backward
from .group import Group, between_graphs
from .shared import as_group

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
        group: of the ranks that share the heads; as in `ContextParallel`.
        layout: of the positional tensors: BNSD, BSND, NTD or TND, further axes as they come. The largest
            number of heads must be a multiple of n. A tensor with fewer heads than n, of which n is a
            multiple, has each sent to all ranks that need it.
        output_layout: of the first output; token-major (BSND, TND) when None, as npu_chunk_kda has it.

    Ranks may have different numbers of tokens, also none. Gradients take the way back; as for all functions
    of this package every rank must run its backward.

    Raises: as `parallel.npu_chunk_kda`. When `fn` raises on one rank, the others raise ParallelError.
    """
    group = as_group(group)
    back = check_layout(layout, output_layout)
    if not callable(fn):
        raise ArgumentTypeError(f"{LABEL}: fn is a {type(fn).__name__}; it must be callable")

    @between_graphs
    @wraps(fn)
    def call(*tensors: Tensor | None, **keywords: Any):
        if group.size == 1:
            return fn(*tensors, **keywords)
        wide, tokens, wanted = _spread(group, tensors, layout)
        error = outputs = None
        try:
            outputs = fn(*wide, **keywords)
        except Exception as failure:  # the others wait for this rank's output
            error = failure
        return _collected(group, outputs, error, tokens, back, wanted)

    return call


def _spread(group: Group, tensors: tuple, layout: str) -> tuple[list, list[int], bool]:
    """(arguments of fn, tokens of every rank, whether a gradient is wanted anywhere)."""
    error, given = None, [x for x in tensors if x is not None]
    facts, own = {}, ()
    axes = token, head = axes_of(layout)
    shapes: list[tuple[int, ...]] = []
    try:
        _check_tensors(given)
        shapes = [tuple(x.shape) for x in given]
        check_heads(shapes, layout, group.size)
        facts = {
            "layout": layout,
            "tensors": str([x is not None for x in tensors]),
            "heads": str([(x.shape[head], str(x.dtype)[6:]) for x in given])[:400],
        }
        recording = torch.is_grad_enabled()
        flags = sum(1 << i for i, x in enumerate(given) if recording and x.requires_grad)
        own = (given[0].shape[token], flags)
    except Exception as refusal:  # whatever it is, the others must hear of it
        error = refusal
    records = meet(group, LABEL, facts, error, bool(own and own[1]), own)
    tokens = [r.own[0] for r in records]
    there = ways(shapes, layout, tokens, group.size)
    rows = [x.movedim(axes, (0, 1)) for x in given]
    needed = [any(r.own[1] >> i & 1 for r in records) for i in range(len(given))]
    if any(needed):
        made = _ToHeads.apply(
            group, records[0].number, there, needed, torch.zeros((), requires_grad=True), *rows
        )
    else:
        made = _to_heads(group, there, rows)
    wide = iter(x.movedim((0, 1), axes) for x in made)
    return [None if x is None else next(wide) for x in tensors], tokens, any(needed)


def _check_tensors(given: Sequence[Any]) -> None:
    for i, x in enumerate(given):
        if not isinstance(x, Tensor):
            raise ArgumentTypeError(
                f"{LABEL}: positional argument {i} is a {type(x).__name__}; positional arguments are tensors to "
                "exchange or None, hand on the rest by keyword"
            )


def _collected(group: Group, outputs, error, tokens: Sequence[int], layout: str, wanted: bool):
    """The outputs of fn with the first one brought back."""
    several = isinstance(outputs, (tuple, list))
    out = outputs[0] if several and outputs else outputs
    axes = axes_of(layout)
    facts = {}
    if error is None:
        shape = out.shape if isinstance(out, Tensor) else None
        error = wrong_output(shape, type(out).__name__, layout, sum(tokens))
    recording = torch.is_grad_enabled()
    if error is None:
        facts = {"output": f"{out.shape[axes[1]]} heads, {out.dtype}"}
    wants = recording and error is None and out.requires_grad
    records = meet(group, _BACK, facts, error, wants)
    way = way_back(out.shape, layout, tokens, group.size)
    rows = out.movedim(axes, (0, 1))
    if any(r.wanted for r in records):
        y = _ToTokens.apply(group, records[0].number, way, torch.zeros((), requires_grad=True), rows)
    else:
        y = _to_tokens(group, [way], [rows])[0]
    y = y.movedim((0, 1), axes)
    return type(outputs)([y, *outputs[1:]]) if several else y


# messages: all tensors of a call travel in one, as bytes


def _to_heads(group: Group, ways: Sequence[Way], rows: Sequence[Tensor]) -> list[Tensor]:
    """[my tokens, all heads, ..] -> [all tokens, my heads, ..]."""
    pieces = [[x.narrow(1, *way.heads[r]) for x, way in zip(rows, ways)] for r in range(group.size)]
    shapes = [
        [(way.tokens[r], way.heads[group.rank][1], *way.rest) for way in ways] for r in range(group.size)
    ]
    got = _exchange(group, pieces, shapes, [x.dtype for x in rows])
    return [torch.cat([part[i] for part in got]) for i in range(len(rows))]


def _to_tokens(group: Group, ways: Sequence[Way], rows: Sequence[Tensor]) -> list[Tensor]:
    """[all tokens, my heads, ..] -> [my tokens, all heads, ..]; heads that several ranks had are summed."""
    starts = ways[0].starts()
    pieces = [[x.narrow(0, starts[r], ways[0].tokens[r]) for x in rows] for r in range(group.size)]
    mine = ways[0].tokens[group.rank]
    shapes = [[(mine, way.heads[r][1], *way.rest) for way in ways] for r in range(group.size)]
    got = _exchange(group, pieces, shapes, [x.dtype for x in rows])
    out = []
    for i, (x, way) in enumerate(zip(rows, ways)):
        if not way.shared:
            out.append(torch.cat([part[i] for part in got], 1))
            continue
        total = torch.zeros((mine, way.total, *way.rest), dtype=torch.float32, device=x.device)
        for (first, count), part in zip(way.heads, got):
            total.narrow(1, first, count).add_(part[i].float())
        out.append(total.to(x.dtype))
    return out


def _exchange(group: Group, pieces, shapes, dtypes: list[torch.dtype]) -> list[list[Tensor]]:
    """pieces[r][i] go to rank r; what rank r sends has shapes[r][i]. Wide types first keep all aligned."""
    order = sorted(range(len(dtypes)), key=lambda i: -dtypes[i].itemsize)
    flat = [_bytes(row[i]) for row in pieces for i in order]
    sizes = [sum(math.prod(row[i].shape) * dtypes[i].itemsize for i in order) for row in pieces]
    counts = [sum(math.prod(row[i]) * dtypes[i].itemsize for i in order) for row in shapes]
    arrived = group.scatter(torch.cat(flat), sizes, counts).wait()
    out: list[list[Any]] = [[None] * len(dtypes) for _ in shapes]
    for row, part, made in zip(shapes, arrived.split(counts), out):
        at = 0
        part = part.clone()  # at an address of its own: views of wider types need aligned ones
        for i in order:
            size = math.prod(row[i]) * dtypes[i].itemsize
            made[i] = part[at : at + size].view(dtypes[i]).reshape(row[i])
            at += size
    return out


def _bytes(x: Tensor) -> Tensor:
    flat = x.detach().contiguous().flatten()
    # One element keeps whatever stride it had, and counts as contiguous.
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)


class _ToHeads(torch.autograd.Function):
    """`needed`: of which tensors some rank wants a gradient; those of the others are not sent back."""

    @staticmethod
    def forward(ctx, group, number, ways, needed, anchor, *rows):
        ctx.group, ctx.number, ctx.ways, ctx.needed = group, number, ways, needed
        ctx.save_for_backward(anchor)  # so that a checkpoint's replay gets as far as this
        made = _to_heads(group, ways, rows)
        ctx.mark_non_differentiable(*(x for x, need in zip(made, needed) if not need))
        return tuple(made)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        assert ctx.saved_tensors
        meet_backward(ctx.group, LABEL, ctx.number)
        at = [i for i, need in enumerate(ctx.needed) if need]
        found = _to_tokens(ctx.group, [ctx.ways[i] for i in at], [grads[i] for i in at])
        out: list[Tensor | None] = [None] * len(grads)
        for i, grad in zip(at, found):
            if ctx.needs_input_grad[5 + i]:
                out[i] = grad
        return None, None, None, None, None, *out


class _ToTokens(torch.autograd.Function):
    """The way back, and its gradient the way there."""

    @staticmethod
    def forward(ctx, group, number, way, anchor, rows):
        ctx.group, ctx.number, ctx.way = group, number, way
        ctx.save_for_backward(anchor)
        return _to_tokens(group, [way], [rows])[0]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        assert ctx.saved_tensors
        meet_backward(ctx.group, _BACK, ctx.number)
        return None, None, None, None, _to_heads(ctx.group, [ctx.way], [grad])[0]
