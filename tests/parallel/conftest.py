# SPDX-License-Identifier: Apache-2.0
"""Where the helpers of these tests live."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(scope="session")
def four():
    """Four processes of torch.distributed over gloo, for all modules of a test process."""
    from torch_pool import Pool

    pool = Pool(4)
    yield pool
    pool.close()
