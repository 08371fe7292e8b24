# SPDX-License-Identifier: Apache-2.0
"""Lets the tests of this folder import their harness by name (pytest runs in importlib mode)."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)
