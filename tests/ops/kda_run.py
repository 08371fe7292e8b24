# SPDX-License-Identifier: Apache-2.0
"""The operators through the public PyTorch functions, fed from the seeded float64 inputs."""

from __future__ import annotations

import platform

import numpy as np
import pytest
import torch
from goldens import MODE_SLOTS, PREPARE_SLOTS
from in_step import in_step
from kda_inputs import KdaInputs

#: Mark of a test about an instruction set that only one processor has.
x86_64_only = pytest.mark.skipif(platform.machine() != "x86_64", reason="AVX is of x86-64")
TORCH = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def tensor(x: np.ndarray | None, dtype: str) -> torch.Tensor | None:
    """A contiguous CPU tensor that holds `x` exactly."""
    return None if x is None else torch.from_numpy(np.ascontiguousarray(x)).to(TORCH[dtype])


def array(x: torch.Tensor) -> np.ndarray:
    """float64 NumPy copy of a tensor of any float type."""
    return x.detach().to(torch.float64).numpy()


def same_bits(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Equal shape, type and bit pattern; NaN equals the same NaN, +0 differs from -0."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    kind = torch.int16 if a.element_size() == 2 else torch.int32
    return torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


def differing(a: dict, b: dict) -> list[str]:
    """Names of the entries whose bits differ."""
    assert a.keys() == b.keys()
    return [name for name in a if not same_bits(a[name], b[name])]


def tensors_of(inputs: KdaInputs) -> dict[str, torch.Tensor]:
    """The input arrays as tensors."""
    return {name: tensor(x, inputs.dtypes[name]) for name, x in inputs.arrays.items()}


def prepare(inputs: KdaInputs, tensors: dict | None = None, mode: str | None = None, **changes) -> dict:
    """chunk_kda_fwd_prepare; returns {slot: tensor} for the slots that are not None."""
    from fla_npu.ops.ascendc import chunk_kda_fwd_prepare

    t = dict(tensors or tensors_of(inputs))
    options = {**inputs.options, **changes}
    t["A_log"] = t.pop("a_log", None)
    mode = mode or inputs.mode
    out = chunk_kda_fwd_prepare(**t, **options, backward_mode=mode)
    assert isinstance(out, tuple) and len(out) == 13
    slots = {name: x for name, x in in_step(PREPARE_SLOTS, out) if x is not None}
    assert slots.keys() == set(MODE_SLOTS[mode]), f"mode {mode} filled {sorted(slots)}"
    return slots


def fwd_h(stages: dict, inputs: KdaInputs, initial_state=None, **options) -> dict:
    """chunk_fwd_h on Prepare's slots (rank 3 is lifted); returns h, v_new and final_state if asked."""
    from fla_npu.ops.ascendc import chunk_fwd_h

    kg, w, u, gk = (stages[n] if stages[n].dim() == 4 else stages[n][None] for n in ("kg", "w", "u", "gk"))
    options = {
        "output_final_state": True,
        "use_exp2": inputs.options.get("use_exp2", True),
        **options,
    }
    options.setdefault("state_v_first", inputs.state_v_first)
    options.setdefault("cu_seqlens", inputs.options.get("cu_seqlens"))
    h, v_new, final_state = chunk_fwd_h(kg, w, u, gk=gk, initial_state=initial_state, **options)
    out = {"h": h, "v_new": v_new, "final_state": final_state}
    if not options["output_final_state"]:
        assert final_state is None
        del out["final_state"]
    return out


def finalize(stages: dict, inputs: KdaInputs, **options) -> torch.Tensor:
    """chunk_kda_fwd_finalize, token-major unless told otherwise."""
    from fla_npu.ops.ascendc import chunk_kda_fwd_finalize

    rank3 = stages["qg_scaled"].dim() == 3
    options.setdefault("output_layout", "TND" if rank3 else "BSND")
    options.setdefault("state_v_first", inputs.state_v_first)
    options.setdefault("cu_seqlens", inputs.options.get("cu_seqlens"))
    return chunk_kda_fwd_finalize(stages["qg_scaled"], stages["aqk"], stages["v_new"], stages["h"], **options)


def forward(inputs: KdaInputs, tensors: dict | None = None, mode: str | None = None) -> dict:
    """The three operators in a row; {slot: tensor} with h, v_new, final_state and o (token-major)."""
    stages = prepare(inputs, tensors, mode)
    state = tensor(inputs.initial_state, inputs.state_dtype)
    stages |= fwd_h(stages, inputs, state)
    stages["o"] = finalize(stages, inputs)
    return stages


def relayed(inputs: KdaInputs, wide: bool) -> dict:
    """Prepare and the state recurrence (rank 3 is lifted); `wide`: u in float32, v_new in two planes."""
    from fla_npu import chunk_kda
    from fla_npu.torch.adapter import ADAPTER

    options = {**inputs.options, "backward_mode": "save", "wide_relay": wide}
    out = dict(in_step(PREPARE_SLOTS, chunk_kda.prepare(ADAPTER, **tensors_of(inputs), **options)))
    state = tensor(inputs.initial_state, inputs.state_dtype)
    kg, w, u, gk = (out[n] if out[n].dim() == 4 else out[n][None] for n in ("kg", "w", "u", "gk"))
    after = chunk_kda.fwd_h(
        ADAPTER, kg, w, u, gk=gk, initial_state=state,
        cu_seqlens=inputs.options.get("cu_seqlens"), use_exp2=inputs.options.get("use_exp2", True),
        output_final_state=True, state_v_first=inputs.state_v_first, wide_relay=wide,
    )  # fmt: skip
    return out | dict(in_step(("h", "v_new", "final_state"), after))
