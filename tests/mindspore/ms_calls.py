# SPDX-License-Identifier: Apache-2.0
"""Cases of tests/reference as calls of the MindSpore functions."""

from __future__ import annotations

import fla_npu.mindspore as front
import mindspore as ms
import numpy as np
from backward import Cotangents
from in_step import in_step
from kda_inputs import KdaInputs
from recurrence import from_head_major


def torch_bits(x) -> np.ndarray:
    """Bit pattern of a torch tensor, to compare with `tools.bits`."""
    import torch

    kind = {2: torch.int16, 4: torch.int32}[x.element_size()]
    return x.contiguous().view(kind).numpy().view({2: np.uint16, 4: np.uint32}[x.element_size()])


def to_ms(x, dtype: str):
    return None if x is None else ms.Tensor(np.asarray(x, np.float32)).astype(getattr(ms, dtype))


def tensors_of(inputs: KdaInputs) -> dict:
    return {name: to_ms(x, inputs.dtypes[name]) for name, x in inputs.arrays.items()}


def leaves_of(inputs: KdaInputs) -> dict:
    """All tensors of a call that may have a gradient, the state with its own dtype among them."""
    state = to_ms(inputs.initial_state, inputs.state_dtype)
    return tensors_of(inputs) | ({} if state is None else {"initial_state": state})


def options_of(inputs: KdaInputs, **changes) -> dict:
    fixed = {"use_gate_in_kernel": False, "state_v_first": inputs.state_v_first}
    return {**fixed, **inputs.options, **changes}


def run(inputs: KdaInputs, tensors: dict | None = None, **changes):
    """npu_chunk_kda on a case; (attn_out, final_state)."""
    options = options_of(inputs, **{"output_final_state": True, **changes})
    state = to_ms(inputs.initial_state, inputs.state_dtype)
    return front.npu_chunk_kda(**(tensors or tensors_of(inputs)), initial_state=state, **options)


def cotangents_of(inputs: KdaInputs, seeds: Cotangents) -> tuple:
    """(d_out float32 as attn_out, d_state or None)."""
    layout = "TND" if inputs.options["layout"] in ("NTD", "TND") else "BSND"
    return to_ms(from_head_major(seeds.out, layout), "float32"), to_ms(seeds.final, "float32")


def gradients(inputs: KdaInputs, seeds: Cotangents, call=None, derive=None, **changes) -> dict:
    """The gradient of every input, by its name. `call(**tensors)` stands in for npu_chunk_kda,
    `derive(function, positions)` for mindspore.grad."""
    leaves = leaves_of(inputs)
    options = options_of(inputs, output_final_state=seeds.final is not None, **changes)
    d_out, d_state = cotangents_of(inputs, seeds)
    call = call or (lambda **tensors: front.npu_chunk_kda(**tensors, **options))

    def loss(*values):
        out, state = call(**dict(in_step(leaves, values)))
        value = (out.astype(ms.float32) * d_out).sum()
        return value if d_state is None else value + (state * d_state).sum()

    found = (derive or ms.grad)(loss, tuple(range(len(leaves))))(*leaves.values())
    for (name, leaf), grad in in_step(leaves.items(), found):
        assert (grad.shape, grad.dtype) == (leaf.shape, leaf.dtype), f"gradient of {name}"
    return dict(in_step(leaves, found))
