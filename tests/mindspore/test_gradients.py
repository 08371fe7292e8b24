# SPDX-License-Identifier: Apache-2.0
"""Gradients of npu_chunk_kda on real operators: same bits as the PyTorch front end, and right by float64."""

from __future__ import annotations

import fla_npu.mindspore as front
import mindspore as ms
import numpy as np
import pytest
from backward import Cotangents, make_cotangents
from fla_npu import loader
from fla_npu.errors import ArgumentError, ArgumentTypeError
from in_step import in_step
from kda_inputs import case_seed, make_inputs
from ms_calls import cotangents_of, gradients, leaves_of, options_of, tensors_of, to_ms, torch_bits

MODEL = {"l2norm": True, "gate": "bounded", "beta": "sigmoid"}
CASES = {
    "model": {"B": 2, "T": 130, "HK": 2, "HV": 4, "state": "float32", **MODEL},
    "one_token": {"T": 1, "HV": 1},
    "softplus_half": {"T": 100, "HV": 2, "gate": "softplus", "g_dtype": "bfloat16", "beta_dtype": "bfloat16",
                      "beta": "negative"},
    "token_major": {"B": 2, "T": 65, "HK": 1, "HV": 2, "layout": "BSND", **MODEL},
    "packed_empty_tnd": {"cu": [0, 0, 5, 5, 70, 70], "HV": 2, "layout": "TND", "state": "float32", **MODEL},
    "packed_ntd_v_first": {"cu": [0, 63, 64, 129], "HK": 2, "HV": 4, "layout": "NTD", "use_exp2": False,
                           "state": "bfloat16", "state_v_first": True, "gate": "softplus"},
    "packed_rank4": {"cu": [0, 65, 131], "HV": 2, "state": "float32", **MODEL},
    "resets": {"T": 130, "HV": 2, "mask": 0.4},
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def operators():
    """These tests need the real operators."""
    loader.bind("chunk_kda_bwd_finalize")


def case(name: str):
    inputs = make_inputs(CASES[name], case_seed(name))
    return inputs, make_cotangents(inputs, case_seed(name))


@pytest.mark.parametrize("name, keep", [
    *((name, True) for name in CASES), ("model", False),
    *(pytest.param(name, False, marks=pytest.mark.full) for name in CASES if name != "model"),
])  # fmt: skip
def test_same_bits_as_pytorch(name, keep, tools):
    grad_run = pytest.importorskip("grad_run")
    inputs, seeds = case(name)
    got = gradients(inputs, seeds, disable_recompute=keep)
    want = grad_run.gradients(inputs, seeds, disable_recompute=keep)
    for key, grad in got.items():
        same = np.array_equal(tools.bits(grad), torch_bits(want[key]))
        if key == "beta" and inputs.options["use_beta_sigmoid_in_kernel"]:
            # The frameworks' sigmoids differ in the last bits.
            assert np.allclose(tools.f32(grad), want[key].float().numpy(), rtol=1e-2 if grad.dtype ==
                               ms.bfloat16 else 1e-5, atol=1e-12)  # fmt: skip
        else:
            assert same, f"gradient of {key}"


@pytest.mark.parametrize("name", ["model", "packed_ntd_v_first"])
def test_against_the_adjoint_of_the_recurrence(name, tools):
    from goldens import relative_l2

    grad_run = pytest.importorskip("grad_run")
    inputs, seeds = case(name)
    exact, rounded = grad_run.reference(inputs, seeds)
    for key, grad in gradients(inputs, seeds).items():
        error, floor = (relative_l2(x, exact[key]) for x in (tools.f32(grad), rounded[key]))
        assert error <= 1.5 * floor + 1e-3, f"gradient of {key}: {error:.2e}, the slots alone {floor:.2e}"


@pytest.mark.parametrize("name", ["model", "softplus_half", "packed_ntd_v_first"])
def test_save_and_recompute_give_the_same_bits(name, tools):
    """softplus_half takes the aggregates to save, and the stages to make it again."""
    inputs, seeds = case(name)
    saved, made = (gradients(inputs, seeds, disable_recompute=keep) for keep in (True, False))
    for key in saved:
        assert np.array_equal(tools.bits(saved[key]), tools.bits(made[key])), f"gradient of {key}"


@pytest.mark.parametrize("name", ["model", "packed_rank4"])
def test_the_stages_by_hand_give_the_gradients_of_the_whole(name, tools):
    """What a caller with communication between the stages runs, forward and backward."""
    inputs, seeds = case(name)
    got = by_hand(inputs, seeds)
    want = gradients(inputs, seeds)
    for key, grad in want.items():
        # The slots of the stages are bfloat16, those inside of npu_chunk_kda are wider.
        error = np.linalg.norm(tools.f32(got[key]) - tools.f32(grad)) / np.linalg.norm(tools.f32(grad))
        assert error < 8e-3, f"gradient of {key}: {error:.1e}"


def by_hand(inputs, seeds) -> dict:
    """The chain of section 5 of Hyper-Parallel's design, on head-major rank-4 tensors."""
    t, meta = tensors_of(inputs), {"cu_seqlens": inputs.options.get("cu_seqlens")}
    scale, state = inputs.options["scale"], to_ms(inputs.initial_state, "float32")
    d_out, d_state = cotangents_of(inputs, seeds)
    gk, aqk, akk, w, u, qg, kg, _, q_hat, k_hat, q_rstd, k_rstd, beta = front.npu_chunk_kda_fwd_prepare(
        **t, **inputs.options
    )
    h, v_new, _ = front.npu_chunk_kda_fwd_h(kg, w, u, gk=gk, initial_state=state, **meta)
    d_out = d_out.astype(ms.bfloat16).swapaxes(1, 2)  # a view: the stages take any strides
    drop = (lambda x: x[0]) if meta["cu_seqlens"] else (lambda x: x)
    lift = (lambda x: x[None]) if meta["cu_seqlens"] else (lambda x: x)
    d_aqk, dv, dq_raw = front.npu_chunk_kda_bwd_prepare(
        drop(aqk), drop(v_new), drop(d_out), drop(h), scale=scale,
        layout="NTD" if meta["cu_seqlens"] else "BNSD", **meta,
    )  # fmt: skip
    dh, dh0, dv_scan = front.npu_chunk_kda_bwd_dhu(
        qg, kg, w, d_out, lift(dv), scale, gk=gk, h0=state, dht=d_state, **meta
    )
    dq, dk, dv, dbeta, dg, da_log, ddt_bias = front.npu_chunk_kda_bwd_finalize(
        drop(q_hat), drop(k_hat), drop(t["v"]), drop(gk), drop(t["g"]), drop(beta), t["a_log"], t["dt_bias"],
        drop(akk), drop(v_new), drop(h), drop(dh), drop(dv_scan), d_aqk, dq_raw, scale=scale,
        q_rstd=drop(q_rstd), k_rstd=drop(k_rstd), output_layout="NTD" if meta["cu_seqlens"] else "BNSD", **meta,
    )  # fmt: skip
    # Without use_beta_sigmoid_in_kernel, dbeta is that of beta_eff, and the chain rule is the caller's.
    wide = lift(dbeta) * beta * (1 - beta)
    return {
        "q": lift(dq), "k": lift(dk), "v": lift(dv), "beta": wide, "g": lift(dg), "a_log": da_log,
        "dt_bias": ddt_bias, "initial_state": dh0,
    }  # fmt: skip


def test_the_last_stage_makes_the_sigmoid_itself(tools):
    """use_beta_sigmoid_in_kernel: beta is the logit, and dbeta its gradient; any output layout."""
    inputs, seeds = case("model")
    t = tensors_of(inputs)
    args = finalize_arguments(inputs, seeds, t)
    plain = front.npu_chunk_kda_bwd_finalize(**args)
    raw = front.npu_chunk_kda_bwd_finalize(
        **{**args, "beta": t["beta"]}, use_beta_sigmoid_in_kernel=True, output_layout="BSND"
    )
    want = [tools.f32(x) for x in plain]
    beta = tools.f32(args["beta"])
    want[3] *= beta * (1 - beta)
    for i in range(5):  # MindSpore's sigmoid and the kernel's differ in the last bits of beta
        got = tools.f32(raw[i].swapaxes(1, 2))
        assert np.linalg.norm(got - want[i]) < 1e-3 * np.linalg.norm(want[i])


def finalize_arguments(inputs, seeds, t) -> dict:
    """Valid arguments of the last stage; what the middle ones made plays no part here."""
    names = ("gk", "akk", "q", "k", "q_rstd", "k_rstd", "beta")
    slots = front.npu_chunk_kda_fwd_prepare(**t, **inputs.options)
    s = dict(in_step(names, (slots[i] for i in (0, 2, 8, 9, 10, 11, 12))))
    b, hv, n, _ = t["v"].shape
    rng = np.random.default_rng(4)

    def some(*shape, dtype="bfloat16"):
        return to_ms(0.1 * rng.standard_normal(shape), dtype)

    nt = -(-n // 64)
    return s | {
        "v": t["v"], "raw_g": t["g"], "a_log": t["a_log"], "dt_bias": t["dt_bias"],
        "v_new": some(b, hv, n, 128), "h": some(b, nt, hv, 128, 128), "dh": some(b, nt, hv, 128, 128),
        "dv_scan": some(b, hv, n, 128), "d_aqk": some(b, hv, n, 64, dtype="float32"),
        "dq_raw": some(b, hv, n, 128, dtype="float32"), "scale": inputs.options["scale"],
    }  # fmt: skip


def test_only_what_is_asked_for(tools):
    """One input that needs a gradient gets the bits it gets among all."""
    inputs, seeds = case("token_major")
    whole = gradients(inputs, seeds)
    leaves, options = leaves_of(inputs), options_of(inputs, output_final_state=True)
    d_out, d_state = cotangents_of(inputs, seeds)
    for name in leaves:
        held = {key: ms.ops.stop_gradient(x) for key, x in leaves.items() if key != name}

        def loss(y, held=held, name=name):
            out, state = front.npu_chunk_kda(**held, **{name: y}, **options)
            return (out.float() * d_out).sum() + (state * d_state).sum()

        assert np.array_equal(tools.bits(ms.grad(loss)(leaves[name])), tools.bits(whole[name])), name


@pytest.mark.parametrize("used", ["out", "state"])
def test_loss_on_one_result_only(used, tools):
    inputs, seeds = case("model")
    other = Cotangents(seeds.out * (used == "out"), seeds.final * (used == "state"))
    leaves, options = leaves_of(inputs), options_of(inputs, output_final_state=True)
    d_out, d_state = cotangents_of(inputs, other)

    def loss(*values):
        out, state = front.npu_chunk_kda(**dict(in_step(leaves, values)), **options)
        return (out.float() * d_out).sum() if used == "out" else (state * d_state).sum()

    got = ms.grad(loss, tuple(range(len(leaves))))(*leaves.values())
    want = gradients(inputs, other)
    for (name, full), grad in in_step(want.items(), got):
        assert np.array_equal(tools.f32(grad), tools.f32(full)), f"gradient of {name}"


class Layer(ms.nn.Cell):
    """A layer whose gate parameters are trained."""

    def __init__(self, inputs) -> None:
        super().__init__()
        t = tensors_of(inputs)
        self.a_log = ms.Parameter(t["a_log"], name="a_log")
        self.dt_bias = ms.Parameter(t["dt_bias"], name="dt_bias")
        self.mix = ms.nn.Dense(128, 128, dtype=ms.float32)
        self.options = options_of(inputs)

    def construct(self, q, k, v, g, beta):
        value = self.mix(v).astype(ms.bfloat16)
        out = front.npu_chunk_kda(
            q, k, value, g, beta, a_log=self.a_log, dt_bias=self.dt_bias, **self.options
        )[0]
        return (out.float() ** 2).sum()


def test_layers_train_and_can_be_recomputed(tools):
    inputs = make_inputs({"T": 70, "HV": 2, **MODEL}, 3)
    t = tensors_of(inputs)
    given = [t[name] for name in ("q", "k", "v", "g", "beta")]
    given[2] = given[2].float()
    layer = Layer(inputs)
    derive = ms.value_and_grad(layer, None, layer.trainable_params())
    value, grads = derive(*given)
    assert len(grads) == 4 and all(np.abs(tools.f32(grad)).max() > 0 for grad in grads)
    layer.recompute()
    again, remade = derive(*given)
    assert float(value) == float(again)
    assert all(np.array_equal(tools.bits(a), tools.bits(b)) for a, b in in_step(grads, remade))
    step = ms.nn.TrainOneStepCell(layer, ms.nn.SGD(layer.trainable_params(), 1e-2))
    assert float(step(*given)) == float(value) > float(step(*given))


def test_gradients_in_asynchronous_mode_are_ordered(tools):
    """Forward, loss, backward and an update, queued without waiting."""
    inputs = make_inputs({"T": 64, "HV": 1, **MODEL}, 7)
    t = tensors_of(inputs)
    fixed = {name: x for name, x in t.items() if name != "v"}
    options = options_of(inputs)

    def loss(y):
        return (front.npu_chunk_kda(v=y.astype(ms.bfloat16), **fixed, **options)[0].float() ** 2).sum()

    def steps(number: float, wait: bool):
        y = t["v"].float() * number
        for _ in range(2):
            y = y - 0.1 * ms.grad(loss)(y)
            y = ms.Tensor(y.asnumpy()) if wait else y
        return y

    numbers = [1 + i / 16 for i in range(6)]
    queued = [steps(number, wait=False) for number in numbers]
    waited = [steps(number, wait=True) for number in numbers]
    pairs = in_step(queued, waited)
    wrong = [i for i, (a, b) in enumerate(pairs) if not np.array_equal(tools.bits(a), tools.bits(b))]
    assert not wrong, f"{len(wrong)} of {len(numbers)} trainings are wrong"


def test_checked_twin_gives_the_same_bits(twin, tools):
    inputs = make_inputs({"T": 70, "HV": 2, "state": "float32", **MODEL}, 9)
    seeds = make_cotangents(inputs)
    fast = {name: tools.bits(x) for name, x in gradients(inputs, seeds).items()}
    twin(mode="checked", cores=2, seed=3)
    for name, grad in gradients(inputs, seeds).items():
        assert np.array_equal(fast[name], tools.bits(grad)), name


def test_explain_route():
    inputs, _ = case("model")
    t = tensors_of(inputs)
    route = front.explain_route(**t, **{**options_of(inputs), "disable_recompute": True})
    assert route.name == "stages" and "safe_gate" in route.reason
    assert route.forward[0] == "chunk_kda_fwd_prepare" and route.backward[-1] == "chunk_kda_bwd_finalize"
    again = front.explain_route(safe_gate=True, a_log=t["a_log"], disable_recompute=False)
    assert again.backward[:2] == ("chunk_kda_fwd_prepare", "chunk_fwd_h")
    whole = front.explain_route(a_log=t["a_log"])
    assert (whole.name, whole.forward, whole.backward) == (
        "aggregates", ("chunk_kda_fwd_v2",), ("chunk_kda_bwd_v2",)
    )  # fmt: skip
    for options, reason in (
        ({"initial_state": t["v"]}, "initial_state"),
        ({"disable_recompute": False}, "disable_recompute"),
        ({"state_v_first": True}, "state_v_first"),
    ):
        assert reason in front.explain_route(a_log=t["a_log"], **options).reason


WRONG = {
    "dtype of d_o": ("bwd_prepare", {"d_o": "float32"}, ArgumentTypeError, "d_o has dtype float32"),
    "shape of h": ("bwd_prepare", {"h": (1, 2, 1, 128, 128)}, ArgumentError, "h has shape"),
    "scale": ("bwd_prepare", {"scale": float("inf")}, ArgumentError, "scale = inf"),
    "missing gk": ("bwd_dhu", {"gk": None}, ArgumentTypeError, "gk is None"),
    "shape of dht": ("bwd_dhu", {"dht": (2, 1, 128, 128)}, ArgumentError, "dht has shape"),
    "chunk size": ("bwd_dhu", {"chunk_size": 32}, ArgumentError, "chunk_size = 32"),
    "safe gate alone": ("bwd_finalize", {"use_gate_in_kernel": False}, ArgumentError, "a_log|safe_gate"),
    "one norm": ("bwd_finalize", {"q_rstd": None}, ArgumentError, "q_rstd|k_rstd"),
    "layout": ("bwd_finalize", {"output_layout": "bsnd"}, ArgumentError, "output_layout = 'bsnd'"),
    "no tensor": ("bwd_finalize", {"dh": np.zeros(3)}, ArgumentTypeError, "dh is a numpy.ndarray"),
}


def stage_arguments(stage: str) -> dict:
    """Valid arguments of a backward stage for one chunk of one head."""
    rows, state = (1, 1, 64, 128), (1, 1, 1, 128, 128)
    half = {
        name: to_ms(np.ones(rows), "bfloat16")
        for name in ("q", "k", "v", "w", "d_o", "dv", "v_new", "dv_scan")
    }
    wide = {name: to_ms(np.ones(rows), "float32") for name in ("gk", "raw_g", "dq_raw")}
    square = {name: to_ms(np.ones(state), "bfloat16") for name in ("h", "dh")}
    scores = {name: to_ms(np.ones((1, 1, 64, 64)), "bfloat16") for name in ("aqk", "akk")}
    rows_of = {name: to_ms(np.ones((1, 1, 64)), "float32") for name in ("q_rstd", "k_rstd", "beta")}
    gate = {"a_log": to_ms(np.ones(1), "float32"), "dt_bias": None, "d_aqk": scores["aqk"].astype(ms.float32)}
    every = {**half, **wide, **square, **scores, **rows_of, **gate, "scale": 1.0}
    names = {
        "bwd_prepare": "aqk v_new d_o h scale",
        "bwd_dhu": "q k w d_o dv scale gk",
        "bwd_finalize": "q k v gk raw_g beta a_log dt_bias akk v_new h dh dv_scan d_aqk dq_raw scale q_rstd k_rstd",
    }[stage]
    return {name: every[name] for name in names.split()}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_of_a_stage_are_named(name):
    stage, changes, kind, text = WRONG[name]
    arguments = stage_arguments(stage)
    for key, value in changes.items():
        if isinstance(value, str) and key in arguments:
            value = arguments[key].astype(getattr(ms, value))
        elif isinstance(value, tuple):
            value = to_ms(np.ones(value), "bfloat16")
        arguments[key] = value
    with pytest.raises(kind, match=f"npu_chunk_kda_{stage}: .*({text})"):
        getattr(front, f"npu_chunk_kda_{stage}")(**arguments)


def test_a_missing_backward_operator_is_named_at_the_forward_call(monkeypatch):
    """Found out before a training step has run half of its way."""
    from fla_npu.errors import SymbolMissing
    from fla_npu.mindspore import adapter

    real = adapter.resolve

    def resolve(op: str):
        if op == "chunk_kda_bwd_finalize":
            raise SymbolMissing("chunk_kda_bwd_finalize is not in the OPP")
        return real(op)

    monkeypatch.setattr(adapter, "resolve", resolve)
    inputs = make_inputs({"T": 16, "HV": 1, **MODEL}, 10)
    t, options = tensors_of(inputs), options_of(inputs)
    front.npu_chunk_kda(**t, **options)
    with pytest.raises(SymbolMissing, match="chunk_kda_bwd_finalize"):
        ms.grad(lambda v: front.npu_chunk_kda(**{**t, "v": v}, **options)[0].float().sum())(t["v"])
