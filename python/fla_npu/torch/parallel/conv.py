# SPDX-License-Identifier: Apache-2.0
"""The short causal convolution before KDA, on one rank's tokens: its halo comes from earlier ranks."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...errors import ArgumentError, ArgumentTypeError
from ...parallel import Halo, RowExchange, Shard, conv_halo
from ..adapter import ADAPTER
from .context import ContextParallel, meet, need
from .group import between_graphs

__all__ = ["causal_conv1d"]

LABEL = "parallel.causal_conv1d"
_ACTIVATIONS = (None, "silu", "swish")


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
        rows, taps = _checked(x, weight, bias, activation, residual, context)
    except Exception as refusal:  # whatever it is, the others must hear of it
        error = refusal
    if context.size == 1:
        if error:
            raise error
        halo = rows[:0]
    else:
        facts = {}
        if error is None:
            facts = {"context": context.digest, "D": x.shape[-1], "W": taps.shape[1], "rows": rows.shape[1]}
        wanted = torch.is_grad_enabled() and error is None and rows.requires_grad
        records = meet(context.group, LABEL, facts, error, wanted)
        need_of = conv_halo(context.plan, context.rank, taps.shape[1])
        if any(r.wanted for r in records):
            halo = _Halo.apply(context, need_of, torch.zeros((), requires_grad=True), rows)
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


def _checked(x, weight, bias, activation, residual, context: ContextParallel) -> tuple[Tensor, Tensor]:
    """x as float32 rows [T, B, D] and weight as float32 [D, W], or an error."""
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias), ("residual", residual)):
        if tensor is None and name in ("bias", "residual"):
            continue
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            kind = getattr(tensor, "dtype", type(tensor).__name__)
            raise ArgumentTypeError(f"{LABEL}: {name} is {kind}; it must be a floating-point torch.Tensor")
    if activation not in _ACTIVATIONS:
        raise ArgumentError(f"{LABEL}: activation = {activation!r}; it must be one of {list(_ACTIVATIONS)}")
    if x.dim() not in (2, 3):
        raise ArgumentError(f"{LABEL}: x has shape {tuple(x.shape)}; it must be [T, D] or [1, T, D]")
    if x.dim() == 3 and x.shape[0] != 1 and context.packed:
        raise ArgumentError(
            f"{LABEL}: x has shape {tuple(x.shape)} with a context that has cu_seqlens; packed sequences need "
            "B = 1 (lay them one after another along T)"
        )
    shard, width = context.shard, x.shape[-1]
    if x.shape[-2] != shard.tokens:
        raise ArgumentError(
            f"{LABEL}: x has {x.shape[-2]} tokens, but rank {shard.rank} has {shard.tokens} of the context: "
            f"[{shard.start}, {shard.stop}) of {context.plan.cu_seqlens[-1]}; pass this rank's own tokens"
        )
    taps = weight.squeeze(1) if weight.dim() == 3 and weight.shape[1] == 1 else weight
    if taps.dim() != 2 or taps.shape[0] != width or taps.shape[1] not in (2, 3, 4):
        raise ArgumentError(
            f"{LABEL}: weight has shape {tuple(weight.shape)}; with D = {width} channels of x it must be "
            f"[{width}, W] with W = 2, 3 or 4"
        )
    if bias is not None and tuple(bias.shape) != (width,):
        raise ArgumentError(f"{LABEL}: bias has shape {tuple(bias.shape)}; it must be [{width}]")
    if residual is not None and residual.shape != x.shape:
        raise ArgumentError(
            f"{LABEL}: residual has shape {tuple(residual.shape)}; it must be like x, {tuple(x.shape)}"
        )
    rows = x.unsqueeze(0) if x.dim() == 2 else x
    return rows.transpose(0, 1).float(), taps.float()


def _convolve(halo: Tensor, rows: Tensor, taps: Tensor, shard: Shard) -> Tensor:
    """[T, B, D]: of rows and the halo before them, never over the beginning of a sequence."""
    tokens, width = rows.shape[0], taps.shape[1]
    blank = rows.new_zeros(width - 1 - halo.shape[0], *rows.shape[1:])
    line = torch.cat([blank, halo, rows])
    # The other taps reach over a beginning only in the first rows of a fragment.
    reach = torch.full((tokens,), width, dtype=torch.int64)
    for i, (first, last) in enumerate(pairwise(shard.cu_seqlens)):
        before = shard.before if i == 0 else 0
        for t in range(first, min(last, first + width - 1)):
            reach[t] = before + t - first
    reach = reach.to(rows.device)[:, None, None]
    y = rows * taps[:, -1]
    for i in range(1, width):
        past = line[width - 1 - i : width - 1 - i + tokens]
        y = y + torch.where(reach >= i, past, 0.0) * taps[:, width - 1 - i]
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
    def forward(ctx, context, halo, anchor, rows):
        ctx.context, ctx.halo, ctx.shape = context, halo, rows.shape
        ctx.save_for_backward(anchor)  # so that a checkpoint's replay gets as far as this
        return _fetch(context, halo, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_halo):
        halo, label = ctx.halo, f"{LABEL}: rank {ctx.context.rank}, backward"
        assert ctx.saved_tensors
        d_rows = d_halo.new_zeros(ctx.shape)
        back = RowExchange(ADAPTER, ctx.context.group, d_halo, halo.receives, halo.sends, label=label)
        for piece, part in zip(halo.sends, back.finish(), strict=True):
            d_rows[piece.start : piece.stop] += part
        return None, None, None, d_rows
