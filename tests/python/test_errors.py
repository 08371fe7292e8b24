# SPDX-License-Identifier: Apache-2.0
"""The error tree."""

from __future__ import annotations

import pytest
from fla_npu import errors


@pytest.mark.parametrize("name", [n for n in errors.__all__ if n not in ("FlaNpuWarning",)])
def test_one_root(name):
    assert issubclass(getattr(errors, name), errors.FlaNpuError)


def test_argument_errors_are_the_builtin_ones_too():
    assert issubclass(errors.ArgumentError, ValueError)
    assert issubclass(errors.ArgumentTypeError, TypeError)
    assert not issubclass(errors.ArgumentError, TypeError)


def test_faults_carry_their_status():
    fault = errors.TwinFault("twin fault: ...", 507015)
    assert isinstance(fault, errors.LaunchError)
    assert fault.status == 507015
