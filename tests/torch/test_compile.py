# SPDX-License-Identifier: Apache-2.0
"""npu_chunk_kda under torch.compile and other tracers: one graph, the bits of eager mode."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch_calls import OPTIONS, SCALE, gradients, kda, make, same_bits

CU = [0, 65, 65, 70, 133]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model(inputs, **options):
    """The call with work around it, so that its tensors come from a graph and go into one."""
    out, final = kda({**inputs, "v": inputs["v"] * 2}, **options)
    return out * 0.5, None if final is None else final + 1


@pytest.mark.parametrize("recompute", [False, True], ids=["save", "recompute"])
@pytest.mark.parametrize("layout", ["BNSD", pytest.param("BSND", marks=pytest.mark.full), "TND"])
def test_one_graph_with_the_bits_of_eager(layout, recompute):
    t = make(tokens=133, layout=layout)
    options = {"layout": layout, "disable_recompute": not recompute}
    if layout == "TND":
        options["cu_seqlens"] = CU
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    want = gradients(t, call=model, **options)
    got = gradients(t, call=compiled, **options)
    assert all(same_bits(got[n], want[n]) for n in t)
    with torch.no_grad():
        assert same_bits(compiled(t, **options), model(t, **options))


def test_e8_recompilations_are_bounded():
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(kda, fullgraph=True, backend=counter)
    for tokens in (70, 133, 200, 65, 129):
        t = make(tokens=tokens)
        assert same_bits(compiled(t), kda(t))
    assert counter.frame_count <= 2
    t = make(tokens=133)
    for cu in ([0, 65, 133], [0, 70, 133], [0, 1, 133]):
        assert same_bits(compiled(t, cu_seqlens=cu), kda(t, cu_seqlens=cu))
    assert counter.frame_count <= 5


@pytest.mark.full
def test_inductor():
    t = make()
    compiled = torch.compile(model, fullgraph=True)
    want, got = gradients(t, call=model), gradients(t, call=compiled)
    assert all(same_bits(got[n], want[n]) for n in t)


def arguments(t, train, **changes):
    options = {
        "scale": SCALE, "chunk_size": 64, "layout": "BNSD", "output_final_state": True, "safe_gate": True,
        "lower_bound": -5.0, "use_gate_in_kernel": True, "cu_seqlens": None, "chunk_indices": None,
        "disable_recompute": True, "state_v_first": False, "epsilon": 1e-6, "use_qk_l2norm_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": False, "use_exp2": True, **changes,
    }  # fmt: skip
    names = ("q", "k", "v", "g", "beta", "a_log", "dt_bias", "initial_state")
    return (*(t.get(n) for n in names), *options.values(), train)


TRAIN = [pytest.param(layout, True, marks=[] if layout == "TND" else pytest.mark.full)
         for layout in ("BNSD", "BSND", "NTD", "TND")]  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "train"), [*((layout, False) for layout in ("BNSD", "BSND", "NTD", "TND")), *TRAIN]
)
def test_predicted_outputs(layout, train):
    t = make(tokens=133, layout=layout)
    cu = CU if layout in ("NTD", "TND") else None
    if train:
        t = {n: x.requires_grad_() for n, x in t.items()}
    torch.library.opcheck(
        torch.ops.fla_npu.chunk_kda_forward.default, arguments(t, train, layout=layout, cu_seqlens=cu)
    )


def test_fake_and_exported():
    from torch._subclasses.fake_tensor import FakeTensorMode

    t = make()
    with FakeTensorMode():
        fake = {n: torch.empty(x.shape, dtype=x.dtype) for n, x in t.items()}
        out, final = kda(fake)
        assert (out.shape, out.dtype) == ((1, 70, 4, 128), torch.bfloat16)
        assert (final.shape, final.dtype) == ((1, 4, 128, 128), torch.float32)

    class Model(torch.nn.Module):
        def forward(self, q):
            return kda({**t, "q": q})[0]

    program = torch.export.export(Model(), (t["q"],))
    assert same_bits(program.module()(t["q"]), kda(t)[0])


def test_double_backward_is_refused_in_a_graph_too():
    from fla_npu import errors

    t = make()
    q = t["q"].clone().requires_grad_()
    out, final, _ = torch.ops.fla_npu.chunk_kda_forward(*arguments({**t, "q": q}, True))
    (grad,) = torch.autograd.grad(out.float().sum() + final.sum(), q, create_graph=True)
    with pytest.raises(errors.GradientUnavailable):
        grad.float().sum().backward()


def test_options_reach_the_traced_call():
    t = make()
    compiled = torch.compile(kda, fullgraph=True, backend="aot_eager")
    for changes in ({"safe_gate": False}, {"lower_bound": -1.0}, {"allow_neg_eigval": True}, {"epsilon": 0.5},
                    {"use_qk_l2norm_in_kernel": False}, {"output_final_state": False}):  # fmt: skip
        assert set(changes) <= {*OPTIONS, "lower_bound", "allow_neg_eigval", "epsilon", "output_final_state"}
        assert same_bits(compiled(t, **changes), kda(t, **changes))
