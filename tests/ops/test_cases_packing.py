# SPDX-License-Identifier: Apache-2.0
"""Tails, packed sequences and their metadata: what went wrong elsewhere, with the right answers."""

from __future__ import annotations

import kda_run
import numpy as np
import pytest
import torch
from goldens import golden_module, relative_l2
from kda_inputs import KdaInputs, make_inputs
from recurrence import kda_recurrence
from test_forward import check_forward

MODEL = {"l2norm": True, "gate": "bounded", "beta": "sigmoid", "state": "float32"}


def sub_sequence(inputs: KdaInputs, n: int, first: int, last: int) -> KdaInputs:
    """Sequence `n` of packed head-major inputs as a dense call of its own."""
    arrays = dict(inputs.arrays)
    for name in ("q", "k", "v", "g", "beta"):
        arrays[name] = arrays[name][:, :, first:last]
    options = {k: v for k, v in inputs.options.items() if k != "cu_seqlens"}
    state = None if inputs.initial_state is None else inputs.initial_state[n : n + 1]
    return KdaInputs(
        arrays, inputs.dtypes, options, inputs.mode, state, inputs.state_dtype, inputs.state_v_first
    )


def assert_packed_equals_single(inputs: KdaInputs) -> None:
    """Every stage output of a packed call has the bits of one call per sequence."""
    packed, cu, chunk = kda_run.forward(inputs), inputs.options["cu_seqlens"], 0
    for n, (a, z) in enumerate(zip(cu, cu[1:])):
        chunks = -(-(z - a) // 64)
        if a == z:
            want = kda_run.tensor(inputs.initial_state[n], inputs.state_dtype)
            assert kda_run.same_bits(packed["final_state"][n], want)
            continue
        single = kda_run.forward(sub_sequence(inputs, n, a, z))
        for name, x in single.items():
            if name == "h":
                part = packed["h"][:, chunk : chunk + chunks]
            elif name == "final_state":
                part = packed["final_state"][n : n + 1]
            else:
                part = packed[name].narrow(1 if name == "o" else 2, a, z - a)
            assert kda_run.same_bits(part, x), f"sequence {n}: {name}"
        chunk += chunks


@pytest.mark.parametrize("tokens", [65, 70, 79])
@pytest.mark.parametrize("v_first", [False, True], ids=["k_first", "v_first"])
def test_b1_final_state_of_a_tail_feeds_the_next_call(tokens, v_first):
    """The last decay is read at the last valid row, not at row 63 of the padded chunk."""
    case = {"T": 2 * tokens, "HV": 2, **MODEL, "state_v_first": v_first}
    whole = make_inputs(case, tokens)
    first, second = sub_sequence(whole, 0, 0, tokens), sub_sequence(whole, 0, tokens, 2 * tokens)
    state = check_forward(first)["final_state"]
    second.initial_state = kda_run.array(state)
    final = kda_run.array(check_forward(second)["final_state"])
    truth = kda_recurrence(**whole.recurrence_kwargs())
    assert relative_l2(final, truth["final_state"]) < 6e-3


def test_b2_packed_short_tails():
    inputs = make_inputs({"cu": [0, 65, 131, 202, 281], "HV": 2, **MODEL}, 1)
    check_forward(inputs)
    assert_packed_equals_single(inputs)


@pytest.mark.parametrize("gate", ["none", "softplus", "bounded"])
def test_packed_has_the_bits_of_one_sequence_at_a_time(gate):
    cu = [0, 1, 1, 17, 80, 144, 145, 145]
    case = {"cu": cu, "HK": 1, "HV": 2, **MODEL, "gate": gate, "state_v_first": True}
    assert_packed_equals_single(make_inputs(case, 2))


def test_b6_empty_sequences():
    """final_state of an empty sequence is its initial state; the others are not shifted."""
    inputs = make_inputs({"cu": [0, 0, 5, 5, 70, 70], "HV": 2, **MODEL}, 3)
    stages = check_forward(inputs)
    assert stages["h"].shape == (1, 3, 2, 128, 128)
    for n in (0, 2, 4):
        want = kda_run.tensor(inputs.initial_state[n], "float32")
        assert kda_run.same_bits(stages["final_state"][n], want)
    assert_packed_equals_single(inputs)


def test_b6_empty_sequences_without_a_state_end_at_zero():
    inputs = make_inputs({"cu": [0, 0, 5, 5, 70, 70], "HV": 2}, 3)
    final = kda_run.forward(inputs)["final_state"]
    assert not final[[0, 2, 4]].any() and final[[1, 3]].any()


@pytest.mark.parametrize("which", ["T", "B"])
def test_b7_empty_tensors_are_refused_by_name(which):
    inputs = make_inputs({"T": 4}, 4)
    tensors = kda_run.tensors_of(inputs)
    cut = (slice(None), slice(None), slice(0, 0)) if which == "T" else (slice(0, 0),)
    tensors = {name: x[cut] for name, x in tensors.items()}
    with pytest.raises(ValueError, match=rf"\b{which}\b"):
        kda_run.prepare(inputs, tensors)


BAD_OFFSETS = {
    "decreasing": [0, 12, 8, 128], "first_not_zero": [1, 128], "last_below_T": [0, 64, 127],
    "last_above_T": [0, 64, 129], "negative": [0, -3, 128], "one_entry": [0], "empty": [],
    "lengths": [65, 63], "two_dimensional": torch.tensor([[0, 128]]),
}  # fmt: skip


def run_stage(op: str, stages, inputs, **metadata):
    """One stage operator on what the stages before it made, with other packing metadata."""
    if op == "prepare":
        return kda_run.prepare(inputs, **metadata)
    return {"fwd_h": kda_run.fwd_h, "finalize": kda_run.finalize}[op](stages, inputs, **metadata)


@pytest.mark.parametrize("name", BAD_OFFSETS)
@pytest.mark.parametrize("op", ["prepare", "fwd_h", "finalize"])
def test_b8_bad_offsets_are_refused(op, name):
    inputs = make_inputs({"T": 128}, 5)
    stages = kda_run.forward(inputs)
    with pytest.raises(ValueError, match="cu_seqlens"):
        run_stage(op, stages, inputs, cu_seqlens=BAD_OFFSETS[name])


@pytest.mark.parametrize("op", ["prepare", "fwd_h", "finalize"])
def test_b8_offsets_need_one_batch_row_and_integers(op):
    inputs = make_inputs({"B": 2, "T": 64}, 5)
    stages = kda_run.forward(inputs)
    with pytest.raises(ValueError, match="B = 2"):
        run_stage(op, stages, inputs, cu_seqlens=[0, 64])
    with pytest.raises(TypeError, match="cu_seqlens"):
        run_stage(op, stages, inputs, cu_seqlens=[0, 64.0])
    with pytest.raises(TypeError, match="cu_seqlens"):
        run_stage(op, stages, inputs, cu_seqlens=torch.tensor([0.0, 64.0]))


CANONICAL = [0, 0, 0, 1, 1, 0]


def test_b9_canonical_indices_change_no_bit():
    inputs = make_inputs({"cu": [0, 65, 70], "HV": 2, "state": "float32"}, 6)
    want = kda_run.forward(inputs)
    pairs = np.reshape(CANONICAL, (3, 2))
    for indices in (CANONICAL, tuple(CANONICAL), pairs.tolist(), torch.tensor(pairs),
                    torch.tensor(CANONICAL, dtype=torch.int32), np.array(CANONICAL)):  # fmt: skip
        inputs.options["chunk_indices"] = indices
        stages = kda_run.prepare(inputs)
        state = kda_run.tensor(inputs.initial_state, "float32")
        stages |= kda_run.fwd_h(stages, inputs, state, chunk_indices=indices)
        stages["o"] = kda_run.finalize(stages, inputs, chunk_indices=indices)
        assert kda_run.differing(stages, want) == []


BAD_INDICES = {
    "reversed": [1, 0, 0, 1, 0, 0], "duplicated": [0, 0, 0, 0, 1, 0], "one_missing": [0, 0, 1, 0],
    "one_extra": [*CANONICAL, 1, 1], "built_for_32": [0, 0, 0, 1, 0, 2, 1, 0], "odd": CANONICAL[:-1],
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_INDICES)
@pytest.mark.parametrize("op", ["prepare", "fwd_h", "finalize"])
def test_b9_other_indices_are_refused(op, name):
    inputs = make_inputs({"cu": [0, 65, 70], "HV": 1}, 6)
    stages = kda_run.forward(inputs)
    with pytest.raises(ValueError, match="chunk_indices"):
        run_stage(op, stages, inputs, chunk_indices=BAD_INDICES[name])


def test_b9_other_chunk_sizes_are_refused():
    inputs = make_inputs({"T": 64}, 6)
    for size in (16, 32, 128, 0):
        with pytest.raises(ValueError, match="chunk_size"):
            kda_run.prepare(inputs, chunk_size=size)


def test_b10_offset_containers_give_the_same_bits():
    inputs = make_inputs({"cu": [0, 65, 70], "HV": 2}, 7)
    want = kda_run.forward(inputs)
    wide = torch.tensor([0, 9, 65, 9, 70, 9])
    containers = [(0, 65, 70), np.array([0, 65, 70]), np.array([0, 65, 70], np.int32), wide[::2]]
    containers += [torch.tensor([0, 65, 70]), torch.tensor([0, 65, 70], dtype=torch.int32)]
    for cu in containers:
        inputs.options["cu_seqlens"] = cu
        assert kda_run.differing(kda_run.forward(inputs), want) == []


def test_b11_offsets_changed_in_place_count():
    inputs = make_inputs({"T": 128, "HV": 2}, 8)
    cu = torch.tensor([0, 64, 128])
    inputs.options["cu_seqlens"] = cu
    kda_run.forward(inputs)
    cu[1] = 32
    again = kda_run.forward(inputs)
    inputs.options["cu_seqlens"] = [0, 32, 128]
    assert kda_run.differing(again, kda_run.forward(inputs)) == []


@pytest.mark.full
def test_b13_a_thousand_sequences_of_one_token():
    inputs = make_inputs({"cu": list(range(1026)), "HV": 2, **MODEL}, 9)
    check_forward(inputs)


@pytest.mark.full
def test_b13_a_thousand_chunks_in_one_sequence():
    inputs = make_inputs({"T": 64 * 1030, "HV": 1, **MODEL}, 10)
    stages = kda_run.forward(inputs)
    truth = kda_recurrence(**inputs.recurrence_kwargs())
    assert relative_l2(kda_run.array(stages["o"]).swapaxes(1, 2), truth["o"]) < 6e-3
    assert relative_l2(kda_run.array(stages["final_state"]), truth["final_state"]) < 6e-3


@pytest.mark.full
def test_b13_sixty_five_thousand_sequence_heads():
    """Prepare alone: N * HV = 65536, every sequence one token, so each row is its own chunk."""
    inputs = make_inputs({"cu": list(range(8193)), "HK": 1, "HV": 8, "mode": "none"}, 11)
    slots = kda_run.prepare(inputs)
    k, beta = inputs.arrays["k"], inputs.arrays["beta"]
    want = np.exp(inputs.arrays["g"]) * k * beta[..., None]
    assert relative_l2(kda_run.array(slots["w"]), want) < 4e-3
    assert relative_l2(kda_run.array(slots["u"]), inputs.arrays["v"] * beta[..., None]) < 4e-3


@pytest.mark.full
def test_f5_states_beyond_32_bit_offsets():
    """131073 chunks of one token: h has more than 2^31 elements, and the last ones are right."""
    count = 131073
    inputs = make_inputs({"cu": list(range(count + 1)), "HV": 1, "mode": "none"}, 12)
    stages = kda_run.prepare(inputs)
    stages |= kda_run.fwd_h(stages, inputs, output_final_state=False)
    o = kda_run.finalize(stages, inputs)
    assert stages["h"].numel() > 2**31
    assert not stages["h"][0, -1].any() and not stages["h"][0, 0].any()
    last = kda_run.forward(sub_sequence(inputs, 0, count - 1, count))
    assert kda_run.same_bits(o[:, -1:], last["o"])
    golden = golden_module("chunk_kda_fwd_finalize").golden
    tail = {n: kda_run.array(stages[n][:, :, -1:]) for n in ("qg_scaled", "aqk", "v_new")}
    want = golden(**tail, h=np.zeros((1, 1, 1, 128, 128)))["attn_out"]
    assert relative_l2(kda_run.array(o[:, -1:]), want) < 4e-3
