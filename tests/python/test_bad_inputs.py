# SPDX-License-Identifier: Apache-2.0
"""Every bad input is refused before a launch, in words that name argument, value and rule."""

from __future__ import annotations

import pytest
from bad_inputs import CASES, GOOD, T, V, arguments, case_id
from fla_npu import chunk_kda, errors
from fla_npu.checks import Desc

FUNCTIONS = {
    "prepare": chunk_kda.prepare,
    "fwd_h": chunk_kda.fwd_h,
    "finalize": chunk_kda.finalize,
    "bwd_prepare": chunk_kda.backward_prepare,
    "dhu": chunk_kda.dhu,
    "bwd_finalize": chunk_kda.backward_finalize,
    "summarize": chunk_kda.summarize,
    "summarize_backward": chunk_kda.summarize_backward,
    "merge": chunk_kda.merge,
    "kda": chunk_kda.forward,
}


class Launched(Exception):
    """The call got as far as the adapter's run()."""


class NoFramework:
    """An adapter over descriptions of tensors: validation must need nothing more."""

    def describe(self, label, name, value):
        if value is None:
            return None
        if not isinstance(value, T):
            raise errors.ArgumentTypeError(
                f"{label}: {name} is a {type(value).__name__}; it must be a tensor"
            )
        return Desc(*value)

    def cast(self, tensor, dtype):
        return tensor._replace(dtype=dtype)

    def reshape(self, tensor, shape):
        return tensor._replace(shape=tuple(shape))

    def sigmoid(self, tensor, factor):
        return tensor._replace(dtype="float32")

    def run(self, plan, tensors):
        raise Launched(plan.op)


@pytest.fixture(autouse=True)
def no_opp(monkeypatch):
    monkeypatch.setattr(chunk_kda.route, "aggregates_missing", lambda: "no OPP in this test")


def call(function: str, keywords: dict):
    return FUNCTIONS[function](NoFramework(), **keywords)


@pytest.mark.parametrize("function", GOOD)
def test_the_good_call_is_launched(function):
    with pytest.raises(Launched):
        call(function, GOOD[function])


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_refused(case):
    expected = errors.ArgumentError if case.error == V else errors.ArgumentTypeError
    for attempt in range(2):  # a remembered answer must not differ from the first
        with pytest.raises(expected) as raised:
            call(case.function, arguments(case))
        text = str(raised.value)
        missing = [word for word in case.words if word not in text]
        assert not missing, f"attempt {attempt}: {missing} not in: {text}"


def test_there_are_enough_of_them():
    assert len(CASES) >= 60
    assert len({case_id(c) for c in CASES}) == len(CASES)
    assert {c.function for c in CASES} == set(FUNCTIONS)


@pytest.mark.parametrize("function", GOOD)
def test_unknown_keywords_are_type_errors(function):
    for word in ("use_beta_sigmod_in_kernel", "A_log", "transpose_state_layout"):
        with pytest.raises(TypeError, match=word):
            call(function, {**GOOD[function], word: None})


def test_refused_values_equal_to_accepted_ones():
    """1 == True == 1.0: a remembered good call must not let its look-alike pass."""
    with pytest.raises(Launched):
        call("prepare", {**GOOD["prepare"], "scale": 1.0, "use_exp2": True})
    with pytest.raises(errors.ArgumentTypeError, match="scale = True"):
        call("prepare", {**GOOD["prepare"], "scale": True, "use_exp2": True})
    with pytest.raises(errors.ArgumentTypeError, match="use_exp2 = 1"):
        call("prepare", {**GOOD["prepare"], "scale": 1.0, "use_exp2": 1})


@pytest.mark.parametrize("bound", [-5.0, -1e-3, -5, None])
def test_accepted_bounds(bound):
    gate = {"use_gate_in_kernel": True, "a_log": T((4,), "float32"), "lower_bound": bound}
    for safe in (False, True):
        with pytest.raises(Launched):
            call("prepare", {**GOOD["prepare"], **gate, "safe_gate": safe})


@pytest.mark.parametrize("scale", [0.0, 0, -1.5, 1e-30, 3e38])
def test_accepted_scales(scale):
    with pytest.raises(Launched):
        call("prepare", {**GOOD["prepare"], "scale": scale})
