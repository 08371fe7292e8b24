# SPDX-License-Identifier: Apache-2.0
"""The example layers: gradients against float64, and MindSpore's against PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from goldens import relative_l2
from gradients import kda_gradients
from in_step import in_step
from kda_layer_torch import WIDTH, KdaAttention
from recurrence import kda_recurrence

#: (heads, value_heads, safe_gate)
SHAPES = {"one_head": (1, None, False), "grouped_safe": (2, 4, True)}
DIM, BATCH, TOKENS = 48, 2, 70  # a chunk and a bit


class Recurrence(torch.autograd.Function):
    """KDA by the token recurrence in float64 NumPy, gradients by its adjoint."""

    NAMES = ("q", "k", "v", "g", "beta", "a_log", "dt_bias")

    @staticmethod
    def forward(ctx, safe_gate, *tensors):
        ctx.kwargs = dict(in_step(Recurrence.NAMES, (x.detach().numpy() for x in tensors)))
        ctx.kwargs |= {
            "scale": WIDTH**-0.5, "safe_gate": safe_gate, "use_gate_in_kernel": True,
            "use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True,
        }  # fmt: skip
        return torch.from_numpy(np.ascontiguousarray(kda_recurrence(**ctx.kwargs)["o"]))

    @staticmethod
    def backward(ctx, d_out):
        grads = kda_gradients(**ctx.kwargs, d_out=d_out.numpy())
        return None, *(torch.from_numpy(np.ascontiguousarray(grads[n])) for n in Recurrence.NAMES)


class ReferenceLayer(KdaAttention):
    """The layer with KDA of float64, nothing rounded."""

    def attend(self, q, k, v, g, beta):
        return Recurrence.apply(self.safe_gate, q, k, v, g, beta, self.a_log, self.dt_bias)


def make_layer(kind: str, cls: type = KdaAttention) -> KdaAttention:
    heads, value_heads, safe_gate = SHAPES[kind]
    torch.manual_seed(1)
    return cls(DIM, heads, value_heads, safe_gate=safe_gate)


def make_data() -> tuple[np.ndarray, np.ndarray]:
    """(hidden states, cotangents of the result), values that float32 holds."""
    rng = np.random.default_rng(2)
    return tuple(rng.standard_normal((BATCH, TOKENS, DIM)).astype(np.float32) for _ in range(2))


def run(layer: KdaAttention, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """{"y", "x" (its gradient), and the gradient of every parameter by its name}."""
    x, cotangent = (torch.from_numpy(a).to(dtype) for a in make_data())
    y = layer(x.requires_grad_())
    (y * cotangent).sum().backward()
    named = {"y": y, "x": x.grad} | {n: p.grad for n, p in layer.named_parameters()}
    return {n: a.detach().numpy() for n, a in named.items()}


def worst(got: dict, want: dict) -> dict[str, float]:
    """Relative L2 of each result."""
    assert got.keys() == want.keys()
    return {n: relative_l2(got[n], want[n]) for n in got}


@pytest.mark.parametrize("kind", SHAPES)
def test_torch_layer_against_float64(kind):
    """bf16 of q, k, v, of the slots and of the result: half a per cent; a_log is left over by cancellation."""
    errors = worst(
        run(make_layer(kind), torch.float32), run(make_layer(kind, ReferenceLayer).double(), torch.float64)
    )
    loose = {"a_log": 5e-2}
    assert all(e < loose.get(n, 1e-2) for n, e in errors.items()), errors


@pytest.mark.parametrize("kind", SHAPES)
def test_start_of_the_gate(kind):
    layer = make_layer(kind)
    rate, step = layer.a_log.exp(), torch.nn.functional.softplus(layer.dt_bias)
    assert ((rate >= 1.0) & (rate <= 16.0)).all()
    assert ((step > 0.99e-3) & (step < 1.01e-1)).all()


def test_layer_does_not_look_ahead():
    layer, x = make_layer("grouped_safe"), torch.from_numpy(make_data()[0])
    changed = x.clone()
    changed[:, 40:] += 1.0
    with torch.no_grad():
        before, after = layer(x), layer(changed)
    assert torch.equal(before[:, :40], after[:, :40])
    assert not torch.equal(before[:, 40], after[:, 40])


@pytest.mark.parametrize("kind", SHAPES)
def test_mindspore_layer_equals_torch_layer(kind):
    """Same weights, same KDA kernels: the rest is float32 in both. bf16 of q, k, v may round either way."""
    ms = pytest.importorskip("mindspore")
    import kda_layer_mindspore

    heads, value_heads, safe_gate = SHAPES[kind]
    theirs = make_layer(kind)
    mine = kda_layer_mindspore.KdaAttention(DIM, heads, value_heads, safe_gate=safe_gate)
    weights = {n: p.detach().numpy() for n, p in theirs.named_parameters()}
    parameters = {p.name: p for p in mine.trainable_params()}
    assert {n: p.shape for n, p in parameters.items()} == {n: w.shape for n, w in weights.items()}
    for name, p in parameters.items():
        p.set_data(ms.Tensor(weights[name]))
    x, cotangent = (ms.Tensor(a) for a in make_data())

    def loss(x):
        y = mine(x)
        return (y * cotangent).sum(), y

    gradients = ms.value_and_grad(loss, 0, list(parameters.values()), has_aux=True)
    (_, y), (dx, grads) = gradients(x)
    got = {"y": y, "x": dx} | dict(in_step(parameters, grads))
    errors = worst({n: a.asnumpy() for n, a in got.items()}, run(theirs, torch.float32))
    assert all(e < 2e-3 for n, e in errors.items() if n != "a_log"), errors
    assert errors["a_log"] < 2e-2, errors
