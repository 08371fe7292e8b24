# SPDX-License-Identifier: Apache-2.0
"""npu_chunk_kda and its gradient as a composition of stages, on goldens instead of kernels."""

from __future__ import annotations

import numpy as np
import pytest
from fla_npu import chunk_kda, errors
from fla_npu.chunk_kda import compose, route
from golden_adapter import Array, GoldenAdapter
from gradients import kda_gradients
from kda_inputs import case_seed, make_inputs
from recurrence import from_head_major, kda_recurrence

BWD = ["chunk_kda_bwd_prepare", "chunk_gated_delta_rule_bwd_dhu", "chunk_kda_bwd_finalize"]
CASES = {
    "one_row": {"T": 1},
    "bounded": {"B": 2, "T": 66, "HK": 1, "HV": 2, "gate": "bounded", "l2norm": True, "beta": "sigmoid",
                "layout": "BSND", "state": "float32"},
    "softplus": {"T": 65, "HK": 5, "HV": 5, "gate": "softplus", "beta": "negative", "state": "bfloat16",
                 "g_dtype": "bfloat16", "beta_dtype": "bfloat16"},
    "no_gate": {"T": 65, "HK": 2, "HV": 2, "l2norm": True, "use_exp2": False, "layout": "TND"},
    "no_bias": {"T": 20, "HK": 1, "HV": 3, "gate": "bounded", "no_bias": True, "lower_bound": -1.5,
                "layout": "NTD", "state": "float32", "state_v_first": True},
    "packed": {"cu": [0, 0, 17, 17, 90], "HK": 3, "HV": 6, "layout": "TND", "gate": "softplus",
               "state": "float32", "l2norm": True, "beta": "sigmoid"},
    "packed_bnsd": {"cu": [0, 64, 70], "HK": 1, "HV": 2, "gate": "bounded", "use_exp2": False},
}  # fmt: skip


@pytest.fixture(autouse=True)
def opp(monkeypatch):
    """There is none. Its aggregates are missing until a test asks for them."""
    missing = ["no OPP in this test"]
    monkeypatch.setattr(route, "aggregates_missing", lambda: missing[0])
    return missing


class Problem:
    """A case as the composition takes it, its cotangents, and the truth."""

    def __init__(self, name: str, case: dict | None = None, flat_bias: bool = True) -> None:
        inputs = self.inputs = make_inputs(case or CASES[name], case_seed(name))
        self.tensors = dict.fromkeys(chunk_kda.TENSORS)
        for key, x in inputs.arrays.items():
            self.tensors[key] = Array(x, inputs.dtypes[key])
        if "dt_bias" in inputs.arrays and not flat_bias:
            bias = self.tensors["dt_bias"]
            self.tensors["dt_bias"] = bias._replace(values=bias.values.reshape(-1, 128))
        if inputs.initial_state is not None:
            self.tensors["initial_state"] = Array(inputs.initial_state, inputs.state_dtype)
        self.options = {**inputs.options, "state_v_first": inputs.state_v_first, "output_final_state": True}
        self.options.setdefault("use_gate_in_kernel", False)
        rng = np.random.default_rng(3)
        cu, v = inputs.options.get("cu_seqlens"), self.tensors["v"]
        head_major = (v.shape[0] if v.values.ndim == 4 else 1, inputs.heads)
        tokens = v.values.size // (128 * head_major[0] * inputs.heads)
        count = len(cu) - 1 if cu else head_major[0]
        self.d_out = rng.standard_normal((*head_major, tokens, 128))
        self.d_state = rng.standard_normal((count, inputs.heads, 128, 128))

    def token_major(self):
        x = self.d_out.swapaxes(1, 2)
        return Array(x if self.tensors["q"].values.ndim == 4 else x[0], "bfloat16")

    def truth(self, out=True, state=True) -> dict:
        d_out = from_head_major(self.d_out if out else 0 * self.d_out, self.inputs.options["layout"])
        kwargs = self.inputs.recurrence_kwargs()
        return kda_gradients(**kwargs, d_out=d_out, d_final=self.d_state if state else None)

    def given(self) -> set[str]:
        return {n for n, t in self.tensors.items() if t is not None}

    def gradients(self, adapter, recompute=False, out=True, state=True, needs=None) -> dict:
        options = {**self.options, "disable_recompute": not recompute}
        _, _, saved = chunk_kda.save_forward(adapter, self.tensors, options)
        assert len(saved) == (0 if recompute else len(chunk_kda.SAVED))
        adapter.launched.clear()
        d_out = self.token_major() if out else None
        d_state = Array(self.d_state, "float32") if state else None
        needs = self.given() if needs is None else needs
        return chunk_kda.backward(adapter, self.tensors, options, saved, d_out, d_state, needs)


def close(got: np.ndarray, want: np.ndarray) -> bool:
    want = want.reshape(got.shape)
    return np.abs(got - want).max() <= 1e-9 * max(1.0, np.abs(want).max())


def check(problem: Problem, grads: dict, want: dict, names: set[str]) -> None:
    assert grads.keys() == names
    for name, grad in grads.items():
        tensor = problem.tensors[name]
        assert (grad.shape, grad.dtype) == (tensor.shape, tensor.dtype), name
        assert close(grad.values, want[name]), name


@pytest.mark.parametrize("name", CASES)
def test_forward_is_the_recurrence(name):
    p = Problem(name)
    tensors = {n: t for n, t in p.tensors.items() if t is not None}
    out, final = chunk_kda.forward(GoldenAdapter(), **tensors, **p.options)
    kept, last, _ = chunk_kda.save_forward(GoldenAdapter(), p.tensors, p.options)
    want = kda_recurrence(**p.inputs.recurrence_kwargs())
    o = want["o"].swapaxes(-2, -3) if p.options["layout"] in ("BNSD", "NTD") else want["o"]
    assert out.dtype == "bfloat16" and final.dtype == "float32"
    assert close(out.values, o) and close(final.values, want["final_state"])
    assert np.array_equal(out.values, kept.values) and np.array_equal(final.values, last.values)


@pytest.mark.parametrize("recompute", [False, True], ids=["save", "recompute"])
@pytest.mark.parametrize("name", CASES)
def test_gradient_is_the_adjoint(name, recompute):
    p = Problem(name)
    check(p, p.gradients(GoldenAdapter(), recompute), p.truth(), p.given())


WHOLE = ["one_row", "no_gate", "packed_bnsd", "unbounded"]
CASES["unbounded"] = {"cu": [0, 0, 17, 17, 90], "HK": 2, "HV": 4, "layout": "NTD", "gate": "softplus",
                      "l2norm": True, "beta": "sigmoid"}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_aggregates_compute_the_same(name, opp):
    """Those cases for which the rule takes them: one launch forward, one backward."""
    p, adapter = Problem(name), GoldenAdapter()
    want = p.gradients(GoldenAdapter())
    opp[0] = ""
    out, final, saved = chunk_kda.save_forward(adapter, p.tensors, p.options)
    assert adapter.ops == [route.AGGREGATES[0]]
    assert len(saved) == len(chunk_kda.SAVED)
    truth = kda_recurrence(**p.inputs.recurrence_kwargs())
    o = truth["o"].swapaxes(-2, -3) if p.options["layout"] in ("BNSD", "NTD") else truth["o"]
    assert close(out.values, o) and close(final.values, truth["final_state"])
    got = p.gradients(adapter)
    assert adapter.ops == [route.AGGREGATES[1]]
    check(p, got, {n: x.values for n, x in want.items()}, p.given())
    adapter.launched.clear()
    tensors = {n: t for n, t in p.tensors.items() if t is not None}
    chunk_kda.forward(adapter, **tensors, **{**p.options, "output_final_state": False})
    assert adapter.ops == [route.AGGREGATES[0]]


@pytest.mark.parametrize("recompute", [False, True], ids=["save", "recompute"])
@pytest.mark.parametrize(("out", "state"), [(True, False), (False, True), (False, False)])
def test_unused_outputs(out, state, recompute):
    p = Problem("packed")
    adapter = GoldenAdapter()
    grads = p.gradients(adapter, recompute, out, state)
    check(p, grads, p.truth(out, state), p.given())
    if not out:
        assert not grads["q"].values.any()
        assert BWD[0] not in adapter.ops
    if not (out or state):
        assert adapter.ops == []


@pytest.mark.parametrize("name", chunk_kda.TENSORS)
def test_one_gradient_alone(name):
    p = Problem("packed")
    adapter = GoldenAdapter()
    check(p, p.gradients(adapter, needs={name}), p.truth(), {name})
    finalize = next((shapes for op, shapes in adapter.launched if op == BWD[2]), None)
    assert (finalize is None) == (name == "initial_state")
    dhu = next(shapes for op, shapes in adapter.launched if op == BWD[1])
    assert ("h0" in dhu) == (name == "initial_state")


def test_names_without_a_tensor_are_left_out():
    p = Problem("no_gate")
    assert p.gradients(GoldenAdapter(), needs=set(chunk_kda.TENSORS)).keys() == p.given()


def test_bias_keeps_its_shape():
    for flat in (True, False):
        p = Problem("bias", {"T": 3, "HK": 2, "HV": 4, "gate": "bounded"}, flat_bias=flat)
        for recompute in (False, True):
            check(p, p.gradients(GoldenAdapter(), recompute), p.truth(), p.given())


@pytest.mark.parametrize(
    ("key_heads", "sizes"), [(1, [1]), (3, [1] * 3), (4, [1] * 4), (5, [2, 2, 1]), (9, [3] * 3)]
)
def test_recompute_walks_slices_of_key_heads(key_heads, sizes):
    p = Problem(
        "slices", {"T": 3, "HK": key_heads, "HV": 2 * key_heads, "gate": "softplus", "layout": "BSND"}
    )
    adapter = GoldenAdapter()
    check(p, p.gradients(adapter, recompute=True), p.truth(), p.given())
    chain = [*chunk_kda.STAGES[:2], *BWD]
    assert adapter.ops == chain * len(sizes)
    assert len(sizes) <= compose.SLICES
    seen = [shapes["q"][2] for op, shapes in adapter.launched if op == chain[0]]
    assert seen == sizes


def test_backward_launches_three_operators_on_what_was_saved():
    adapter = GoldenAdapter()
    Problem("bounded").gradients(adapter)
    assert adapter.ops == BWD


def test_chunk_indices_are_accepted_everywhere():
    p = Problem("packed")
    p.options["chunk_indices"] = [1, 0, 3, 0, 3, 1]
    for recompute in (False, True):
        check(p, p.gradients(GoldenAdapter(), recompute), p.truth(), p.given())


def test_a_bad_option_is_refused_before_the_first_launch():
    p = Problem("bounded")
    adapter = GoldenAdapter()
    for changes in ({"scale": "1"}, {"layout": "NTD"}, {"output_final_state": 1}, {"cu_seqlens": [0, 5]}):
        options = {**p.options, **changes}
        for call in (
            lambda o: chunk_kda.save_forward(adapter, p.tensors, o),
            lambda o: chunk_kda.backward(adapter, p.tensors, o, (), p.token_major(), None, {"q"}),
        ):
            with pytest.raises(errors.FlaNpuError):
                call(options)
    assert adapter.ops == []
