# SPDX-License-Identifier: Apache-2.0
"""Gradients: same inputs, same bits, whatever the build, threads, cores, schedule, strides or neighbours."""

from __future__ import annotations

import grad_run
import kda_run
import numpy as np
import pytest
import torch
from backward import Cotangents, make_cotangents
from in_step import in_step
from kda_inputs import make_inputs
from test_bitwise import strided
from test_cases_packing import sub_sequence

CASES = {
    "dense": {"T": 130, "HK": 2, "HV": 4, "l2norm": True, "gate": "bounded", "state": "float32"},
    "packed": {
        "cu": [0, 0, 65, 131, 140], "HK": 1, "HV": 3, "gate": "softplus", "layout": "NTD", "state": "float32",
        "state_v_first": True,
    },
    "one_row": {"T": 1, "HV": 2, "state": "float32", "gate": "bounded"},
}  # fmt: skip
TOKENWISE = ("q", "k", "v", "g", "beta")


@pytest.fixture(params=CASES)
def call(request):
    """(inputs, cotangents) of a case."""
    inputs = make_inputs(CASES[request.param], 1)
    return inputs, make_cotangents(inputs, 1)


def test_threads(call, twin):
    twin(threads=1)
    one = grad_run.chain(*call)
    for threads in (2, 5):
        twin(threads=threads)
        assert kda_run.differing(grad_run.chain(*call), one) == []


@pytest.mark.parametrize("mode", ["fast", pytest.param("checked", marks=pytest.mark.full)])
def test_simulated_core_counts(call, twin, mode):
    """da_log and ddt_bias are sums over all tasks: their order must not follow the cores."""
    want = grad_run.chain(*call)
    for cores in (1, 3, 20, 24) if mode == "fast" else (1, 3):
        twin(mode=mode, cores=cores)
        assert kda_run.differing(grad_run.chain(*call), want) == [], f"{cores} cores"


def test_schedules_and_copy_timing(call, twin):
    want = grad_run.chain(*call)
    for seed, copies in ((1, "late"), (2, "eager"), (12345, "late")):
        twin(mode="checked", seed=seed, copies=copies)
        assert kda_run.differing(grad_run.chain(*call), want) == [], f"seed {seed}, {copies}"


@pytest.mark.full
def test_many_schedules(call, twin):
    want = grad_run.chain(*call)
    for seed in range(30):
        twin(mode="checked", seed=seed, cores=(1, 2, 5, 20)[seed % 4])
        assert kda_run.differing(grad_run.chain(*call), want) == [], f"seed {seed}"


@pytest.mark.parametrize("build", ["fast", pytest.param("checked", marks=pytest.mark.full)])
@pytest.mark.parametrize("disable_recompute", [True, False], ids=["save", "recompute"])
def test_composed_call_on_both_builds(call, twin, build, disable_recompute):
    """npu_chunk_kda gives the same gradients run after run, and on the checked twin."""
    want = grad_run.gradients(*call, disable_recompute=disable_recompute)
    for threads in (1, 3):
        twin(mode=build, threads=threads)
        again = grad_run.gradients(*call, disable_recompute=disable_recompute)
        assert kda_run.differing(again, want) == []
        if build == "checked":
            return


@pytest.mark.parametrize(
    "isa", ["baseline", pytest.param("avx2", marks=[pytest.mark.full, kda_run.x86_64_only])]
)
def test_vector_extensions_change_rounding_only(call, twin, isa):
    want = grad_run.chain(*call)
    twin(isa=isa)
    for name, x in grad_run.chain(*call).items():
        a, b = kda_run.array(x), kda_run.array(want[name])
        size = np.linalg.norm(b) if name != "da_log" else 10.0 * np.linalg.norm(b)
        assert np.linalg.norm(a - b) <= 2e-3 * size, name


@pytest.mark.full
@pytest.mark.parametrize(
    "case",
    [{"T": 15, "HK": 6, "HV": 6}, {"cu": [0, 65, 131, 202, 281], "HK": 6, "HV": 6}],
    ids=["T15", "packed"],
)
def test_f3_fifty_runs_of_short_tails(case, twin):
    inputs = make_inputs({**case, "l2norm": True, "gate": "bounded", "state": "float32"}, 2)
    seeds = make_cotangents(inputs, 2)
    want = grad_run.gradients(inputs, seeds)
    for run in range(50):
        twin(threads=1 + run % 3)
        assert kda_run.differing(grad_run.gradients(inputs, seeds), want) == []


def test_f3_position_in_the_batch_does_not_matter():
    case = {"B": 3, "T": 79, "HV": 2, "l2norm": True, "gate": "softplus", "state": "float32"}
    inputs = make_inputs(case, 3)
    seeds = make_cotangents(inputs, 3)
    for x in (*(inputs.arrays[n] for n in TOKENWISE), inputs.initial_state, seeds.out, seeds.final):
        x[2] = x[0]
    got = grad_run.gradients(inputs, seeds)
    for name in ("o", "final_state", *TOKENWISE, "initial_state"):
        assert kda_run.same_bits(got[name][0], got[name][2]), name


@pytest.mark.parametrize("gate", ["none", "softplus", "bounded"])
@pytest.mark.parametrize("first", [1, 40, 64])
def test_a_token_is_blamed_by_later_tokens_only(gate, first):
    """The mirror of causality: cotangents before token `first` move no bit of the gradients from it on."""
    inputs = make_inputs({"T": 100, "HV": 1, "l2norm": True, "gate": gate, "state": "float32"}, 4)
    seeds = make_cotangents(inputs, 4)
    want = grad_run.gradients(inputs, seeds)
    before = seeds.out[:, :, :first]
    before[:] = 8.0 * np.sign(np.random.default_rng(first).standard_normal(before.shape))
    got = grad_run.gradients(inputs, seeds)
    for name in TOKENWISE:
        assert kda_run.same_bits(got[name][:, :, first:], want[name][:, :, first:]), name
    assert not kda_run.same_bits(got["v"], want["v"])


@pytest.mark.parametrize("gate", ["none", "softplus", "bounded"])
def test_packed_has_the_bits_of_one_sequence_at_a_time(gate):
    cu = [0, 1, 1, 17, 80, 144, 145, 145]
    case = {"cu": cu, "HK": 1, "HV": 2, "l2norm": True, "gate": gate, "beta": "sigmoid", "state": "float32"}
    inputs = make_inputs({**case, "state_v_first": True}, 5)
    seeds = make_cotangents(inputs, 5)
    packed = grad_run.gradients(inputs, seeds)
    for n, (a, z) in enumerate(zip(cu, cu[1:])):
        if a == z:
            want = kda_run.tensor(seeds.final[n], "float32")
            assert kda_run.same_bits(packed["initial_state"][n], want), f"dh0 of empty sequence {n}"
            continue
        part = Cotangents(seeds.out[:, :, a:z], seeds.final[n : n + 1])
        single = grad_run.gradients(sub_sequence(inputs, n, a, z), part)
        for name in TOKENWISE:
            assert kda_run.same_bits(packed[name][:, :, a:z], single[name]), f"sequence {n}: d{name}"
        assert kda_run.same_bits(packed["initial_state"][n : n + 1], single["initial_state"])


@pytest.mark.parametrize("how", ["transposed", "every_second", "column_slice"])
@pytest.mark.parametrize("layout", ["BNSD", "TND"])
def test_f1_strided_inputs_and_cotangents(how, layout):
    """Views give the bits of contiguous copies, forward and backward; gradients come back dense or not, but equal."""
    from fla_npu.torch import npu_chunk_kda

    case = {"T": 79, "HK": 2, "HV": 4, "layout": layout, "gate": "bounded", "state": "float32"}
    inputs = make_inputs(case, 6)
    seeds = make_cotangents(inputs, 6)
    want = grad_run.gradients(inputs, seeds)
    leaves = kda_run.tensors_of(inputs) | {"initial_state": kda_run.tensor(inputs.initial_state, "float32")}
    views = {n: strided(x, how).requires_grad_() for n, x in leaves.items()}
    assert not views["q"].is_contiguous()
    o, final = npu_chunk_kda(**views, **inputs.options, output_final_state=True)
    d_o = strided(kda_run.tensor(grad_run.token_major(seeds.out, layout), "bfloat16"), how)
    d_final = strided(kda_run.tensor(seeds.final, "float32"), how)
    grads = torch.autograd.grad([o, final], list(views.values()), [d_o, d_final])
    for (name, x), grad in in_step(views.items(), grads):
        assert grad.shape == x.shape and kda_run.same_bits(grad, want[name]), name


def test_f1_cotangents_of_a_sum():
    """do of o.sum() and of final_state.mean() has stride 0."""
    from fla_npu.torch import npu_chunk_kda

    inputs = make_inputs({"T": 70, "HV": 2, "state": "float32"}, 7)
    ones = Cotangents(np.ones((1, 2, 70, 128)), np.full((1, 2, 128, 128), 2.0**-15))
    want = grad_run.gradients(inputs, ones)
    leaves = kda_run.tensors_of(inputs) | {"initial_state": kda_run.tensor(inputs.initial_state, "float32")}
    leaves = grad_run.requiring(leaves)
    o, final = npu_chunk_kda(**leaves, **inputs.options, use_gate_in_kernel=False, output_final_state=True)
    (o.sum() + final.mean()).backward()
    for name, x in leaves.items():
        assert kda_run.same_bits(x.grad, want[name]), name


def test_f1_expanded_leaves_collect_their_sum():
    """A beta shared by all heads: its gradient is the sum over the expansion, made by autograd."""
    from fla_npu.torch import npu_chunk_kda

    inputs = make_inputs({"T": 70, "HV": 2}, 8)
    inputs.arrays["beta"][:] = inputs.arrays["beta"][:, :1]
    seeds = make_cotangents(inputs, 8, final=False)
    want = grad_run.gradients(inputs, seeds)["beta"].sum(1, keepdim=True)
    tensors = kda_run.tensors_of(inputs)
    shared = tensors["beta"][:, :1].clone().requires_grad_()
    tensors["beta"] = shared.expand(1, 2, 70)
    o, _ = npu_chunk_kda(**tensors, **inputs.options, use_gate_in_kernel=False)
    o.backward(kda_run.tensor(grad_run.token_major(seeds.out, "BNSD"), "bfloat16"))
    assert kda_run.same_bits(shared.grad, want)
