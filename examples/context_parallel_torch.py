# SPDX-License-Identifier: Apache-2.0
"""Context parallel on PyTorch: one KDA layer on documents that are longer than a rank's share of the tokens.

    python examples/context_parallel_torch.py [--ranks 3] [--transport relay]

Starts processes that talk over gloo. Each holds consecutive tokens of three documents, packed one after
another, with cuts wherever they fall. Output and gradients of all parameters are compared with the layer
of `kda_layer_torch.py`, one document at a time in one process: they differ by roundings only.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import accumulate

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from fla_npu.torch.parallel import ContextParallel, causal_conv1d, npu_chunk_kda, reduce_gradients
from kda_layer_torch import WIDTH, KdaAttention, split_heads
from torch import Tensor

DIM, HEADS = 48, 2
DOCUMENTS = (150, 30, 220)


class ParallelAttention(KdaAttention):
    """The layer on this rank's tokens. What is not per token asks the context: convolutions and KDA."""

    context: ContextParallel

    def forward(self, x: Tensor) -> Tensor:
        """[1, tokens of this rank, dim] to the same."""
        pairs = (
            (self.q_proj, self.q_conv),
            (self.k_proj, self.k_conv),
            (self.v_proj, self.v_conv),
        )
        q, k, v = (
            causal_conv1d(proj(x), conv.weight, activation="silu", context=self.context)
            for proj, conv in pairs
        )
        g, z = self.g_up(self.g_down(x)), self.z_up(self.z_down(x))
        q, k, v, g, z = (split_heads(y) for y in (q, k, v, g, z))
        o = self.attend(q, k, v, g, self.b_proj(x))
        return self.o_proj((self.o_norm(o) * torch.sigmoid(z)).flatten(-2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        o, _ = npu_chunk_kda(
            q.bfloat16(), k.bfloat16(), v.bfloat16(), g.float(), beta.float(), WIDTH**-0.5, layout="BSND",
            a_log=self.a_log, dt_bias=self.dt_bias, safe_gate=self.safe_gate,
            use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True, context=self.context,
        )  # fmt: skip
        return o.to(q.dtype)


def make(cls: type) -> tuple[KdaAttention, Tensor, Tensor]:
    """The same layer, tokens and cotangents in every process."""
    torch.manual_seed(0)
    layer = cls(DIM, HEADS)
    x, cotangent = torch.randn(2, 1, sum(DOCUMENTS), DIM)
    return layer, x, cotangent


def one_process() -> dict[str, Tensor]:
    """Output and gradients, document by document."""
    layer, x, cotangent = make(KdaAttention)
    outputs = []
    edges = (0, *accumulate(DOCUMENTS))
    for first, last in zip(edges, edges[1:]):
        outputs.append(layer(x[:, first:last]))
        outputs[-1].backward(cotangent[:, first:last])
    gradients = {n: p.grad for n, p in layer.named_parameters()}
    return {"output": torch.cat(outputs, 1).detach(), **gradients}


def rank_of_many(rank: int, ranks: int, transport: str, folder: str) -> None:
    """One process: its tokens, the layer, the sum of the parameters' gradients."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    layer, x, cotangent = make(ParallelAttention)
    offsets = (0, *accumulate(DOCUMENTS))
    layer.context = ContextParallel(cu_seqlens=offsets, transport=transport)
    shard = layer.context.shard
    print(f"{layer.context}: local offsets {list(shard.cu_seqlens)}", flush=True)
    y = layer(x[:, shard.start : shard.stop])
    y.backward(cotangent[:, shard.start : shard.stop])
    reduce_gradients(layer.parameters())
    torch.save(
        {"output": y.detach(), **{n: p.grad for n, p in layer.named_parameters()}}, f"{folder}/{rank}.pt"
    )
    dist.destroy_process_group()


def compare(ranks: int = 3, transport: str = "gather") -> dict[str, float]:
    """Relative L2 difference of every result."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_of_many, (ranks, transport, folder), nprocs=ranks)
        parts = [torch.load(f"{folder}/{r}.pt") for r in range(ranks)]
    got = {**parts[0], "output": torch.cat([p["output"] for p in parts], 1)}
    want = one_process()
    return {n: float((got[n] - x).norm() / x.norm()) for n, x in want.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--transport", default="gather", help="gather, relay, doubling")
    arguments = parser.parse_args()
    for name, difference in compare(arguments.ranks, arguments.transport).items():
        print(f"{name:16s} {difference:.1e}")


if __name__ == "__main__":
    main()
