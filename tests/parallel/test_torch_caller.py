# SPDX-License-Identifier: Apache-2.0
"""A caller that is not ours: its own state exchange over gloo, on the three context-parallel operators."""

from __future__ import annotations

import inspect

import pytest
import torch_caller
from torch_pool import Pool
from torch_work import Case, judge


@pytest.fixture(scope="module")
def pool():
    pool = Pool(4)
    yield pool
    pool.close()


def test_the_operators_are_under_both_names_with_their_parameters():
    from fla_npu.ops import ascendc

    parameters = {
        "pre_process_fwd_kernel_merged": ["k", "w", "u", "g", "gk", "bg", "v", "cu_seqlens", "chunk_size"],
        "pre_process_bwd_kernel_merged": ["q", "k", "w", "d_o", "dv", "scale", "chunk_size", "g", "gk", "cu_seqlens"],
        "merge_fwd_bwd_kernel": ["h", "ag_hm", "pre_or_post_num_ranks", "rank", "forward", "state_v_first"],
    }  # fmt: skip
    for name, names in parameters.items():
        for spelled in (name, f"npu_{name}"):
            assert list(inspect.signature(getattr(ascendc, spelled)).parameters) == names


CASES = {
    "one_document": Case((70, 64, 33, 40), (0, 207), hk=2, hv=2, layout="BSND"),
    "cut_documents": Case((70, 64, 33, 40), (0, 30, 90, 150, 207), hk=2, hv=2, layout="BSND"),
    "aligned": Case((64, 64, 64, 64), (0, 128, 192, 256), hk=2, hv=2, layout="BSND"),
    "many_short": Case((50, 50, 50, 50), (0, 9, 20, 49, 60, 100, 140, 200), hk=2, hv=2, layout="BSND"),
}


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(pool, name):
    """Its u, v_new, gate and state gradient are bfloat16, ours wider: within twice our error, and the FLA rule."""
    case = CASES[name]
    results = pool.run(torch_caller.run, case)
    scores = judge(Case(**{**case.__dict__, "options": {"output_final_state": False}}), results, factor=2.5)
    for n in ("o", "dq", "dk", "dv", "dg"):
        assert scores[n][0] < 8e-3, n
