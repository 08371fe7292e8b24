# SPDX-License-Identifier: Apache-2.0
"""Inputs and calls shared by the PyTorch tests."""

from __future__ import annotations

import torch
from in_step import in_step
from torch import Tensor

SCALE = 128**-0.5
# Arguments with a token axis; the others belong to heads.
TOKENWISE = ("q", "k", "v", "g", "beta")


def make(tokens=70, hk=2, hv=4, batch=1, layout="BNSD", seed=0) -> dict[str, Tensor]:
    """q, k, v, g, beta of a raw-gate call, plus a_log and dt_bias."""
    rng = torch.Generator().manual_seed(seed)

    def normal(heads, *tail):
        x = torch.randn(batch, heads, tokens, *tail, generator=rng)
        if layout in ("BSND", "TND"):
            x = x.transpose(1, 2).contiguous()
        return x if layout in ("BNSD", "BSND") else x[0].contiguous()

    return {
        "q": normal(hk, 128).bfloat16(),
        "k": normal(hk, 128).bfloat16(),
        "v": normal(hv, 128).bfloat16(),
        "g": normal(hv, 128) - 2.0,
        "beta": normal(hv),
        "a_log": torch.linspace(-0.5, 0.5, hv),
        "dt_bias": 0.1 * torch.randn(hv, 128, generator=rng),
    }


OPTIONS = {
    "safe_gate": True,
    "use_gate_in_kernel": True,
    "use_qk_l2norm_in_kernel": True,
    "use_beta_sigmoid_in_kernel": True,
}


def kda(t: dict[str, Tensor], layout="BNSD", **changes):
    from fla_npu.torch import npu_chunk_kda

    options = {**OPTIONS, "output_final_state": True, **changes}
    return npu_chunk_kda(**t, scale=SCALE, layout=layout, **options)


def prepare(t: dict[str, Tensor], layout="BNSD", **changes) -> tuple:
    from fla_npu.ops.ascendc import chunk_kda_fwd_prepare

    keywords = {("A_log" if name == "a_log" else name): x for name, x in t.items()}
    return chunk_kda_fwd_prepare(**keywords, scale=SCALE, layout=layout, **{**OPTIONS, **changes})


def stages(t: dict[str, Tensor], **meta) -> dict[str, Tensor]:
    """All stage tensors of a BNSD call, by name."""
    from fla_npu.ops.ascendc import chunk_fwd_h, chunk_kda_fwd_finalize

    prepared = prepare(t, backward_mode="none", **meta)
    gk, aqk, _, w, u, _, kg, qg_scaled, *_ = prepared
    h, v_new, final = chunk_fwd_h(kg, w, u, gk=gk, output_final_state=True, use_exp2=True, **meta)
    out = chunk_kda_fwd_finalize(qg_scaled, aqk, v_new, h, **meta)
    return {
        "gk": gk, "aqk": aqk, "w": w, "u": u, "kg": kg, "qg_scaled": qg_scaled, "h": h, "v_new": v_new,
        "final_state": final, "out": out, "prepared": prepared,
    }  # fmt: skip


def same_bits(a, b) -> bool:
    """Equal shape, dtype and bit pattern; sequences element by element."""
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(same_bits(x, y) for x, y in in_step(a, b))
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    kind = torch.int16 if a.element_size() == 2 else torch.int32
    return torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


def leaves(t: dict[str, Tensor], wanted=None) -> dict[str, Tensor]:
    """Copies that collect gradients; all of them, or those named in `wanted`."""
    return {n: x.clone().requires_grad_(wanted is None or n in wanted) for n, x in t.items()}


def seeds(out: Tensor, final: Tensor | None, seed=1) -> tuple[Tensor, Tensor]:
    """Cotangents of both outputs."""
    rng = torch.Generator().manual_seed(seed)
    state = None if final is None else torch.randn(final.shape, generator=rng)
    return torch.randn(out.shape, generator=rng).to(out.dtype), state


def gradients(t: dict[str, Tensor], wanted=None, call=kda, cotangents=None, **options) -> dict[str, Tensor]:
    """Gradients of sum(out * seed) + sum(final_state * seed); without a None for inputs not wanted."""
    inputs = leaves(t, wanted)
    out, final = call(inputs, **options)
    pairs = [(x, s) for x, s in in_step((out, final), cotangents or seeds(out, final)) if s is not None]
    torch.autograd.backward(*map(list, in_step(*pairs)))
    assert all(inputs[n].grad is None for n in inputs if wanted is not None and n not in wanted)
    return {n: x.grad for n, x in inputs.items() if wanted is None or n in wanted}
