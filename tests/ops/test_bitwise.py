# SPDX-License-Identifier: Apache-2.0
"""Same inputs, same bits: whatever the build, threads, cores, schedule, strides or later tokens."""

from __future__ import annotations

import kda_run
import numpy as np
import pytest
import torch
from kda_inputs import make_inputs

CASES = {
    "dense": {"T": 200, "HK": 2, "HV": 4, "l2norm": True, "gate": "bounded", "state": "float32"},
    "packed": {
        "cu": [0, 0, 65, 131, 202, 281], "HK": 1, "HV": 3, "gate": "softplus", "layout": "TND",
        "state": "float32", "state_v_first": True,
    },
    "one_row": {"T": 1, "HV": 2, "state": "float32"},
}  # fmt: skip


@pytest.fixture(params=CASES)
def inputs(request):
    return make_inputs(CASES[request.param], 1)


def test_threads(inputs, twin):
    twin(threads=1)
    one = kda_run.forward(inputs)
    for threads in (2, 5):
        twin(threads=threads)
        assert kda_run.differing(kda_run.forward(inputs), one) == []


@pytest.mark.parametrize("mode", ["fast", "checked"])
def test_simulated_core_counts(inputs, twin, mode):
    want = kda_run.forward(inputs)
    for cores in (1, 3, 20, 24):
        twin(mode=mode, cores=cores)
        assert kda_run.differing(kda_run.forward(inputs), want) == [], f"{cores} cores"


def test_schedules_and_copy_timing(inputs, twin):
    want = kda_run.forward(inputs)
    for seed, copies in ((0, "late"), (1, "late"), (2, "eager"), (12345, "late")):
        twin(mode="checked", seed=seed, copies=copies)
        assert kda_run.differing(kda_run.forward(inputs), want) == [], f"seed {seed}, {copies}"


@pytest.mark.full
def test_many_schedules(inputs, twin):
    want = kda_run.forward(inputs)
    for seed in range(40):
        twin(mode="checked", seed=seed, cores=(1, 2, 5, 20)[seed % 4])
        assert kda_run.differing(kda_run.forward(inputs), want) == [], f"seed {seed}"


@pytest.mark.parametrize("isa", ["baseline", pytest.param("avx2", marks=kda_run.x86_64_only)])
def test_vector_extensions_change_rounding_only(inputs, twin, isa):
    """Another instruction set may order sums differently; results stay within bf16 rounding."""
    want = kda_run.forward(inputs)
    twin(isa=isa)
    for name, x in kda_run.forward(inputs).items():
        a, b = kda_run.array(x), kda_run.array(want[name])
        assert np.linalg.norm(a - b) <= 2e-3 * np.linalg.norm(b), name


def test_run_to_run(inputs):
    want = kda_run.forward(inputs)
    for _ in range(5):
        assert kda_run.differing(kda_run.forward(inputs), want) == []


@pytest.mark.full
@pytest.mark.parametrize(
    "case",
    [{"T": 15, "HK": 6, "HV": 6}, {"cu": [0, 65, 131, 202, 281], "HK": 6, "HV": 6}],
    ids=["T15", "packed"],
)
def test_f3_fifty_runs_of_short_tails(case, twin):
    inputs = make_inputs({**case, "l2norm": True, "gate": "bounded", "state": "float32"}, 2)
    want = kda_run.forward(inputs)
    for run in range(50):
        twin(threads=1 + run % 3)
        assert kda_run.differing(kda_run.forward(inputs), want) == []


def test_f3_position_in_the_batch_does_not_matter():
    inputs = make_inputs(
        {"B": 3, "T": 79, "HV": 2, "l2norm": True, "gate": "softplus", "state": "float32"}, 3
    )
    for name in ("q", "k", "v", "g", "beta"):
        inputs.arrays[name][2] = inputs.arrays[name][0]
    inputs.initial_state[2] = inputs.initial_state[0]
    for name, x in kda_run.forward(inputs).items():
        assert kda_run.same_bits(x[0], x[2]), name


ROW_SLOTS = (
    "gk",
    "aqk",
    "akk",
    "w",
    "u",
    "qg",
    "qg_scaled",
    "q_hat",
    "k_hat",
    "q_rstd",
    "k_rstd",
    "beta_eff",
)


@pytest.mark.parametrize("gate", ["none", "softplus", "bounded"])
@pytest.mark.parametrize("last", [0, 7, 15, 16, 31, 40, 63, 64, 100])
def test_causality(gate, last):
    """Nothing that happens after token `last` moves a bit of the rows up to it."""
    inputs = make_inputs({"T": 140, "HV": 2, "l2norm": True, "gate": gate, "state": "float32"}, 4)
    want = kda_run.forward(inputs)
    rng = np.random.default_rng(last)
    for name in ("q", "k", "v", "beta"):
        after = inputs.arrays[name][:, :, last + 1 :]
        after[:] = 8.0 * np.sign(rng.standard_normal(after.shape))
    after = inputs.arrays["g"][:, :, last + 1 :]
    after[:] = -900.0 if gate == "none" else 90.0
    got = kda_run.forward(inputs)
    for name in ROW_SLOTS:
        assert kda_run.same_bits(got[name][:, :, : last + 1], want[name][:, :, : last + 1]), name
    assert kda_run.same_bits(got["o"][:, : last + 1], want["o"][:, : last + 1])
    assert kda_run.same_bits(got["h"][:, : last // 64 + 1], want["h"][:, : last // 64 + 1])


@pytest.mark.parametrize("gate", ["none", "softplus", "bounded"])
@pytest.mark.parametrize("tokens", [1, 9, 15, 17, 33, 50, 63])
def test_a_tail_has_the_bits_of_the_longer_run(gate, tokens):
    """Cutting the input after `tokens` rows changes no bit of those rows."""
    case = {"HV": 2, "l2norm": True, "gate": gate, "state": "float32", "T": 64}
    whole = make_inputs(case, 5)
    want = kda_run.forward(whole)
    for name in ("q", "k", "v", "g", "beta"):
        whole.arrays[name] = whole.arrays[name][:, :, :tokens]
    got = kda_run.forward(whole)
    for name in ROW_SLOTS:
        assert kda_run.same_bits(got[name], want[name][:, :, :tokens]), name
    assert kda_run.same_bits(got["o"], want["o"][:, :tokens])


def strided(x: torch.Tensor, how: str) -> torch.Tensor:
    """The values of `x` in a tensor that is not contiguous."""
    if how == "transposed" and x.dim() >= 2:
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if how == "every_second":
        wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), float("nan"), dtype=x.dtype)
        wide[..., ::2] = x
        return wide[..., ::2]
    if how == "column_slice":
        wide = torch.full((*x.shape[:-1], x.shape[-1] + 9), float("nan"), dtype=x.dtype)
        wide[..., 5 : 5 + x.shape[-1]] = x
        return wide[..., 5 : 5 + x.shape[-1]]
    return x


@pytest.mark.parametrize("how", ["transposed", "every_second", "column_slice"])
@pytest.mark.parametrize("layout", ["BNSD", "TND"])
def test_f1_strided_inputs(how, layout):
    inputs = make_inputs({"T": 79, "HK": 2, "HV": 4, "layout": layout, "gate": "bounded"}, 6)
    tensors = kda_run.tensors_of(inputs)
    want = kda_run.forward(inputs, tensors)
    views = {name: strided(x, how) for name, x in tensors.items()}
    assert not views["q"].is_contiguous()
    stages = kda_run.prepare(inputs, views)
    assert kda_run.differing(stages, {n: want[n] for n in stages}) == []
    relay = {name: strided(x, how) for name, x in stages.items()}
    h = kda_run.fwd_h(relay, inputs)
    assert kda_run.differing(h, {n: want[n] for n in h}) == []
    relay |= {name: strided(x, how) for name, x in h.items()}
    assert kda_run.same_bits(kda_run.finalize(relay, inputs), want["o"])


def test_f1_token_major_view_of_head_major_storage():
    """q.transpose(1, 2) passed as BSND, and a transposed view of the initial state."""
    inputs = make_inputs({"T": 79, "HK": 2, "HV": 4, "state": "float32"}, 7)
    want = kda_run.forward(inputs)
    views = {name: x.transpose(1, 2) for name, x in kda_run.tensors_of(inputs).items()}
    stages = kda_run.prepare(inputs, views, layout="BSND")
    assert kda_run.differing(stages, {n: want[n] for n in stages}) == []
    state = kda_run.tensor(inputs.initial_state.swapaxes(-1, -2), "float32").transpose(-1, -2)
    h = kda_run.fwd_h(stages, inputs, state)
    assert kda_run.differing(h, {n: want[n] for n in h}) == []


def test_f1_expanded_inputs():
    """Stride 0: one gate row for all tokens, one beta for all heads."""
    inputs = make_inputs({"T": 70, "HV": 2}, 8)
    inputs.arrays["g"][:] = inputs.arrays["g"][:, :, :1]
    inputs.arrays["beta"][:] = inputs.arrays["beta"][:, :1]
    tensors = kda_run.tensors_of(inputs)
    want = kda_run.prepare(inputs, tensors)
    tensors["g"] = tensors["g"][:, :, :1].expand(1, 2, 70, 128)
    tensors["beta"] = tensors["beta"][:, :1].expand(1, 2, 70)
    assert kda_run.differing(kda_run.prepare(inputs, tensors), want) == []
