# SPDX-License-Identifier: Apache-2.0
"""ChunkKda in compiled graphs: the bits of npu_chunk_kda in PyNative mode, forward and backward."""

from __future__ import annotations

import fla_npu.mindspore as front
import mindspore as ms
import numpy as np
import pytest
from backward import make_cotangents
from fla_npu import loader
from fla_npu.errors import ArgumentError, ArgumentTypeError
from fla_npu.mindspore import graph
from fla_npu.mindspore.guard import GraphModeUnsupported
from in_step import in_step
from kda_inputs import case_seed, make_inputs
from ms_calls import gradients, leaves_of, options_of, run, tensors_of, to_ms

MODEL = {"l2norm": True, "gate": "bounded", "beta": "sigmoid"}
CASES = {
    "model": {"B": 2, "T": 70, "HK": 1, "HV": 2, "state": "float32", **MODEL},
    "four_slices": {"T": 65, "HK": 5, "HV": 5, "layout": "BSND", "gate": "softplus", "no_bias": True},
    "packed_half": {"cu": [0, 5, 5, 70], "HV": 2, "layout": "TND", "state": "bfloat16", "state_v_first": True,
                    "g_dtype": "bfloat16", "beta_dtype": "bfloat16", "beta": "negative"},
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def operators():
    """These tests need the real operators."""
    loader.bind("chunk_kda_bwd_finalize")


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # a failed compilation leaves rank_0/om/analyze_fail.ir behind


@pytest.fixture
def graph_mode():
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=before)


def bound(inputs, **changes) -> graph.ChunkKda:
    return graph.ChunkKda(**options_of(inputs, output_final_state=True, **changes))


def function_of(kda, names):
    """A function of the tensors of a case whose source the graph compiler can read."""

    def plain(q, k, v, g, beta):
        return kda(q, k, v, g, beta)

    def rated(q, k, v, g, beta, a_log):
        return kda(q, k, v, g, beta, a_log)

    def biased(q, k, v, g, beta, a_log, dt_bias):
        return kda(q, k, v, g, beta, a_log, dt_bias)

    def stateful(q, k, v, g, beta, state):
        return kda(q, k, v, g, beta, None, None, state)

    def full(q, k, v, g, beta, a_log, dt_bias, state):
        return kda(q, k, v, g, beta, a_log, dt_bias, state)

    return {
        (): plain,
        ("a_log",): rated,
        ("a_log", "dt_bias"): biased,
        ("initial_state",): stateful,
        ("a_log", "dt_bias", "initial_state"): full,
    }[tuple(names)[5:]]


def agree(name: str, got, want, tools) -> bool:
    """Equal bits; of dbeta behind a sigmoid, one rounding."""
    if name != "beta":
        return np.array_equal(tools.bits(got), tools.bits(want))
    return np.allclose(
        tools.f32(got), tools.f32(want), rtol=8e-3 if got.dtype == ms.bfloat16 else 1e-5, atol=1e-12
    )


@pytest.mark.parametrize("name", CASES)
def test_forward_has_the_bits_of_pynative(name, tools):
    inputs = make_inputs(CASES[name], case_seed(name))
    want = run(inputs, disable_recompute=False)
    leaves = leaves_of(inputs)
    function = function_of(bound(inputs), leaves)
    for variant in (function, ms.jit(function)):
        got = variant(*leaves.values())
        assert all(np.array_equal(tools.bits(a), tools.bits(b)) for a, b in in_step(got, want))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "jit", [pytest.param(False, marks=pytest.mark.full, id="pynative"), pytest.param(True, id="jit")]
)
def test_gradients_have_the_bits_of_pynative(name, jit, tools):
    inputs = make_inputs(CASES[name], case_seed(name))
    seeds = make_cotangents(inputs)
    want = gradients(inputs, seeds, disable_recompute=False)
    function = function_of(bound(inputs), leaves_of(inputs))
    function = ms.jit(function) if jit else function
    for key, grad in gradients(inputs, seeds, lambda **tensors: function(*tensors.values())).items():
        assert agree(key, grad, want[key], tools), f"gradient of {key}"


class Layer(ms.nn.Cell):
    """Built-in operators around the call, gate parameters as Parameters, both results in the loss."""

    def __init__(self, inputs, call) -> None:
        super().__init__()
        t = tensors_of(inputs)
        self.a_log = ms.Parameter(t["a_log"], name="a_log")
        self.dt_bias = ms.Parameter(t["dt_bias"], name="dt_bias")
        self.call = call

    def construct(self, q, k, v, g, beta, state):
        out, final = self.call(q, k, (v * 2.0).astype(ms.bfloat16), g, beta, self.a_log, self.dt_bias, state)
        return (out.astype(ms.float32) ** 2).sum() + (final * state).sum()


class Eager(ms.nn.Cell):
    """npu_chunk_kda in the form of ChunkKda."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.options = options

    def construct(self, q, k, v, g, beta, a_log, dt_bias, state):
        return front.npu_chunk_kda(
            q, k, v, g, beta, a_log=a_log, dt_bias=dt_bias, initial_state=state, **self.options
        )


def derivative(layer):
    """Gradients of inputs and parameters."""
    return ms.value_and_grad(layer, (0, 1, 2, 3, 4, 5), layer.trainable_params())


@pytest.fixture
def training(tools):
    """(inputs, tensors, value and gradients in PyNative mode)"""
    inputs = make_inputs(CASES["model"], 3)
    t = tensors_of(inputs)
    t["v"] = t["v"].float()
    given = [t[n] for n in ("q", "k", "v", "g", "beta")] + [to_ms(inputs.initial_state, "float32")]
    options = options_of(inputs, output_final_state=True, disable_recompute=False)
    return inputs, given, derivative(Layer(inputs, Eager(**options)))(*given)


def check(got, want, tools) -> None:
    (value, (of_inputs, of_parameters)), (true, (want_inputs, want_parameters)) = got, want
    assert np.allclose(float(value), float(true), rtol=1e-6)
    names = ("q", "k", "v", "g", "beta", "state", "a_log", "dt_bias")
    pairs = in_step(names, (*of_inputs, *of_parameters), (*want_inputs, *want_parameters))
    for name, grad, exact in pairs:
        assert agree(name, grad, exact, tools), f"gradient of {name}"


def test_a_layer_in_graph_mode(training, graph_mode, tools):
    inputs, given, want = training
    check(derivative(Layer(inputs, bound(inputs)))(*given), want, tools)


def test_training_in_graph_mode(training, graph_mode):
    """MindSpore's own training cell: forward, backward and update in one graph."""
    inputs, given, _ = training
    layer = Layer(inputs, bound(inputs))
    step = ms.nn.TrainOneStepCell(layer, ms.nn.SGD(layer.trainable_params(), 1e-3))
    losses = [float(step(*given)) for _ in range(3)]
    assert losses[2] < losses[1] < losses[0]


def test_jit_of_a_gradient(training, tools):
    inputs, given, want = training
    derive = derivative(Layer(inputs, bound(inputs)))

    @ms.jit
    def step(q, k, v, g, beta, state):
        return derive(q, k, v, g, beta, state)

    check(step(*given), want, tools)


def test_without_final_state_one_tensor_comes_back(tools):
    inputs = make_inputs({"T": 16, "HV": 1}, 1)
    t = tensors_of(inputs)
    kda = graph.ChunkKda(**options_of(inputs))
    function = function_of(kda, t)
    out = ms.jit(function)(*t.values())
    assert isinstance(out, ms.Tensor) and np.array_equal(tools.bits(out), tools.bits(run(inputs)[0]))

    def loss(v):
        return (kda(t["q"], t["k"], v, t["g"], t["beta"]).astype(ms.float32) ** 2).sum()

    def eager(v):
        return (run(inputs, {**t, "v": v}, disable_recompute=False)[0].float() ** 2).sum()

    assert np.array_equal(tools.bits(ms.grad(ms.jit(loss))(t["v"])), tools.bits(ms.grad(eager)(t["v"])))


def test_two_bindings_in_one_graph(tools):
    """Equal shapes, different options: nothing is taken for the same operator."""
    inputs = make_inputs({"T": 16, "HV": 1, **MODEL}, 1)
    t = tensors_of(inputs)
    one, two = (graph.ChunkKda(**options_of(inputs, scale=scale)) for scale in (0.1, 0.3))

    @ms.jit
    def both(q, k, v, g, beta, a_log, dt_bias):
        return one(q, k, v, g, beta, a_log, dt_bias), two(q, k, v, g, beta, a_log, dt_bias)

    for out, scale in in_step(both(*t.values()), (0.1, 0.3)):
        assert np.array_equal(tools.bits(out), tools.bits(run(inputs, scale=scale)[0]))


def test_other_shapes_are_recorded_anew(tools):
    first, second = (make_inputs({"T": tokens, "HV": 1}, 1) for tokens in (16, 70))
    kda = graph.ChunkKda(**options_of(first))
    function = ms.jit(function_of(kda, tensors_of(first)))
    for inputs in (first, second, first):
        out = function(*tensors_of(inputs).values())
        assert np.array_equal(tools.bits(out), tools.bits(run(inputs)[0]))


def test_wrong_arguments_are_named_when_the_graph_is_compiled():
    inputs = make_inputs({"T": 16, "HV": 1}, 1)
    t = tensors_of(inputs)
    function = ms.jit(function_of(graph.ChunkKda(**options_of(inputs)), t))
    with pytest.raises(ArgumentTypeError, match=r"ChunkKda: q has dtype float32"):
        function(*{**t, "q": t["q"].float()}.values())
    with pytest.raises(ArgumentError, match="ChunkKda: k has shape"):
        function(*{**t, "k": t["k"][:, :, :5]}.values())
    with pytest.raises(ArgumentTypeError, match="cu_seqlens"):
        graph.ChunkKda(1.0, cu_seqlens=[0, 0.5])


def test_dynamic_shapes_are_refused():
    """With dynamic=1 MindSpore compiles for any T after the second T."""
    inputs = make_inputs({"T": 18, "HV": 1}, 1)
    t = tensors_of(inputs)
    function = ms.jit(function_of(graph.ChunkKda(**options_of(inputs)), t), dynamic=1)
    with pytest.raises(ArgumentError, match="dynamic shape"):
        for tokens in (16, 17, 18):
            function(*(x[:, :, :tokens] for x in t.values()))


def test_a_second_derivative_is_refused():
    """By g, because MindSpore's CPU backend cannot add two gradients in bfloat16 in a graph."""
    inputs = make_inputs({"T": 16, "HV": 1}, 1)
    t = tensors_of(inputs)
    kda = graph.ChunkKda(**options_of(inputs))

    def loss(g):
        return (kda(t["q"], t["k"], t["v"], g, t["beta"]).astype(ms.float32) ** 2).sum()

    def slope(g):
        return ms.grad(loss)(g).sum()

    for function in (slope, ms.jit(slope)):
        with pytest.raises(RuntimeError, match="differentiated again"):
            ms.grad(function)(t["g"]).asnumpy()
    # A first derivative inside of another function is fine, and so is MindSpore afterwards.
    stopped = ms.grad(lambda g: ms.ops.stop_gradient(slope(g)) + (g**2).sum())
    assert np.array_equal(stopped(t["g"]).asnumpy(), 2 * t["g"].asnumpy())


def test_after_an_exception_in_a_gradient(tools):
    """MindSpore then takes every gradient for a nested one, for the rest of the process."""

    def failing(y):
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        ms.grad(failing)(ms.Tensor(np.ones(3, np.float32)))
    inputs = make_inputs(CASES["model"], 5)
    seeds = make_cotangents(inputs)
    function = ms.jit(function_of(bound(inputs), leaves_of(inputs)))
    want = gradients(inputs, seeds, disable_recompute=False)
    for key, grad in gradients(inputs, seeds, lambda **tensors: function(*tensors.values())).items():
        assert agree(key, grad, want[key], tools), f"gradient of {key}"


def test_ascend_is_refused(monkeypatch):
    monkeypatch.setattr(graph, "on_device", lambda: True)
    with pytest.raises(GraphModeUnsupported, match="on the CPU only"):
        graph.ChunkKda(1.0)


def test_a_failure_of_an_operator_reaches_python_with_its_text(monkeypatch, bridge, tools):
    """A recorded attribute is spoilt, so that phase 1 refuses it. Afterwards graphs run as before."""
    inputs = make_inputs({"T": 16, "HV": 1}, 1)
    t = tensors_of(inputs)
    kept = bridge.record

    def record(key, scratch, steps):
        kind, target, values = steps[0]
        values = [-1.0 if x == inputs.options["epsilon"] else x for x in values]
        kept(key, scratch, [(kind, target, values), *steps[1:]])

    with monkeypatch.context() as patch:
        patch.setattr(bridge, "record", record)
        broken = ms.jit(function_of(graph.ChunkKda(**options_of(inputs)), t))
        with pytest.raises(RuntimeError, match="aclnnChunkKdaFwdPrepareGetWorkspaceSize.*epsilon"):
            broken(*t.values()).asnumpy()
    whole = ms.jit(function_of(graph.ChunkKda(**options_of(inputs)), t))
    assert np.array_equal(tools.bits(whole(*t.values())), tools.bits(run(inputs)[0]))
