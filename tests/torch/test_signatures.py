# SPDX-License-Identifier: Apache-2.0
"""The public signatures, spelled out: callers inspect them."""

from __future__ import annotations

import inspect

import pytest
from fla_npu.ops import ascendc
from fla_npu.torch import npu_chunk_kda

SIGNATURES = {
    "chunk_kda_fwd_prepare": (
        '(q, k, v, g, beta, scale, chunk_size=64, *, layout="BSND", cu_seqlens=None, '
        "chunk_indices=None, safe_gate=False, lower_bound=None, use_gate_in_kernel=False, A_log=None, "
        "dt_bias=None, epsilon=1e-6, use_qk_l2norm_in_kernel=False, use_beta_sigmoid_in_kernel=False, "
        'allow_neg_eigval=False, use_exp2=True, backward_mode="save")'
    ),
    "chunk_fwd_h": (
        "(k, w, u, *, g=None, gk=None, initial_state=None, output_final_state=False, chunk_size=64, "
        "save_new_value=True, cu_seqlens=None, chunk_indices=None, use_exp2=False, state_v_first=False)"
    ),
    "chunk_kda_fwd_finalize": (
        '(qg_scaled, aqk, v_new, h, *, output_layout="BSND", state_v_first=False, cu_seqlens=None, '
        "chunk_indices=None)"
    ),
    "chunk_kda_bwd_prepare": (
        '(aqk, v_new, d_o, h, *, scale, layout="BNSD", chunk_size=64, state_v_first=False, '
        "cu_seqlens=None, chunk_indices=None)"
    ),
    "chunk_gated_delta_rule_bwd_dhu": (
        "(q, k, w, d_o, dv, scale, chunk_size, *, g=None, gK=None, h0=None, dht=None, cu_seqlens=None, "
        "chunk_indices=None, use_exp2=False, transpose_state_layout=False)"
    ),
    "chunk_kda_bwd_finalize": (
        "(q, k, v, gk, raw_g, beta, a_log, dt_bias, akk, v_new, h, dh, dv_scan, d_aqk, dq_raw, *, scale, "
        "lower_bound=-5.0, chunk_size=64, safe_gate=True, use_gate_in_kernel=True, use_exp2=True, "
        "state_v_first=False, q_rstd=None, k_rstd=None, cu_seqlens=None, chunk_indices=None, "
        'use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, output_layout="BNSD")'
    ),
    "chunk_kda_fwd": (
        '(q, k, v, g, beta, scale, chunk_size=64, *, layout="BSND", initial_state=None, '
        "output_final_state=False, cu_seqlens=None, chunk_indices=None, safe_gate=False, lower_bound=None, "
        "use_gate_in_kernel=False, A_log=None, dt_bias=None, disable_recompute=False, "
        "return_intermediate_states=False, state_v_first=False, epsilon=1e-6, "
        "use_qk_l2norm_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, "
        "use_exp2=True, q_hat_out=None, k_hat_out=None, q_rstd_out=None, k_rstd_out=None, beta_eff_out=None)"
    ),
    "chunk_kda_bwd": (
        "(q, k, v, beta, gk, Aqk, Akk, w, qg, kg, v_new, h, d_o, scale, *, raw_g=None, A_log=None, "
        "dt_bias=None, initial_state=None, dht=None, cu_seqlens=None, chunk_indices=None, chunk_size=64, "
        "safe_gate=True, lower_bound=-5.0, use_gate_in_kernel=False, disable_recompute=True, use_exp2=True, "
        'state_v_first=False, implementation="auto", q_rstd=None, k_rstd=None)'
    ),
    "pre_process_fwd_kernel_merged": (
        "(k, w, u, g=None, *, gk=None, bg=None, v=None, cu_seqlens=None, chunk_size=64)"
    ),
    "pre_process_bwd_kernel_merged": (
        "(q, k, w, d_o, dv, scale, chunk_size, *, g=None, gk=None, cu_seqlens=None)"
    ),
    "merge_fwd_bwd_kernel": ("(h, ag_hm, pre_or_post_num_ranks, rank, *, forward=True, state_v_first=False)"),
}
KDA = (
    '(q, k, v, g, beta, scale, chunk_size=64, *, layout="BNSD", output_final_state=False, safe_gate=False, '
    "lower_bound=-5.0, use_gate_in_kernel=True, a_log=None, dt_bias=None, cu_seqlens=None, "
    "chunk_indices=None, initial_state=None, disable_recompute=True, state_v_first=False, epsilon=1e-6, "
    "use_qk_l2norm_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, use_exp2=True)"
)


def bare(function) -> inspect.Signature:
    """The signature without annotations."""
    signature = inspect.signature(function)
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)


def wanted(text: str) -> inspect.Signature:
    return inspect.signature(eval(f"lambda {text[1:-1]}: None"))


@pytest.mark.parametrize("name", SIGNATURES)
def test_stage_functions(name):
    assert bare(getattr(ascendc, name)) == wanted(SIGNATURES[name])
    assert getattr(ascendc, f"npu_{name}") is getattr(ascendc, name)


def test_npu_chunk_kda():
    assert bare(npu_chunk_kda) == wanted(KDA)


@pytest.mark.parametrize("function", [npu_chunk_kda, *(getattr(ascendc, n) for n in SIGNATURES)])
def test_documented_and_typed(function):
    text = inspect.getdoc(function)
    for heading in ("Args:", "Returns:", "Source:"):
        assert heading in text
    signature = inspect.signature(function)
    assert all(p.annotation is not p.empty for p in signature.parameters.values())
    assert signature.return_annotation is not signature.empty


@pytest.mark.parametrize("word", ["use_beta_sigmod_in_kernel", "A_log", "transpose_state_layout", "label"])
def test_d1_unknown_keywords(word):
    with pytest.raises(TypeError, match=word):
        npu_chunk_kda(None, None, None, None, None, 1.0, **{word: True})


def test_all_names_exist():
    assert all(callable(getattr(ascendc, name)) for name in ascendc.__all__)
