# SPDX-License-Identifier: Apache-2.0
"""Calls that must be refused before anything is launched, as data for every front end.

A case is a function, what differs from a good call, the kind of error, and words the message must
contain: the argument, its value, and the rule or the way out. `T` stands for a tensor.
"""

from __future__ import annotations

import math
from typing import NamedTuple

V, E = "value", "type"  # ArgumentError (ValueError), ArgumentTypeError (TypeError)


class T(NamedTuple):
    """A tensor by shape, dtype and device; `shape` is the real one, front ends make it."""

    shape: tuple
    dtype: str = "bfloat16"
    device: str = "cpu"


class Case(NamedTuple):
    function: str
    name: str
    changes: dict
    error: str
    words: tuple


def bf(*shape):
    return T(shape)


def f32(*shape):
    return T(shape, "float32")


GOOD = {
    "prepare": {
        "q": bf(1, 2, 70, 128), "k": bf(1, 2, 70, 128), "v": bf(1, 4, 70, 128), "g": f32(1, 4, 70, 128),
        "beta": f32(1, 4, 70), "scale": 1.0, "layout": "BNSD",
    },
    "fwd_h": {
        "k": bf(1, 4, 70, 128), "w": bf(1, 4, 70, 128), "u": bf(1, 4, 70, 128), "gk": f32(1, 4, 70, 128),
    },
    "finalize": {
        "qg_scaled": bf(1, 4, 70, 128), "aqk": bf(1, 4, 70, 64), "v_new": bf(1, 4, 70, 128),
        "h": bf(1, 2, 4, 128, 128),
    },
    "bwd_prepare": {
        "aqk": bf(1, 4, 70, 64), "v_new": bf(1, 4, 70, 128), "d_o": bf(1, 4, 70, 128),
        "h": bf(1, 2, 4, 128, 128), "scale": 1.0,
    },
    "dhu": {
        "q": bf(1, 4, 70, 128), "k": bf(1, 4, 70, 128), "w": bf(1, 4, 70, 128), "d_o": bf(1, 4, 70, 128),
        "dv": bf(1, 4, 70, 128), "gk": f32(1, 4, 70, 128), "scale": 1.0, "chunk_size": 64,
    },
    "bwd_finalize": {
        "q": bf(1, 2, 70, 128), "k": bf(1, 2, 70, 128), "v": bf(1, 4, 70, 128), "gk": f32(1, 4, 70, 128),
        "raw_g": f32(1, 4, 70, 128), "beta": f32(1, 4, 70), "a_log": f32(4), "dt_bias": f32(4, 128),
        "akk": bf(1, 4, 70, 64), "v_new": bf(1, 4, 70, 128), "h": bf(1, 2, 4, 128, 128),
        "dh": bf(1, 2, 4, 128, 128), "dv_scan": bf(1, 4, 70, 128), "d_aqk": f32(1, 4, 70, 64),
        "dq_raw": f32(1, 4, 70, 128), "scale": 1.0,
    },
    "summarize": {
        "k": bf(1, 2, 70, 128), "w": bf(1, 4, 70, 128), "u": bf(1, 4, 70, 128), "gk": f32(1, 4, 70, 128),
        "cu_seqlens": (3, 70),
    },
    "summarize_backward": {
        "q": bf(1, 2, 70, 128), "k": bf(1, 2, 70, 128), "w": bf(1, 4, 70, 128), "d_o": bf(1, 4, 70, 128),
        "dv": bf(1, 4, 70, 128), "gk": f32(1, 4, 70, 128), "scale": 1.0, "chunk_size": 64,
    },
    "merge": {"h": f32(4, 128, 128), "summaries": f32(3, 4, 128, 256), "count": 1, "rank": 1},
    "kda": {
        "q": bf(1, 2, 70, 128), "k": bf(1, 2, 70, 128), "v": bf(1, 4, 70, 128), "g": f32(1, 4, 70, 128),
        "beta": f32(1, 4, 70), "scale": 1.0, "a_log": f32(4),
    },
}  # fmt: skip

#: Those whose cu_seqlens are offsets of sequences end to end.
PACKED = tuple(name for name in GOOD if name not in ("summarize", "summarize_backward", "merge"))

_GATE = {"use_gate_in_kernel": True, "a_log": f32(4)}
_BSND = {
    "q": bf(1, 70, 2, 128), "k": bf(1, 70, 2, 128), "v": bf(1, 70, 4, 128), "g": f32(1, 70, 4, 128),
    "beta": f32(1, 70, 4), "layout": "BSND",
}  # fmt: skip


def _dims(batch=1, tokens=70, hk=2, hv=4, width=128):
    """The five tensors of a BNSD call with other dimensions."""
    wide = (batch, hv, tokens, width)
    key = bf(batch, hk, tokens, width)
    return {"q": key, "k": key, "v": T(wide), "g": T(wide, "float32"), "beta": f32(*wide[:3])}


def _metadata(function: str) -> list[Case]:
    """cu_seqlens and chunk_indices, alike in every function that takes them."""

    def case(name, changes, error, *words):
        return Case(function, name, changes, error, words)

    def cu(value):
        return {"cu_seqlens": value}

    def idx(value):
        return {"cu_seqlens": [0, 65, 70], "chunk_indices": value}

    return [
        case("cu_empty", cu([]), V, "cu_seqlens", "0 entries", "at least 2"),
        case("cu_one", cu([0]), V, "cu_seqlens = [0]", "1 entries"),
        case("cu_first", cu([5, 70]), V, "cu_seqlens[0] = 5", "start at 0"),
        case("cu_lengths", cu([65, 5]), V, "cu_seqlens[0] = 65", "not lengths"),
        case("cu_decreasing", cu([0, 12, 8, 70]), V, "cu_seqlens[2] = 8", "cu_seqlens[1] = 12"),
        case("cu_negative", cu([0, -1, 70]), V, "cu_seqlens[1] = -1", "must not decrease"),
        case("cu_short", cu([0, 60]), V, "cu_seqlens[-1] = 60", "T = 70"),
        case("cu_long", cu([0, 128]), V, "cu_seqlens[-1] = 128", "T = 70"),
        case("cu_all_empty", cu([0, 0]), V, "cu_seqlens[-1] = 0", "T = 70"),
        case("cu_float", cu([0.0, 70.0]), E, "cu_seqlens[0] = 0.0", "float"),
        case("cu_bool", cu([False, 70]), E, "cu_seqlens[0] = False", "bool"),
        case("cu_string", cu("0,70"), E, "cu_seqlens", "str"),
        case("cu_number", cu(70), E, "cu_seqlens", "int"),
        case("cu_nested", cu([[0, 70]]), E, "cu_seqlens[0] = [0, 70]"),
        case("idx_without_cu", {"chunk_indices": [0, 0]}, V, "chunk_indices", "without cu_seqlens"),
        case("idx_reversed", idx([1, 0, 0, 1, 0, 0]), V, "pair 0 is (1, 0)", "(0, 0)"),
        case("idx_duplicate", idx([0, 0, 0, 0, 1, 0]), V, "pair 1 is (0, 0)", "(0, 1)"),
        case("idx_missing", idx([0, 0, 1, 0]), V, "chunk_indices has 4 numbers", "3 chunks"),
        case("idx_extra", idx([0, 0, 0, 1, 1, 0, 1, 1]), V, "has 8 numbers"),
        case("idx_for_32", idx([0, 0, 0, 1, 0, 2, 1, 0]), V, "has 8 numbers", "chunks of 64"),
        case("idx_float", idx([0.0, 0, 0, 1, 1, 0]), E, "chunk_indices[0] = 0.0"),
        case("idx_triples", idx([[0, 0, 0], [1, 1, 0]]), V, "chunk_indices[0]", "pair"),
    ]


def _prepare() -> list[Case]:
    def case(name, changes, error, *words):
        return Case("prepare", name, changes, error, words)

    return [
        case("layout_lower", {"layout": "bnsd"}, V, "layout = 'bnsd'", "'BNSD'"),
        case("layout_other", {"layout": "SBND"}, V, "layout = 'SBND'", "'TND'"),
        case("layout_none", {"layout": None}, E, "layout = None"),
        case("mode", {"backward_mode": "all"}, V, "backward_mode = 'all'", "'recompute'"),
        case("q_none", {"q": None}, E, "q is None"),
        case("k_none", {"k": None}, E, "k is None", "required"),
        case("q_list", {"q": [1.0]}, E, "q is a", "list"),
        case("q_fp16", {"q": T((1, 2, 70, 128), "float16")}, E,
             "q has dtype float16", "q.to(torch.bfloat16)"),
        case("k_fp32", {"k": f32(1, 2, 70, 128)}, E, "k has dtype float32", "bfloat16"),
        case("v_fp64", {"v": T((1, 4, 70, 128), "float64")}, E, "v has dtype float64"),
        case("g_fp16", {"g": T((1, 4, 70, 128), "float16")}, E, "g has dtype float16", "float32 or bfloat16"),
        case("beta_int", {"beta": T((1, 4, 70), "int32")}, E, "beta has dtype int32"),
        case("q_rank", {"q": bf(2, 70, 128)}, V, "q has shape (2, 70, 128)", "rank 3", "'NTD', 'TND'"),
        case("beta_rank", {"beta": f32(1, 4, 70, 1)}, V, "beta has shape (1, 4, 70, 1)", "[B, HV, T]"),
        case("k_heads", {"k": bf(1, 4, 70, 128)}, V, "k has shape (1, 4, 70, 128)", "HK = 2", "from q"),
        case("v_tokens", {"v": bf(1, 4, 71, 128)}, V, "dimension 2 is 71", "T = 70"),
        case("g_batch", {"g": f32(2, 4, 70, 128)}, V, "g has shape", "B = 1"),
        case("beta_heads", {"beta": f32(1, 2, 70)}, V, "beta", "HV = 4 (from v)"),
        case("width_64", _dims(width=64), V, "q has shape (1, 2, 70, 64)", "K = 128"),
        case("value_width", {"v": bf(1, 4, 70, 256)}, V, "v has shape (1, 4, 70, 256)", "V = 128"),
        case("heads_2_3", _dims(hv=3), V, "HV = 3", "HK = 2", "multiple"),
        case("heads_4_2", _dims(hk=4, hv=2), V, "HV = 2", "HK = 4"),
        case("heads_0", _dims(hk=0, hv=0), V, "(HK) is empty"),
        case("tokens_0", _dims(tokens=0), V, "q has shape (1, 2, 0, 128)", "(T) is empty"),
        case("batch_0", _dims(batch=0), V, "(B) is empty"),
        case("batch_packed", {**_dims(batch=2), "cu_seqlens": [0, 70]}, V, "B = 2", "B = 1"),
        case("scale_none", {"scale": None}, E, "scale = None"),
        case("scale_text", {"scale": "1"}, E, "scale = '1'"),
        case("scale_bool", {"scale": True}, E, "scale = True"),
        case("scale_nan", {"scale": math.nan}, V, "scale = nan", "finite"),
        case("scale_inf", {"scale": -math.inf}, V, "scale = -inf"),
        case("scale_huge", {"scale": 1e300}, V, "scale = 1e+300", "float32"),
        case("scale_int", {"scale": 10**400}, V, "scale = 1000", "float32"),
        case("chunk_32", {"chunk_size": 32}, V, "chunk_size = 32", "64"),
        case("chunk_128", {"chunk_size": 128}, V, "chunk_size = 128"),
        case("chunk_float", {"chunk_size": 64.0}, E, "chunk_size = 64.0"),
        case("chunk_none", {"chunk_size": None}, E, "chunk_size = None"),
        case("epsilon_0", {"epsilon": 0.0}, V, "epsilon = 0.0", "above 0"),
        case("epsilon_tiny", {"epsilon": 1e-60}, V, "epsilon = 1e-60", "float32"),
        case("epsilon_subnormal", {"epsilon": 1e-38}, V, "epsilon = 1e-38", "2**-126"),
        case("epsilon_negative", {"epsilon": -1e-6}, V, "epsilon = -1e-06"),
        case("flag_int", {"use_exp2": 1}, E, "use_exp2 = 1", "True or False"),
        case("flag_none", {"safe_gate": None}, E, "safe_gate = None"),
        case("neg_alone", {"allow_neg_eigval": True}, V, "allow_neg_eigval", "use_beta_sigmoid_in_kernel"),
        case("gate_no_a_log", {"use_gate_in_kernel": True}, V, "needs a_log"),
        case("a_log_no_gate", {"a_log": f32(4)}, V, "a_log is given", "use_gate_in_kernel"),
        case("bias_no_gate", {"dt_bias": f32(4, 128)}, V, "dt_bias is given"),
        case("safe_no_gate", {"safe_gate": True}, V, "safe_gate = True", "use_gate_in_kernel"),
        case("bound_0", {**_GATE, "safe_gate": True, "lower_bound": 0.0}, V, "lower_bound = 0.0", "[-5, 0)"),
        case("bound_int_0", {**_GATE, "lower_bound": 0}, V, "lower_bound = 0", "None for -5"),
        case("bound_low", {**_GATE, "safe_gate": True, "lower_bound": -5.0001}, V, "lower_bound = -5.0001"),
        case("bound_positive", {**_GATE, "safe_gate": True, "lower_bound": 1.0}, V, "lower_bound = 1.0"),
        case("bound_nan", {**_GATE, "safe_gate": True, "lower_bound": math.nan}, V, "lower_bound = nan"),
        case("a_log_long", {**_GATE, "a_log": f32(6)}, V, "a_log has shape (6,)", "HV = 4"),
        case("a_log_rank", {**_GATE, "a_log": f32(1, 1, 4, 1)}, V, "a_log has shape (1, 1, 4, 1)", "[HV]"),
        case("a_log_fp64", {**_GATE, "a_log": T((4,), "float64")}, E, "a_log has dtype float64"),
        case("bias_heads", {**_GATE, "dt_bias": f32(4)}, V, "dt_bias has shape (4,)", "HV*K = 512"),
        case("bias_swapped", {**_GATE, "dt_bias": f32(128, 4)}, V, "dt_bias has shape (128, 4)", "HV = 4"),
        case("bias_fp16", {**_GATE, "dt_bias": T((4, 128), "float16")}, E, "dt_bias has dtype float16"),
        case("device_other", {"k": T((1, 2, 70, 128), "bfloat16", "meta")}, V,
             "k is on device 'meta'", "'cpu'"),
        case("bsnd_swapped", {**_BSND, "g": f32(1, 4, 70, 128)}, V, "g has shape (1, 4, 70, 128)", "T = 70"),
    ]  # fmt: skip


def _fwd_h() -> list[Case]:
    def case(name, changes, error, *words):
        return Case("fwd_h", name, changes, error, words)

    rank3 = {n: bf(4, 70, 128) for n in ("k", "w", "u")} | {"gk": f32(4, 70, 128)}
    return [
        case("rank_3", rank3, V, "k has shape (4, 70, 128)", "[B, HV, T, K]"),
        case("w_none", {"w": None}, E, "w is None"),
        case("w_heads", {"w": bf(1, 2, 70, 128)}, V, "w has shape", "HV = 4 (from k)"),
        case("u_width", {"u": bf(1, 4, 70, 64)}, V, "u has shape", "V = 128"),
        case("k_dtype", {"k": f32(1, 4, 70, 128)}, E, "k has dtype float32"),
        case("scalar_g", {"g": f32(1, 4, 70)}, V, "g is given", "gk"),
        case("no_gate", {"gk": None}, E, "gk is None"),
        case("gk_fp16", {"gk": T((1, 4, 70, 128), "float16")}, E, "gk has dtype float16"),
        case("gk_shape", {"gk": f32(1, 4, 2, 128)}, V, "gk has shape", "T = 70"),
        case("chunk", {"chunk_size": 128}, V, "chunk_size = 128"),
        case("new_value", {"save_new_value": False}, V, "save_new_value = False", "True"),
        case("new_value_int", {"save_new_value": 1}, E, "save_new_value = 1"),
        case("state_count", {"initial_state": f32(2, 4, 128, 128)}, V, "initial_state", "N = 1"),
        case("state_packed", {"initial_state": f32(1, 4, 128, 128), "cu_seqlens": [0, 5, 70]}, V,
             "initial_state", "N = 2", "cu_seqlens"),
        case("state_heads", {"initial_state": f32(1, 2, 128, 128)}, V, "initial_state", "HV = 4"),
        case("state_rank", {"initial_state": f32(4, 128, 128)}, V, "initial_state", "[N, HV, K, V]"),
        case("state_fp16", {"initial_state": T((1, 4, 128, 128), "float16")}, E,
             "initial_state has dtype float16"),
        case("state_width", {"initial_state": f32(1, 4, 64, 128)}, V, "initial_state", "K = 128"),
        case("final_text", {"output_final_state": "yes"}, E, "output_final_state = 'yes'"),
        case("v_first_none", {"state_v_first": None}, E, "state_v_first = None"),
        case("tokens_0", {n: bf(1, 4, 0, 128) for n in "kwu"} | {"gk": f32(1, 4, 0, 128)}, V, "(T) is empty"),
    ]  # fmt: skip


def _finalize() -> list[Case]:
    def case(name, changes, error, *words):
        return Case("finalize", name, changes, error, words)

    return [
        case("layout_rank", {"output_layout": "TND"}, V,
             "qg_scaled has shape (1, 4, 70, 128)", "'BSND', 'BNSD'"),
        case("layout", {"output_layout": "BHSD"}, V, "output_layout = 'BHSD'"),
        case("aqk_width", {"aqk": bf(1, 4, 70, 70)}, V, "aqk has shape", "C = 64"),
        case("aqk_none", {"aqk": None}, E, "aqk is None"),
        case("v_new_heads", {"v_new": bf(1, 2, 70, 128)}, V, "v_new has shape", "HV = 4"),
        case("h_head_major", {"h": bf(1, 4, 2, 128, 128)}, V, "h has shape (1, 4, 2, 128, 128)", "NT = 2"),
        case("h_chunks", {"h": bf(1, 3, 4, 128, 128)}, V, "h has shape", "NT = 2", "from T"),
        case("h_packed_chunks", {"cu_seqlens": [0, 5, 70, 70], "h": bf(1, 2, 4, 128, 128)}, V,
             "NT = 3", "cu_seqlens"),
        case("h_rank", {"h": bf(2, 4, 128, 128)}, V, "h has shape", "[B, NT, HV, K, V]"),
        case("h_fp32", {"h": f32(1, 2, 4, 128, 128)}, E, "h has dtype float32", "bfloat16"),
        case("v_first", {"state_v_first": 0}, E, "state_v_first = 0"),
    ]  # fmt: skip


def _bwd_prepare() -> list[Case]:
    def case(name, changes, error, *words):
        return Case("bwd_prepare", name, changes, error, words)

    rank3 = {"aqk": bf(4, 70, 64), "v_new": bf(4, 70, 128), "d_o": bf(4, 70, 128), "h": bf(2, 4, 128, 128)}
    return [
        case("aqk_none", {"aqk": None}, E, "aqk is None"),
        case("h_none", {"h": None}, E, "h is None"),
        case("d_o_fp32", {"d_o": f32(1, 4, 70, 128)}, E, "d_o has dtype float32", "bfloat16"),
        case("layout_bsnd", {"layout": "BSND"}, V, "layout = 'BSND'", "'NTD'"),
        case("layout_rank_4", {"layout": "NTD"}, V, "aqk has shape (1, 4, 70, 64)", "'NTD' is of rank 3"),
        case("layout_rank_3", rank3, V, "aqk has shape (4, 70, 64)", "'BNSD' is of rank 4"),
        case("mixed_ranks", {"v_new": bf(4, 70, 128)}, V, "v_new has shape (4, 70, 128)", "rank 4"),
        case("h_rank", {"h": bf(2, 4, 128, 128)}, V, "h has shape (2, 4, 128, 128)", "rank 5"),
        case("h_chunks", {"h": bf(1, 3, 4, 128, 128)}, V, "h has shape", "NT = 2"),
        case("h_head_major", {"h": bf(1, 4, 2, 128, 128)}, V, "h has shape", "NT = 2"),
        case("d_o_tokens", {"d_o": bf(1, 4, 71, 128)}, V, "d_o has shape", "T = 70"),
        case("chunk", {"chunk_size": 32}, V, "chunk_size = 32"),
        case("scale_nan", {"scale": math.nan}, V, "scale = nan"),
        case("v_first_int", {"state_v_first": 1}, E, "state_v_first = 1"),
    ]  # fmt: skip


def _dhu() -> list[Case]:
    def case(name, changes, error, *words):
        return Case("dhu", name, changes, error, words)

    return [
        case("w_none", {"w": None}, E, "w is None"),
        case("gate_none", {"gk": None}, E, "is None", "chunk_kda_fwd_prepare"),
        case("scalar_g", {"g": f32(1, 4, 70)}, V, "g is given"),
        case("q_rank", {"q": bf(4, 70, 128)}, V, "q has shape (4, 70, 128)", "[B, HV, T, K]"),
        case("q_heads", {"q": bf(1, 2, 70, 128)}, V, "k has shape (1, 4, 70, 128)", "HV = 2 (from q)"),
        case("dv_fp32", {"dv": f32(1, 4, 70, 128)}, E, "dv has dtype float32"),
        case("gk_fp16", {"gk": T((1, 4, 70, 128), "float16")}, E, "gk has dtype float16"),
        case("h0_count", {"h0": f32(2, 4, 128, 128)}, V, "h0 has shape", "N = 1"),
        case("dht_count", {"dht": f32(1, 4, 128, 128), "cu_seqlens": [0, 5, 70]}, V, "dht has shape", "N = 2"),
        case("dht_fp16", {"dht": T((1, 4, 128, 128), "float16")}, E, "dht has dtype float16"),
        case("dht_rank", {"dht": f32(1, 2, 4, 128, 128)}, V, "dht has shape", "[N, HV, K, V]"),
        case("chunk", {"chunk_size": 128}, V, "chunk_size = 128"),
        case("exp2_none", {"use_exp2": None}, E, "use_exp2 = None"),
        case("scale_text", {"scale": "1"}, E, "scale = '1'"),
    ]  # fmt: skip


def _bwd_finalize() -> list[Case]:
    def case(name, changes, error, *words):
        return Case("bwd_finalize", name, changes, error, words)

    no_gate = {"use_gate_in_kernel": False, "safe_gate": False}
    return [
        case("q_none", {"q": None}, E, "q is None"),
        case("akk_none", {"akk": None}, E, "akk is None"),
        case("dh_none", {"dh": None}, E, "dh is None"),
        case("no_a_log", {"a_log": None}, V, "needs a_log"),
        case("a_log_without_gate", no_gate, V, "a_log is given"),
        case("bias_without_gate", {**no_gate, "a_log": None}, V, "dt_bias is given"),
        case("safe_without_gate", {**no_gate, "safe_gate": True, "a_log": None, "dt_bias": None}, V,
             "safe_gate = True"),
        case("heads", {"q": bf(1, 3, 70, 128), "k": bf(1, 3, 70, 128)}, V, "HV = 4", "HK = 3"),
        case("k_heads", {"k": bf(1, 4, 70, 128)}, V, "k has shape", "HK = 2"),
        case("one_rstd", {"q_rstd": f32(1, 2, 70)}, V, "q_rstd is given without k_rstd"),
        case("rstd_heads", {"q_rstd": f32(1, 4, 70), "k_rstd": f32(1, 4, 70)}, V, "q_rstd", "HK = 2"),
        case("beta_rank", {"beta": f32(1, 4, 70, 1)}, V, "beta has shape", "rank 3"),
        case("v_rank", {"v": bf(4, 70, 128)}, V, "v has shape (4, 70, 128)", "rank 4"),
        case("v_new_planes", {"v_new": bf(3, 1, 4, 70, 128)}, V, "v_new has shape", "2"),
        case("v_new_rank", {"v_new": bf(4, 70, 128)}, V, "v_new has shape (4, 70, 128)", "rank 4"),
        case("h_chunks", {"h": bf(1, 3, 4, 128, 128)}, V, "h has shape", "NT = 2"),
        case("dh_rank", {"dh": bf(2, 4, 128, 128)}, V, "dh has shape", "rank 5"),
        case("d_aqk_bf16", {"d_aqk": bf(1, 4, 70, 64)}, E, "d_aqk has dtype bfloat16", "float32"),
        case("gk_bf16", {"gk": bf(1, 4, 70, 128)}, E, "gk has dtype bfloat16"),
        case("bias_shape", {"dt_bias": f32(4)}, V, "dt_bias has shape (4,)", "HV*K = 512"),
        case("bound_0", {"lower_bound": 0.0}, V, "lower_bound = 0.0"),
        case("layout_rank", {"output_layout": "TND"}, V, "'TND' is of rank 3", "'BSND'"),
        case("layout_word", {"output_layout": "SBHD"}, V, "output_layout = 'SBHD'"),
        case("neg_alone", {"allow_neg_eigval": True}, V, "use_beta_sigmoid_in_kernel"),
        case("sigmoid_int", {"use_beta_sigmoid_in_kernel": 1}, E, "use_beta_sigmoid_in_kernel = 1"),
    ]  # fmt: skip


def _windows(function: str) -> list[Case]:
    """cu_seqlens as edges of windows: alike in both summaries."""

    def case(name, value, error, *words):
        return Case(function, name, {"cu_seqlens": value}, error, words)

    return [
        case("cu_empty", [], V, "cu_seqlens = []", "0 entries", "one window needs 2"),
        case("cu_one", [5], V, "cu_seqlens = [5]", "1 entries"),
        case("cu_negative", [-1, 70], V, "cu_seqlens[0] = -1", "token 0 or later"),
        case("cu_window_empty", [5, 5], V, "cu_seqlens[1] = 5", "cu_seqlens[0] = 5", "one token or more"),
        case("cu_decreasing", [12, 8], V, "cu_seqlens[1] = 8 is not above"),
        case("cu_beyond", [0, 71], V, "cu_seqlens[1] = 71", "T = 70"),
        case("cu_float", [0.0, 70.0], E, "cu_seqlens[0] = 0.0", "float"),
        case("cu_bool", [False, 70], E, "cu_seqlens[0] = False", "bool"),
        case("cu_number", 70, E, "cu_seqlens", "int"),
    ]


def _summarize() -> list[Case]:
    def case(name, changes, error, *words):
        return Case("summarize", name, changes, error, words)

    return [
        case("k_none", {"k": None}, E, "k is"),
        case("w_none", {"w": None}, E, "w is None"),
        case("u_fp16", {"u": T((1, 4, 70, 128), "float16")}, E, "u has dtype float16", "bfloat16 or float32"),
        case("k_fp32", {"k": f32(1, 2, 70, 128)}, E, "k has dtype float32"),
        case("gate_none", {"gk": None}, E, "gk is None", "chunk_kda_fwd_prepare"),
        case("gk_heads", {"gk": f32(1, 2, 70, 128)}, V, "gk has shape", "HV = 4 (from w)"),
        case("scalar_g", {"g": f32(1, 4, 70)}, V, "g is given", "gk"),
        case("bg", {"bg": bf(1, 4, 70, 128)}, V, "bg is given", "leave it out"),
        case("v", {"v": bf(1, 4, 70, 128)}, V, "v is given", "pass u"),
        case("no_windows", {"cu_seqlens": None}, V, "cu_seqlens is None", "required", "(0, 70)"),
        case("cu_middle", {"cu_seqlens": [0, 9, 9, 70]}, V, "cu_seqlens[2] = 9 is not above"),
        case("batch", {"k": bf(2, 2, 70, 128)}, V, "k has shape (2, 2, 70, 128)", "B = 1"),
        case("rank_3", {"k": bf(2, 70, 128)}, V, "k has shape (2, 70, 128)", "[B, HK, T, K]"),
        case("heads", {"k": bf(1, 3, 70, 128)}, V, "HV = 4", "HK = 3", "multiple"),
        case("tokens", {"w": bf(1, 4, 71, 128)}, V, "w has shape", "T = 70 (from k)"),
        case("width", {"u": bf(1, 4, 70, 64)}, V, "u has shape", "V = 128"),
        case("chunk", {"chunk_size": 32}, V, "chunk_size = 32"),
        case("chunk_float", {"chunk_size": 64.0}, E, "chunk_size = 64.0"),
    ]  # fmt: skip


def _summarize_backward() -> list[Case]:
    def case(name, changes, error, *words):
        return Case("summarize_backward", name, changes, error, words)

    return [
        case("q_none", {"q": None}, E, "q is"),
        case("dv_none", {"dv": None}, E, "dv is None"),
        case("dv_fp32", {"dv": f32(1, 4, 70, 128)}, E, "dv has dtype float32"),
        case("gk_fp16", {"gk": T((1, 4, 70, 128), "float16")}, E, "gk has dtype float16"),
        case("scalar_g", {"g": f32(1, 4, 70)}, V, "g is given"),
        case("k_heads", {"k": bf(1, 4, 70, 128)}, V, "k has shape", "HK = 2 (from q)"),
        case("heads", {"q": bf(1, 3, 70, 128), "k": bf(1, 3, 70, 128)}, V, "HV = 4", "HK = 3"),
        case("scale_none", {"scale": None}, E, "scale = None"),
        case("scale_inf", {"scale": math.inf}, V, "scale = inf", "finite"),
        case("chunk", {"chunk_size": 128}, V, "chunk_size = 128"),
        case("batch", {"q": bf(2, 2, 70, 128)}, V, "q has shape", "B = 1"),
    ]  # fmt: skip


def _merge() -> list[Case]:
    def case(name, changes, error, *words):
        return Case("merge", name, changes, error, words)

    many = {"h": f32(257, 128, 128), "summaries": T((3, 257, 128, 256), "float32")}
    return [
        case("h_none", {"h": None}, E, "h is None"),
        case("summaries_none", {"summaries": None}, E, "ag_hm is None"),
        case("summaries_list", {"summaries": [1.0]}, E, "ag_hm is a", "list"),
        case("h_fp16", {"h": T((4, 128, 128), "float16")}, E, "h has dtype float16", "float32 or bfloat16"),
        case("mixed", {"h": bf(4, 128, 128)}, E, "h has dtype bfloat16", "ag_hm float32", "agree"),
        case("h_rank", {"h": f32(1, 4, 128, 128)}, V, "h has shape (1, 4, 128, 128)", "[HV, K, V]"),
        case("one_map", {"summaries": f32(4, 128, 256)}, V, "ag_hm has shape (4, 128, 256)", "rank 3"),
        case("h_heads", {"h": f32(2, 128, 128)}, V, "h has shape (2, 128, 128)", "HV = 4 (from ag_hm)"),
        case("width", {"summaries": f32(3, 4, 128, 128)}, V, "ag_hm has shape", "256"),
        case("many_heads", many, V, "HV = 257 heads", "at most 256"),
        case("rank_negative", {"rank": -1}, V, "rank = -1", "0 to 2"),
        case("rank_beyond", {"rank": 3}, V, "rank = 3", "S = 3"),
        case("rank_float", {"rank": 1.0}, E, "rank = 1.0", "int"),
        case("rank_bool", {"rank": True}, E, "rank = True"),
        case("count_negative", {"count": -1}, V, "pre_or_post_num_ranks = -1", "0 (zeros) or more"),
        case("count_before", {"count": 2}, V, "pre_or_post_num_ranks = 2", "1 before rank = 1"),
        case("count_behind", {"count": 2, "forward": False}, V, "= 2", "S = 3", "1 behind rank = 1"),
        case("count_none", {"count": None}, E, "pre_or_post_num_ranks = None"),
        case("forward_int", {"forward": 1}, E, "forward = 1"),
        case("v_first_none", {"state_v_first": None}, E, "state_v_first = None"),
        case("device", {"h": T((4, 128, 128), "float32", "meta")}, V, "h is on device 'meta'", "ag_hm is on 'cpu'"),
    ]  # fmt: skip


def _kda() -> list[Case]:
    def case(name, changes, error, *words):
        return Case("kda", name, changes, error, ("npu_chunk_kda", *words))

    return [
        case("no_a_log", {"a_log": None}, V, "needs a_log"),
        case("q_fp32", {"q": f32(1, 2, 70, 128)}, E, "q has dtype float32"),
        case("state_count", {"initial_state": f32(2, 4, 128, 128)}, V, "initial_state", "[1, 4, 128, 128]"),
        case("state_fp16", {"initial_state": T((1, 4, 128, 128), "float16")}, E,
             "initial_state has dtype float16"),
        case("state_device", {"initial_state": T((1, 4, 128, 128), "float32", "meta")}, V, "device 'meta'"),
        case("final_int", {"output_final_state": 1}, E, "output_final_state = 1"),
        case("recompute_none", {"disable_recompute": None}, E, "disable_recompute = None"),
        case("v_first_text", {"state_v_first": "V"}, E, "state_v_first = 'V'"),
        case("chunk", {"chunk_size": 16}, V, "chunk_size = 16"),
        case("neg", {"allow_neg_eigval": True}, V, "allow_neg_eigval"),
        case("heads", _dims(hv=3), V, "HV = 3"),
        case("tokens_0", _dims(tokens=0), V, "(T) is empty"),
        case("layout", {"layout": "BHTD"}, V, "layout = 'BHTD'"),
    ]  # fmt: skip


CASES = [
    *_prepare(), *_fwd_h(), *_finalize(), *_bwd_prepare(), *_dhu(), *_bwd_finalize(), *_kda(),
    *_summarize(), *_summarize_backward(), *_merge(), *_windows("summarize"), *_windows("summarize_backward"),
    *(case for function in PACKED for case in _metadata(function)),
]  # fmt: skip


def case_id(case: Case) -> str:
    return f"{case.function}-{case.name}"


def arguments(case: Case) -> dict:
    """The keywords of the whole call."""
    return {**GOOD[case.function], **case.changes}
