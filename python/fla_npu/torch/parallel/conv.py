# SPDX-License-Identifier: Apache-2.0
"""The short causal convolution before KDA, on one rank's tokens: its halo comes from earlier ranks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...parallel import Halo, RowExchange, Shard, conv_halo
from ...parallel.conv import LABEL, check_conv, conv_facts, reach
from ..adapter import ADAPTER
from .context import ContextParallel, meet, meet_backward, need
from .group import between_graphs

__all__ = ["causal_conv1d"]


@between_graphs
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
    error = None
    context = need(context)
    try:
        given = {"x": x, "weight": weight, "bias": bias, "residual": residual}
        call = *(ADAPTER.describe(LABEL, n, t) for n, t in given.items()), activation, context
        check_conv(*call)
        rows, taps = _rows(x), weight.float().reshape(-1, weight.shape[-1])
    except Exception as refusal:  # whatever it is, the others must hear of it
        error = refusal
    if context.size == 1:
        if error:
            raise error
        halo = rows[:0]
    else:
        facts = {} if error else conv_facts(*call)
        wanted = torch.is_grad_enabled() and error is None
        wanted = wanted and any(t.requires_grad for t in given.values() if t is not None)
        records = meet(context.group, LABEL, facts, error, wanted)
        need_of = conv_halo(context.plan, context.rank, taps.shape[1])
        if any(r.wanted for r in records):
            halo = _Halo.apply(context, records[0].number, need_of, torch.zeros((), requires_grad=True), rows)
        else:
            halo = _fetch(context, need_of, rows)
    y = _convolve(halo, rows, taps, context.shard)
    if bias is not None:
        y = y + bias.float()
    if activation:
        y = torch.nn.functional.silu(y)
    y = y[:, 0] if x.dim() == 2 else y.transpose(0, 1)
    if residual is not None:
        y = y + residual.float()
    return y.to(x.dtype)


def _rows(x: Tensor) -> Tensor:
    """x as float32 [T, B, D]."""
    return (x.unsqueeze(0) if x.dim() == 2 else x).transpose(0, 1).float()


def _convolve(halo: Tensor, rows: Tensor, taps: Tensor, shard: Shard) -> Tensor:
    """[T, B, D]: of rows and the halo before them, never over the beginning of a sequence."""
    tokens, width = rows.shape[0], taps.shape[1]
    blank = rows.new_zeros(width - 1 - halo.shape[0], *rows.shape[1:])
    line = torch.cat([blank, halo, rows])
    reaches = torch.tensor(reach(shard, width), device=rows.device)[:, None, None]
    y = rows * taps[:, -1]
    for i in range(1, width):
        past = line[width - 1 - i : width - 1 - i + tokens]
        y = y + torch.where(reaches >= i, past, 0.0) * taps[:, width - 1 - i]
    # Without tokens, the result still leads to the halo's backward.
    return y + line[:tokens] * 0.0 if not tokens else y


def _fetch(context: ContextParallel, halo: Halo, rows: Tensor) -> Tensor:
    """The halo [length, B, D]."""
    label = f"{LABEL}: rank {context.rank}"
    got = RowExchange(ADAPTER, context.group, rows, halo.sends, halo.receives, label=label).finish()
    return torch.cat([rows.new_empty(0, *rows.shape[1:]), *got])


class _Halo(torch.autograd.Function):
    """The halo's rows; its gradient goes to who has these tokens."""

    @staticmethod
    def forward(ctx, context, number, halo, anchor, rows):
        ctx.context, ctx.number, ctx.halo, ctx.shape = context, number, halo, rows.shape
        ctx.save_for_backward(anchor)  # so that a checkpoint's replay gets as far as this
        return _fetch(context, halo, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_halo):
        halo, label = ctx.halo, f"{LABEL}: rank {ctx.context.rank}, backward"
        assert ctx.saved_tensors
        meet_backward(ctx.context.group, LABEL, ctx.number)
        d_rows = d_halo.new_zeros(ctx.shape)
        back = RowExchange(ADAPTER, ctx.context.group, d_halo, halo.receives, halo.sends, label=label)
        for piece, part in zip(halo.sends, back.finish()):
            d_rows[piece.start : piece.stop] += part
        return None, None, None, None, d_rows
