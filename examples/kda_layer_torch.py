# SPDX-License-Identifier: Apache-2.0
"""A KDA attention layer for PyTorch.

From the formulas of "Kimi Linear: An Expressive, Efficient Attention Architecture" (arXiv:2510.26692);
x is a token's hidden state, per head of width 128:

    q, k = l2norm(silu(conv(W x)))    v = silu(conv(W x))        conv: causal, depthwise, 4 tokens
    step = -exp(a_log) softplus(W_up W_down x + dt_bias)         log of the decay of each key channel
    beta = sigmoid(W x)                                          how much of a write is carried out
    y    = W (rmsnorm(KDA(q, k, v, step, beta)) * sigmoid(W_up W_down x))

The l2norm, the gate and the sigmoid of beta are done inside the kernels: they take q, k, g and beta raw.
`kda_layer_mindspore.py` is the same layer; parameters have the same names and shapes.
"""

from __future__ import annotations

import math

import torch
from fla_npu.torch import npu_chunk_kda
from torch import Tensor, nn

WIDTH = 128  # of a head, keys and values alike: what the kernels are built for


def projection(inputs: int, outputs: int) -> nn.Linear:
    """A linear map without bias that keeps the size of its input."""
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=inputs**-0.5)
    return layer


class ShortConv(nn.Module):
    """y[t] = silu(sum_j weight[:, j] x[t - 3 + j]): each channel by itself, no look ahead."""

    def __init__(self, channels: int, width: int = 4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, width) * width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, channels] to the same."""
        channels, width = self.weight.shape
        y = nn.functional.conv1d(x.mT, self.weight[:, None], padding=width - 1, groups=channels)
        return nn.functional.silu(y[..., : x.shape[1]].mT)


class RmsNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon), times a learned gain, over the last axis."""

    def __init__(self, width: int, epsilon: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weight


class KdaAttention(nn.Module):
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
        step = torch.exp(torch.empty(value_heads, WIDTH).uniform_(math.log(1e-3), math.log(1e-1)))
        self.a_log = nn.Parameter(torch.empty(value_heads).uniform_(1.0, 16.0).log())
        self.dt_bias = nn.Parameter(step.expm1().log())  # the inverse of softplus
        self.safe_gate = safe_gate

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q_conv(self.q_proj(x)), self.k_conv(self.k_proj(x)), self.v_conv(self.v_proj(x))
        q, k, v, g, z = (
            split_heads(y) for y in (q, k, v, self.g_up(self.g_down(x)), self.z_up(self.z_down(x)))
        )
        o = self.attend(q, k, v, g, self.b_proj(x))
        return self.o_proj((self.o_norm(o) * torch.sigmoid(z)).flatten(-2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        """KDA of [B, T, heads, 128]: bfloat16 q, k and v; the gate and beta keep float32."""
        o, _ = npu_chunk_kda(
            q.bfloat16(), k.bfloat16(), v.bfloat16(), g.float(), beta.float(), WIDTH**-0.5, layout="BSND",
            a_log=self.a_log, dt_bias=self.dt_bias, safe_gate=self.safe_gate,
            use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True,
        )  # fmt: skip
        return o.to(q.dtype)


def split_heads(x: Tensor) -> Tensor:
    """[B, T, heads * 128] as [B, T, heads, 128]."""
    return x.unflatten(-1, (-1, WIDTH))
