# SPDX-License-Identifier: Apache-2.0
"""npu_chunk_kda on PyTorch: values, states, what it returns, and what the stages return."""

from __future__ import annotations

import pytest
import torch
from fla_npu import chunk_kda
from fla_npu.ops.ascendc import chunk_fwd_h, chunk_kda_fwd_finalize
from fla_npu.torch.adapter import ADAPTER
from recurrence import kda_recurrence
from torch_calls import OPTIONS, SCALE, kda, make, prepare, same_bits, stages


def relative(got: torch.Tensor, want) -> float:
    want = torch.as_tensor(want)
    return float((got.double() - want).norm() / want.norm())


def truth(t, layout, state=None, **options):
    arrays = {n: x.double().numpy() for n, x in t.items()}
    state = None if state is None else state.double().numpy()
    return kda_recurrence(**arrays, scale=SCALE, layout=layout, initial_state=state, **{**OPTIONS, **options})


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "NTD", "TND"])
def test_value_and_token_major_output(layout):
    t = make(tokens=130, layout=layout)
    state = torch.randn(1, 4, 128, 128)
    out, final = kda(t, layout=layout, initial_state=state)
    want = truth(t, layout, state)
    o = torch.as_tensor(want["o"])
    if layout in ("BNSD", "NTD"):
        o = o.transpose(-3, -2)
    assert out.shape == o.shape
    assert out.dtype == torch.bfloat16
    assert out.is_contiguous()
    assert relative(out, o) < 6e-3
    assert final.dtype == torch.float32
    assert relative(final, want["final_state"]) < 4e-3


def test_final_state_is_float32_whatever_the_initial_one():
    t = make()
    half = torch.randn(1, 4, 128, 128).bfloat16()
    got = kda(t, initial_state=half)
    assert got[1].dtype == torch.float32
    assert same_bits(got, kda(t, initial_state=half.float()))


def test_no_state_equals_zeros_and_none_unless_asked():
    t = make()
    zeros = torch.zeros(1, 4, 128, 128)
    assert same_bits(kda(t), kda(t, initial_state=zeros))
    out, final = kda(t, output_final_state=False)
    assert final is None
    assert same_bits(out, kda(t)[0])


def test_state_v_first():
    t = make()
    state = torch.randn(1, 4, 128, 128)
    out, final = kda(t, initial_state=state)
    other, swapped = kda(t, initial_state=state.transpose(-1, -2), state_v_first=True)
    assert same_bits(other, out)
    assert same_bits(swapped.transpose(-1, -2), final)


def test_it_is_the_three_stages():
    """With u in float32 between them; the bfloat16 slot of the ABI costs a little."""
    t = make(tokens=200)
    s = stages(t)
    out, final = kda(t)
    assert relative(out, s["out"].double()) < 4e-3
    assert relative(final, s["final_state"].double()) < 4e-3
    options = {**OPTIONS, "scale": SCALE, "backward_mode": "none", "wide_relay": True}
    wide = chunk_kda.prepare(ADAPTER, **t, **options)
    assert wide[4].dtype == torch.float32
    assert same_bits(
        [x for i, x in enumerate(wide) if i != 4], [s["prepared"][i] for i in range(13) if i != 4]
    )
    h, v_new, last = chunk_fwd_h(s["kg"], s["w"], wide[4], gk=s["gk"], output_final_state=True, use_exp2=True)
    assert same_bits((out, final), (chunk_kda_fwd_finalize(s["qg_scaled"], s["aqk"], v_new, h), last))


@pytest.mark.parametrize("recompute", [True, False])
def test_recompute_policy_does_not_change_the_forward(recompute):
    t = make()
    assert same_bits(kda(t, disable_recompute=recompute), kda(t))


def test_gradients_off_is_the_same_call():
    t = make()
    want = kda(t)
    grad = {n: (x.clone().requires_grad_() if x.is_floating_point() else x) for n, x in t.items()}
    with torch.no_grad():
        assert same_bits(kda(grad), want)
    with torch.inference_mode():
        assert same_bits(kda(t), want)


def test_stage_outputs_are_detached():
    t = make()
    want = prepare(t)
    got = prepare({n: x.clone().requires_grad_() for n, x in t.items()})
    assert same_bits(got, want)
    assert not any(x.requires_grad for x in got)


MODES = {
    "none": {0, 1, 3, 4, 6, 7},
    "forward": {0, 1, 2, 3, 4, 6, 7},
    "recompute": {0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12},
    "save": set(range(13)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", ["BNSD", "TND"])
def test_thirteen_slots(mode, layout):
    t = make(layout=layout)
    slots = prepare(t, layout=layout, backward_mode=mode)
    assert len(slots) == 13
    assert {i for i, x in enumerate(slots) if x is not None} == MODES[mode]
    lead = (1,) if layout == "BNSD" else ()
    full = prepare(t, layout=layout, backward_mode="save")
    for i, x in enumerate(slots):
        if x is None:
            continue
        heads = 2 if 8 <= i <= 11 else 4
        tail = (64,) if i in (1, 2) else () if i >= 10 else (128,)
        assert tuple(x.shape) == (*lead, heads, 70, *tail)
        assert x.dtype == (torch.float32 if i in (0, 10, 11, 12) else torch.bfloat16)
        assert same_bits(x, full[i])


def test_missing_operator_is_named_before_any_launch(monkeypatch):
    from fla_npu import aclnn, errors, loader

    launched = []
    monkeypatch.setattr(aclnn, "call", lambda op, *_, **__: launched.append(op))
    bind = loader.bind

    def without_finalize(name):
        if name == "chunk_kda_fwd_finalize":
            raise errors.SymbolMissing("chunk_kda_fwd_finalize is not in the OPP")
        return bind(name)

    monkeypatch.setattr(loader, "bind", without_finalize)
    with pytest.raises(errors.SymbolMissing, match="finalize"):
        kda(make())
    assert launched == []
