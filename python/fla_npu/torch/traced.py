# SPDX-License-Identifier: Apache-2.0
"""npu_chunk_kda for whoever traces instead of computing: torch.compile, export, fake tensors.

Two custom operators, `fla_npu::chunk_kda_forward` and `fla_npu::chunk_kda_backward`, run the code of
eager mode. Beside each stands what it returns for tensors that have a shape and no values. Strides
are part of that promise: the compiler checks them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from .. import chunk_kda
from ..chunk_kda import TENSORS
from . import autograd

__all__ = ["call", "needed"]

# Options of npu_chunk_kda that are no tensors, with their types in a schema.
_OPTIONS = {
    "scale": "float", "chunk_size": "int", "layout": "str", "output_final_state": "bool", "safe_gate": "bool",
    "lower_bound": "float?", "use_gate_in_kernel": "bool", "cu_seqlens": "SymInt[]?",
    "chunk_indices": "SymInt[]?", "disable_recompute": "bool", "state_v_first": "bool", "epsilon": "float",
    "use_qk_l2norm_in_kernel": "bool", "use_beta_sigmoid_in_kernel": "bool", "allow_neg_eigval": "bool",
    "use_exp2": "bool",
}  # fmt: skip
_REQUIRED = ("q", "k", "v", "g", "beta")
_CALL = ", ".join(
    [
        *(f"Tensor{'' if n in _REQUIRED else '?'} {n}" for n in TENSORS),
        *(f"{t} {n}" for n, t in _OPTIONS.items()),
    ]
)
_COUNT, _ALL = len(TENSORS), len(TENSORS) + len(_OPTIONS)
_TOKEN_MAJOR = ("BSND", "TND")


def needed(tensors: tuple) -> bool:
    """Whether somebody stands between the call and the memory of its tensors."""
    own = torch.Tensor.__torch_dispatch__
    if any(isinstance(t, Tensor) and type(t).__torch_dispatch__ is not own for t in tensors):
        return True
    return _get_current_dispatch_mode() is not None


def call(tensors: tuple, options: dict[str, Any], wanted: bool) -> tuple[Tensor, Tensor | None]:
    """`wanted`: a gradient may be asked for, so what it needs is an output, too."""
    arguments = [options[name] for name in _OPTIONS]
    out, final, _ = torch.ops.fla_npu.chunk_kda_forward(*tensors, *arguments, wanted)
    return out, final if options["output_final_state"] else None


def _split(arguments: tuple) -> tuple[tuple, dict[str, Any]]:
    """The tensors and the options of a call; what an operator takes beyond them is cut off."""
    return arguments[:_COUNT], dict(zip(_OPTIONS, arguments[_COUNT:_ALL]))


def _forward(*arguments) -> tuple[Tensor, Tensor, list[Tensor]]:
    tensors, options = _split(arguments)
    out, final, saved = autograd.run_forward(tensors, options, train=arguments[_ALL])
    return out, tensors[0].new_empty(0) if final is None else final, list(saved)


def _backward(*arguments) -> list[Tensor]:
    tensors, options = _split(arguments)
    saved, d_out, d_state, needs = arguments[_ALL:]
    return list(autograd.run_backward(tensors, saved, options, d_out, d_state, needs.split()))


forward_op = torch.library.custom_op(
    "fla_npu::chunk_kda_forward",
    _forward,
    mutates_args=(),
    schema=f"({_CALL}, bool train) -> (Tensor, Tensor, Tensor[])",
)
backward_op = torch.library.custom_op(
    "fla_npu::chunk_kda_backward",
    _backward,
    mutates_args=(),
    schema=f"({_CALL}, Tensor[] saved, Tensor? d_out, Tensor? d_state, str needs) -> Tensor[]",
)


class _Shapes:
    """Sizes of a call, possibly symbolic."""

    def __init__(self, tensors: tuple, options: dict[str, Any]) -> None:
        q, _, v = tensors[:3]
        layout = options["layout"]
        self.packed, self.swapped = layout in ("NTD", "TND"), layout in _TOKEN_MAJOR
        batch = () if self.packed else (q.shape[0],)
        token, head = (-3, -2) if self.swapped else (-2, -3)
        self.batch, self.tokens = batch[0] if batch else 1, q.shape[token]
        self.key_heads, self.heads = q.shape[head], v.shape[head]
        cu = options["cu_seqlens"]
        lengths = [b - a for a, b in zip(cu[:-1], cu[1:])] if cu is not None else [self.tokens]
        self.sequences = len(lengths) if cu is not None else self.batch
        self.chunks = sum((n + 63) // 64 for n in lengths)


@forward_op.register_fake
def _(*arguments):
    tensors, options = _split(arguments)
    q, n = tensors[0], _Shapes(tensors, options)
    rows = (n.tokens, n.heads, 128)
    out = q.new_empty(rows if n.packed else (n.batch, *rows))
    state = (n.sequences, n.heads, 128, 128) if options["output_final_state"] else (0,)
    saved = []
    if arguments[_ALL] and options["disable_recompute"]:
        keys, values = ((n.batch, h, n.tokens) for h in (n.key_heads, n.heads))
        shapes = {
            **dict.fromkeys(("gk", "w", "qg", "kg"), (*values, 128)),
            **dict.fromkeys(("aqk", "akk"), (*values, 64)),
            **dict.fromkeys(("q_hat", "k_hat"), (*keys, 128)),
            **dict.fromkeys(("q_rstd", "k_rstd"), keys),
            "beta_eff": values,
            "h": (n.batch, n.chunks, n.heads, 128, 128),
            "v_new": (2, *values, 128),
        }
        wide = ("gk", "q_rstd", "k_rstd", "beta_eff")
        types = {name: torch.float32 if name in wide else torch.bfloat16 for name in shapes}
        saved = [q.new_empty(shapes[name], dtype=types[name]) for name in chunk_kda.SAVED]
    return out, q.new_empty(state, dtype=torch.float32), saved


@backward_op.register_fake
def _(*arguments):
    tensors, options = _split(arguments)
    named, n = dict(zip(TENSORS, tensors)), _Shapes(tensors, options)
    grads = []
    for name in arguments[-1].split():
        x = named[name]
        if name not in _REQUIRED or not n.swapped:
            grads.append(x.new_empty(x.shape))
            continue
        # Computed head-major, handed out as a view in the layout of the input.
        token = 0 if n.packed else 1
        shape = list(x.shape)
        shape[token], shape[token + 1] = shape[token + 1], shape[token]
        grads.append(x.new_empty(shape).transpose(token, token + 1))
    return grads


def _setup(ctx, inputs, output) -> None:
    """What autograd._ChunkKda does in setup_context."""
    tensors, ctx.options = _split(inputs)
    ctx.set_materialize_grads(False)
    autograd.keep(ctx, tensors, output[2])


def _gradient(ctx, d_out, d_state, _):
    needs = autograd.needed(ctx.needs_input_grad[:_COUNT])
    absent = (None,) * (len(_OPTIONS) + 1)
    if d_out is None and d_state is None:
        return (None,) * _COUNT + absent
    tensors, saved = autograd.kept(ctx)
    arguments = [*tensors, *(ctx.options[name] for name in _OPTIONS)]
    grads = torch.ops.fla_npu.chunk_kda_backward(*arguments, list(saved), d_out, d_state, " ".join(needs))
    return *autograd.spread(needs, grads), *absent


forward_op.register_autograd(_gradient, setup_context=_setup)
backward_op.register_autograd(autograd.refuse)
