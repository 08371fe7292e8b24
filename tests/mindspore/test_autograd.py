# SPDX-License-Identifier: Apache-2.0
"""How npu_chunk_kda hangs in MindSpore's autograd: which gradients are asked for, where they arrive.

The neutral layer is replaced by one whose results are known: attn_out = q * v, final_state = k * v,
and every gradient is a constant of its input. What the operators compute is the matter of
test_gradients.py.
"""

from __future__ import annotations

import fla_npu.mindspore as front
import mindspore as ms
import numpy as np
import pytest
from fla_npu import chunk_kda
from fla_npu.mindspore.guard import GradientUnavailable
from in_step import in_step

WORTH = {name: float(i + 1) for i, name in enumerate(chunk_kda.TENSORS)}
OFFSETS = [0, 1, 2]


class Neutral:
    """Stands in for fla_npu.chunk_kda and notes the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.needs: set[str] = set()
        self.cotangents: tuple = ()
        self.options: dict = {}

    def forward(self, adapter, q, k, v, g, beta, *, a_log, dt_bias, initial_state, **options):
        self.calls.append("forward")
        return self._results(q, k, v, options)

    def save_forward(self, adapter, tensors, options):
        self.calls.append("save_forward")
        results = self._results(tensors["q"], tensors["k"], tensors["v"], options)
        return *results, () if not options["disable_recompute"] else (tensors["q"] * 2,)

    @staticmethod
    def _results(q, k, v, options):
        return q * v, k * v if options["output_final_state"] else None

    def backward(self, adapter, tensors, options, saved, d_out, d_state, needs):
        self.calls.append("backward")
        self.needs, self.options, self.cotangents = set(needs), options, (d_out, d_state)
        assert bool(saved) == options["disable_recompute"]
        return {name: ms.ops.zeros_like(tensors[name]) + WORTH[name] for name in needs}


@pytest.fixture(autouse=True)
def neutral(monkeypatch):
    made = Neutral()
    for name in ("forward", "save_forward", "backward"):
        monkeypatch.setattr(chunk_kda, name, getattr(made, name))
    return made


@pytest.fixture
def x():
    return ms.Tensor(np.ones((2, 3), np.float32))


def loss(q, k, v, **options):
    return front.npu_chunk_kda(q, k, v, v, v, 1.0, **options)[0].sum()


def worth(*names: str):
    """What arrives at a tensor that was given for `names`."""
    return np.full((2, 3), sum(WORTH[name] for name in names), np.float32)


def same(got, want) -> bool:
    return np.array_equal(got.float().asnumpy(), want)


def test_gradients_arrive_at_their_inputs(neutral, x):
    grads = ms.grad(loss, (0, 1, 2))(x, x + 1, x + 2)
    assert neutral.calls == ["save_forward", "backward"]
    assert neutral.needs == {"q", "k", "v", "g", "beta"}
    want = worth("q"), worth("k"), worth("v", "g", "beta")  # the third tensor is given three times
    assert all(same(a, b) for a, b in in_step(grads, want))


def test_one_tensor_for_all(x):
    assert same(ms.grad(lambda y: loss(y, y, y))(x), worth("q", "k", "v", "g", "beta"))


@pytest.mark.parametrize("name", chunk_kda.TENSORS)
def test_one_input_that_needs_it_is_enough(neutral, x, name):
    def function(y):
        given = {other: ms.ops.stop_gradient(x) for other in ("q", "k", "v", "g", "beta")} | {name: y}
        return front.npu_chunk_kda(**given, scale=1.0)[0].sum()

    assert same(ms.grad(function)(x), worth(name))
    assert neutral.needs >= {name}


def test_inputs_behind_stop_gradient_need_none(neutral, x):
    ms.grad(lambda y: loss(y, ms.ops.stop_gradient(y), ms.ops.stop_gradient(y * 2)))(x)
    assert neutral.needs == {"q"}


def test_frozen_parameters_need_none(neutral, x):
    class Layer(ms.nn.Cell):
        def __init__(self):
            super().__init__()
            self.a_log = ms.Parameter(ms.Tensor(np.zeros(3, np.float32)), name="a_log")
            self.dt_bias = ms.Parameter(x, name="dt_bias", requires_grad=False)

        def construct(self, y):
            given = front.npu_chunk_kda(y, y, y, y, y, 1.0, a_log=self.a_log, dt_bias=self.dt_bias)
            return given[0].sum()

    layer = Layer()
    value, (grad,) = ms.value_and_grad(layer, None, layer.trainable_params())(x)
    assert float(value) == 6 and np.array_equal(grad.asnumpy(), np.full(3, WORTH["a_log"]))
    assert "a_log" in neutral.needs and "dt_bias" not in neutral.needs


def test_nothing_to_derive_is_the_plain_forward(neutral, x):
    loss(x, x, x)
    with ms._no_grad():
        loss(x, x, x)
    stopped = ms.ops.stop_gradient

    def apart(y):
        return loss(stopped(y), stopped(y), stopped(y)) + y.sum()

    assert same(ms.grad(apart)(x), np.ones((2, 3)))
    assert neutral.calls == ["forward"] * 3


@pytest.mark.parametrize("used", ["out", "state", "both"])
def test_unused_results_have_no_cotangent(neutral, x, used):
    def function(y):
        out, state = front.npu_chunk_kda(y, y, y, y, y, 1.0, output_final_state=True)
        return {"out": out, "state": state, "both": out + state * 2}[used].sum()

    ms.grad(function)(x)
    d_out, d_state = neutral.cotangents
    assert (d_out is None) == (used == "state") and (d_state is None) == (used == "out")
    if d_state is not None:
        assert same(d_state, np.full((2, 3), 2.0 if used == "both" else 1.0))


def test_metadata_is_read_once(neutral, x):
    """The buffer of the offsets may be filled for the next batch before this one's backward runs."""
    offsets = list(OFFSETS)

    def function(y):
        out = loss(y, y, y, cu_seqlens=offsets, chunk_indices=[0, 0, 1, 0])
        offsets[1] = 0
        return out

    ms.grad(function)(x)
    assert neutral.options["cu_seqlens"] == tuple(OFFSETS)


def test_value_and_grad_and_vjp(x):
    value, grad = ms.value_and_grad(lambda y: loss(y, y, y))(x)
    assert float(value) == 6 and same(grad, worth("q", "k", "v", "g", "beta"))
    # Not computed from x by MindSpore: what it records then depends on what ran before in the process.
    other = ms.Tensor(2 * x.asnumpy())
    _, pull = ms.vjp(lambda y: loss(y, other, other), x)
    for _ in range(2):
        (grad,) = pull(ms.Tensor(1.0))
        assert same(grad, worth("q"))


def test_recomputed_cells(neutral, x):
    class Layer(ms.nn.Cell):
        def construct(self, y):
            return front.npu_chunk_kda(y, y, y, y, y, 1.0)[0]

    marked = Layer()
    marked.recompute()
    for function in (marked, lambda y: ms.recompute(Layer(), y)):
        neutral.calls.clear()
        assert same(ms.grad(lambda y, f=function: f(y).sum())(x), worth("q", "k", "v", "g", "beta"))
        assert neutral.calls[-1] == "backward" and len(neutral.calls) == 3


def test_a_second_derivative_is_refused(x):
    def gradient(y):
        return ms.grad(lambda z: loss(z, z, z))(y).sum()

    with pytest.raises(GradientUnavailable, match="npu_chunk_kda cannot be differentiated again"):
        ms.grad(gradient)(x)
    # The refusal leaves MindSpore usable, and a first derivative inside of another function is fine.
    stopped = ms.grad(lambda y: ms.ops.stop_gradient(gradient(y)) + (y * y).sum())
    assert same(stopped(x), 2 * np.ones((2, 3)))


def test_a_failure_in_the_backward_reaches_the_caller(monkeypatch, x):
    def failing(*_):
        raise ValueError("planted")

    monkeypatch.setattr(chunk_kda, "backward", failing)
    with pytest.raises(ValueError, match="planted"):
        ms.grad(lambda y: loss(y, y, y))(x)
    assert same(ms.grad(lambda y: (y * y).sum())(x), 2 * np.ones((2, 3)))


@pytest.mark.parametrize("keep", [True, False])
def test_recompute_mode_saves_nothing(neutral, x, keep):
    # Not computed from x by MindSpore: what it records then depends on what ran before in the process.
    other = ms.Tensor(2 * x.asnumpy())
    assert same(ms.grad(lambda y: loss(y, other, other, disable_recompute=keep))(x), worth("q"))
