# SPDX-License-Identifier: Apache-2.0
"""One short exchange before ranks depend on each other: does everybody take part, and in the same thing?

Each rank sends one record of fixed size, whatever it is about to do, and also when it must refuse its
arguments. So a disagreement is an error on every rank, with names, and never a rank that waits for
somebody who is elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from ..errors import ParallelError

__all__ = ["SIZE", "Record", "agree", "exchange"]

# Bytes of a record, the same for every kind of call, so that ranks in different calls still meet.
SIZE = 1024
_REASON = 400


@dataclass(frozen=True)
class Record:
    """What one rank says. `facts` must be the same everywhere; the rest may differ."""

    call: str  # which function, also a fact
    facts: Mapping[str, object] = field(default_factory=dict)
    refused: str = ""  # why this rank cannot go on; '' when it can
    wanted: bool = False  # a gradient may be asked for here
    able: bool = True  # gradients are recorded here
    own: tuple[int, ...] = ()  # numbers that each rank has of its own
    number: int = 0  # which call of its process this is

    def encode(self) -> bytes:
        """SIZE bytes, whatever it takes: facts that do not fit become a digest, a long reason is cut."""
        record, reason = asdict(self), self.refused[:_REASON]
        text = _json({**record, "refused": reason})
        if len(text) > SIZE:
            digest = hashlib.sha256(_json(record["facts"])).hexdigest()[:16]
            record["facts"] = {"arguments (a digest)": digest}
            text = _json({**record, "refused": reason})
        while len(text) > SIZE and reason:
            reason = reason[: len(reason) // 2]
            text = _json({**record, "refused": reason})
        return text.ljust(SIZE)

    @staticmethod
    def decode(data: bytes) -> Record:
        record = json.loads(data)
        return Record(**{**record, "own": tuple(record["own"])})


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=repr).encode()


def exchange(share: Callable[[bytes], list[bytes]], rank: int, record: Record) -> list[Record]:
    """Everybody's records, or ParallelError where ranks refused or disagree.

    `share` gives everybody's bytes in the order of ranks. A rank that refuses gets no error here: it
    has its own to raise.
    """
    data = record.encode()
    rows = share(data)
    if all(row == data for row in rows):
        return [record] * len(rows)
    records = [Record.decode(row) for row in rows]
    if not record.refused:
        agree(rank, records)
    return records


def agree(rank: int, records: Sequence[Record]) -> None:
    """Raises ParallelError when a rank refused its call, or is in another one than this rank."""
    refused = {r: x.refused for r, x in enumerate(records) if x.refused}
    mine = records[rank]
    if refused:
        said = "; ".join(f"rank {r}: {why}" for r, why in refused.items())
        raise ParallelError(
            f"{mine.call}: rank {rank} cannot go on, its input was refused elsewhere. {said}",
            rank=rank, peers=tuple(refused), step="handshake",
        )  # fmt: skip
    for other, record in enumerate(records):
        if record.call != mine.call:
            raise ParallelError(
                f"rank {rank} calls {mine.call} while rank {other} calls {record.call}; every rank of a group "
                "makes the same calls in the same order",
                rank=rank, peers=(other,), step="handshake",
            )  # fmt: skip
        for name, value in mine.facts.items():
            if record.facts.get(name) != value:
                raise ParallelError(
                    f"{mine.call}: ranks disagree: {name} = {value} on rank {rank}, "
                    f"{record.facts.get(name)} on rank {other}; it must be the same on every rank",
                    rank=rank, peers=(other,), step="handshake",
                )  # fmt: skip
    unable = [r for r, x in enumerate(records) if not x.able]
    wanting = [r for r, x in enumerate(records) if x.wanted]
    if unable and wanting:
        raise ParallelError(
            f"{mine.call}: rank {wanting[0]} wants a gradient, but rank {unable[0]} runs without recording any; "
            "a backward takes all ranks: run all of them under no_grad, or none",
            rank=rank, peers=(unable[0], wanting[0]), step="handshake",
        )  # fmt: skip
