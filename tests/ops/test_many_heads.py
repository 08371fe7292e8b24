# SPDX-License-Identifier: Apache-2.0
"""More heads than one copy instruction can step over: rows of v are then read one by one."""

from __future__ import annotations

import kda_run
import pytest
import torch
from in_step import in_step

HEADS = 513  # rows of v 513 * 128 elements apart; Nd2Nz holds 65535


@pytest.mark.parametrize("mode", ["fast", "checked"])
def test_token_major_equals_head_major(mode, twin):
    from fla_npu.ops.ascendc import chunk_kda_fwd_prepare

    twin(mode=mode)
    torch.manual_seed(5)
    q, k = (torch.randn(1, 3, 1, 128).bfloat16() for _ in range(2))
    v, g, beta = (
        torch.randn(1, 3, HEADS, 128).bfloat16(),
        -torch.rand(1, 3, HEADS, 128),
        torch.rand(1, 3, HEADS),
    )
    options = {"scale": 0.1, "use_qk_l2norm_in_kernel": True, "backward_mode": "none"}
    by_token = chunk_kda_fwd_prepare(q, k, v, g, beta, layout="BSND", **options)
    by_head = chunk_kda_fwd_prepare(
        *(x.transpose(1, 2).contiguous() for x in (q, k, v, g, beta)), layout="BNSD", **options
    )
    assert [i for i, pair in enumerate(in_step(by_token, by_head)) if not kda_run.same_bits(*pair)] == []
