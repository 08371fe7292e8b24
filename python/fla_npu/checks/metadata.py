# SPDX-License-Identifier: Apache-2.0
"""cu_seqlens and chunk_indices: what containers are taken, and what they must say.

Both are host data. Values are read again at every call; nothing is remembered by object identity,
because a caller may refill the same buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ArgumentError, ArgumentTypeError

__all__ = [
    "canonical_indices",
    "chunk_count",
    "flat_pairs",
    "host_ints",
    "read_chunk_indices",
    "read_cu_seqlens",
]

CHUNK = 64
_ACCEPTED = "a list, a tuple or a 1-D int32/int64 array or CPU tensor"


def _is_host(value) -> bool:
    """False for a tensor that lives on an accelerator: reading it would wait for the device."""
    device = getattr(value, "device", None)
    kind = getattr(device, "type", device)
    return kind is None or str(kind).lower().split(":")[0] == "cpu"


def _plain(label: str, name: str, value) -> list:
    """Nested lists of numbers from any accepted container."""
    if isinstance(value, (list, tuple, range)):
        return list(value)
    dtype = getattr(value, "dtype", None)
    if dtype is None or not hasattr(value, "shape"):
        raise ArgumentTypeError(f"{label}: {name} is a {type(value).__name__}; pass {_ACCEPTED}")
    if not _is_host(value):
        raise ArgumentTypeError(
            f"{label}: {name} is a tensor on {value.device}; reading it would wait for the device. "
            f"Keep the offsets on the host: pass {_ACCEPTED}"
        )
    kind = str(dtype).rsplit(".", 1)[-1].lower()
    if kind not in ("int32", "int64"):
        raise ArgumentTypeError(f"{label}: {name} has dtype {kind}; pass {_ACCEPTED}")
    reader = value if hasattr(value, "tolist") else value.asnumpy()
    return reader.tolist()


def _exact(label: str, name: str, values: Sequence) -> tuple[int, ...]:
    """All elements as Python ints; a float or bool among them is refused, not rounded."""
    for i, item in enumerate(values):
        if type(item) is int:
            continue
        if isinstance(item, (bool, float, str)) or not hasattr(item, "__index__"):
            raise ArgumentTypeError(
                f"{label}: {name}[{i}] = {item!r} is a {type(item).__name__}; offsets are integers"
            )
    return tuple(map(int, values))


def host_ints(label: str, name: str, value) -> tuple[int, ...]:
    """A 1-D integer container as a tuple."""
    shape = getattr(value, "shape", None)
    if shape is not None and len(shape) != 1:
        raise ArgumentError(f"{label}: {name} has shape {tuple(shape)}; it must have one dimension")
    return _exact(label, name, _plain(label, name, value))


def read_cu_seqlens(label: str, value, tokens: int, batch: int | None) -> tuple[int, ...] | None:
    """Validated offsets, or None. `batch` is None for layouts without a batch axis."""
    if value is None:
        return None
    cu = host_ints(label, "cu_seqlens", value)
    if len(cu) < 2:
        raise ArgumentError(
            f"{label}: cu_seqlens = {list(cu)} has {len(cu)} entries; it needs one more than there "
            "are sequences, so at least 2"
        )
    if cu[0] != 0:
        raise ArgumentError(
            f"{label}: cu_seqlens[0] = {cu[0]}; offsets start at 0 (pass cumulative offsets, not lengths)"
        )
    if any(b < a for a, b in zip(cu, cu[1:])):
        i = next(i for i in range(1, len(cu)) if cu[i] < cu[i - 1])
        raise ArgumentError(
            f"{label}: cu_seqlens[{i}] = {cu[i]} is below cu_seqlens[{i - 1}] = {cu[i - 1]}; "
            "offsets must not decrease"
        )
    if cu[-1] != tokens:
        raise ArgumentError(
            f"{label}: cu_seqlens[-1] = {cu[-1]}, but the tensors have T = {tokens} tokens; the last "
            "offset must equal T"
        )
    if batch is not None and batch != 1:
        raise ArgumentError(
            f"{label}: cu_seqlens is given and B = {batch}; packed sequences need B = 1 "
            "(lay them one after another along T)"
        )
    return cu


def chunk_count(tokens: int, cu: Sequence[int] | None) -> int:
    """Chunks of one dense sequence, or of all packed ones."""
    if cu is None:
        return -(-tokens // CHUNK)
    return sum(-(-(b - a) // CHUNK) for a, b in zip(cu, cu[1:]))


def canonical_indices(cu: Sequence[int]) -> list[int]:
    """Flat (sequence, chunk of the sequence) pairs, sequence by sequence."""
    flat: list[int] = []
    for seq, (a, b) in enumerate(zip(cu, cu[1:])):
        for chunk in range(-(-(b - a) // CHUNK)):
            flat += (seq, chunk)
    return flat


def flat_pairs(label: str, value) -> tuple[int, ...]:
    name = "chunk_indices"
    shape = getattr(value, "shape", None)
    if shape is not None and not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 2)):
        raise ArgumentError(
            f"{label}: {name} has shape {tuple(shape)}; it must be flat pairs [2 * NC] or [NC, 2]"
        )
    rows = _plain(label, name, value)
    if rows and all(isinstance(row, (list, tuple)) for row in rows):
        for i, row in enumerate(rows):
            if len(row) != 2:
                raise ArgumentError(f"{label}: {name}[{i}] = {row!r}; each entry is a (sequence, chunk) pair")
        rows = [item for row in rows for item in row]
    return _exact(label, name, rows)


def read_chunk_indices(label: str, value, cu: Sequence[int] | None) -> tuple[int, ...] | None:
    """Validated flat pairs, or None. Only the canonical order is accepted."""
    if value is None:
        return None
    if cu is None:
        raise ArgumentError(f"{label}: chunk_indices is given without cu_seqlens; pass both, or neither")
    flat, want = flat_pairs(label, value), canonical_indices(cu)
    if len(flat) != len(want):
        raise ArgumentError(
            f"{label}: chunk_indices has {len(flat)} numbers, but cu_seqlens makes {len(want) // 2} "
            f"chunks of {CHUNK}, so {len(want)} numbers; leave chunk_indices out to have it made"
        )
    for i in range(0, len(want), 2):
        if flat[i : i + 2] != tuple(want[i : i + 2]):
            raise ArgumentError(
                f"{label}: chunk_indices pair {i // 2} is {flat[i : i + 2]}, the canonical order has "
                f"{tuple(want[i : i + 2])} there; leave chunk_indices out to have it made"
            )
    return flat
