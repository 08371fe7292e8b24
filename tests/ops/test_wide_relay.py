# SPDX-License-Identifier: Apache-2.0
"""The wide relay: u in float32, and v_new as two bfloat16 planes that add up to it.

Each variant is held to float64, and the narrow tensors of the ABI are held to their bits beside it.
"""

from __future__ import annotations

import kda_run
import numpy as np
import pytest
import torch
from in_step import in_step
from kda_compare import relative_l2
from kda_inputs import make_inputs

CASES = {
    "tail": {"T": 133, "HK": 1, "HV": 3, "state": "float32", "l2norm": True},
    "one_row": {"T": 1, "HK": 1, "HV": 1, "state": "bfloat16"},
    "batch_bounded": {"B": 2, "T": 70, "HK": 1, "HV": 2, "gate": "bounded", "layout": "BSND", "l2norm": True},
    "packed": {
        "cu": [0, 0, 5, 5, 70, 200], "HK": 1, "HV": 2, "gate": "softplus", "state": "bfloat16",
        "state_v_first": True, "l2norm": True,
    },
}  # fmt: skip
#: What is left of v_new behind two planes: half an ulp of the second, 2^-9 of half an ulp of the first.
PLANES = 2.0**-17


def stages(case: dict, wide: bool) -> dict:
    return kda_run.relayed(make_inputs(case, 3), wide)


@pytest.fixture(params=CASES)
def both(request):
    """(case, narrow, wide) of one case."""
    case = CASES[request.param]
    return case, stages(case, False), stages(case, True)


def by_chunk(x: torch.Tensor, cu) -> list[np.ndarray]:
    """float64 [HV, rows, *] of every chunk of every sequence."""
    x = kda_run.array(x)
    spans = [(b, 0, x.shape[2]) for b in range(x.shape[0])]
    if cu is not None:
        spans = [(0, a, z) for a, z in zip(cu, cu[1:])]
    return [x[b, :, a : min(a + 64, z)] for b, first, z in spans for a in range(first, z, 64)]


def test_narrow_tensors_keep_their_bits(both):
    """u wide changes no other slot of prepare; rounded, it is the u of the ABI."""
    _, narrow, wide = both
    names = ("gk", "aqk", "akk", "w", "qg", "kg", "qg_scaled")
    assert kda_run.differing({n: narrow[n] for n in names}, {n: wide[n] for n in names}) == []
    assert narrow["u"].dtype == torch.bfloat16 and wide["u"].dtype == torch.float32
    assert kda_run.same_bits(wide["u"].bfloat16(), narrow["u"])


def test_two_planes_are_v_new_in_fp32(both):
    """v_new of float64 on the relayed operands; plane 1 is what a rounding leaves."""
    case, _, wide = both
    planes = wide["v_new"]
    assert planes.shape == (2, *wide["u"].shape) and planes.dtype == torch.bfloat16
    want, got, size = [], [], []
    operands = [by_chunk(wide[n], case.get("cu")) for n in ("u", "w")]
    total = planes[0].float() + planes[1].float()
    entries = kda_run.array(wide["h"]).reshape(-1, *wide["h"].shape[2:])
    if case.get("state_v_first"):
        entries = np.swapaxes(entries, -1, -2)
    for u, w, h, x in in_step(*operands, entries, by_chunk(total, case.get("cu"))):
        want.append(u - w @ h)
        got.append(x)
        size.append(np.abs(u) + np.abs(w) @ np.abs(h))
    flat = [np.concatenate([x.ravel() for x in part]) for part in (want, got, size)]
    # Two planes and the fp32 sums of 128 products.
    assert (np.abs(flat[1] - flat[0]) <= PLANES * np.abs(flat[0]) + 1e-6 * flat[2] + 1e-30).all()
    assert relative_l2(flat[1], flat[0]) < 1e-5
    assert (planes[1].float().abs() <= 2.0**-8 * planes[0].float().abs()).all()


def test_planes_do_not_change_the_state(both):
    """The recurrence goes on with plane 0: h and final_state do not depend on whether plane 1 is there."""
    from fla_npu import chunk_kda
    from fla_npu.torch.adapter import ADAPTER

    case, _, wide = both
    inputs = make_inputs(case, 3)
    state = kda_run.tensor(inputs.initial_state, inputs.state_dtype)
    h, v_new, last = chunk_kda.fwd_h(
        ADAPTER, wide["kg"], wide["w"], wide["u"], gk=wide["gk"], initial_state=state, use_exp2=True,
        cu_seqlens=inputs.options.get("cu_seqlens"), output_final_state=True,
        state_v_first=inputs.state_v_first,
    )  # fmt: skip
    assert kda_run.same_bits(h, wide["h"]) and kda_run.same_bits(last, wide["final_state"])
    assert kda_run.same_bits(v_new, wide["v_new"][0])


@pytest.mark.parametrize("name", CASES)
def test_checked_twin(name, twin):
    """No rule is broken, and the bits are those of the fast twin."""
    fast = stages(CASES[name], True)
    twin(mode="checked", cores=2)
    assert kda_run.differing(stages(CASES[name], True), fast) == []


def test_u_keeps_what_bfloat16_lost():
    """u in float32 against float64: what remains are the roundings of Akk below its diagonal."""
    from goldens import golden_module

    case = CASES["tail"]
    inputs = make_inputs(case, 3)
    golden = golden_module("chunk_kda_fwd_prepare").golden
    want = golden(**inputs.arrays, **inputs.options)["u"]
    narrow, wide = (kda_run.array(stages(case, w)["u"]) for w in (False, True))
    assert relative_l2(wide, want) < 0.5 * relative_l2(narrow, want)
