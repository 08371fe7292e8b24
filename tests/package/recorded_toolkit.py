# SPDX-License-Identifier: Apache-2.0
"""The recorded toolkit of tests/cann_toolkit, made where a test wants it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def make_toolkit(home: Path, style: str) -> Path:
    """`template` as CANN 8.1 to 8.3, `asc` as newer toolkits; returns its folder."""
    place = importlib.util.spec_from_file_location("recorded_make", ROOT / "tests/cann_toolkit/make.py")
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module.make(home, style)
