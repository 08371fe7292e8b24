# SPDX-License-Identifier: Apache-2.0
"""Sequences over several ranks, independent of the framework: the plan, its programs, and their run.

    plan = make_plan(lengths, cu_seqlens, transport="gather")
    plan.shard(rank)                     what the rank owns
    plan.forward(rank), .backward(rank)  how states, and their gradients, get to it
    Exchange                             runs such a program over an adapter and a transport
    conv_halo(plan, rank, width)         the same for the tokens before a causal convolution
    cost(plan, heads)                    bytes, steps and memory of an exchange (docs/scaling.md)

Front ends: `fla_npu.torch.parallel`, `fla_npu.mindspore.parallel`.
"""

from .engine import Exchange, Handle, RowExchange, Transport
from .halo import Halo, Piece, conv_halo
from .plan import TRANSPORTS, Plan, Shard, make_plan
from .program import MAP, STATE, Program
from .scaling import Cost, cost, even_plan

__all__ = [
    "MAP",
    "STATE",
    "TRANSPORTS",
    "Cost",
    "Exchange",
    "Halo",
    "Handle",
    "Piece",
    "Plan",
    "Program",
    "RowExchange",
    "Shard",
    "Transport",
    "conv_halo",
    "cost",
    "even_plan",
    "make_plan",
]
