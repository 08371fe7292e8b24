# SPDX-License-Identifier: Apache-2.0
"""Names, order and defaults of the public functions are those of Hyper-Parallel, to the letter."""

from __future__ import annotations

import inspect
import operator

import fla_npu.mindspore as front
import pytest

SIGNATURES = {
    "npu_chunk_kda": """
        q, k, v, g, beta, scale, chunk_size=64, *, layout='BNSD', output_final_state=False, safe_gate=False,
        lower_bound=-5.0, use_gate_in_kernel=True, a_log=None, dt_bias=None, cu_seqlens=None,
        chunk_indices=None, initial_state=None, disable_recompute=True, state_v_first=False, epsilon=1e-06,
        use_qk_l2norm_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False,
        use_exp2=True""",
    "npu_chunk_kda_fwd_prepare": """
        q, k, v, g, beta, scale, chunk_size=64, *, layout='BNSD', a_log=None, dt_bias=None, cu_seqlens=None,
        chunk_indices=None, epsilon=1e-06, use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False,
        use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, safe_gate=False, lower_bound=-5.0,
        use_exp2=True, backward_mode='save'""",
    "npu_chunk_kda_fwd_h": """
        k, w, u, *, gk, initial_state=None, output_final_state=False, chunk_size=64, cu_seqlens=None,
        chunk_indices=None, use_exp2=True, state_v_first=False""",
    "npu_chunk_kda_fwd_finalize": """
        qg_scaled, aqk, v_new, h, *, output_layout='BSND', state_v_first=False, cu_seqlens=None,
        chunk_indices=None""",
    "npu_chunk_kda_bwd_prepare": """
        aqk, v_new, d_o, h, *, scale, layout='BNSD', chunk_size=64, state_v_first=False, cu_seqlens=None,
        chunk_indices=None""",
    "npu_chunk_kda_bwd_dhu": """
        q, k, w, d_o, dv, scale, chunk_size=64, *, gk, h0=None, dht=None, cu_seqlens=None,
        chunk_indices=None, use_exp2=True, state_v_first=False""",
    "npu_chunk_kda_bwd_finalize": """
        q, k, v, gk, raw_g, beta, a_log, dt_bias, akk, v_new, h, dh, dv_scan, d_aqk, dq_raw, *, scale,
        lower_bound=-5.0, chunk_size=64, safe_gate=True, use_gate_in_kernel=True, use_exp2=True,
        state_v_first=False, q_rstd=None, k_rstd=None, cu_seqlens=None, chunk_indices=None,
        use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, output_layout='BNSD'""",
    "npu_chunk_kda_pre_process_fwd": "k, w, u, *, gk, cu_seqlens, chunk_size=64",
    "npu_chunk_kda_pre_process_bwd": "q, k, w, d_o, dv, scale, chunk_size=64, *, gk, cu_seqlens=None",
    "npu_chunk_kda_merge_fwd_bwd": """
        state, summaries, pre_or_post_num_ranks, rank, *, forward=True, state_v_first=False""",
}


def parameters(function) -> list[inspect.Parameter]:
    return [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    bare = inspect.Signature(parameters(getattr(front, name)))
    assert str(bare) == f"({' '.join(SIGNATURES[name].split())})"


def test_explain_route_takes_the_arguments_of_the_call():
    of_call, of_route = parameters(front.npu_chunk_kda), parameters(front.explain_route)
    assert [(p.name, p.kind) for p in of_call] == [(p.name, p.kind) for p in of_route]


def test_the_graph_takes_the_options_of_the_call():
    """All but the tensors; what is saved is not a choice in a graph."""
    tensors = {"q", "k", "v", "g", "beta", "a_log", "dt_bias", "initial_state", "disable_recompute"}
    options = [p for p in parameters(front.npu_chunk_kda) if p.name not in tensors]
    assert options == parameters(front.graph.ChunkKda.__init__)[1:]  # a Cell of MindSpore 2.9 hides its own


def test_everything_public_is_documented():
    for name in set(front.__all__) - {"graph", "explain_route"} | {"graph.ChunkKda"}:
        assert "Returns:" in inspect.getdoc(operator.attrgetter(name)(front)), name
