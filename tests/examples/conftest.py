# SPDX-License-Identifier: Apache-2.0
"""The examples are scripts: their folder is put on the path, as Python does for a script."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

torch = pytest.importorskip("torch")
# The inputs are small: torch's own threads would only wait for each other on a busy machine.
torch.set_num_threads(1)
