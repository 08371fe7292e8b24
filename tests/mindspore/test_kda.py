# SPDX-License-Identifier: Apache-2.0
"""The public functions on real operators: same bits as the PyTorch front end, and right by float64."""

from __future__ import annotations

import math

import fla_npu.mindspore as front
import mindspore as ms
import numpy as np
import pytest
from fla_npu.errors import ArgumentError, ArgumentTypeError
from goldens import MODE_SLOTS, PREPARE_SLOTS, forward_golden
from in_step import in_step
from kda_compare import judge
from kda_inputs import case_seed, make_inputs
from ms_calls import options_of, run, tensors_of, to_ms, torch_bits
from recurrence import kda_recurrence, to_head_major

MODEL = {"l2norm": True, "gate": "bounded", "beta": "sigmoid"}
CASES = {
    "model": {"B": 2, "T": 130, "HK": 2, "HV": 4, "state": "float32", **MODEL},
    "one_token": {"T": 1, "HV": 1},
    "softplus_bf16_gate": {"T": 100, "HV": 2, "gate": "softplus", "g_dtype": "bfloat16",
                           "beta_dtype": "bfloat16"},
    "token_major": {"B": 2, "T": 65, "HK": 1, "HV": 2, "layout": "BSND", **MODEL},
    "packed_empty_tnd": {"cu": [0, 0, 5, 5, 70, 70], "HV": 2, "layout": "TND", "state": "float32", **MODEL},
    "packed_ntd_v_first": {"cu": [0, 63, 64, 129], "HK": 2, "HV": 4, "layout": "NTD", "use_exp2": False,
                           "state": "bfloat16", "state_v_first": True, "gate": "softplus"},
    "packed_rank4": {"cu": [0, 65, 131], "HV": 2, "state": "float32", **MODEL},
    "negative_eigenvalues": {"T": 70, "HV": 2, "l2norm": True, "gate": "softplus", "beta": "negative"},
    "resets": {"T": 130, "HV": 2, "mask": 0.4},
    "scale_zero": {"T": 66, "HV": 1, "scale": 0.0},
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def operators():
    """These tests need the real operators."""
    from fla_npu import loader

    loader.bind("chunk_kda_fwd_prepare")


@pytest.mark.parametrize("name", CASES)
def test_same_bits_as_pytorch(name, tools):
    kda_run, fla_torch = pytest.importorskip("kda_run"), pytest.importorskip("fla_npu.torch")
    inputs = make_inputs(CASES[name], case_seed(name))
    out, final = run(inputs)
    state = kda_run.tensor(inputs.initial_state, inputs.state_dtype)
    options = options_of(inputs, output_final_state=True)
    want = fla_torch.npu_chunk_kda(**kda_run.tensors_of(inputs), initial_state=state, **options)
    for got, exact in in_step((out, final), want):
        assert np.array_equal(tools.bits(got), torch_bits(exact))
    assert (out.dtype, final.dtype) == (ms.bfloat16, ms.float32)


@pytest.mark.parametrize("name", ["model", "packed_ntd_v_first"])
def test_against_the_recurrence(name, tools):
    inputs = make_inputs(CASES[name], case_seed(name))
    out, final = run(inputs)
    exact = kda_recurrence(**inputs.recurrence_kwargs())
    rounded = forward_golden(inputs.golden_kwargs(), initial_state=inputs.initial_state,
                             state_v_first=inputs.state_v_first, round_slots=True)  # fmt: skip
    layout = inputs.options["layout"]
    o = to_head_major(exact["o"], layout).swapaxes(1, 2)
    o, model = (x[0] if layout in ("NTD", "TND") else x for x in (o, rounded["o"]))
    judge("o", tools.f32(out), o, model)
    judge("final_state", tools.f32(final), exact["final_state"], rounded["final_state"], "float32")


@pytest.mark.parametrize("mode", MODE_SLOTS)
def test_prepare_fills_the_slots_of_its_mode(mode, tools):
    kda_run = pytest.importorskip("kda_run")
    inputs = make_inputs(CASES["model"], 5)
    options = {"use_gate_in_kernel": False, **inputs.options}
    out = front.npu_chunk_kda_fwd_prepare(**tensors_of(inputs), **options, backward_mode=mode)
    assert isinstance(out, tuple) and len(out) == 13
    want = kda_run.prepare(inputs, mode=mode)
    for slot, got in in_step(PREPARE_SLOTS, out):
        assert (got is None) == (slot not in want), slot
        assert got is None or np.array_equal(tools.bits(got), torch_bits(want[slot])), slot


def test_the_stages_compose_to_the_whole(tools):
    """Rank-4 packed input through the stage functions, as a caller with communication in between would."""
    inputs = make_inputs(CASES["packed_rank4"], 6)
    cu = inputs.options["cu_seqlens"]
    gk, aqk, _, w, u, _, kg, qg_scaled, *_ = front.npu_chunk_kda_fwd_prepare(
        **tensors_of(inputs), **inputs.options, backward_mode="none"
    )
    h, v_new, final = front.npu_chunk_kda_fwd_h(
        kg,
        w,
        u,
        gk=gk,
        initial_state=to_ms(inputs.initial_state, "float32"),
        output_final_state=True,
        cu_seqlens=cu,
    )
    out = front.npu_chunk_kda_fwd_finalize(qg_scaled, aqk, v_new, h, cu_seqlens=cu)
    for got, want in in_step((out, final), run(inputs)):
        # Inside of npu_chunk_kda u is float32.
        got, want = tools.f32(got), tools.f32(want)
        assert np.linalg.norm(got - want) < 4e-3 * np.linalg.norm(want)
    assert front.npu_chunk_kda_fwd_h(kg, w, u, gk=gk, cu_seqlens=cu)[2] is None
    assert run(inputs, output_final_state=False)[1] is None


def test_chains_with_built_in_operators_in_asynchronous_mode(tools):
    """q, k, v come from built-in operators, results go to built-in operators and come back."""
    inputs = make_inputs({"T": 64, "HV": 1, **MODEL}, 7)
    fixed = tensors_of(inputs)
    q, k, v = (to_ms(inputs.arrays[name], "float32") for name in ("q", "k", "v"))

    def chain(number: float, wait: bool):
        settle = (lambda x: ms.Tensor(x.asnumpy())) if wait else (lambda x: x)
        value = settle(v * number)
        for _ in range(3):
            moved = {"q": settle(q + number), "k": settle(k + number)}
            pieces = {name: settle(x.astype(ms.bfloat16)) for name, x in moved.items()}
            out, final = run(inputs, {**fixed, **pieces, "v": settle(value.astype(ms.bfloat16))})
            # attn_out is [B, T, HV, V], v is [B, HV, T, V]: a view that is not contiguous.
            value = settle(settle(settle(out).float().transpose(0, 2, 1, 3)) * 0.5 + settle(final).mean() + v)
        return value

    numbers = [i / 64 for i in range(24)]
    queued = [chain(number, wait=False) for number in numbers]
    waited = [chain(number, wait=True) for number in numbers]
    pairs = in_step(queued, waited)
    wrong = [i for i, (a, b) in enumerate(pairs) if not np.array_equal(tools.bits(a), tools.bits(b))]
    assert not wrong, f"{len(wrong)} of {len(numbers)} chains are wrong"


def test_views_parameters_and_metadata_tensors(tools):
    inputs = make_inputs(CASES["packed_rank4"], 8)
    given = tensors_of(inputs)
    want = tools.bits(run(inputs, given)[0])
    strided = {
        name: x.transpose(0, 1, 3, 2).contiguous().transpose(0, 1, 3, 2) if x.ndim == 4 else x
        for name, x in given.items()
    }
    assert not strided["q"].is_contiguous()
    assert np.array_equal(tools.bits(run(inputs, strided)[0]), want)

    parameters = {name: ms.Parameter(x, name=name) for name, x in given.items()}
    parameters["dt_bias"] = ms.Parameter(given["dt_bias"].reshape(2, 128), name="dt_bias")
    cu = ms.Tensor(inputs.options["cu_seqlens"], ms.int32)
    indices = [0, 0, 0, 1, 1, 0, 1, 1]
    out = run(inputs, parameters, cu_seqlens=cu, chunk_indices=indices)[0]
    assert np.array_equal(tools.bits(out), want)


def test_checked_twin_gives_the_same_bits(twin, tools):
    inputs = make_inputs({"T": 70, "HV": 2, "state": "float32", **MODEL}, 9)
    fast = [tools.bits(x) for x in run(inputs)]
    twin(mode="checked", cores=2, seed=3)
    assert all(np.array_equal(a, tools.bits(b)) for a, b in in_step(fast, run(inputs)))


WRONG = {
    "dtype": ({"q": ms.float32}, {}, ArgumentTypeError, r"q has dtype float32.*astype\(mindspore.bfloat16\)"),
    "mode": ({}, {"layout": "bnsd"}, ArgumentError, "layout = 'bnsd'.*BNSD"),
    "scale": ({}, {"scale": math.nan}, ArgumentError, "scale = nan.*finite"),
    "cu": ({}, {"cu_seqlens": [0, 9]}, ArgumentError, r"cu_seqlens\[-1\] = 9.*T = 70"),
    "a_log": ({}, {"a_log": None}, ArgumentError, "needs a_log"),
    "flag": ({}, {"safe_gate": 1}, ArgumentTypeError, "safe_gate = 1 is a int"),
    "tensor": ({}, {"k": np.zeros(3)}, ArgumentTypeError, "k is a numpy.ndarray.*mindspore.Tensor"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_named(name):
    casts, changes, kind, text = WRONG[name]
    changes = dict(changes)
    inputs = make_inputs({"T": 70, "HV": 1, **MODEL}, 11)
    tensors = tensors_of(inputs)
    tensors |= {key: tensors[key].astype(dtype) for key, dtype in casts.items()}
    tensors |= {key: changes.pop(key) for key in list(changes) if key in tensors}
    with pytest.raises(kind, match=f"npu_chunk_kda: .*{text}"):
        run(inputs, tensors, **changes)
