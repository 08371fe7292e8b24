# SPDX-License-Identifier: Apache-2.0
"""Builds the probe library once per pytest cache and runs every test per instruction set."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import filelock
import numpy as np
import pytest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))

from prims_bindings import Prims  # noqa: E402

ISAS = ["baseline", "avx2", "avx512"]


@pytest.fixture(scope="session")
def library(pytestconfig: pytest.Config) -> Prims:
    """The shared library, rebuilt only where a source changed. FLA_NPU_TEST_LIBRARY: one that is built already."""
    if ready := os.environ.get("FLA_NPU_TEST_LIBRARY"):
        return Prims(ready)
    build = pathlib.Path(os.environ.get("FLA_NPU_TEST_BUILD") or pytestconfig.cache.mkdir("twin_instr"))
    with filelock.FileLock(str(build) + ".lock"):  # xdist workers share the build
        subprocess.run(["cmake", "-S", str(HERE), "-B", str(build)], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["cmake", "--build", str(build), "-j2"], check=True, stdout=subprocess.DEVNULL)
    return Prims(str(build / "libtwin_instr.so"))


@pytest.fixture(params=ISAS)
def prims(library: Prims, request: pytest.FixtureRequest) -> Prims:
    """The table of one instruction set; skipped where the machine lacks it."""
    if not library.use(request.param):
        pytest.skip(f"this machine has no {request.param}")
    return library


@pytest.fixture
def available(library: Prims) -> list[str]:
    """Every instruction set of this machine, for tests that compare them."""
    return [isa for isa in ISAS if library.use(isa)]


@pytest.fixture
def rng() -> np.random.Generator:
    """Seeded: a failure repeats."""
    return np.random.default_rng(20)
