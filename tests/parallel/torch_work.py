# SPDX-License-Identifier: Apache-2.0
"""One context-parallel call, cut from inputs that every rank can make: what ranks do, and the judgement."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

import torch
import torch.distributed as dist
from in_step import in_step
from torch import Tensor

SCALE = 128**-0.5
TOKENWISE = ("q", "k", "v", "g", "beta")
TOKEN_AXIS = {"BNSD": 2, "BSND": 1, "NTD": 1, "TND": 0}
OPTIONS = {
    "safe_gate": True, "use_gate_in_kernel": True, "use_qk_l2norm_in_kernel": True,
    "use_beta_sigmoid_in_kernel": True, "output_final_state": True,
}  # fmt: skip
_GROUPS: dict[tuple[int, ...], object] = {}


@dataclass(frozen=True)
class Case:
    """`lengths`: tokens per rank; `cu`: offsets of sequences, None for one (or one per row of a batch)."""

    lengths: tuple[int, ...]
    cu: tuple[int, ...] | None = None
    hk: int = 1
    hv: int = 2
    batch: int = 1
    layout: str = "TND"
    transport: str = "gather"
    group_size: int | None = None
    state: str = ""  # dtype of the initial state
    seed: int = 0
    options: dict = field(default_factory=dict)
    wanted: tuple[str, ...] | None = None  # None: a gradient of everything
    inputs: str = "model"  # or "public": the distributions of the public context-parallel tests

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def sequences(self) -> int:
        return len(self.cu) - 1 if self.cu else self.batch

    def all_options(self) -> dict:
        return {**OPTIONS, **self.options, "layout": self.layout, "scale": SCALE}


def inputs(case: Case) -> dict[str, Tensor]:
    """The tensors of the whole call."""
    rng = torch.Generator().manual_seed(case.seed)

    def normal(heads, *tail):
        x = torch.randn(case.batch, heads, case.tokens, *tail, generator=rng)
        x = x.transpose(1, 2).contiguous() if case.layout in ("BSND", "TND") else x
        return x if case.layout in ("BNSD", "BSND") else x[0].contiguous()

    t = {
        "q": normal(case.hk, 128).bfloat16(), "k": normal(case.hk, 128).bfloat16(),
        "v": normal(case.hv, 128).bfloat16(), "g": normal(case.hv, 128) - 2.0, "beta": normal(case.hv),
        "a_log": torch.log(torch.linspace(1.0, 8.0, case.hv)) - 1.0,
        "dt_bias": 0.1 * torch.randn(case.hv, 128, generator=rng),
    }  # fmt: skip
    if case.inputs == "public":
        step = torch.exp(torch.empty(case.hv, 128).uniform_(-6.9, -2.3, generator=rng))  # 1e-3 to 1e-1
        t["q"], t["k"], t["g"] = t["q"] + 1, (10 * t["k"].float() - 50).bfloat16(), t["g"] + 2.0
        t["a_log"] = torch.log(torch.linspace(1.0, 8.0, case.hv))
        t["dt_bias"] = step + torch.log(-torch.expm1(-step))
    if not case.all_options()["use_gate_in_kernel"]:
        t["g"] = -t["g"].abs() / 16
        del t["a_log"], t["dt_bias"]
    if case.state:
        state = torch.randn(case.sequences, case.hv, 128, 128, generator=rng)
        t["initial_state"] = state.to(getattr(torch, case.state))
    return t


def cotangents(case: Case) -> tuple[Tensor, Tensor]:
    """Of attn_out (token-major) and of final_state."""
    rng = torch.Generator().manual_seed(case.seed + 1)
    d_out = torch.randn(case.batch, case.tokens, case.hv, 128, generator=rng).bfloat16()
    d_final = torch.randn(case.sequences, case.hv, 128, 128, generator=rng)
    return (d_out if case.layout in ("BNSD", "BSND") else d_out[0]), d_final


def plain(case: Case) -> dict[str, Tensor]:
    """The call in one process: results by name, gradients as 'd' and the name of the input."""
    from fla_npu.torch import npu_chunk_kda

    return differentiate(case, inputs(case), cotangents(case), npu_chunk_kda, cu_seqlens=case.cu)


def differentiate(case: Case, tensors: dict, seeds: tuple, call, **extra) -> dict[str, Tensor]:
    leaves = {
        n: x.clone().requires_grad_(case.wanted is None or n in case.wanted) for n, x in tensors.items()
    }
    out, final = call(**leaves, **case.all_options(), **extra)
    pairs = [(x, s) for x, s in in_step((out, final), seeds) if x is not None and x.requires_grad]
    if pairs:
        torch.autograd.backward(*map(list, in_step(*pairs)))
    found = {"o": out.detach(), "final_state": None if final is None else final.detach()}
    return found | {f"d{n}": x.grad for n, x in leaves.items() if x.grad is not None}


# on the ranks


def group_of(members: tuple[int, ...]):
    """The process group of these ranks of the pool; called by all ranks of it."""
    if members not in _GROUPS:
        _GROUPS[members] = dist.new_group(list(members))
    return _GROUPS[members]


def part(x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    return x.narrow(axis, start, stop - start).clone()


def local_inputs(case: Case, context) -> tuple[dict[str, Tensor], tuple]:
    """This rank's tensors and cotangents."""
    shard, t, axis = context.shard, inputs(case), TOKEN_AXIS[case.layout]
    mine = {n: part(x, axis, shard.start, shard.stop) if n in TOKENWISE else x for n, x in t.items()}
    first = [shard.sequences[i] for i in shard.starts] if case.batch == 1 else list(range(case.batch))
    last = [shard.sequences[i] for i in shard.finishes] if case.batch == 1 else list(range(case.batch))
    if case.batch > 1:
        first, last = first if shard.starts else [], last if shard.finishes else []
    if case.state:
        mine["initial_state"] = t["initial_state"][first]
    d_out, d_final = cotangents(case)
    token = 1 if case.layout in ("BNSD", "BSND") else 0
    return mine, (part(d_out, token, shard.start, shard.stop), d_final[last])


def run(rank: int, size: int, case: Case, members: tuple[int, ...] | None = None) -> dict | None:
    """The call on this rank's tokens, in a group of as many ranks as the case has lengths."""
    from fla_npu.torch.parallel import ContextParallel, npu_chunk_kda

    members = members or tuple(range(len(case.lengths)))
    group = None if members == tuple(range(size)) else group_of(members)
    if rank not in members:
        return None
    context = ContextParallel(
        group, cu_seqlens=case.cu, lengths=case.lengths, transport=case.transport, group_size=case.group_size
    )
    mine, seeds = local_inputs(case, context)
    found = differentiate(case, mine, seeds, npu_chunk_kda, context=context)
    return found


# in the test


def assembled(case: Case, results: list[dict]) -> dict[str, Tensor]:
    """One call's results out of those of all ranks."""
    results = [r for r in results if r is not None]
    out: dict[str, Tensor] = {}
    for name in results[0].keys() | {n for r in results for n in r}:
        parts = [r[name] for r in results if r.get(name) is not None]
        if not parts:
            continue
        if name in ("da_log", "ddt_bias"):
            out[name] = sum(x.double() for x in parts)
        elif name in ("final_state", "dinitial_state"):
            out[name] = torch.cat(parts)
        else:
            token_major = name == "o" and case.layout == "BNSD", name == "o" and case.layout == "NTD"
            axis = 1 if token_major[0] else 0 if token_major[1] else TOKEN_AXIS[case.layout]
            out[name] = torch.cat(parts, axis)
    return out


def truth(case: Case) -> dict[str, Tensor]:
    """Float64: the recurrence and its adjoint."""
    from gradients import kda_gradients
    from recurrence import kda_recurrence

    options = {**case.all_options(), "cu_seqlens": case.cu}
    for name in ("output_final_state", "disable_recompute", "use_exp2"):
        options.pop(name, None)
    arrays = {n: x.double().numpy() for n, x in inputs(case).items()}
    d_out, d_final = cotangents(case)
    swapped = case.layout in ("BNSD", "NTD")
    exact = kda_recurrence(**arrays, **options)
    grads = kda_gradients(
        **arrays, **options, d_final=d_final.double().numpy() if case.all_options()["output_final_state"] else None,
        d_out=(d_out.transpose(-3, -2) if swapped else d_out).double().numpy(),
    )  # fmt: skip
    o = torch.as_tensor(exact["o"])
    found = {"o": o.transpose(-3, -2) if swapped else o, "final_state": torch.as_tensor(exact["final_state"])}
    return found | {f"d{n}": torch.as_tensor(x) for n, x in grads.items()}


def error(got: Tensor, want: Tensor) -> float:
    want = want.double().reshape(got.shape)
    return float((got.double() - want).norm() / want.norm().clamp_min(1e-30))


#: The error of few numbers is a draw: below so many, the usual one of two bfloat16 roundings is the least.
FEW, USUAL = 5000, 3e-3
#: Beside the plain call's own error: what a sum over tokens that cancels may differ by, and fp32.
GUARD = {"ddt_bias": 1e-3}


def cancelled(case: Case, exact: dict[str, Tensor]) -> float:
    """What errors of dg usually come to in da_log, relative to it: one number per head, left over by cancellation.

    They hang together through the state, so they add up to about four times what independent ones would:
    three sigma of that.
    """
    t, token = inputs(case), {"BNSD": 2, "BSND": 1, "NTD": 1, "TND": 0}[case.layout]
    bias = t["dt_bias"] if case.layout in ("TND", "BSND") else t["dt_bias"][:, None]
    x = (t["g"] + bias).double()
    if not case.all_options()["safe_gate"]:
        x = torch.nn.functional.softplus(x) / torch.sigmoid(x)
    terms = (exact["dg"].reshape(x.shape) * x).movedim(token, 0).square()
    head = {"BNSD": 2, "BSND": 2, "NTD": 1, "TND": 1}[case.layout]
    scale = terms.movedim(head, 0).flatten(1).sum(1).mean().sqrt()
    return float(12 * USUAL * scale / exact["da_log"].square().mean().sqrt().clamp_min(1e-30))


def judge(case: Case, results: list[dict], factor: float = 1.5) -> dict[str, tuple[float, float]]:
    """Every result is as near to float64 as that of the call in one process: {name: (error, the other's)}."""
    got, single, exact = assembled(case, results), plain(case), truth(case)
    assert got.keys() == {n for n, x in single.items() if x is not None}
    scores = {}
    for name, x in got.items():
        assert x.shape == single[name].shape, (
            f"{name}: {tuple(x.shape)} instead of {tuple(single[name].shape)}"
        )
        assert torch.isfinite(x).all(), name
        assert name in ("da_log", "ddt_bias") or x.dtype == single[name].dtype, f"{name}: {x.dtype}"
        scores[name] = error(x, exact[name]), error(single[name], exact[name])
        mine, other = scores[name]
        least = USUAL if x.numel() < FEW else 0.0
        limit = factor * max(other, least) + GUARD.get(name, 1e-5)
        if name == "da_log":
            limit = max(limit, cancelled(case, exact))
        assert mine <= limit, f"{name}: relative L2 {mine:.2e}, of the call in one process {other:.2e}"
    return scores


def cuts(total: int, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Offsets of sequences of these lengths."""
    cu = (0, *accumulate(lengths))
    assert cu[-1] == total
    return cu
