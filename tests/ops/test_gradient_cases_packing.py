# SPDX-License-Identifier: Apache-2.0
"""Gradients of tails, packed sequences and grouped heads; what the backward operators refuse of their metadata."""

from __future__ import annotations

import itertools

import backward_inputs
import grad_run
import kda_run
import numpy as np
import pytest
import torch
from backward import Cotangents, make_cotangents
from goldens import golden_module, relative_l2
from grad_run import check_gradients
from in_step import in_step
from kda_inputs import make_inputs
from test_cases_heads import one_head
from test_cases_packing import BAD_INDICES, BAD_OFFSETS, CANONICAL, sub_sequence

MODEL = {"l2norm": True, "gate": "bounded", "beta": "sigmoid", "state": "float32"}
OPS = {
    "prepare": (backward_inputs.prepare_case, grad_run.bwd_prepare),
    "dhu": (backward_inputs.dhu_case, grad_run.dhu),
    "finalize": (backward_inputs.finalize_case, grad_run.bwd_finalize),
}


@pytest.mark.parametrize("tokens", [65, 79])
@pytest.mark.parametrize("v_first", [False, True], ids=["k_first", "v_first"])
def test_b1_gradients_through_the_state_between_two_calls(tokens, v_first):
    """Two calls that hand the state on have the gradients of one call over both."""
    from fla_npu.torch import npu_chunk_kda

    whole = make_inputs({"T": 2 * tokens, "HV": 2, **MODEL, "state_v_first": v_first}, tokens)
    seeds = make_cotangents(whole, 1)
    leaves = kda_run.tensors_of(whole) | {"initial_state": kda_run.tensor(whole.initial_state, "float32")}
    leaves = grad_run.requiring(leaves)
    state, outs = leaves["initial_state"], []
    for part in (slice(0, tokens), slice(tokens, None)):
        cut = {n: x[:, :, part] if n in ("q", "k", "v", "g", "beta") else x for n, x in leaves.items()}
        o, state = npu_chunk_kda(
            **{**cut, "initial_state": state}, **whole.options, state_v_first=v_first, output_final_state=True
        )
        outs.append(o)
    d_o = kda_run.tensor(grad_run.token_major(seeds.out, "BNSD"), "bfloat16")
    torch.autograd.backward([torch.cat(outs, 1), state], [d_o, kda_run.tensor(seeds.final, "float32")])
    exact = grad_run.reference(whole, seeds, floor=False)[0]
    for name, x in leaves.items():
        limit = 6e-3 if name != "a_log" else 3e-2
        assert relative_l2(kda_run.array(x.grad), exact[name]) < limit, name


def test_b2_packed_short_tails():
    check_gradients(make_inputs({"cu": [0, 65, 131, 202, 281], "HV": 2, **MODEL}, 1))


@pytest.mark.parametrize("layout", ["BNSD", "TND"])
@pytest.mark.parametrize("v_first", [False, True], ids=["k_first", "v_first"])
def test_b6_empty_sequences(layout, v_first):
    """dh0 of an empty sequence is its dht, and the others are not shifted."""
    case = {"cu": [0, 0, 5, 5, 70, 70], "HV": 2, "layout": layout, **MODEL, "state_v_first": v_first}
    inputs = make_inputs(case, 3)
    seeds = make_cotangents(inputs, 3)
    got = check_gradients(inputs, seeds)
    for n in (0, 2, 4):
        assert kda_run.same_bits(got["initial_state"][n], kda_run.tensor(seeds.final[n], "float32"))
    assert not any(
        kda_run.same_bits(got["initial_state"][n], kda_run.tensor(seeds.final[n], "float32")) for n in (1, 3)
    )


def test_b6_only_empty_sequences_next_to_one_row():
    check_gradients(make_inputs({"cu": [0, 0, 0, 1, 1], "HV": 1, "state": "float32"}, 4), factor=2.5)


def stage(op: str, case: dict, **metadata):
    """One backward operator on its own inputs, with other packing metadata."""
    make, run = OPS[op]
    call = make(case, 1)
    return run(grad_run.tensors_of(call), **{**call.options, **metadata})


@pytest.mark.parametrize("name", BAD_OFFSETS)
@pytest.mark.parametrize("op", OPS)
def test_b8_bad_offsets_are_refused(op, name):
    with pytest.raises(ValueError, match="cu_seqlens"):
        stage(op, {"T": 128, "HV": 1}, cu_seqlens=BAD_OFFSETS[name])


@pytest.mark.parametrize("op", OPS)
def test_b8_offsets_need_one_batch_row_and_integers(op):
    case = {"B": 2, "T": 64, "HV": 1}
    with pytest.raises(ValueError, match="B = 2"):
        stage(op, case, cu_seqlens=[0, 64])
    for bad in ([0, 64.0], torch.tensor([0.0, 64.0])):
        with pytest.raises(TypeError, match="cu_seqlens"):
            stage(op, case, cu_seqlens=bad)


@pytest.mark.parametrize("op", OPS)
def test_b9_chunk_indices(op):
    """Canonical ones change no bit, in any container; others are refused."""
    case = {"cu": [0, 65, 70], "HV": 1}
    want = stage(op, case)
    pairs = np.reshape(CANONICAL, (3, 2))
    for indices in (
        CANONICAL,
        pairs.tolist(),
        torch.tensor(pairs),
        torch.tensor(CANONICAL, dtype=torch.int32),
    ):
        assert kda_run.differing(stage(op, case, chunk_indices=indices), want) == []
    for bad in BAD_INDICES.values():
        with pytest.raises(ValueError, match="chunk_indices"):
            stage(op, case, chunk_indices=bad)


@pytest.mark.parametrize("op", ["prepare", "finalize"])
def test_b9_other_chunk_sizes_are_refused(op):
    for size in (32, 128):
        with pytest.raises(ValueError, match="chunk_size"):
            stage(op, {"T": 64, "HV": 1}, chunk_size=size)


def test_b10_offset_containers_give_the_same_bits():
    inputs = make_inputs({"cu": [0, 65, 70], "HV": 2, **MODEL}, 7)
    seeds = make_cotangents(inputs, 7)
    want = grad_run.gradients(inputs, seeds)
    wide = torch.tensor([0, 9, 65, 9, 70, 9])
    for cu in (
        (0, 65, 70),
        np.array([0, 65, 70], np.int32),
        wide[::2],
        torch.tensor([0, 65, 70], dtype=torch.int32),
    ):
        assert kda_run.differing(grad_run.gradients(inputs, seeds, cu_seqlens=cu), want) == []


@pytest.mark.parametrize("disable_recompute", [True, False], ids=["save", "recompute"])
def test_b11_offsets_changed_between_forward_and_backward(disable_recompute):
    """The backward belongs to the offsets that the forward saw."""
    from fla_npu.torch import npu_chunk_kda

    inputs = make_inputs({"cu": [0, 64, 128], "HV": 2}, 8)
    seeds = make_cotangents(inputs, 8, final=False)
    want = grad_run.gradients(inputs, seeds)
    leaves, cu = grad_run.requiring(kda_run.tensors_of(inputs)), torch.tensor([0, 64, 128])
    options = {**inputs.options, "cu_seqlens": cu, "use_gate_in_kernel": False}
    o, _ = npu_chunk_kda(**leaves, **options, disable_recompute=disable_recompute)
    cu[1] = 32
    o.backward(kda_run.tensor(grad_run.token_major(seeds.out, "BNSD"), "bfloat16"))
    for name, x in leaves.items():
        assert kda_run.same_bits(x.grad, want[name]), name
    again = grad_run.gradients(inputs, seeds, cu_seqlens=cu)
    assert kda_run.differing(again, grad_run.gradients(inputs, seeds, cu_seqlens=[0, 32, 128])) == []
    assert not kda_run.same_bits(again["v"], want["v"])


@pytest.mark.full
def test_b13_a_thousand_sequences_of_one_token():
    check_gradients(make_inputs({"cu": list(range(1026)), "HV": 2, **MODEL}, 9))


@pytest.mark.full
def test_b13_a_thousand_chunks_in_one_sequence():
    inputs = make_inputs({"T": 64 * 1030, "HV": 1, **MODEL}, 10)
    seeds = make_cotangents(inputs, 10)
    got, exact = grad_run.gradients(inputs, seeds), grad_run.reference(inputs, seeds, floor=False)[0]
    errors = grad_run.worst_error(got, exact)
    assert max(x for n, x in errors.items() if n != "a_log") < 7e-3 and errors["a_log"] < 0.1, errors


@pytest.mark.full
def test_b13_sixty_five_thousand_sequence_heads():
    """N * HV = 65536, every sequence one token; dv = exp(...) beta (do q.k scale + dht^T k) in closed form."""
    count = 8192
    inputs = make_inputs({"cu": list(range(count + 1)), "HK": 1, "HV": 8}, 11)
    seeds = make_cotangents(inputs, 11, final=False)
    got = grad_run.gradients(inputs, seeds)
    q, k = inputs.arrays["q"], inputs.arrays["k"]
    scores = inputs.options["scale"] * (q * k).sum(-1) * inputs.arrays["beta"]
    assert relative_l2(kda_run.array(got["v"]), scores[..., None] * seeds.out) < 6e-3
    along = (seeds.out * inputs.arrays["v"]).sum(-1)
    want = (inputs.options["scale"] * inputs.arrays["beta"] * along)[..., None] * k
    assert relative_l2(kda_run.array(got["q"]), want.sum(1, keepdims=True)) < 6e-3


@pytest.mark.full
def test_f5_states_beyond_32_bit_offsets():
    """131073 chunks of one token: h and dh have more than 2^31 elements, and the last rows are right."""
    count = 131073
    inputs = make_inputs({"cu": list(range(count + 1)), "HV": 1}, 12)
    seeds = make_cotangents(inputs, 12, final=False)
    got = grad_run.gradients(inputs, seeds)
    single = sub_sequence(inputs, 0, count - 1, count)
    last = grad_run.gradients(single, Cotangents(seeds.out[:, :, -1:]))
    for name in ("q", "k", "v", "g", "beta"):
        assert kda_run.same_bits(got[name][:, :, -1:], last[name]), name


@pytest.mark.parametrize("gate", ["bounded", "softplus"])
def test_c1_each_value_head_has_its_own_parameters(gate):
    """Six heads on two key heads have the gradients of six calls of one head, bit for bit; dq, dk are sums."""
    inputs = make_inputs({"T": 100, "HK": 2, "HV": 6, **MODEL, "gate": gate}, 1)
    inputs.arrays["a_log"] = np.float64(np.float32(np.linspace(0.0, 2.0, 6)))
    seeds = make_cotangents(inputs, 1)
    whole, parts = grad_run.gradients(inputs, seeds), []
    for head in range(6):
        pick = slice(head, head + 1)
        single = grad_run.gradients(
            one_head(inputs, head, 3), Cotangents(seeds.out[:, pick], seeds.final[:, pick])
        )
        for name in ("v", "g", "beta", "initial_state"):
            assert kda_run.same_bits(whole[name][:, pick], single[name]), f"head {head}: {name}"
        assert kda_run.same_bits(whole["a_log"][pick], single["a_log"])
        assert kda_run.same_bits(whole["dt_bias"].reshape(6, 128)[head], single["dt_bias"].reshape(128))
        parts.append(single)
    for name in ("q", "k"):
        for group in range(2):
            want = sum(kda_run.array(x[name]) for x in parts[3 * group : 3 * group + 3])
            assert relative_l2(kda_run.array(whole[name][:, group : group + 1]), want) < 6e-3


@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
def test_c2_c3_dq_and_dk_are_sums_over_consecutive_heads(layout):
    """Value heads 0 and 1 blame key head 0, 2 and 3 key head 1: with heads 2 and 3 silent, head 1 gets nothing."""
    inputs = make_inputs({"T": 20, "HK": 2, "HV": 4, "layout": layout}, 2)
    seeds = make_cotangents(inputs, 2)
    seeds.out[:, 2:] = 0.0
    seeds.final[:, 2:] = 0.0
    got = grad_run.gradients(inputs, seeds)
    axis = 1 if layout == "BNSD" else 2
    for name in ("q", "k"):
        assert got[name].shape[axis] == 2
        assert got[name].select(axis, 0).any() and not got[name].select(axis, 1).any(), name


def test_c3_sums_over_eight_heads_are_cast_once():
    """dq of eight heads that nearly cancel: a sum in bf16 would lose what is left."""
    inputs = make_inputs({"T": 66, "HK": 1, "HV": 8, "state": "float32"}, 3)
    seeds = make_cotangents(inputs, 3)
    for x in (
        inputs.arrays["v"],
        inputs.arrays["g"],
        inputs.arrays["beta"],
        inputs.initial_state,
        seeds.final,
        seeds.out,
    ):
        x[:, 1:] = x[:, :1]
    seeds.out[:, 1::2] *= -1.0
    seeds.final[:, 1::2] *= -1.0
    got = grad_run.gradients(inputs, seeds)
    one = grad_run.gradients(one_head_of(inputs), Cotangents(seeds.out[:, :1], seeds.final[:, :1]))
    for name in ("q", "k"):
        left, size = (float(x[name].double().norm()) for x in (got, one))
        assert left <= 1e-5 * size, f"{name}: {left} of {size} does not cancel"


def one_head_of(inputs):
    """The first of equal value heads."""
    case = make_inputs({"T": 66, "HK": 1, "HV": 1, "state": "float32"}, 3)
    case.arrays = {n: x if n in "qk" else x[:, :1] for n, x in inputs.arrays.items()}
    case.initial_state = inputs.initial_state[:, :1]
    return case


@pytest.mark.parametrize("cases", list(itertools.product(("float32", "bfloat16"), repeat=2)), ids=str)
def test_d9_gradients_have_the_types_of_their_inputs(cases):
    """g and beta in bf16 hold the same values: gradients are those of fp32, rounded once."""
    inputs = make_inputs({"T": 70, "HV": 2, **MODEL}, 5)
    for name in ("g", "beta"):
        inputs.arrays[name] = np.float64(kda_run.array(kda_run.tensor(inputs.arrays[name], "bfloat16")))
    seeds = make_cotangents(inputs, 5)
    wide = grad_run.gradients(inputs, seeds)
    for name, dtype in in_step(("g", "beta"), cases):
        inputs.dtypes[name] = dtype
        wide[name] = wide[name].to(kda_run.TORCH[dtype])
    assert kda_run.differing(grad_run.gradients(inputs, seeds), wide) == []


@pytest.mark.parametrize("v_first", [False, True], ids=["k_first", "v_first"])
def test_d10_no_state_equals_zeros(v_first):
    inputs = make_inputs({"T": 100, "HV": 2, "gate": "softplus", "state_v_first": v_first}, 6)
    seeds = make_cotangents(inputs, 6)
    without = grad_run.gradients(inputs, seeds)
    inputs.initial_state = np.zeros((1, 2, 128, 128))
    zeros = grad_run.gradients(inputs, seeds)
    assert zeros.pop("initial_state").any()
    assert kda_run.differing(zeros, without) == []


def test_d10_bf16_state_has_a_bf16_gradient():
    """It changes the type of dh0, and no other bit."""
    inputs = make_inputs({"T": 100, "HV": 2, "state": "bfloat16"}, 7)
    seeds = make_cotangents(inputs, 7)
    narrow = grad_run.gradients(inputs, seeds)
    inputs.state_dtype = "float32"
    wide = grad_run.gradients(inputs, seeds)
    wide["initial_state"] = wide["initial_state"].bfloat16()
    assert kda_run.differing(narrow, wide) == []


@pytest.mark.parametrize("width", [(64, 64), (256, 256), (64, 128), (128, 64)], ids=str)
def test_c6_other_widths_are_refused(width):
    t = {
        n: torch.zeros(1, 1, 4, w, dtype=torch.bfloat16)
        for n, w in (("aqk", 64), ("v_new", width[1]), ("d_o", width[1]))
    }
    t["h"] = torch.zeros(1, 1, 1, *width, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="128"):
        grad_run.bwd_prepare(t, scale=1.0)


@pytest.mark.parametrize("op", OPS)
def test_d9_other_types_are_refused(op):
    make, run = OPS[op]
    call = make({"T": 4, "HV": 1}, 1)
    tensors = grad_run.tensors_of(call)
    for name, dtype in call.dtypes.items():
        if dtype == "bfloat16":
            with pytest.raises(TypeError, match=name):
                run({**tensors, name: tensors[name].half()}, **call.options)


@pytest.mark.parametrize("op", OPS)
def test_every_case_of_the_golden_model_names_known_keys(op):
    """A key that the input builder does not read would silently test something else."""
    names = {
        "prepare": "chunk_kda_bwd_prepare",
        "dhu": "chunk_gated_delta_rule_bwd_dhu",
        "finalize": "chunk_kda_bwd_finalize",
    }
    known = {
        "B", "T", "cu", "HK", "HV", "layout", "gate", "g_scale", "mask", "l2norm", "beta", "g_dtype", "beta_dtype",
        "use_exp2", "lower_bound", "no_bias", "scale", "state", "dht", "state_v_first", "gk_dtype", "planes",
        "output_layout",
    }  # fmt: skip
    for name, case in golden_module(names[op]).CASES.items():
        assert set(case) <= known, name
