# SPDX-License-Identifier: Apache-2.0
"""A KDA attention layer for MindSpore.

From the formulas of "Kimi Linear: An Expressive, Efficient Attention Architecture" (arXiv:2510.26692);
x is a token's hidden state, per head of width 128:

    q, k = l2norm(silu(conv(W x)))    v = silu(conv(W x))        conv: causal, depthwise, 4 tokens
    step = -exp(a_log) softplus(W_up W_down x + dt_bias)         log of the decay of each key channel
    beta = sigmoid(W x)                                          how much of a write is carried out
    y    = W (rmsnorm(KDA(q, k, v, step, beta)) * sigmoid(W_up W_down x))

The l2norm, the gate and the sigmoid of beta are done inside the kernels: they take q, k, g and beta raw.
`kda_layer_torch.py` is the same layer; parameters have the same names and shapes. Only operators that
MindSpore has on the CPU are used, so that it runs on the twin; for PyNative mode.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from fla_npu.mindspore import npu_chunk_kda
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.common.initializer import Normal, initializer

WIDTH = 128  # of a head, keys and values alike: what the kernels are built for


def projection(inputs: int, outputs: int) -> nn.Dense:
    """A linear map without bias that keeps the size of its input."""
    return nn.Dense(inputs, outputs, weight_init=Normal(inputs**-0.5), has_bias=False)


class ShortConv(nn.Cell):
    """y[t] = silu(sum_j weight[:, j] x[t - 3 + j]): each channel by itself, no look ahead."""

    def __init__(self, channels: int, width: int = 4):
        super().__init__()
        self.weight = Parameter(initializer(Normal(width**-0.5), (channels, width)))

    def construct(self, x: Tensor) -> Tensor:
        """[B, T, channels] to the same."""
        channels, width = self.weight.shape
        kernel, across = self.weight.expand_dims(1), x.swapaxes(1, 2)
        y = ops.conv1d(across, kernel, pad_mode="pad", padding=width - 1, groups=channels)
        return mint.nn.functional.silu(y[..., : x.shape[1]].swapaxes(1, 2))


class RmsNorm(nn.Cell):
    """x / sqrt(mean(x^2) + epsilon), times a learned gain, over the last axis."""

    def __init__(self, width: int, epsilon: float = 1e-5):
        super().__init__()
        self.weight = Parameter(initializer("ones", (width,)))
        self.epsilon = epsilon

    def construct(self, x: Tensor) -> Tensor:
        return x * mint.rsqrt(mint.mean(x * x, dim=-1, keepdim=True) + self.epsilon) * self.weight


class KdaAttention(nn.Cell):
    """[B, T, dim] to [B, T, dim].

    Args:
        heads: of queries and keys.
        value_heads: a multiple of `heads` (as many, when None); each group of value heads shares the
            queries and keys of one head, each has its own gate, beta and state.
        safe_gate: the bounded gate, step = -5 sigmoid(exp(a_log) (.. + dt_bias)), in place of softplus.
    """

    def __init__(self, dim: int, heads: int, value_heads: int | None = None, *, safe_gate: bool = False):
        super().__init__()
        value_heads = value_heads or heads
        keys, values = heads * WIDTH, value_heads * WIDTH
        self.q_proj, self.k_proj = projection(dim, keys), projection(dim, keys)
        self.v_proj = projection(dim, values)
        self.q_conv, self.k_conv, self.v_conv = ShortConv(keys), ShortConv(keys), ShortConv(values)
        self.g_down, self.g_up = projection(dim, WIDTH), projection(WIDTH, values)
        self.b_proj = projection(dim, value_heads)
        self.z_down, self.z_up = projection(dim, WIDTH), projection(WIDTH, values)
        self.o_norm = RmsNorm(WIDTH)
        self.o_proj = projection(values, dim)
        # As Mamba sets its gate up: rates from 1 to 16 per head, and per channel a bias so that at g = 0
        # softplus gives a time step between 1e-3 and 1e-1, even on a log scale.
        step = np.exp(np.random.uniform(math.log(1e-3), math.log(1e-1), (value_heads, WIDTH)))
        self.a_log = Parameter(Tensor(np.log(np.random.uniform(1.0, 16.0, value_heads)), ms.float32))
        self.dt_bias = Parameter(Tensor(np.log(np.expm1(step)), ms.float32))  # the inverse of softplus
        self.safe_gate = safe_gate

    def construct(self, x: Tensor) -> Tensor:
        q, k, v = self.q_conv(self.q_proj(x)), self.k_conv(self.k_proj(x)), self.v_conv(self.v_proj(x))
        q, k, v, g, z = (
            split_heads(y) for y in (q, k, v, self.g_up(self.g_down(x)), self.z_up(self.z_down(x)))
        )
        o = self.attend(q, k, v, g, self.b_proj(x))
        gated = self.o_norm(o) * mint.sigmoid(z)
        return self.o_proj(gated.reshape(*gated.shape[:2], -1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        """KDA of [B, T, heads, 128]: bfloat16 q, k and v; the gate and beta keep float32."""
        q16, k16, v16 = (y.astype(ms.bfloat16) for y in (q, k, v))
        o, _ = npu_chunk_kda(
            q16, k16, v16, g.astype(ms.float32), beta.astype(ms.float32), WIDTH**-0.5, layout="BSND",
            a_log=self.a_log, dt_bias=self.dt_bias, safe_gate=self.safe_gate,
            use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True,
        )  # fmt: skip
        return o.astype(q.dtype)


def split_heads(x: Tensor) -> Tensor:
    """[B, T, heads * 128] as [B, T, heads, 128]."""
    return x.reshape(*x.shape[:2], -1, WIDTH)
