# SPDX-License-Identifier: Apache-2.0
"""Any legal combination of shapes and options: right, on both builds, with the same bits."""

from __future__ import annotations

import grad_run
import kda_run
import pytest
from backward import make_cotangents
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kda_inputs import make_inputs
from test_forward import check_forward


@st.composite
def forward_cases(draw, longest=150):
    """A case for `make_inputs` within the operators' domain."""
    key_heads = draw(st.integers(1, 2))
    case = {
        "HK": key_heads,
        "HV": key_heads * draw(st.sampled_from([1, 2, 3])),
        "layout": draw(st.sampled_from(["BNSD", "BSND", "NTD", "TND"])),
        "gate": draw(st.sampled_from(["none", "softplus", "bounded"])),
        "l2norm": draw(st.booleans()),
        "beta": draw(st.sampled_from(["raw", "sigmoid", "negative"])),
        "use_exp2": draw(st.booleans()),
        "g_dtype": draw(st.sampled_from(["float32", "bfloat16"])),
        "beta_dtype": draw(st.sampled_from(["float32", "bfloat16"])),
        "state": draw(st.sampled_from([None, "float32", "bfloat16"])),
        "state_v_first": draw(st.booleans()),
        "no_bias": draw(st.booleans()),
        "lower_bound": draw(st.sampled_from([-5.0, -2.0, -0.01])),
        "g_scale": draw(st.sampled_from([0.01, 1.0, 3.0, 10.0])),
        "mode": draw(st.sampled_from(["none", "forward", "recompute", "save"])),
        "scale": draw(st.sampled_from([0.088388, 1.0, -0.5])),
    }
    if draw(st.booleans()):
        lengths = draw(st.lists(st.integers(0, longest // 2), min_size=1, max_size=4))
        lengths[0] += sum(lengths) == 0
        case["cu"] = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    else:
        rank3 = case["layout"] in ("NTD", "TND")
        case |= {"T": draw(st.integers(1, longest)), "B": 1 if rank3 else draw(st.integers(1, 2))}
    return case


#: Two tokens meet so few roundings that the ratio to the floor scatters; the fixed cases hold 1.5.
SMALL_SAMPLE = 2.5

COMMON = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
COMMON["phases"] = (Phase.explicit, Phase.generate, Phase.shrink)


@settings(max_examples=20, **COMMON)
@given(case=forward_cases(), seed=st.integers(0, 9999))
def test_any_call_is_right(case, seed):
    check_forward(make_inputs(case, seed), SMALL_SAMPLE)


@pytest.mark.full
@settings(max_examples=200, **COMMON)
@given(case=forward_cases(longest=330), seed=st.integers(0, 9999))
def test_any_call_is_right_long(case, seed):
    check_forward(make_inputs(case, seed), SMALL_SAMPLE)


@pytest.mark.full
@settings(max_examples=60, **COMMON)
@given(case=forward_cases(), seed=st.integers(0, 9999), recompute=st.booleans())
def test_any_gradient_is_right(case, seed, recompute):
    """Save and recompute mode alike: the same bits, and within the floor unless a draw of few roundings decides."""
    inputs = make_inputs(case, seed)
    seeds = make_cotangents(inputs, seed, final=case["state"] is not None or recompute)
    got = grad_run.check_gradients(inputs, seeds, 2.0 * SMALL_SAMPLE, disable_recompute=not recompute)
    again = grad_run.gradients(inputs, seeds, disable_recompute=recompute)
    assert kda_run.differing(got, again) == []


@pytest.mark.full
@settings(max_examples=60, **COMMON)
@given(case=forward_cases(), seed=st.integers(0, 9999), cores=st.sampled_from([1, 2, 5, 20]))
def test_any_call_is_clean_when_checked(case, seed, cores):
    inputs = make_inputs(case, seed)
    with pytest.MonkeyPatch.context() as patch:
        want = kda_run.forward(inputs)
        patch.setenv("FLA_NPU_TWIN", "checked")
        patch.setenv("FLA_NPU_TWIN_CORES", str(cores))
        patch.setenv("FLA_NPU_TWIN_SEED", str(seed))
        assert kda_run.differing(kda_run.forward(inputs), want) == []
