# SPDX-License-Identifier: Apache-2.0
"""Validation shared by all operators: tensors against the contract, attributes against types.

Nothing here knows a framework. A front end describes its tensors (`Desc`), the planners return what
to launch (`Plan`), and a refusal is an exception raised before anything is allocated or launched.
"""

from __future__ import annotations

import functools
import math
import numbers
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import ArgumentError, ArgumentTypeError
from ..spec import OpSpec, Param, axes_text, extent
from .metadata import chunk_count

__all__ = ["Binder", "Desc", "Output", "Plan", "finite", "flag", "one_of", "only", "remembered"]

CAST_HINT = "torch: {0}.to(torch.{1}); MindSpore: {0}.astype(mindspore.{1})"


class Desc(NamedTuple):
    """What validation must know of a tensor. `device` is 'cpu', or 'npu:0' and the like."""

    shape: tuple[int, ...]
    dtype: str
    device: str


class Output(NamedTuple):
    """An output the front end must allocate: dense, row-major, on the inputs' device."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass
class Plan:
    """One validated operator call.

    `outputs` holds one entry per output slot of the contract, None where the slot stays empty; an
    input that is written in place is an output, too, in the memory given. `casts` and `reshapes` name
    inputs that must be converted before the launch.
    """

    op: str
    attrs: dict[str, object]
    ints: dict[str, tuple[int, ...] | None]
    outputs: tuple[Output | None, ...]
    letters: dict[str, int]
    casts: dict[str, str] = field(default_factory=dict)
    reshapes: dict[str, tuple[int, ...]] = field(default_factory=dict)


def flag(label: str, name: str, value) -> bool:
    """A bool, also numpy's; numbers and None are refused because they hide swapped arguments."""
    if type(value) is bool:
        return value
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise ArgumentTypeError(
        f"{label}: {name} = {value!r} is a {type(value).__name__}; it must be True or False"
    )


def finite(label: str, name: str, value) -> float:
    """A real number that is finite as float32 (what the kernel computes with)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ArgumentTypeError(
            f"{label}: {name} = {value!r} is a {type(value).__name__}; it must be a Python number"
        )
    try:
        number = float(value)  # of a very large int: OverflowError
        struct.pack("<f", number)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ArgumentError(f"{label}: {name} = {value!r}; it must be finite as float32")
    return number


def one_of(label: str, name: str, value, values: tuple[str, ...]) -> str:
    """One of a few words, spelled exactly."""
    if not isinstance(value, str):
        raise ArgumentTypeError(
            f"{label}: {name} = {value!r} is a {type(value).__name__}; it must be one of {list(values)}"
        )
    if value not in values:
        near = f"; did you mean '{value.upper()}'?" if value.upper() in values else ""
        raise ArgumentError(f"{label}: {name} = '{value}'; it must be one of {list(values)}{near}")
    return value


def only(label: str, name: str, value, allowed, why: str):
    """An attribute of the ABI for which this version takes a single value."""
    if isinstance(value, bool) is not isinstance(allowed, bool) or not isinstance(value, numbers.Integral):
        raise ArgumentTypeError(
            f"{label}: {name} = {value!r} is a {type(value).__name__}; it must be {allowed!r}"
        )
    if value != allowed:
        raise ArgumentError(f"{label}: {name} = {value!r}; it must be {allowed!r}: {why}")
    return allowed


def remembered(function):
    """Caches successful answers by value; falls through when an argument is not hashable.

    `typed`, because True, 1 and 1.0 are equal but not equally acceptable. Only for functions of
    descriptors and plain attributes: metadata buffers are read again at every call.
    """
    cached = functools.lru_cache(maxsize=256, typed=True)(function)

    @functools.wraps(function)
    def answer(*args):
        try:
            return cached(*args)
        except TypeError as error:
            if isinstance(error, ArgumentTypeError):
                raise
        return function(*args)

    return answer


class Binder:
    """Binds the dimension letters of a contract to the tensors of one call."""

    def __init__(self, label: str, op: OpSpec, layout: str = "") -> None:
        self.label = label
        self.op = op
        self.layout = layout
        self.letters: dict[str, int] = dict(op.fixed)
        self._origin: dict[str, str] = {}
        self._device: tuple[str, str] | None = None

    def fork(self) -> Binder:
        """An independent copy, so that a remembered binding can be continued per call."""
        other = object.__new__(Binder)
        other.__dict__.update(self.__dict__)
        other.letters = dict(self.letters)
        other._origin = dict(self._origin)
        return other

    def counts(self, cu: tuple[int, ...] | None) -> tuple[int, int, bool]:
        """(sequences, chunks, packed) of the call; T and B are bound by then."""
        sequences = len(cu) - 1 if cu is not None else self.letters.get("B", 1)
        return sequences, chunk_count(self.letters["T"], cu), cu is not None

    def set_counts(self, sequences: int, chunks: int, packed: bool) -> None:
        """Makes the derived letters N and NT known."""
        self.letters |= {"N": sequences, "NT": chunks}
        self._origin["N"] = "len(cu_seqlens) - 1" if packed else "the batch"
        self._origin["NT"] = "cu_seqlens" if packed else "T"

    def bind(self, name: str, desc: Desc | None, extra_dtypes: tuple[str, ...] = (), shown: str = "") -> bool:
        """Checks one input and binds its letters; False when an optional input is absent.

        `shown` is its name in messages, where the caller's signature has another one.
        """
        param, name = self.op.param(name), shown or name
        if desc is None:
            if param.optional:
                return False
            raise ArgumentTypeError(f"{self.label}: {name} is None; it is required")
        if param.refused:
            raise ArgumentError(f"{self.label}: {name} is given; {param.refused}")
        self._check_device(name, desc)
        self._check_dtype(name, desc, param.dtypes + extra_dtypes)
        alternatives = param.shapes(self.layout)
        fitting = [axes for axes in alternatives if len(axes) == len(desc.shape)]
        if not fitting:
            self._refuse_rank(name, desc, param)
        for index, (axis, length) in enumerate(zip(fitting[0], desc.shape)):
            self._bind_axis(name, desc, fitting[0], index, axis, length)
        return True

    def _bind_axis(self, name, desc, axes, index, axis, length) -> None:
        letter = axis[0]
        if len(axis) == 1 and not isinstance(letter, int) and letter not in self.letters:
            if length < 1:
                raise ArgumentError(
                    f"{self.label}: {name} has shape {desc.shape}: dimension {index} ({letter}) is "
                    f"empty; {letter} must be at least 1"
                )
            if length > 0xFFFFFFFF:
                raise ArgumentError(f"{self.label}: {name} has {letter} = {length}; the limit is 2**32 - 1")
            self.letters[letter] = length
            self._origin[letter] = name
            return
        want = extent(axis, self.letters)
        if length == want:
            return
        text = "*".join(str(part) for part in axis)
        where = f"{self.label}: {name} has shape {desc.shape}, so dimension {index} is {length}, but "
        if letter in self.op.fixed:
            raise ArgumentError(f"{where}the kernels are built for {text} = {want}")
        if letter in self._origin:
            origin = self._origin[letter]
            raise ArgumentError(f"{where}{text} = {want} (from {origin}); it must be {axes_text(axes)}")
        raise ArgumentError(f"{where}it must be {want}: {name} is {axes_text(axes)}")

    def _check_device(self, name: str, desc: Desc) -> None:
        if self._device is None:
            self._device = (name, desc.device)
            kind = desc.device.split(":")[0]
            if kind not in ("cpu", "npu"):
                raise ArgumentError(
                    f"{self.label}: {name} is on device '{desc.device}'; tensors must be on the CPU "
                    "(the twin) or on an Ascend NPU"
                )
        elif desc.device != self._device[1]:
            raise ArgumentError(
                f"{self.label}: {name} is on device '{desc.device}', but {self._device[0]} is on "
                f"'{self._device[1]}'; move them to one device"
            )

    def _check_dtype(self, name: str, desc: Desc, accepted: tuple[str, ...]) -> None:
        if desc.dtype not in accepted:
            hint = CAST_HINT.format(name, accepted[0])
            raise ArgumentTypeError(
                f"{self.label}: {name} has dtype {desc.dtype}; it must be "
                f"{' or '.join(accepted)}. Cast it first: {hint}"
            )

    def _refuse_rank(self, name: str, desc: Desc, param: Param) -> None:
        shapes = " or ".join(axes_text(axes) for axes in param.shapes(self.layout))
        layout = f" with layout '{self.layout}'" if self.layout else ""
        others = [
            word
            for word, shapes_of in param.dims.items()
            if any(len(axes) == len(desc.shape) for axes in shapes_of)
        ]
        hint = f"; layouts of rank {len(desc.shape)} are {others}" if self.layout and others else ""
        raise ArgumentError(
            f"{self.label}: {name} has shape {desc.shape} (rank {len(desc.shape)}), but{layout} it "
            f"must be {shapes}{hint}"
        )

    def output(self, name: str, dtype: str | None = None, rank: int | None = None) -> Output:
        """Shape of an output under the bound letters: the first form of which every letter is known.

        `rank` chooses among forms where a port has several on purpose.
        """
        param = self.op.param(name)
        known = self.letters.keys()
        axes = next(
            axes
            for axes in param.shapes(self.layout)
            if rank in (None, len(axes))
            and all(isinstance(p, int) or p in known for axis in axes for p in axis)
        )
        shape = tuple(extent(axis, self.letters) for axis in axes)
        return Output(name, dtype or param.dtypes[0], shape)
