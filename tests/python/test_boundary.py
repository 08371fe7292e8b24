# SPDX-License-Identifier: Apache-2.0
"""A call cut into two at a token: with the states handed over at the boundary, the halves are the whole."""

from __future__ import annotations

import numpy as np
import pytest
from fla_npu import chunk_kda
from fla_npu.chunk_kda import route
from golden_adapter import Array, GoldenAdapter
from gradients import kda_gradients
from kda_inputs import make_inputs
from recurrence import kda_recurrence

CUT = 33
TOKENWISE = ("q", "k", "v", "g", "beta")
CASE = {"cu": [0, 20, 90], "HK": 5, "HV": 10, "layout": "TND", "gate": "bounded", "l2norm": True,
        "beta": "sigmoid"}  # fmt: skip


class Handed:
    """Rows of states that another call knows, float64 [HV, K, V] or None; notes what it is asked."""

    def __init__(self, first=None, last=None, log=None) -> None:
        self.first, self.last, self.log = first, last, [] if log is None else log

    def entry(self, made, state):
        self.log.append("entry")
        assert {"gk", "kg", "w", "u"} <= made.keys() and made["u"].dtype == "float32"
        return state if self.first is None else Array(self.first[None], "float32")

    def exit(self, made, d_out, dv_local, d_state):
        self.log.append("exit")
        assert {"gk", "qg", "kg", "w"} <= made.keys()
        assert d_out.shape == dv_local.shape == made["qg"].shape
        if self.last is None:
            return d_state
        rows = np.zeros((2, *self.last.shape)) if d_state is None else d_state.values.copy()
        rows[-1] = self.last
        return Array(rows, "float32")

    def part(self, first, count):
        first, last = (None if x is None else x[first : first + count] for x in (self.first, self.last))
        return Handed(first, last, self.log)


class Halves:
    """Both parts of CASE, and the truth of the whole."""

    def __init__(self, recompute: bool) -> None:
        inputs = make_inputs(CASE, 4)
        self.arrays, rng = inputs.arrays, np.random.default_rng(5)
        self.d_out = rng.standard_normal(self.arrays["v"].shape)
        self.d_last = rng.standard_normal((10, 128, 128))
        d_final = np.stack([np.zeros_like(self.d_last), self.d_last])
        kwargs = inputs.recurrence_kwargs()
        self.whole = kda_recurrence(**kwargs)
        self.grads = kda_gradients(**kwargs, d_out=self.d_out, d_final=d_final)
        self.parts, self.options = [], []
        for rows, cu in ((slice(0, CUT), [0, 20, CUT]), (slice(CUT, 90), [0, 57])):
            tensors = dict.fromkeys(chunk_kda.TENSORS)
            for n, x in self.arrays.items():
                tensors[n] = Array(x[rows] if n in TOKENWISE else x, inputs.dtypes[n])
            self.parts.append(tensors)
            options = {**inputs.options, "cu_seqlens": cu, "output_final_state": True}
            self.options.append({**options, "disable_recompute": not recompute})
        # The gradient of the right part's first state, from a call of that part alone.
        _, state = self.forward(0, Handed())[:2]
        self.state = state.values[1]
        right = {n: x.values for n, x in self.parts[1].items() if x is not None}
        kwargs = {**kwargs, **right, "cu_seqlens": [0, 57], "initial_state": self.state[None]}
        found = kda_gradients(**kwargs, d_out=self.d_out[CUT:], d_final=self.d_last[None])
        self.d_state = found["initial_state"][0]

    def forward(self, side, boundary):
        return chunk_kda.save_forward(GoldenAdapter(), self.parts[side], self.options[side], boundary)

    def backward(self, side, saved, d_out, boundary, needs):
        d_state = Array(self.d_last[None], "float32") if side else None
        rows = (slice(0, CUT), slice(CUT, 90))[side]
        d_out = Array(self.d_out[rows], "bfloat16") if d_out else None
        return chunk_kda.backward(
            GoldenAdapter(), self.parts[side], self.options[side], saved, d_out, d_state, needs, boundary
        )


def close(got, want) -> bool:
    return np.abs(got - want).max() <= 1e-9 * max(1.0, np.abs(want).max())


@pytest.fixture(autouse=True)
def opp(monkeypatch):
    monkeypatch.setattr(route, "aggregates_missing", lambda: "")


@pytest.mark.parametrize("recompute", [False, True], ids=["save", "recompute"])
def test_two_halves_are_the_whole(recompute):
    halves = Halves(recompute)
    saved, outs = [], []
    for side, first in enumerate((None, halves.state)):
        boundary = Handed(first)
        out, final, kept = halves.forward(side, boundary)
        assert boundary.log == ["entry"]
        saved.append(kept)
        outs.append(out.values)
    assert close(np.concatenate(outs), halves.whole["o"])
    assert close(final.values[0], halves.whole["final_state"][1])
    needs = {*TOKENWISE, "a_log", "dt_bias"}
    slices = 3  # five key heads, at most two at a time
    grads = []
    for side, (first, last) in enumerate(((None, halves.d_state), (halves.state, None))):
        boundary = Handed(first, last)
        grads.append(halves.backward(side, saved[side], True, boundary, needs))
        assert boundary.log == (["entry", "exit"] * slices if recompute else ["exit"])
    for n in TOKENWISE:
        assert close(np.concatenate([part[n].values for part in grads]), halves.grads[n]), n
    for n in ("a_log", "dt_bias"):  # partial sums
        assert close(sum(part[n].values for part in grads), halves.grads[n].reshape(grads[0][n].shape)), n


@pytest.mark.parametrize("recompute", [False, True], ids=["save", "recompute"])
def test_the_boundary_is_asked_though_nothing_here_needs_a_gradient(recompute):
    halves = Halves(recompute)
    boundary = Handed(None, halves.d_state)
    saved = halves.forward(0, boundary)[2]
    assert halves.backward(0, saved, False, boundary, set()) == {}
    assert boundary.log.count("exit") == (3 if recompute else 1)
