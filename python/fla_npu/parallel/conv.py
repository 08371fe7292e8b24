# SPDX-License-Identifier: Apache-2.0
"""What a causal convolution over ranks takes, and how far back each token may look. No data."""

from __future__ import annotations

from ..checks import Desc
from ..errors import ArgumentError, ArgumentTypeError
from .context import Context
from .plan import Shard

__all__ = ["ACTIVATIONS", "LABEL", "check_conv", "conv_facts", "reach"]

LABEL = "parallel.causal_conv1d"
ACTIVATIONS = (None, "silu", "swish")
_FLOATS = ("float32", "bfloat16", "float16", "float64")


def check_conv(
    x: Desc, weight: Desc, bias: Desc | None, residual: Desc | None, activation, context: Context
) -> None:
    """Raises what `causal_conv1d` must refuse on this rank."""
    for name, desc in (("x", x), ("weight", weight), ("bias", bias), ("residual", residual)):
        if desc is None and name in ("bias", "residual"):
            continue
        if desc is None or desc.dtype not in _FLOATS:
            kind = None if desc is None else desc.dtype
            raise ArgumentTypeError(
                f"{LABEL}: {name} is {kind}; it must be a floating-point tensor: {', '.join(_FLOATS)}"
            )
    if activation not in ACTIVATIONS:
        raise ArgumentError(f"{LABEL}: activation = {activation!r}; it must be one of {list(ACTIVATIONS)}")
    if len(x.shape) not in (2, 3):
        raise ArgumentError(f"{LABEL}: x has shape {x.shape}; it must be [T, D] or [1, T, D]")
    if len(x.shape) == 3 and x.shape[0] != 1 and context.packed:
        raise ArgumentError(
            f"{LABEL}: x has shape {x.shape} with a context that has cu_seqlens; packed sequences need B = 1 "
            "(lay them one after another along T)"
        )
    shard, width = context.shard, x.shape[-1]
    if x.shape[-2] != shard.tokens:
        raise ArgumentError(
            f"{LABEL}: x has {x.shape[-2]} tokens, but rank {shard.rank} has {shard.tokens} of the context: "
            f"[{shard.start}, {shard.stop}) of {context.plan.cu_seqlens[-1]}; pass this rank's own tokens"
        )
    if _taps(weight.shape, width) not in (2, 3, 4):
        raise ArgumentError(
            f"{LABEL}: weight has shape {weight.shape}; with D = {width} channels of x it must be "
            f"[{width}, W] with W = 2, 3 or 4"
        )
    if bias is not None and bias.shape != (width,):
        raise ArgumentError(f"{LABEL}: bias has shape {bias.shape}; it must be [{width}]")
    if residual is not None and residual.shape != x.shape:
        raise ArgumentError(f"{LABEL}: residual has shape {residual.shape}; it must be like x, {x.shape}")


def conv_facts(
    x: Desc, weight: Desc, bias: Desc | None, residual: Desc | None, activation, context: Context
) -> dict[str, object]:
    """What must be the same on every rank."""
    given = {"bias": bias, "residual": residual}
    return {
        "context": context.digest,
        "D": x.shape[-1],
        "W": weight.shape[-1],
        "rows": x.shape[0] if len(x.shape) == 3 else 1,
        "activation": activation and "silu",
        **{name: "None" if desc is None else "given" for name, desc in given.items()},
    }


def _taps(shape: tuple[int, ...], width: int) -> int:
    """W of [D, W] or [D, 1, W]; 0 for any other shape."""
    if len(shape) == 3 and shape[1] == 1:
        shape = (shape[0], shape[2])
    return shape[1] if len(shape) == 2 and shape[0] == width else 0


def reach(shard: Shard, width: int) -> list[int]:
    """Per token of a rank, how many tokens of its sequence are before it, `width` for that many and more."""
    out = [width] * shard.tokens
    # Taps reach over a beginning only in the first rows of a fragment.
    for i, (first, last) in enumerate(zip(shard.cu_seqlens, shard.cu_seqlens[1:])):
        before = shard.before if i == 0 else 0
        for t in range(first, min(last, first + width - 1)):
            out[t] = before + t - first
    return out
