# SPDX-License-Identifier: Apache-2.0
"""The short causal convolution before KDA, on one rank's tokens: its halo comes from earlier ranks.

In float32 whatever the inputs are: MindSpore's CPU operators have little bfloat16.
"""

from __future__ import annotations

from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, mint
from mindspore.common._grad_function import _Function

from ...parallel import Halo, RowExchange, conv_halo
from ...parallel.context import meet, meet_backward
from ...parallel.conv import LABEL, check_conv, conv_facts, reach
from ..guard import python_function, recording, refuse_jit
from .context import ContextParallel, need
from .kda import ADAPTER

__all__ = ["causal_conv1d"]


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    context: ContextParallel,
) -> Tensor:
    """Depthwise causal convolution over tokens, per sequence of the context:

        y[t] = act(sum_i weight[:, W - 1 - i] * x[t - i] + bias) + residual[t]        i = 0 .. W - 1

    x[t - i] is zero before the beginning of a sequence, and comes from earlier ranks where the sequence
    began there, from several when they have fewer tokens than the W - 1 of the halo.

    Args:
        x: this rank's tokens, `[T, D]` or `[1, T, D]`; with a context without cu_seqlens also `[B, T, D]`.
        weight: `[D, W]` or `[D, 1, W]`, W = 2, 3 or 4. The last tap is that of the token itself.
        bias: `[D]`.
        activation: None, 'silu' or 'swish' (the same).
        residual: like x; added after the activation.

    Returns: like x. Computed in float32 and rounded once.

    Raises: as `npu_chunk_kda` of this package; every rank calls it, also one without tokens.

    Differentiable in everything; a halo's gradient goes back to its owners. Those of weight and bias are
    this rank's part of a sum over ranks: `reduce_gradients`.
    """
    refuse_jit(python_function, "parallel.causal_conv1d")
    return _call(x, weight, bias, activation, residual, context)


def _call(x, weight, bias, activation, residual, context: Any) -> Tensor:
    context = need(context)
    error, rows, facts = None, None, {}
    try:
        given = {"x": x, "weight": weight, "bias": bias, "residual": residual}
        call = *(ADAPTER.describe(LABEL, n, t) for n, t in given.items()), activation, context
        check_conv(*call)
        facts, rows = conv_facts(*call), _rows(x)
    except Exception as refusal:  # whatever it is, the others must hear of it
        error = refusal
    width = 0 if error else weight.shape[-1]
    if context.size > 1 and recording():
        line = _Line.apply(context, width, (facts, error), rows)
    else:
        line = _line(context, width, facts, error, rows, wanted=False)[0]
    if not context.shard.tokens:
        # Nothing, but of the line: its backward is one of all ranks.
        return mint.narrow(line, 0, 0, 0).reshape(tuple(x.shape)).astype(x.dtype)
    y = _convolve(line, weight.astype(mindspore.float32).reshape(-1, width), context)
    if bias is not None:
        y = y + bias.astype(mindspore.float32)
    if activation:
        y = y * mint.sigmoid(y)
    y = y.reshape(tuple(x.shape)) if len(x.shape) == 2 else mint.transpose(y, 0, 1)
    if residual is not None:
        y = y + residual.astype(mindspore.float32)
    return y.astype(x.dtype)


def _rows(x: Tensor) -> Tensor:
    """x as float32 [T, B, D]."""
    x = x.astype(mindspore.float32)
    tokens, width = x.shape[-2:]
    return x.reshape(tokens, 1, width) if len(x.shape) == 2 else mint.transpose(x, 0, 1)


def _convolve(line: Tensor, taps: Tensor, context: ContextParallel) -> Tensor:
    """[T, B, D]: of this rank's rows and the W - 1 before them, never over the beginning of a sequence."""
    shard, width = context.shard, taps.shape[1]
    reaches = Tensor(np.array(reach(shard, width)).reshape(-1, 1, 1))
    y = None
    for i in range(width):
        past = mint.narrow(line, 0, width - 1 - i, shard.tokens)
        # A choice, not a product: what another sequence has there may be infinite.
        past = mint.where(reaches >= i, past, 0.0) if i else past
        part = past * mint.narrow(taps, 1, width - 1 - i, 1).reshape(-1)
        y = part if y is None else y + part
    return y


def _line(
    context: ContextParallel, width: int, facts: dict, error: Exception | None, rows, wanted: bool
) -> tuple[Tensor, Halo | None, int]:
    """(the width - 1 rows before those of this rank and its own, its halo, the number of the call)."""
    if context.size == 1:
        if error:
            raise error
        halo, got, number = None, [], 0
    else:
        number = meet(context.group, LABEL, {**facts, "gradient": wanted}, error)[0].number
        halo = conv_halo(context.plan, context.rank, width)
        label = f"{LABEL}: rank {context.rank}"
        got = RowExchange(ADAPTER, context.group, rows, halo.sends, halo.receives, label=label).finish()
    missing = width - 1 - sum(part.shape[0] for part in got)
    blank = [mint.zeros((missing, *rows.shape[1:]), dtype=rows.dtype)] if missing else []
    return mint.cat([*blank, *got, rows], 0), halo, number


class _Line(_Function):
    """`_line` for autograd: the gradient of rows that came from another rank goes back there."""

    @staticmethod
    def forward(ctx, context: ContextParallel, width: int, call: tuple, rows):
        ctx.context, ctx.width, wanted = context, width, bool(ctx.needs_input_grad[3])
        line, ctx.halo, ctx.number = _line(context, width, *call, rows, wanted)
        return line

    @staticmethod
    def backward(ctx, d_line):
        context, halo = ctx.context, ctx.halo
        meet_backward(context.group, LABEL, ctx.number)
        tokens, before = context.shard.tokens, ctx.width - 1
        if not tokens:  # such a rank has no part in any halo
            return None, None, None, mint.zeros((0, *d_line.shape[1:]), dtype=d_line.dtype)
        d_line = d_line.contiguous()
        d_rows = mint.narrow(d_line, 0, before, tokens)
        d_halo = mint.narrow(d_line, 0, before - halo.length, halo.length) if halo.length else d_line
        label = f"{LABEL}: rank {context.rank}, backward"
        back = RowExchange(ADAPTER, context.group, d_halo, halo.receives, halo.sends, label=label)
        for piece, part in zip(halo.sends, back.finish()):
            d_rows = d_rows + _padded(part, piece.start, tokens - piece.stop)
        return None, None, None, d_rows


def _padded(rows: Tensor, before: int, after: int) -> Tensor:
    """Rows among so many rows of zeros."""
    around = [mint.zeros((n, *rows.shape[1:]), dtype=rows.dtype) if n else None for n in (before, after)]
    parts = [x for x in (around[0], rows, around[1]) if x is not None]
    return mint.cat(parts, 0) if len(parts) > 1 else rows
