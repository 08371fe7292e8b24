# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the operator tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned_outputs():
    """torch.empty hands out NaN, so that an element nobody wrote cannot pass for a result."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)
