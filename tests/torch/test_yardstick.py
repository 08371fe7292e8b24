# SPDX-License-Identifier: Apache-2.0
"""The PyTorch program that the bench compares with computes Chunk KDA and its gradient."""

from __future__ import annotations

import pytest
import torch
import torch_yardstick as yardstick
from gradients import kda_gradients
from in_step import in_step


@pytest.fixture(scope="module")
def inputs():
    rng = torch.Generator().manual_seed(3)

    def normal(*tail):
        return torch.randn(3, 192, *tail, generator=rng, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(normal(128), dim=-1) for _ in range(2))
    return [q, k, normal(128), 0.5 * torch.nn.functional.logsigmoid(normal(128)), normal().sigmoid()]


def test_forward(inputs):
    out, _ = yardstick.chunk_train(*inputs, 0.1)
    assert torch.allclose(out, yardstick.recurrence(*inputs, 0.1), rtol=1e-9, atol=1e-11)
    for solver in yardstick.SOLVERS:
        single = [x.float() for x in inputs]
        assert (yardstick.chunk_forward(*single, 0.1, solver)[0] - out).norm() < 1e-5 * out.norm()


def test_gradient(inputs):
    leaves = [x.clone().requires_grad_() for x in inputs]
    out, state = yardstick.chunk_train(*leaves, 0.1)
    d_out, d_state = torch.randn_like(out), torch.randn_like(state)
    torch.autograd.backward([out, state], [d_out, d_state])
    names = ("q", "k", "v", "g", "beta")
    arrays = {n: x.numpy() for n, x in in_step(names, inputs)}
    want = kda_gradients(
        **arrays, d_out=d_out.numpy(), d_final=d_state[None].numpy(), scale=0.1, layout="NTD"
    )
    for name, x in in_step(names, leaves):
        assert torch.allclose(x.grad, torch.as_tensor(want[name]), rtol=1e-7, atol=1e-9), name
