# SPDX-License-Identifier: Apache-2.0
"""What ranks do in the tests of everything around the state scan: convolution, heads, parameters, replays."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from in_step import in_step
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch_work import Case, cotangents, differentiate, group_of, inputs, local_inputs, part

# the short convolution


@dataclass(frozen=True)
class Conv:
    """A convolution over tokens in `lengths` per rank, of sequences `cu`."""

    lengths: tuple[int, ...]
    cu: tuple[int, ...] | None = None
    width: int = 4
    channels: int = 3
    batch: int = 0  # 0: [T, D]
    bias: bool = True
    activation: str | None = "silu"
    residual: bool = True
    dtype: str = "float32"
    seed: int = 0


def conv_inputs(case: Conv) -> tuple[dict[str, Tensor], Tensor]:
    """Tensors of the whole call by name, and the cotangent of y."""
    rng = torch.Generator().manual_seed(case.seed)
    rows = (sum(case.lengths), case.channels)
    shape = (case.batch, *rows) if case.batch else rows
    x, seed, residual = (torch.randn(shape, generator=rng).to(getattr(torch, case.dtype)) for _ in range(3))
    t = {"x": x, "weight": torch.randn(case.channels, case.width, generator=rng)}
    if case.bias:
        t["bias"] = torch.randn(case.channels, generator=rng)
    if case.residual:
        t["residual"] = residual
    return t, seed


def conv_truth(case: Conv) -> dict[str, Tensor]:
    """By the definition, in float64."""
    t, seed = conv_inputs(case)
    t = {n: x.double().requires_grad_() for n, x in t.items()}
    x = t["x"] if case.batch else t["x"][None]
    y = torch.zeros_like(x)
    cu = case.cu or (0, x.shape[1])
    rows = []
    for s in range(len(cu) - 1):
        for at in range(cu[s], cu[s + 1]):
            taps = range(min(case.width, at - cu[s] + 1))
            rows.append(sum(x[:, at - i] * t["weight"][:, case.width - 1 - i] for i in taps))
    y = torch.stack(rows, 1)
    y = y + t["bias"] if case.bias else y
    y = y * torch.sigmoid(y) if case.activation else y
    y = y.reshape(seed.shape) + (t["residual"] if case.residual else 0)
    y.backward(seed.double())
    return {"y": y.detach()} | {f"d{n}": x.grad for n, x in t.items()}


def conv(rank: int, size: int, case: Conv, wanted: bool = True) -> dict[str, Tensor] | None:
    from fla_npu.torch.parallel import ContextParallel, causal_conv1d

    members = tuple(range(len(case.lengths)))
    group = None if len(members) == size else group_of(members)
    if rank not in members:
        return None
    context = ContextParallel(group, cu_seqlens=case.cu, lengths=case.lengths)
    shard, axis = context.shard, 1 if case.batch else 0
    t, seed = conv_inputs(case)
    mine = {n: part(x, axis, shard.start, shard.stop) if n in ("x", "residual") else x for n, x in t.items()}
    mine = {n: x.requires_grad_(wanted) for n, x in mine.items()}
    y = causal_conv1d(**mine, activation=case.activation, context=context)
    if wanted:
        y.backward(part(seed, axis, shard.start, shard.stop))
    return {"y": y.detach()} | {f"d{n}": x.grad for n, x in mine.items() if wanted}


# heads instead of tokens


def single_numbers(rank: int, size: int) -> Tensor:
    """One number to every rank: twice what the ranks have, and its gradient."""
    from fla_npu.torch.parallel import ulysses

    x = (rank + torch.arange(float(size))).reshape(1, size, 1).requires_grad_()
    y = ulysses(lambda t: 2.0 * t, None, layout="BNSD", output_layout="BNSD")(x)
    y.sum().backward()
    return torch.cat([y.detach() / 2.0 - x.detach(), x.grad - 2.0])


def heads(rank: int, size: int, case: Case) -> dict[str, Tensor] | None:
    """npu_chunk_kda inside `ulysses`: gradients of parameters are summed over the ranks."""
    from fla_npu.torch import npu_chunk_kda
    from fla_npu.torch.parallel import head_slice, reduce_gradients, ulysses

    members = tuple(range(len(case.lengths)))
    group = None if len(members) == size else group_of(members)
    if rank not in members:
        return None
    start = sum(case.lengths[:rank])
    t, (d_out, d_final) = inputs(case), cotangents(case)
    axis = {"BNSD": 2, "BSND": 1, "NTD": 1, "TND": 0}[case.layout]
    mine = {n: part(x, axis, start, start + case.lengths[rank]) if n in "q k v g beta".split() else x
            for n, x in t.items()}  # fmt: skip
    leaves = {n: x.clone().requires_grad_() for n, x in mine.items()}
    step = case.hv // len(members)
    small = {n: head_slice(leaves[n], group) for n in ("a_log", "dt_bias") if n in leaves}
    state = leaves["initial_state"].narrow(1, rank * step, step) if case.state else None
    options = case.all_options()

    def attend(q, k, v, g, beta):
        return npu_chunk_kda(q, k, v, g, beta, **options, **small, initial_state=state, cu_seqlens=case.cu)

    call = ulysses(attend, group, layout=case.layout)
    out, final = call(*(leaves[n] for n in ("q", "k", "v", "g", "beta")))
    token = 1 if case.layout in ("BNSD", "BSND") else 0
    mine_out = part(d_out, token, start, start + case.lengths[rank])
    torch.autograd.backward([out, final], [mine_out, d_final.narrow(1, rank * step, step)])
    reduce_gradients([leaves[n] for n in leaves if n not in "q k v g beta".split()], group)
    found = {"o": out.detach(), "final_state": final.detach()}
    return found | {f"d{n}": x.grad for n, x in leaves.items()}


def mesh(rank: int, size: int, case: Case) -> dict[str, Tensor]:
    """Heads x sequence on four ranks: rank (s, h) has block s * 2 + h of the tokens."""
    from fla_npu.torch.parallel import ContextParallel, head_slice, npu_chunk_kda, reduce_gradients, ulysses
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("sequence", "heads"))
    lengths = (sum(case.lengths[:2]), sum(case.lengths[2:]))
    context = ContextParallel(mesh["sequence"], cu_seqlens=case.cu, lengths=lengths, transport=case.transport)
    start = sum(case.lengths[:rank])
    stop = start + case.lengths[rank]
    t, (d_out, _) = inputs(case), cotangents(case)
    mine = {n: part(x, 0, start, stop) if n in "q k v g beta".split() else x for n, x in t.items()}
    leaves = {n: x.clone().requires_grad_() for n, x in mine.items()}
    small = {n: head_slice(leaves[n], mesh["heads"]) for n in ("a_log", "dt_bias")}
    options = case.all_options()

    def attend(q, k, v, g, beta):
        return npu_chunk_kda(q, k, v, g, beta, **options, **small, context=context)[0]

    out = ulysses(attend, mesh["heads"], layout="TND")(*(leaves[n] for n in ("q", "k", "v", "g", "beta")))
    out.backward(part(d_out, 0, start, stop))
    reduce_gradients([leaves["a_log"], leaves["dt_bias"]])
    return {"o": out.detach()} | {f"d{n}": x.grad for n, x in leaves.items()}


# the load-balanced order


def zigzag(rank: int, size: int, case: Case) -> dict[str, Tensor]:
    """Tokens in zigzag order go through the scan and come back in it; the other ranks' via `blocks`."""
    from fla_npu.torch.parallel import (
        ContextParallel,
        from_zigzag,
        npu_chunk_kda,
        reduce_gradients,
        to_zigzag,
    )

    cu = case.cu or (0, case.tokens)
    t, (seed, _) = inputs(case), cotangents(case)
    mine = torch.cat([torch.arange(*span) for span in blocks(cu, rank, size)])
    leaves = {n: x[mine].clone() if n in "q k v g beta".split() else x.clone() for n, x in t.items()}
    leaves = {n: x.requires_grad_() for n, x in leaves.items()}
    context = ContextParallel(cu_seqlens=case.cu, lengths=len(mine))
    straight = {
        n: from_zigzag(x, axis=0, cu_seqlens=case.cu) if n in "q k v g beta".split() else x
        for n, x in leaves.items()
    }
    out, _ = npu_chunk_kda(**straight, **case.all_options(), context=context)
    out = to_zigzag(out, axis=0, cu_seqlens=case.cu)
    out.backward(seed[mine])
    reduce_gradients([leaves["a_log"], leaves["dt_bias"]])
    found = {"o": out.detach()} | {f"d{n}": x.grad for n, x in leaves.items()}
    return {"order": mine} | found


def blocks(cu: tuple[int, ...], rank: int, size: int) -> list[tuple[int, int]]:
    """Spans of a rank in zigzag order, by the definition."""
    out = []
    for a, b in in_step(cu[:-1], cu[1:]):
        step = (b - a) // (2 * size)
        out += [(a + i * step, a + (i + 1) * step) for i in (rank, 2 * size - 1 - rank)]
    return out


def uneven_zigzag(rank: int, size: int) -> str:
    from fla_npu.torch.parallel import from_zigzag

    try:
        from_zigzag(torch.zeros(5, 3), axis=0, cu_seqlens=(0, 9, 20) if rank == 1 else (0, 8, 20))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# nested groups


def nested(rank: int, size: int, case: Case, rows: list[list[int]]) -> dict[str, Tensor]:
    """Two groups {0, 2} and {1, 3}, the columns of a mesh, each with sequences of its own (another seed)."""
    from fla_npu.torch.parallel import ContextParallel, npu_chunk_kda
    from torch.distributed.device_mesh import DeviceMesh

    mesh = DeviceMesh("cpu", torch.tensor(rows), mesh_dim_names=("sequence", "data"))
    case = replace(case, seed=rank % 2)
    context = ContextParallel(mesh["sequence"], cu_seqlens=case.cu, lengths=case.lengths[context_rank(rank)])
    assert context.rank == rank // 2 and context.size == 2
    mine, seeds = local_inputs(case, context)
    return differentiate(case, mine, seeds, npu_chunk_kda, context=context)


def context_rank(rank: int) -> int:
    return rank // 2


# replays


def layers(rank: int, size: int, case: Case, kind: str, depth: int = 2, batches: int = 1) -> dict | None:
    """`depth` calls in a row, each wrapped in a checkpoint of this kind; the gradients of the first batch."""
    from fla_npu.torch.parallel import ContextParallel, npu_chunk_kda

    members = tuple(range(len(case.lengths)))
    group = None if len(members) == size else group_of(members)
    if rank not in members:
        return None
    context = ContextParallel(group, cu_seqlens=case.cu, lengths=case.lengths, transport=case.transport)
    options = case.all_options() | {"output_final_state": False}
    mine, (seed, _) = local_inputs(case, context)
    outputs, everything = [], []
    for _ in range(batches):
        leaves = {n: x.clone().requires_grad_() for n, x in mine.items()}

        def layer(v, leaves=leaves):
            return npu_chunk_kda(**{**leaves, "v": v}, **options, context=context)[0]

        x = leaves["v"]
        for _ in range(depth):
            if kind == "none":
                x = layer(x)
            else:
                x = checkpoint(layer, x, use_reentrant=kind == "reentrant")
        outputs.append(x)
        everything.append(leaves)
    outputs[0].backward(seed)  # of the other batches nothing is ever asked
    return {"o": outputs[0].detach()} | {f"d{n}": x.grad for n, x in everything[0].items()}


# shared parameters


def shared(rank: int, size: int, case: Case, dtype: str) -> dict[str, Tensor] | None:
    """a_log and dt_bias as leaves of this dtype: partial gradients, and their sums."""
    from fla_npu.torch.parallel import ContextParallel, npu_chunk_kda, reduce_gradients

    members = tuple(range(len(case.lengths)))
    group = None if len(members) == size else group_of(members)
    if rank not in members:
        return None
    context = ContextParallel(group, cu_seqlens=case.cu, lengths=case.lengths)
    mine, seeds = local_inputs(case, context)
    names = ("a_log", "dt_bias")
    leaves = {n: mine[n].to(getattr(torch, dtype)).requires_grad_() for n in names}
    out, _ = npu_chunk_kda(**{**mine, **leaves}, **case.all_options(), context=context)
    out.backward(seeds[0])
    partial = {f"partial {n}": x.grad.clone() for n, x in leaves.items()}
    unused = torch.ones(3, requires_grad=True)
    absent = torch.ones(3, requires_grad=True)
    if rank == 0:
        unused.grad = torch.full((3,), 2.0)
    reduce_gradients([*leaves.values(), unused, absent], context)
    assert torch.equal(unused.grad, torch.full((3,), 2.0)) and absent.grad is None
    return partial | {f"d{n}": x.grad for n, x in leaves.items()}


# what is sent and kept


def traffic(rank: int, size: int, case: Case) -> dict[str, int] | None:
    """Bytes of the state exchange's messages in one step, and of buffers that outlive the forward."""
    import gc
    import weakref

    from fla_npu.torch.parallel import ContextParallel, group, npu_chunk_kda

    members = tuple(range(len(case.lengths)))
    handle = None if len(members) == size else group_of(members)
    if rank not in members:
        return None
    context = ContextParallel(
        handle, cu_seqlens=case.cu, lengths=case.lengths, transport=case.transport, group_size=case.group_size
    )
    mine, seeds = local_inputs(case, context)
    seen, alive, count = [], [], [0]
    gather, receive = group.Group.gather, group.Group.receive

    def noted(handle, members=1):
        wait = handle.wait

        def waited():
            result = wait()
            if result is not None and result.dtype is torch.float32:  # handshakes are integers
                count[0] += (
                    result.numel() * 4 * (members - 1) // members if members > 1 else result.numel() * 4
                )
                seen.append(result.numel() * 4)
                alive.append(weakref.ref(result))
            return result

        handle.wait = waited
        return handle

    group.Group.gather = lambda self, x, m=None: noted(gather(self, x, m), len(m or range(self.size)))
    group.Group.receive = lambda self, *a: noted(receive(self, *a))
    try:
        leaves = {n: x.requires_grad_() for n, x in mine.items()}
        out, final = npu_chunk_kda(**leaves, **case.all_options(), context=context)
        gc.collect()
        kept = sum(1 for ref in alive if ref() is not None and ref().dim() == 4)
        forward = count[0]
        torch.autograd.backward([out, final], list(seeds))
    finally:
        group.Group.gather, group.Group.receive = gather, receive
    return {"forward": forward, "both": count[0], "peak": max(seen, default=0), "kept": kept}


def barrier(rank: int, size: int) -> int:
    dist.barrier()
    return rank
