# SPDX-License-Identifier: Apache-2.0
"""chunk_kda_bwd_finalize where decays, slopes and gradients leave the usual range; float64 on the same inputs."""

from __future__ import annotations

import backward_inputs
import grad_run
import kda_run
import numpy as np
import pytest
import torch
from goldens import golden_module, relative_l2
from kda_inputs import to_dtype

CASE = {"B": 1, "T": 130, "HK": 1, "HV": 2, "l2norm": True}
COTANGENTS = ("dh", "dv_scan", "d_aqk", "dq_raw")  # every output is linear in these four
LIMITS = {"dq": 4e-3, "dk": 4e-3, "dv": 4e-3, "dbeta": 4e-3, "dg": 4e-3, "da_log": 6e-3, "ddt_bias": 4e-3}


def call_with(gate: str, **values):
    """Tensors and options of a call whose inputs hold these values everywhere, and float64 of it."""
    case = backward_inputs.finalize_case({**CASE, "gate": gate}, 3)
    arrays = {name: np.array(x) for name, x in case.arrays.items()}
    for name, value in values.items():
        arrays[name][...] = value
    arrays = {name: to_dtype(x, case.dtypes[name]) for name, x in arrays.items()}
    tensors = {name: kda_run.tensor(x, case.dtypes[name]) for name, x in arrays.items()}
    with np.errstate(all="ignore"):
        exact = golden_module("chunk_kda_bwd_finalize").golden(**arrays, **case.options)
    return tensors, case.options, exact


@pytest.mark.parametrize(
    ("gate", "values"),
    [
        ("bounded", {"raw_g": 30.0}),  # -5 in every step
        ("bounded", {"raw_g": -30.0}),  # no decay
        ("bounded", {"raw_g": 0.3, "dt_bias": 0.0, "a_log": 100.0}),  # exp(a_log) is inf in fp32
        ("softplus", {"raw_g": 0.3, "a_log": 100.0}),  # steps of -inf from the activation
        ("softplus", {"raw_g": -50.0}),  # softplus below the resolution of 1 + e
        ("none", {"raw_g": -5.0}),
        ("none", {"raw_g": -20.0}),  # all of dg is 1e-9 of what cancels in it
        ("none", {"raw_g": -1000.0}),
        ("none", {"raw_g": -np.inf}),
        ("none", {"raw_g": 0.0}),
        ("bounded", {"beta": 0.0}),  # dbeta must not come from a division by beta
    ],
    ids=str,
)
def test_gates_at_their_ends(gate, values):
    tensors, options, exact = call_with(gate, **values)
    for name, x in grad_run.bwd_finalize(tensors, **options).items():
        got, want = kda_run.array(x), np.reshape(exact[name], x.shape)
        assert np.isfinite(got).all(), name
        if np.any(want):
            assert relative_l2(got, want) < LIMITS[name], name
        else:
            assert not np.any(got), f"{name} is exactly zero"


@pytest.mark.parametrize("exponent", [-40, 40])
@pytest.mark.parametrize("gate", ["bounded", "softplus", "none"])
def test_small_and_large_losses_keep_their_digits(gate, exponent):
    """A power of 2 in front of the loss comes out as that power of 2, also where the gate saturates."""
    tensors, options, _ = call_with(gate, **({"raw_g": 3.0} if gate == "bounded" else {}))
    want = grad_run.bwd_finalize(tensors, **options)
    scaled = {n: x * 2.0**exponent if n in COTANGENTS else x for n, x in tensors.items()}
    for name, x in grad_run.bwd_finalize(scaled, **options).items():
        assert relative_l2(kda_run.array(x) * 2.0**-exponent, kda_run.array(want[name])) < 1e-5, name


@pytest.mark.parametrize("gate", ["bounded", "none"])
def test_entries_above_the_diagonal_are_not_read(gate):
    tensors, options, _ = call_with(gate)
    want = grad_run.bwd_finalize(tensors, **options)
    above = torch.arange(64)[None, :] > torch.arange(130)[:, None] % 64
    noisy = {n: tensors[n].masked_fill(above, float("nan")) for n in ("akk", "d_aqk")}
    assert kda_run.differing(grad_run.bwd_finalize({**tensors, **noisy}, **options), want) == []
