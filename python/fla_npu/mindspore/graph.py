# SPDX-License-Identifier: Apache-2.0
"""Chunk KDA inside compiled graphs: `mindspore.jit` and GRAPH_MODE, on the CPU (the twin).

npu_chunk_kda refuses to be compiled, because the gradient of an extension operator is silently zero
in a graph. `ChunkKda` is the same computation as `ops.Custom(func_type="aot")`, which has a gradient
there:

    kda = ChunkKda(128**-0.5, layout="BSND", safe_gate=True)   # options once, outside of the graph

    @mindspore.jit
    def attend(q, k, v, g, beta, a_log, dt_bias):
        return kda(q, k, v, g, beta, a_log, dt_bias)

While the graph is compiled, the neutral layer's calls are recorded for its shapes; the C++ side
replays them (csrc/program.h) with no Python in between. The backward makes again what it needs, a
part of the heads at a time: the bits of both directions are those of
npu_chunk_kda(disable_recompute=False). It costs no memory between forward and backward.
"""

from __future__ import annotations

from functools import partial
from itertools import count

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.common.dtype import TensorType

from .. import chunk_kda
from ..errors import ArgumentError
from ..spec import ACL_DTYPE
from . import bridge
from .adapter import DTYPES, on_device
from .guard import GraphModeUnsupported
from .record import Recorder, Symbol

__all__ = ["ChunkKda"]

_LABEL = "ChunkKda"
# An input that is left out is presented as this: no real one has five axes, or integers.
_ABSENT = ((1, 1, 1, 1, 1), "int32")
_numbers = count(1)

Signature = tuple[tuple[tuple[int, ...], str], ...]  # shape and dtype of each tensor


class _Recorded(ops.Custom):
    """A primitive whose kernel is a program of the bridge. `record` takes the signature of the inputs
    (without the first, the number) and returns that of the outputs."""

    def __init__(self, number: int, record, bprop) -> None:
        library = f"{bridge.load().__file__}:FlaNpuReplay"
        super().__init__(library, (1,), mindspore.float32, "aot", bprop)
        # Two primitives of equal attributes count as the same operator.
        self.add_prim_attr("recording", number)
        self.record = record

    def __infer__(self, *args) -> dict:
        made = self.record(tuple(_described(arg) for arg in args[1:]))
        shapes = tuple(shape for shape, _ in made)
        dtypes = tuple(getattr(mindspore, dtype) for _, dtype in made)
        alone = len(made) == 1  # one result is a tensor, several are a tuple
        return {
            "shape": shapes[0] if alone else shapes,
            "dtype": dtypes[0] if alone else dtypes,
            "value": None,
        }


def _described(arg: dict) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of an input, as the graph compiler tells them."""
    shape, dtype = tuple(arg["shape"]), arg["dtype"]
    dtype = dtype.element_type() if isinstance(dtype, TensorType) else dtype
    if any(length < 0 for length in shape):
        raise ArgumentError(
            f"{_LABEL}: an input has the dynamic shape {shape}; the program is recorded for fixed shapes. "
            "Compile without dynamic axes, or use npu_chunk_kda in PyNative mode"
        )
    return shape, DTYPES.get(dtype) or str(dtype).lower()


class _Recordings:
    """The programs of one set of options: forward and backward per signature."""

    def __init__(self, options: dict) -> None:
        self.options = options
        self.forward_number, self.backward_number = next(_numbers), next(_numbers)
        self.refusal_number = next(_numbers)
        self._known: dict[tuple[int, Signature], Signature] = {}

    def forward(self, inputs: Signature) -> Signature:
        return self._recorded(self.forward_number, inputs, self._forward)

    def backward(self, inputs: Signature) -> Signature:
        return self._recorded(self.backward_number, inputs, self._backward)

    def refusal(self) -> _Recorded:
        """What takes the place of a second derivative: one result per input."""
        record = partial(self._recorded, self.refusal_number, trace=self._refuse)
        return _Recorded(self.refusal_number, record, None)

    def _recorded(self, number: int, inputs: Signature, trace) -> Signature:
        if (number, inputs) in self._known:
            return self._known[number, inputs]
        recorder = Recorder(first=1)  # parameter 0 is the number
        results = trace(recorder, [recorder.parameter(*one) for one in inputs])
        outputs = tuple((result.shape, result.dtype) for result in results)
        key = [number]
        for shape, dtype in (((1,), "int64"), *inputs, *outputs):
            key += (len(shape), *shape, ACL_DTYPE[dtype])
        scratch, steps = recorder.program(results)
        bridge.load().record(key, scratch, steps)
        self._known[number, inputs] = outputs
        return outputs

    @staticmethod
    def _named(parameters: list[Symbol]) -> dict[str, Symbol | None]:
        """Tensors by name, None for the ones left out."""
        return {
            name: None if (given.shape, given.dtype) == _ABSENT else given
            for name, given in zip(chunk_kda.TENSORS, parameters)
        }

    def _forward(self, recorder: Recorder, parameters: list[Symbol]) -> list[Symbol]:
        made = chunk_kda.forward(recorder, **self._named(parameters), **self.options)
        return [result for result in made if result is not None]

    def _backward(self, recorder: Recorder, parameters: list[Symbol]) -> list[Symbol]:
        given = len(chunk_kda.TENSORS)
        tensors, cotangents = self._named(parameters[:given]), parameters[given:]
        d_out, d_state = cotangents if len(cotangents) == 2 else (*cotangents, None)
        needs = {name for name, tensor in tensors.items() if tensor is not None}
        grads = chunk_kda.backward(recorder, tensors, self.options, (), d_out, d_state, needs)
        return [
            recorder.zeros(*_ABSENT, None) if tensor is None else grads[name]
            for name, tensor in tensors.items()
        ]

    @staticmethod
    def _refuse(recorder: Recorder, parameters: list[Symbol]) -> list[Symbol]:
        recorder.refuse(
            f"the gradient of {_LABEL} cannot be differentiated again: fla_npu computes first derivatives "
            "only. If the second derivative is not wanted, use mindspore.ops.stop_gradient on the gradient"
        )
        return parameters


def _constant(number: int) -> Tensor:
    return Tensor([number], mindspore.int64)


# The graph compiler parses the functions below and the class: plain syntax, one parameter per tensor.
# MindSpore may compile a second derivative that nobody needs (after an exception it takes every
# gradient for a nested one), so that is refused when it runs, not when it is compiled.


def _without_final_state(recordings: _Recordings):
    """bprop of a forward that returns attn_out."""
    refused, refusal = _constant(recordings.refusal_number), recordings.refusal()
    number = _constant(recordings.backward_number)

    def again(_, q, k, v, g, beta, a_log, dt_bias, initial_state, d_out, out, dout):
        return (_, *refusal(refused, q, k, v, g, beta, a_log, dt_bias, initial_state, d_out))

    backward = _Recorded(recordings.backward_number, recordings.backward, again)

    def bprop(_, q, k, v, g, beta, a_log, dt_bias, initial_state, out, dout):
        grads = backward(number, q, k, v, g, beta, a_log, dt_bias, initial_state, dout)
        return (ops.zeros_like(number), *grads)

    return bprop


def _with_final_state(recordings: _Recordings):
    """bprop of a forward that returns attn_out and final_state."""
    refused, refusal = _constant(recordings.refusal_number), recordings.refusal()
    number = _constant(recordings.backward_number)

    def again(_, q, k, v, g, beta, a_log, dt_bias, initial_state, d_out, d_state, out, dout):
        return (_, *refusal(refused, q, k, v, g, beta, a_log, dt_bias, initial_state, d_out, d_state))

    backward = _Recorded(recordings.backward_number, recordings.backward, again)

    def bprop(_, q, k, v, g, beta, a_log, dt_bias, initial_state, out, dout):
        grads = backward(number, q, k, v, g, beta, a_log, dt_bias, initial_state, dout[0], dout[1])
        return (ops.zeros_like(number), *grads)

    return bprop


class ChunkKda(nn.Cell):
    """npu_chunk_kda for graphs: options here, tensors at the call. Works in PyNative mode as well.

    Args:
        scale, chunk_size, layout, output_final_state, safe_gate, lower_bound, use_gate_in_kernel,
            cu_seqlens, chunk_indices, state_v_first, epsilon, use_qk_l2norm_in_kernel,
            use_beta_sigmoid_in_kernel, allow_neg_eigval, use_exp2: as npu_chunk_kda, same defaults.
            Offsets are read once, here.

    Inputs:
        q, k, v, g, beta, a_log, dt_bias, initial_state: as npu_chunk_kda; the last three may be None.

    Returns:
        attn_out, or (attn_out, final_state) with output_final_state: a graph cannot return None.

    Raises:
        ArgumentError, ArgumentTypeError: when the call is compiled. GraphModeUnsupported: on Ascend,
        where MindSpore takes only operators of CANN this way. RuntimeError: a failure inside a kernel,
        with its text, or a gradient that is differentiated again.
    """

    def __init__(
        self,
        scale: float,
        chunk_size: int = 64,
        *,
        layout: str = "BNSD",
        output_final_state: bool = False,
        safe_gate: bool = False,
        lower_bound: float = -5.0,
        use_gate_in_kernel: bool = True,
        cu_seqlens=None,
        chunk_indices=None,
        state_v_first: bool = False,
        epsilon: float = 1e-6,
        use_qk_l2norm_in_kernel: bool = False,
        use_beta_sigmoid_in_kernel: bool = False,
        allow_neg_eigval: bool = False,
        use_exp2: bool = True,
    ) -> None:
        super().__init__()
        if on_device():
            raise GraphModeUnsupported(
                f"{_LABEL} runs its operators from a C function, which MindSpore takes on the CPU only; on "
                "Ascend call npu_chunk_kda in PyNative mode, or compile around it with "
                'mindspore.jit(capture_mode="bytecode")'
            )
        options = {
            "scale": scale,
            "chunk_size": chunk_size,
            "layout": layout,
            "output_final_state": output_final_state,
            "safe_gate": safe_gate,
            "lower_bound": lower_bound,
            "use_gate_in_kernel": use_gate_in_kernel,
            "cu_seqlens": cu_seqlens,
            "chunk_indices": chunk_indices,
            "disable_recompute": False,
            "state_v_first": state_v_first,
            "epsilon": epsilon,
            "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
            "use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel,
            "allow_neg_eigval": allow_neg_eigval,
            "use_exp2": use_exp2,
            "label": _LABEL,
        }
        recordings = _Recordings(chunk_kda.settled(options))
        self.number = _constant(recordings.forward_number)
        self.absent = Tensor(np.zeros(_ABSENT[0], _ABSENT[1]))
        bprop = (_with_final_state if output_final_state else _without_final_state)(recordings)
        self.forward = _Recorded(recordings.forward_number, recordings.forward, bprop)

    def construct(self, q, k, v, g, beta, a_log=None, dt_bias=None, initial_state=None):
        if a_log is None:
            a_log = self.absent
        if dt_bias is None:
            dt_bias = self.absent
        if initial_state is None:
            initial_state = self.absent
        return self.forward(self.number, q, k, v, g, beta, a_log, dt_bias, initial_state)
