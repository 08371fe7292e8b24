# SPDX-License-Identifier: Apache-2.0
"""zip() of what must be equally long, so that no comparison ends early. Its own strict=True is of Python 3.10."""

from __future__ import annotations

from itertools import zip_longest

__all__ = ["in_step"]

_ABSENT = object()


def in_step(*iterables):
    for row in zip_longest(*iterables, fillvalue=_ABSENT):
        if any(x is _ABSENT for x in row):
            raise ValueError(f"of {len(row)} iterables one ends before the others")
        yield row
