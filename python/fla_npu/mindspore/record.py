# SPDX-License-Identifier: Apache-2.0
"""Records what the neutral layer does with tensors of given shapes, as a program for the bridge.

`Recorder` is an `Adapter` whose tensors are descriptions: it runs nothing, it writes down which
operators and copies would run, in which memory. A graph replays the program without Python
(csrc/program.h). The sequence depends on shapes, dtypes and options alone, so it holds for every
call with these.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..checks import Desc, Plan
from ..spec import ACL_DTYPE, spec
from .adapter import resolve

__all__ = ["Recorder", "Symbol"]

_BYTES = {"float32": 4, "bfloat16": 2, "int32": 4, "int64": 8}
_ALIGN = 512


@dataclass(eq=False)
class _Buffer:
    """Memory of its own: a parameter of the graph, or a block of the program's scratch."""

    bytes: int
    param: int = -1
    offset: int = 0  # in the scratch


class Symbol(NamedTuple):
    """A tensor that will exist when the program runs. `strides` and `offset` count elements."""

    buffer: _Buffer
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def is_dense(self) -> bool:
        return self.strides == _row_major(self.shape) or math.prod(self.shape) == 0

    def region(self) -> tuple:
        """As csrc/graph.cc reads it."""
        at = self.buffer.offset + self.offset * _BYTES[self.dtype]
        return self.buffer.param, at, ACL_DTYPE[self.dtype], self.shape, self.strides


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


class Recorder:
    """See fla_npu.chunk_kda.Adapter. Parameters of the graph are numbered from `first`."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._steps: list[tuple] = []  # name of the step, then symbols and plain values

    def parameter(self, shape: tuple[int, ...], dtype: str) -> Symbol:
        """The graph's next input; it is dense."""
        made = self._new(shape, dtype)
        made.buffer.param = self._next
        self._next += 1
        return made

    def program(self, results: Iterable[Symbol]) -> tuple[int, list[tuple]]:
        """Bytes of scratch, and the steps that leave `results` in the parameters that come next."""
        for result in results:
            self._give(result)
        scratch = self._place()
        return scratch, [_plain(step) for step in self._steps]

    def _give(self, result: Symbol) -> None:
        """A whole buffer becomes the parameter itself; anything else is copied into it."""
        number, self._next = self._next, self._next + 1
        buffer = result.buffer
        size = math.prod(result.shape) * _BYTES[result.dtype]
        if buffer.param < 0 and result.is_dense and buffer.bytes == size:
            buffer.param = number
            return
        given = self._new(result.shape, result.dtype)
        given.buffer.param = number
        self._steps.append(("copy", result, given))

    def _place(self) -> int:
        """Offsets in the scratch: a buffer has its place from its first to its last step."""
        first: dict[_Buffer, int] = {}
        last: dict[_Buffer, int] = {}
        for number, step in enumerate(self._steps):
            for symbol in _symbols(step):
                if symbol.buffer.param < 0:
                    first.setdefault(symbol.buffer, number)
                    last[symbol.buffer] = number
        placed: list[_Buffer] = []
        for buffer, begin in first.items():  # in the order of their first steps
            taken = sorted((b.offset, b.offset + b.bytes) for b in placed if last[b] >= begin)
            at = 0
            for start, end in taken:
                if at + buffer.bytes <= start:
                    break
                at = max(at, -(-end // _ALIGN) * _ALIGN)
            buffer.offset = at
            placed.append(buffer)
        return max((b.offset + b.bytes for b in placed), default=0)

    def _new(self, shape: tuple[int, ...], dtype: str) -> Symbol:
        shape = tuple(shape)
        return Symbol(_Buffer(math.prod(shape) * _BYTES[dtype]), dtype, shape, _row_major(shape))

    def _copied(self, tensor: Symbol, dtype: str) -> Symbol:
        made = self._new(tensor.shape, dtype)
        self._steps.append(("copy", tensor, made))
        return made

    def describe(self, label: str, name: str, value: Symbol | None) -> Desc | None:
        return None if value is None else Desc(value.shape, value.dtype, "cpu")

    def cast(self, tensor: Symbol, dtype: str) -> Symbol:
        return tensor if tensor.dtype == dtype else self._copied(tensor, dtype)

    def dense(self, tensor: Symbol) -> Symbol:
        return tensor if tensor.is_dense else self._copied(tensor, tensor.dtype)

    def reshape(self, tensor: Symbol, shape: tuple[int, ...]) -> Symbol:
        shape = tuple(shape)
        return self.dense(tensor)._replace(shape=shape, strides=_row_major(shape))

    def swap(self, tensor: Symbol, a: int, b: int) -> Symbol:
        order = list(range(len(tensor.shape)))
        order[a], order[b] = order[b], order[a]
        shape, strides = (tuple(x[i] for i in order) for x in (tensor.shape, tensor.strides))
        return tensor._replace(shape=shape, strides=strides)

    def part(self, tensor: Symbol, axis: int, start: int, length: int) -> Symbol:
        shape = list(tensor.shape)
        shape[axis] = length
        return tensor._replace(shape=tuple(shape), offset=tensor.offset + start * tensor.strides[axis])

    def join(self, parts: list[Symbol], axis: int) -> Symbol:
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        made = self._new(tuple(shape), parts[0].dtype)
        start = 0
        for part in parts:
            length = part.shape[axis]
            self._steps.append(("copy", part, self.part(made, axis, start, length)))
            start += length
        return made

    def zeros(self, shape: tuple[int, ...], dtype: str, like: Symbol | None) -> Symbol:
        made = self._new(shape, dtype)
        self._steps.append(("zero", made))
        return made

    def sigmoid(self, tensor: Symbol, factor: float) -> Symbol:
        logit = self.dense(self.cast(tensor, "float32"))
        made = self._new(logit.shape, "float32")
        self._steps.append(("sigmoid", logit, made, float(factor)))
        return made

    def sigmoid_grad(self, grad: Symbol, tensor: Symbol, factor: float) -> Symbol:
        logit = self.dense(self.cast(tensor, "float32"))
        made = self._new(logit.shape, "float32")
        upstream = self.dense(self.cast(grad, "float32"))
        self._steps.append(("sigmoid_grad", logit, made, float(factor), upstream))
        return made

    def refuse(self, text: str) -> None:
        """When this is reached, the program fails with RuntimeError(text)."""
        self._steps.append(("refuse", text))

    def run(self, plan: Plan, tensors: Mapping[str, Symbol | None]) -> tuple:
        # What is written in place is written where it is.
        outputs = {
            out.name: tensors.get(out.name) or self._new(out.shape, out.dtype)
            for out in plan.outputs
            if out is not None
        }
        values: list = []
        for param in spec(plan.op).params:
            if param.name in outputs:
                values.append(outputs[param.name])
            elif param.kind == "in":
                given = tensors.get(param.name)
                values.append(None if given is None else self.dense(given))
            elif param.kind == "out":
                values.append(None)
            elif param.kind == "ints":
                values.append(plan.ints.get(param.name))
            else:
                values.append(plan.attrs.get(param.name, param.default))
        self._steps.append(("call", resolve(plan.op).number, values))
        return tuple(None if out is None else outputs[out.name] for out in plan.outputs)


def _symbols(step: tuple) -> Iterable[Symbol]:
    for item in step:
        if isinstance(item, Symbol):
            yield item
        elif isinstance(item, list):
            yield from (value for value in item if isinstance(value, Symbol))


def _plain(step: tuple) -> tuple:
    """The step with regions in place of symbols, once every buffer has its place."""

    def plain(value):
        if isinstance(value, Symbol):
            return value.region()
        return [plain(item) for item in value] if isinstance(value, list) else value

    return tuple(plain(item) for item in step)
