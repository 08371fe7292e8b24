# SPDX-License-Identifier: Apache-2.0
"""Parametrisations of flash-linear-attention's public KDA tests that lie in our domain (K = V = 128).

Inputs follow their recipe (uniform q, k, v; logsigmoid gates; masked gates), in bf16; the measure and the
tolerances are theirs: RMS(ref - got) / (RMS(ref) + 1e-8).
"""

from __future__ import annotations

import grad_run
import kda_run
import numpy as np
import pytest
from backward import make_cotangents
from kda_inputs import KdaInputs, to_bf16, to_dtype, unit_rows
from recurrence import from_head_major, kda_recurrence, sigmoid


def ratio(got, want) -> float:
    """Their assert_close measure; NaN anywhere fails."""
    got = np.asarray(got, np.float64)
    assert np.isfinite(got).all() and np.isfinite(want).all()
    return float(np.sqrt(np.mean((got - want) ** 2)) / (np.sqrt(np.mean(want**2)) + 1e-8))


def fla_inputs(
    batch, tokens, key_heads, heads, scale, *, norm=1.0, mask=0.0, l2norm=False, gate=False, safe=False,
    cu=None, seed=0, state=True, v_first=False, mask_value=0.0,
):  # fmt: skip
    """Their random inputs, rounded to our types. `mask_value`: what masked gates are set to."""
    rng = np.random.default_rng(seed)
    shape = (batch, heads, tokens, 128)
    q, k = (rng.uniform(size=(batch, key_heads, tokens, 128)) for _ in range(2))
    if not l2norm:
        q, k = unit_rows(q), unit_rows(k)
    raw = rng.standard_normal(shape)
    params, options = {}, {}
    if gate:
        params = {"a_log": rng.standard_normal(heads), "dt_bias": rng.standard_normal(heads * 128)}
        options = {
            "use_gate_in_kernel": True,
            "safe_gate": safe,
            "lower_bound": -5.0 if safe else None,
        }
        g = np.where(rng.uniform(size=shape) > mask, raw, mask_value) if mask else raw
    else:
        g = -np.logaddexp(0.0, -raw) / norm
        g = np.maximum(g, -5.0) if safe else g
        g = np.where(rng.uniform(size=shape) > mask, g, mask_value)
    arrays = {
        "q": to_bf16(q),
        "k": to_bf16(k),
        "v": to_bf16(rng.uniform(size=shape)),
        "g": to_dtype(g, "float32"),
    }
    arrays["beta"] = to_dtype(sigmoid(rng.uniform(size=shape[:3])), "float32")
    arrays = {n: from_head_major(x, "BSND") for n, x in arrays.items()}
    arrays |= {n: to_dtype(x, "float32") for n, x in params.items()}
    dtypes = dict.fromkeys(arrays, "float32") | dict.fromkeys("qkv", "bfloat16")
    options |= {
        "layout": "BSND",
        "scale": scale,
        "use_qk_l2norm_in_kernel": l2norm,
        "use_exp2": True,
    }
    if cu:
        options["cu_seqlens"] = list(cu)
    count = len(cu) - 1 if cu else batch
    first = to_dtype(rng.standard_normal((count, heads, 128, 128)), "float32") if state else None
    return KdaInputs(arrays, dtypes, options, "none", first, "float32", v_first)


def check(inputs: KdaInputs, tolerance: float) -> None:
    stages, truth = kda_run.forward(inputs), kda_recurrence(**inputs.recurrence_kwargs())
    assert ratio(kda_run.array(stages["o"]), truth["o"]) < tolerance
    assert ratio(kda_run.array(stages["final_state"]), truth["final_state"]) < tolerance


#: Their tolerances of test_chunk and test_chunk_varlen. They let dA only warn; so it is held to more here.
CHUNK_LIMITS = {
    "o": 0.005, "final_state": 0.005, "q": 0.008, "k": 0.008, "v": 0.008, "g": 0.02, "beta": 0.02,
    "dt_bias": 0.008, "initial_state": 0.008, "a_log": 0.02,
}  # fmt: skip
VARLEN_LIMITS = {
    "o": 0.005, "final_state": 0.005, "q": 0.007, "k": 0.008, "v": 0.007, "g": 0.015, "beta": 0.015,
    "dt_bias": 0.005, "initial_state": 0.007, "a_log": 0.02,
}  # fmt: skip


def check_gradients(inputs: KdaInputs, limits: dict, disable_recompute: bool) -> None:
    """Forward and backward with normal cotangents of o and of the final state."""
    seeds = make_cotangents(inputs, 42)
    got = grad_run.gradients(inputs, seeds, disable_recompute=disable_recompute)
    exact = grad_run.reference(inputs, seeds, floor=False)[0]
    errors = {name: ratio(kda_run.array(x), exact[name]) for name, x in got.items()}
    assert all(error < limits[name] for name, error in errors.items()), errors


CHUNK = {
    "B4-T1024-H4-safe": (fla_inputs, (4, 1024, 4, 4, 0.1), {"safe": True}),
    "B4-T1024-H4-l2norm-safe": (fla_inputs, (4, 1024, 4, 4, 0.1), {"safe": True, "l2norm": True}),
    "B2-T1500-H4-gate": (fla_inputs, (2, 1500, 4, 4, 0.1), {"norm": 10, "gate": True}),
    "B2-T1024-H4-HV8-l2norm-gate": (
        fla_inputs,
        (2, 1024, 4, 8, 0.1),
        {"l2norm": True, "gate": True},
    ),
    "B2-T1024-H2-HV8-l2norm-gate": (
        fla_inputs,
        (2, 1024, 2, 8, 0.1),
        {"l2norm": True, "gate": True},
    ),
    "B4-T1024-H4-naive": (fla_inputs, (4, 1024, 4, 4, 0.1), {}),
    "B4-T1024-H4-scale1-norm10": (fla_inputs, (4, 1024, 4, 4, 1.0), {"norm": 10}),
}


@pytest.mark.full
@pytest.mark.parametrize("name", CHUNK)
def test_chunk(name):
    make, args, options = CHUNK[name]
    check(make(*args, **options, seed=42), 0.005)


#: (arguments of fla_inputs, options, disable_recompute) of their rows with D = 128.
CHUNK_GRADIENTS = {
    "B4-T1024-H4-safe": ((4, 1024, 4, 4, 0.1), {"safe": True}, True),
    "B4-T1024-H4-l2norm-safe": ((4, 1024, 4, 4, 0.1), {"safe": True, "l2norm": True}, False),
    "B2-T1500-H4-norm10-gate": ((2, 1500, 4, 4, 0.1), {"norm": 10, "gate": True}, True),
    "B2-T1024-H4-HV8-l2norm-gate": ((2, 1024, 4, 8, 0.1), {"l2norm": True, "gate": True}, False),
    "B2-T1024-H2-HV8-l2norm-gate": ((2, 1024, 2, 8, 0.1), {"l2norm": True, "gate": True}, False),
    # Rows of another D with all their other parameters, at our D.
    "B1-T63-H1-scale1-safe": ((1, 63, 1, 1, 1.0), {"safe": True}, False),
    "B2-T500-H3-scale1-safe": ((2, 500, 3, 3, 1.0), {"safe": True}, True),
    "B2-T1000-H3-mask": ((2, 1000, 3, 3, 0.1), {"mask": 0.5}, True),
    "B3-T1024-H4-scale1-norm.1": ((3, 1024, 4, 4, 1.0), {"norm": 0.1}, False),
    "B2-T1024-H2-HV4": ((2, 1024, 2, 4, 0.1), {}, False),
    "B2-T1024-H2-HV4-l2norm-gate-safe": (
        (2, 1024, 2, 4, 0.1),
        {"l2norm": True, "gate": True, "safe": True},
        False,
    ),
    "B2-T1024-H2-HV4-gate": ((2, 1024, 2, 4, 0.1), {"gate": True}, False),
    "B2-T160-H2-HV4-gate-safe": ((2, 160, 2, 4, 0.1), {"gate": True, "safe": True}, True),
}


@pytest.mark.full
@pytest.mark.parametrize("name", CHUNK_GRADIENTS)
def test_chunk_gradients(name):
    args, options, disable_recompute = CHUNK_GRADIENTS[name]
    check_gradients(fla_inputs(*args, **options, seed=42), CHUNK_LIMITS, disable_recompute)


@pytest.mark.parametrize("safe", [True, False], ids=["safe", "plain"])
def test_chunk_gradients_short(safe):
    """Their smallest size, which the fast tier can afford."""
    options = {"safe": True} if safe else {"l2norm": True, "gate": True}
    check_gradients(fla_inputs(1, 163, 1, 2, 1.0, **options, seed=42), CHUNK_LIMITS, safe)


PACKED = (0, 256, 500, 1000)


@pytest.mark.full
@pytest.mark.parametrize("gate", [False, True], ids=["external", "in_kernel"])
@pytest.mark.parametrize("state", [True, False], ids=["state", "no_state"])
def test_chunk_varlen(gate, state):
    """H4, D128, half of the external gates set to -1000."""
    options = {"gate": True} if gate else {"mask": 0.5, "mask_value": -1000.0}
    inputs = fla_inputs(1, 1000, 4, 4, 128**-0.5, cu=PACKED, state=state, seed=42, **options)
    check(inputs, 0.005)


#: (heads, offsets, options, disable_recompute): their varlen rows at D = 128; masked gates are -1000.
VARLEN_GRADIENTS = {
    "H4-mask.5": (4, PACKED, {"mask": 0.5}, False),
    "H4-15-gate-mask.1": (4, (0, 15), {"gate": True, "mask": 0.1}, False),
    "H4-gate-mask.9": (4, PACKED, {"gate": True, "mask": 0.9}, False),
    "H4-gate-2000": (4, (0, 15, 100, 300, 1200, 2000), {"gate": True}, False),
    "H4-4096-safe": (4, (0, 100, 300, 1200, 3000, 4096), {"safe": True}, True),
    "H4-31-96-160-gate": (4, (0, 31, 96, 160), {"gate": True, "mask": 0.1}, True),
}


@pytest.mark.full
@pytest.mark.parametrize("name", VARLEN_GRADIENTS)
def test_chunk_varlen_gradients(name):
    heads, cu, options, disable_recompute = VARLEN_GRADIENTS[name]
    options = {"mask_value": -1000.0, **options}
    inputs = fla_inputs(1, cu[-1], heads, heads, 128**-0.5, cu=cu, seed=42, **options)
    check_gradients(inputs, VARLEN_LIMITS, disable_recompute)


@pytest.mark.full
@pytest.mark.parametrize("negative", [False, True], ids=["sigmoid", "negative_eigenvalues"])
def test_beta_sigmoid_in_kernel_has_the_gradient_of_one_outside(negative):
    """(1, 1024, 8) of their (1, 8192, 96): within 1e-4, db_raw included, but for bf16 roundings of dq, dk, dv."""
    import torch

    inputs = fla_inputs(1, 1024, 8, 8, 128**-0.5, l2norm=True, gate=True, safe=True, seed=42)
    raw = np.random.default_rng(1).standard_normal(inputs.arrays["beta"].shape).astype(np.float32)
    inputs.arrays["beta"] = raw.astype(np.float64)
    seeds, most = make_cotangents(inputs, 1), 2.0 if negative else 1.0
    flags = {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": negative}
    inside = grad_run.gradients(inputs, seeds, **flags)
    logit = torch.from_numpy(raw).requires_grad_()
    inputs.arrays["beta"] = kda_run.array(logit.sigmoid() * most)
    outside = grad_run.gradients(inputs, seeds)
    (logit.sigmoid() * most).backward(outside["beta"])
    outside["beta"] = logit.grad
    for name, x in inside.items():
        limit = 1e-4 if name in ("beta", "g", "dt_bias", "initial_state", "final_state") else 1e-3
        assert ratio(kda_run.array(x), kda_run.array(outside[name])) < limit, name


INFERENCE = {
    "B1-T1024-H4": (1, 1024, 4, None), "B2-T2048-H8": (2, 2048, 8, None), "B1-T4096-H16": (1, 4096, 16, None),
    "packed-H4": (1, 1000, 4, PACKED), "packed-H8": (1, 2000, 8, (0, 100, 300, 1200, 2000)),
    "packed-H16": (1, 4096, 16, (0, 101, 303, 1205, 3007, 4096)),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", INFERENCE)
def test_inference_bounded_v_first(name):
    """Their bf16 inference cases: bounded gate and l2 norm in the kernel, state V-first, 0.006."""
    batch, tokens, heads, cu = INFERENCE[name]
    inputs = fla_inputs(
        batch,
        tokens,
        heads,
        heads,
        128**-0.5,
        l2norm=True,
        gate=True,
        safe=True,
        cu=cu,
        v_first=True,
        seed=42,
    )
    check(inputs, 0.006)


def test_chunk_state_v_first_equals_k_first():
    """(3, 1024, 4): both state layouts agree to 1e-4; here bit for bit."""
    k_first = fla_inputs(3, 1024, 4, 4, 0.1, seed=42)
    v_first = fla_inputs(3, 1024, 4, 4, 0.1, seed=42, v_first=True)
    v_first.initial_state = k_first.initial_state.swapaxes(-1, -2).copy()
    a, b = kda_run.forward(k_first), kda_run.forward(v_first)
    assert kda_run.same_bits(a["o"], b["o"])
    assert kda_run.same_bits(a["final_state"], b["final_state"].transpose(-1, -2))


@pytest.mark.full
@pytest.mark.parametrize("negative", [False, True], ids=["sigmoid", "negative_eigenvalues"])
def test_beta_sigmoid_in_kernel_equals_outside(negative):
    """(1, 8192, 96): the activation in the kernel and outside agree to 1e-4 in o."""
    inputs = fla_inputs(1, 8192, 96, 96, 128**-0.5, l2norm=True, state=False, seed=42)
    logits = np.random.default_rng(1).standard_normal(inputs.arrays["beta"].shape).astype(np.float32)
    tensors = kda_run.tensors_of(inputs)
    tensors["beta"] = kda_run.tensor(logits, "float32")
    options = {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": negative}
    inside = kda_run.prepare(inputs, tensors, **options)
    tensors["beta"] = tensors["beta"].sigmoid() * (2.0 if negative else 1.0)
    outside = kda_run.prepare(inputs, tensors)
    for name in ("w", "u"):
        a, b = inside[name].float(), outside[name].float()
        assert ((a - b).norm() / b.norm()).item() < 1e-4, name
    for name in ("gk", "aqk", "kg", "qg_scaled"):
        assert kda_run.same_bits(inside[name], outside[name]), name


def test_gradients_state_v_first_equal_k_first():
    """(1, 63, 1) and (2, 500, 3): both state layouts agree to 1e-4; here bit for bit."""
    for shape in ((1, 63, 1, 1, 1.0), (2, 500, 3, 3, 0.1)):
        k_first, v_first = (fla_inputs(*shape, seed=42, v_first=flag) for flag in (False, True))
        seeds = make_cotangents(k_first, 42)
        want = grad_run.gradients(k_first, seeds)
        v_first.initial_state = k_first.initial_state.swapaxes(-1, -2).copy()
        seeds.final = seeds.final.swapaxes(-1, -2).copy()
        got = grad_run.gradients(v_first, seeds)
        for name in ("final_state", "initial_state"):
            got[name] = got[name].transpose(-1, -2).contiguous()
        assert kda_run.differing(got, want) == []


def test_return_intermediate_states():
    """(2, 1024, 4): h is [B, NT, H, 128, 128] in bf16, and the first is the initial state."""
    inputs = fla_inputs(2, 1024, 4, 4, 0.1, seed=42)
    h = kda_run.forward(inputs)["h"]
    assert tuple(h.shape) == (2, 16, 4, 128, 128)
    assert kda_run.same_bits(h[:, 0], kda_run.tensor(to_bf16(inputs.initial_state), "bfloat16"))
    packed = fla_inputs(1, 1024, 4, 4, 0.1, seed=42, cu=(0, 512, 1024))
    assert tuple(kda_run.forward(packed)["h"].shape) == (1, 16, 4, 128, 128)
