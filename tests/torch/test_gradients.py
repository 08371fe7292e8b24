# SPDX-License-Identifier: Apache-2.0
"""Gradients of npu_chunk_kda on PyTorch: values, shapes, dtypes, layouts, and who gets one."""

from __future__ import annotations

import itertools

import pytest
import torch
from gradients import kda_gradients
from torch_calls import OPTIONS, SCALE, TOKENWISE, gradients, kda, leaves, make, same_bits, seeds

CU = [0, 65, 65, 70, 133]


def with_state(t, sequences=1, dtype=torch.float32, seed=5):
    rng = torch.Generator().manual_seed(seed)
    state = torch.randn(sequences, t["a_log"].shape[0], 128, 128, generator=rng)
    return {**t, "initial_state": state.to(dtype)}


def truth(t, layout, **options) -> dict:
    out, final = kda(t, layout=layout, **options)
    d_out, d_final = seeds(out, final)
    if layout in ("BNSD", "NTD"):
        d_out = d_out.transpose(-3, -2)
    arrays = {n: x.double().numpy() for n, x in t.items()}
    return kda_gradients(
        **arrays, d_out=d_out.double().numpy(), d_final=d_final.double().numpy(), scale=SCALE, layout=layout,
        **{**OPTIONS, **options},
    )  # fmt: skip


def assert_gradients(got: dict, want: dict, t: dict) -> None:
    assert got.keys() == t.keys()
    for name, grad in got.items():
        assert (grad.shape, grad.dtype) == (t[name].shape, t[name].dtype), name
        exact = torch.as_tensor(want[name]).reshape(grad.shape)
        error = float((grad.double() - exact).norm() / exact.norm())
        # Sums over all tokens cancel; the rest is what bfloat16 slots cost.
        assert error < (3e-2 if name in ("a_log", "dt_bias") else 8e-3), f"{name}: {error:.1e}"


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "NTD", "TND"])
def test_against_the_recurrence(layout):
    batch = 2 if layout in ("BNSD", "BSND") else 1
    t = with_state(make(tokens=130, layout=layout, batch=batch), batch)
    assert_gradients(gradients(t, layout=layout), truth(t, layout), t)


def test_packed_with_empty_sequences():
    t = with_state(make(tokens=133, layout="TND"), 4)
    got = gradients(t, layout="TND", cu_seqlens=CU)
    assert_gradients(got, truth(t, "TND", cu_seqlens=CU), t)
    # A sequence without tokens hands its gradient on.
    final = kda(t, layout="TND", cu_seqlens=CU)[1]
    assert same_bits(got["initial_state"][1], seeds(kda(t, layout="TND", cu_seqlens=CU)[0], final)[1][1])


@pytest.mark.parametrize("gate", ["unbounded", "none"])
def test_other_gates(gate):
    t, options = with_state(make(tokens=130)), {"safe_gate": False}
    if gate == "none":
        t = {n: x for n, x in t.items() if n not in ("a_log", "dt_bias")}
        t["g"] = -t["g"].abs() / 16
        options["use_gate_in_kernel"] = False
    assert_gradients(gradients(t, **options), truth(t, "BNSD", **options), t)


def test_other_dtypes():
    """bfloat16 gate, beta and parameters: computed in float32, gradients in their dtypes."""
    t = make(tokens=70)
    half = {n: x.bfloat16() for n, x in with_state(t).items()}
    full = {**{n: x.float() for n, x in half.items()}, **{n: half[n] for n in "qkv"}}
    got, want = gradients(half), gradients(full)
    for name in half:
        assert got[name].dtype == torch.bfloat16
        assert same_bits(got[name], want[name].bfloat16()), name


def test_bias_and_state_forms():
    t = with_state(make())
    want = gradients(t)
    flat = gradients({**t, "dt_bias": t["dt_bias"].flatten()})
    assert same_bits(flat["dt_bias"].reshape(4, 128), want["dt_bias"])
    turned = {**t, "initial_state": t["initial_state"].mT.contiguous()}
    out, final = kda(t)
    d_out, d_final = seeds(out, final)
    got = gradients(turned, cotangents=(d_out, d_final.mT), state_v_first=True)
    assert same_bits(got.pop("initial_state"), want["initial_state"].mT.contiguous())
    assert all(same_bits(got[n], want[n]) for n in got)


@pytest.mark.parametrize("options", [{}, {"cu_seqlens": CU}, {"safe_gate": False}, {"use_exp2": False}])
@pytest.mark.parametrize("hk", [1, 5])
def test_recompute_gives_the_same_bits(hk, options):
    t = with_state(make(tokens=133, hk=hk, hv=2 * hk), 4 if "cu_seqlens" in options else 1)
    want = gradients(t, **options)
    got = gradients(t, disable_recompute=False, **options)
    assert all(same_bits(got[n], want[n]) for n in t)


def test_each_input_alone_gets_the_same_bits():
    t = with_state(make())
    want = gradients(t)
    for name, recompute in itertools.product(t, (False, True)):
        assert same_bits(gradients(t, {name}, disable_recompute=not recompute)[name], want[name]), name
    some = gradients(t, {"v", "beta", "initial_state"})
    assert all(same_bits(some[n], want[n]) for n in some)


def test_unused_outputs():
    t = with_state(make())
    out, final = kda(t)
    d_out, d_final = seeds(out, final)
    only_state = gradients(t, cotangents=(None, d_final))
    assert not only_state["q"].any()
    zeros = gradients(t, cotangents=(torch.zeros_like(out), d_final))
    assert all(torch.equal(only_state[n], zeros[n]) for n in t)
    only_out = gradients(t, cotangents=(d_out, None))
    zeros = gradients(t, cotangents=(d_out, torch.zeros_like(final)))
    assert all(torch.equal(only_out[n], zeros[n]) for n in t)
    unasked = gradients(t, cotangents=(d_out, None), output_final_state=False)
    assert all(same_bits(only_out[n], unasked[n]) for n in t)


def test_cotangents_of_any_strides():
    t = with_state(make(tokens=70))
    out, final = kda(t)
    d_out = torch.randn(1, 1, 4, 1).bfloat16().expand(out.shape)
    d_final = torch.randn(1, 4, 1, 128).expand(final.shape)
    want = gradients(t, cotangents=(d_out.contiguous(), d_final.contiguous()))
    for other in ((d_out, d_final), (strided(d_out), strided(d_final))):
        got = gradients(t, cotangents=other)
        assert all(same_bits(got[n], want[n]) for n in t)
    inputs = leaves(t)
    kda(inputs)[0].sum().backward()
    want = gradients(t, cotangents=(torch.ones_like(out), None))
    assert all(same_bits(x.grad, want[n]) for n, x in inputs.items())


def strided(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def test_inputs_as_views_get_the_gradients_of_copies():
    t = make(tokens=70, layout="BSND")
    want = gradients(t, layout="BSND")
    inputs = leaves(t)
    wide = torch.cat([inputs["beta"], inputs["beta"]], -1)[..., :4]
    views = {n: x.transpose(1, 2) if n in TOKENWISE else x for n, x in {**inputs, "beta": wide}.items()}
    out, final = kda(views, layout="BNSD")
    torch.autograd.backward([out, final], list(seeds(out, final)))
    assert all(same_bits(x.grad, want[n]) for n, x in inputs.items())


def test_beta_logits_at_saturation():
    """The derivative of a sigmoid near 1 is not 0, and near 0 not lost either."""
    t = make(tokens=64, hk=1, hv=1)
    t["beta"] = torch.linspace(-30, 30, 64).reshape(1, 1, 64)
    got = gradients(t, {"beta"})["beta"]
    want = torch.as_tensor(truth(t, "BNSD")["beta"])
    tail = want.abs() > 1e-30
    assert torch.isfinite(got).all()
    assert ((got.double() - want).abs()[tail] / want.abs()[tail]).median() < 2e-2


def test_one_token():
    t = with_state(make(tokens=1))
    assert_gradients(gradients(t), truth(t, "BNSD"), t)


@pytest.mark.parametrize("options", [{}, {"safe_gate": False}, {"disable_recompute": False}], ids=str)
def test_the_checked_twin_agrees(twin, options):
    t = with_state(make(tokens=70)) if not options else make(tokens=70)
    want = gradients(t, **options)
    twin(mode="checked")
    got = gradients(t, **options)
    assert all(same_bits(got[n], want[n]) for n in t)
