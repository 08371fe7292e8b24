# SPDX-License-Identifier: Apache-2.0
"""Sequences longer than one device, on MindSpore: context parallel over its communication package.

    context = ContextParallel(group, cu_seqlens=cu)            once per packing
    out, state = npu_chunk_kda(q, k, v, g, beta, scale, context=context, ...)
    x = causal_conv1d(x, weight, context=context)              the short convolution before it
    out = ulysses(fn, group)(q, k, v, g, beta)                 heads instead of tokens, for any fn
    x = from_zigzag(x, group, axis=1)                          where tokens came in load-balanced order
    grads = reduce_gradients(grads, group)                     sums of partial gradients

The names and meanings of `fla_npu.torch.parallel`; only `reduce_gradients` takes and returns gradients,
since MindSpore's parameters do not hold theirs. Every rank holds consecutive tokens.

Ran on: CPU with the twin. The Ascend branch (native all-to-all, hccl groups) has not been run on an NPU.
"""

from ...errors import ParallelError
from .context import ContextParallel
from .conv import causal_conv1d
from .kda import npu_chunk_kda
from .order import from_zigzag, to_zigzag
from .shared import head_slice, reduce_gradients
from .ulysses import ulysses

__all__ = [
    "ContextParallel",
    "ParallelError",
    "causal_conv1d",
    "from_zigzag",
    "head_slice",
    "npu_chunk_kda",
    "reduce_gradients",
    "to_zigzag",
    "ulysses",
]
