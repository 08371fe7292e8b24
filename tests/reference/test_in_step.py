# SPDX-License-Identifier: Apache-2.0
"""A comparison in step never ends early."""

from __future__ import annotations

import pytest
from in_step import in_step


def test_rows_are_those_of_zip():
    assert list(in_step("ab", iter([1, None]))) == [("a", 1), ("b", None)]
    assert list(in_step()) == list(in_step([], ())) == []


@pytest.mark.parametrize("short", [("abc", "ab"), ("ab", "abc"), ("", "a"), ("ab", "ab", "a")])
def test_a_shorter_one_is_an_error(short):
    with pytest.raises(ValueError, match="ends before the others"):
        list(in_step(*short))
