# SPDX-License-Identifier: Apache-2.0
"""A CANN OPP, with stand-ins for CANN's libraries: what is said before things go wrong on a device."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from fakes import ACL, FakeOpp, compile_library

BIND = "from fla_npu import loader; print(loader.bind('chunk_fwd_h').backend)"
SOC = 'const char *aclrtGetSocName(void) { return "%s"; }'


@pytest.fixture
def cann(tmp_path):
    """(OPP, folder with CANN's libraries for an Ascend910B3)."""
    opp = FakeOpp(tmp_path / "opp", manifest={"backend": "cann", "socs": ["ascend910b"]})
    opp.twin.unlink()
    folder = tmp_path / "lib64"
    compile_library(ACL, folder / "libnnopbase.so")
    compile_library(SOC % "Ascend910B3", folder / "libascendcl.so")
    return opp, folder


def run(code: str, opp, **environment: str):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("FLA_NPU", "ASCEND"))}
    env |= {"FLA_NPU_OPP_PATH": str(opp.root), **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)


def test_without_cann_the_message_names_the_script(cann):
    done = run(BIND, cann[0])
    assert "OppNotFound" in done.stderr
    assert "libnnopbase.so" in done.stderr
    assert "set_env.sh" in done.stderr


def test_kernels_that_cann_will_not_find_are_announced(cann):
    opp, folder = cann
    done = run(BIND, opp, LD_LIBRARY_PATH=str(folder))
    assert done.stdout.strip() == "cann"
    line = (
        f'export ASCEND_CUSTOM_OPP_PATH={opp.vendor}"${{ASCEND_CUSTOM_OPP_PATH:+:$ASCEND_CUSTOM_OPP_PATH}}"'
    )
    assert line in done.stderr
    assert "561003" in done.stderr


@pytest.mark.parametrize("others", ["", "/opt/other/vendor:"])
def test_silent_when_the_variable_is_set(cann, others):
    opp, folder = cann
    done = run(BIND, opp, LD_LIBRARY_PATH=str(folder), ASCEND_CUSTOM_OPP_PATH=f"{others}{opp.vendor}/")
    assert done.stdout.strip() == "cann"
    assert "export" not in done.stderr


def test_another_chip_is_refused_before_the_first_operator(cann):
    opp, folder = cann
    compile_library(SOC % "Ascend310P3", folder / "libascendcl.so")
    done = run(BIND, opp, LD_LIBRARY_PATH=str(folder), ASCEND_CUSTOM_OPP_PATH=str(opp.vendor))
    for word in ("AbiMismatch", "Ascend310P3", "ascend910b", "there are no kernels for it"):
        assert word in done.stderr
