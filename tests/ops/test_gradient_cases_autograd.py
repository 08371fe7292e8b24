# SPDX-License-Identifier: Apache-2.0
"""Autograd around npu_chunk_kda: which outputs and inputs take part, memory policies, and what is refused."""

from __future__ import annotations

import grad_run
import kda_run
import numpy as np
import pytest
import torch
from backward import Cotangents, make_cotangents
from goldens import relative_l2
from grad_run import check_gradients
from in_step import in_step
from kda_inputs import make_inputs
from torch.utils.checkpoint import checkpoint

MODEL = {"l2norm": True, "gate": "bounded", "beta": "sigmoid", "state": "float32"}
NAMES = ("q", "k", "v", "g", "beta", "a_log", "dt_bias", "initial_state")


def leaves_of(inputs, *names: str) -> dict:
    """Tensors of a call, those named (all, when none is) requiring grad."""
    tensors = kda_run.tensors_of(inputs)
    if inputs.initial_state is not None:
        tensors["initial_state"] = kda_run.tensor(inputs.initial_state, inputs.state_dtype)
    return grad_run.requiring(tensors, *names)


def call(leaves: dict, inputs, **changes):
    from fla_npu.torch import npu_chunk_kda

    options = {"use_gate_in_kernel": False, "state_v_first": inputs.state_v_first, **inputs.options}
    return npu_chunk_kda(**leaves, **{**options, "output_final_state": True, **changes})


def d_out(inputs, seeds) -> torch.Tensor:
    return kda_run.tensor(grad_run.token_major(seeds.out, inputs.options["layout"]), "bfloat16")


@pytest.mark.parametrize("packed", [False, True], ids=["T65", "packed"])
def test_e1_loss_on_the_final_state_alone(packed):
    """o is not used at all: no crash on its absent cotangent, dq is exactly zero, the rest is right."""
    shape = {"cu": [0, 65, 70, 140]} if packed else {"T": 65}
    inputs = make_inputs({**shape, "HV": 2, **MODEL}, 1)
    seeds = make_cotangents(inputs, 1)
    seeds.out[:] = 0.0
    leaves = leaves_of(inputs)
    final = call(leaves, inputs)[1]
    (final * kda_run.tensor(seeds.final, "float32")).sum().backward()
    assert not leaves["q"].grad.any()
    exact, rounded = grad_run.reference(inputs, seeds)
    for name in ("k", "v", "g", "beta", "dt_bias", "initial_state"):
        floor = relative_l2(rounded[name], exact[name])
        assert relative_l2(kda_run.array(leaves[name].grad), exact[name]) < 1.5 * floor + 1e-5, name
    explicit = grad_run.gradients(inputs, seeds)
    for name, x in leaves.items():
        assert kda_run.same_bits(x.grad + 0.0, explicit[name] + 0.0), (
            f"{name}: an absent cotangent is not zero"
        )


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "not_asked"])
def test_e1_loss_on_the_output_alone(asked):
    """final_state asked for but unused, or not asked for: the same bits as with dht = 0."""
    inputs = make_inputs({"T": 70, "HV": 2, **MODEL}, 2)
    seeds = make_cotangents(inputs, 2)
    seeds.final[:] = 0.0
    want, leaves = check_gradients(inputs, seeds), leaves_of(inputs)
    o, final = call(leaves, inputs, output_final_state=asked)
    assert (final is not None) == asked
    o.backward(d_out(inputs, seeds))
    for name, x in leaves.items():
        assert kda_run.same_bits(x.grad + 0.0, want[name] + 0.0), name


@pytest.mark.parametrize("v_first", [False, True], ids=["k_first", "v_first"])
def test_e2_closed_form_of_dh0(v_first):
    """beta = 0: dh0 = exp(sum g) dht + sum_t scale exp(G_t) q_t do_t^T; turned with the state."""
    inputs = make_inputs({"T": 70, "HV": 2, "state": "float32", "state_v_first": v_first}, 3)
    inputs.arrays["beta"][:] = 0.0
    seeds = make_cotangents(inputs, 3)
    total = np.cumsum(inputs.arrays["g"][0], axis=1)
    q = np.repeat(inputs.arrays["q"][0], 2, axis=0) * np.exp(total) * inputs.options["scale"]
    turn = (lambda x: x.swapaxes(-1, -2)) if v_first else (lambda x: x)
    kept = np.exp(total[:, -1])[..., None] * turn(seeds.final[0])
    want = kept + q.swapaxes(-1, -2) @ seeds.out[0]
    got = kda_run.array(grad_run.gradients(inputs, seeds)["initial_state"])
    assert relative_l2(got[0], turn(want)) < 2e-3
    silent = Cotangents(np.zeros_like(seeds.out), seeds.final)
    got = kda_run.array(grad_run.gradients(inputs, silent)["initial_state"])
    assert relative_l2(got[0], turn(kept)) < 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_one_input_that_requires_grad_is_enough(name):
    """It gets the gradient it has when all require one; the others get none."""
    inputs = make_inputs({"T": 70, "HK": 1, "HV": 2, **MODEL}, 4)
    seeds = make_cotangents(inputs, 4)
    want, leaves = grad_run.gradients(inputs, seeds), leaves_of(inputs, name)
    o, final = call(leaves, inputs)
    torch.autograd.backward([o, final], [d_out(inputs, seeds), kda_run.tensor(seeds.final, "float32")])
    assert kda_run.same_bits(leaves[name].grad, want[name])
    assert all(x.grad is None for n, x in leaves.items() if n != name)


@pytest.mark.parametrize("name", ["q", "v", "initial_state"])
def test_e5_second_derivatives_are_refused(name):
    inputs = make_inputs({"T": 20, "HV": 1, **MODEL}, 5)
    leaves = leaves_of(inputs, name)
    o, final = call(leaves, inputs)
    with pytest.raises(Exception, match="(?i)second|double|twice|differentiable"):
        (grad,) = torch.autograd.grad(
            o.float().square().sum() + final.square().sum(), leaves[name], create_graph=True
        )
        grad.float().square().sum().backward()


@pytest.mark.parametrize("disable_recompute", [True, False], ids=["save", "recompute"])
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "saved_hooks"])
def test_e6_activation_checkpoint(disable_recompute, reentrant):
    """Inside torch's checkpoint: the same bits, with state, tail, bounded gate and grouped heads."""
    inputs = make_inputs({"T": 79, "HK": 1, "HV": 2, **MODEL, "state_v_first": True}, 6)
    seeds = make_cotangents(inputs, 6)
    want, leaves = grad_run.gradients(inputs, seeds, disable_recompute=disable_recompute), leaves_of(inputs)

    def layer(*tensors):
        return call(dict(in_step(leaves, tensors)), inputs, disable_recompute=disable_recompute)

    o, final = checkpoint(layer, *leaves.values(), use_reentrant=reentrant)
    torch.autograd.backward([o, final], [d_out(inputs, seeds), kda_run.tensor(seeds.final, "float32")])
    for name, x in leaves.items():
        assert kda_run.same_bits(x.grad, want[name]), name


def saved_bytes(leaves: dict, inputs, **changes) -> int:
    """Bytes that the graph keeps beside the inputs, by storage."""
    own, kept = {x.untyped_storage().data_ptr() for x in leaves.values()}, {}

    def pack(x):
        if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in own:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = call(leaves, inputs, **changes)
    del out
    return sum(kept.values())


def test_e6_recompute_keeps_inputs_only():
    inputs = make_inputs({"T": 512, "HK": 2, "HV": 2, **MODEL}, 7)
    leaves = leaves_of(inputs)
    save, again = (saved_bytes(leaves, inputs, disable_recompute=flag) for flag in (True, False))
    assert again < 0.05 * save, (again, save)
    assert save > 512 * 2 * 2000, "save mode keeps about 3 KB per token and head"


@pytest.mark.parametrize("tokens", [16, 64, 70])
def test_e7_forward_bits_do_not_depend_on_gradients(tokens):
    """No inference shortcut: grad on, no_grad and detached inputs give one result, and gradients are there."""
    inputs = make_inputs({"T": tokens, "HV": 2, **MODEL}, 8)
    leaves = leaves_of(inputs)
    o, final = call(leaves, inputs)
    assert o.requires_grad and final.requires_grad
    with torch.no_grad():
        quiet = call(leaves, inputs)
    plain = call({n: x.detach() for n, x in leaves.items()}, inputs)
    for other in (quiet, plain):
        assert not other[0].requires_grad
        assert kda_run.same_bits(other[0], o.detach()) and kda_run.same_bits(other[1], final.detach())


def test_e7_a_module_in_eval_mode_has_gradients():
    class Layer(torch.nn.Module):
        def __init__(self, tensors):
            super().__init__()
            self.rate = torch.nn.Parameter(tensors.pop("a_log"))
            self.tensors = tensors

        def forward(self):
            return call({**self.tensors, "a_log": self.rate}, inputs)[0]

    inputs = make_inputs({"T": 16, "HV": 2, **MODEL}, 9)
    layer = Layer({n: x.detach() for n, x in leaves_of(inputs).items()}).eval()
    layer().float().sum().backward()
    assert layer.rate.grad.any()


def test_d9_autocast_changes_nothing():
    inputs = make_inputs({"T": 70, "HV": 2, **MODEL}, 10)
    seeds = make_cotangents(inputs, 10)
    want = grad_run.gradients(inputs, seeds)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = grad_run.gradients(inputs, seeds)
    assert kda_run.differing(got, want) == []


@pytest.mark.parametrize("disable_recompute", [True, False], ids=["save", "recompute"])
def test_f6_inputs_may_be_temporaries(disable_recompute):
    """Nothing else holds the tensors between forward and backward."""
    inputs = make_inputs({"T": 70, "HV": 2, **MODEL}, 12)
    seeds = make_cotangents(inputs, 12)
    want, leaves = grad_run.gradients(inputs, seeds), leaves_of(inputs)
    o, final = call({n: x * 1.0 for n, x in leaves.items()}, inputs, disable_recompute=disable_recompute)
    junk = [torch.full((1, 2, 70, 128), float("nan")) for _ in range(50)]
    torch.autograd.backward([o, final], [d_out(inputs, seeds), kda_run.tensor(seeds.final, "float32")])
    assert len(junk) == 50
    for name, x in leaves.items():
        assert kda_run.same_bits(x.grad, want[name]), name
