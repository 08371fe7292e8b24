# SPDX-License-Identifier: Apache-2.0
"""op_template against its golden, on the fast and on the checked twin."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from fla_npu import aclnn

PLACE = importlib.util.spec_from_file_location("op_template_golden", Path(__file__).with_name("golden.py"))
GOLDEN = importlib.util.module_from_spec(PLACE)
PLACE.loader.exec_module(GOLDEN)


def argument(array: np.ndarray) -> aclnn.TensorArg:
    strides = tuple(step // array.itemsize for step in array.strides)
    return aclnn.TensorArg(array.ctypes.data, "float32", array.shape, strides)


@pytest.mark.parametrize("twin", ["fast", "checked"])
@pytest.mark.parametrize("case", GOLDEN.CASES)
def test_op_template(case, twin, monkeypatch):
    monkeypatch.setenv("FLA_NPU_TWIN", twin)
    x = np.random.default_rng(1).standard_normal(GOLDEN.CASES[case], np.float32)
    y = np.full_like(x, np.nan)
    aclnn.call("op_template", {"x": argument(x), "scale": 0.37, "y": argument(y)})
    np.testing.assert_allclose(y, GOLDEN.golden(x, 0.37), rtol=1e-6)
