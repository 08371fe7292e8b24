# SPDX-License-Identifier: Apache-2.0
"""Helpers of the PyTorch tests: small inputs, and bitwise comparison."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

for folder in (Path(__file__).resolve().parent, Path(__file__).resolve().parent.parent / "python"):
    sys.path.insert(0, str(folder))

torch = pytest.importorskip("torch")
# The inputs are small: torch's own threads would only wait for each other on a busy machine.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def poisoned_outputs():
    """torch.empty hands out NaN, so that an element nobody wrote cannot pass for a result."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)
