# SPDX-License-Identifier: Apache-2.0
"""The aclnn entry itself: contract refusals and their words, memory rules, workspace, executors."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from acl_calls import Acl, Call, Tensor, bwd_dhu, bwd_prepare, finalize, fwd_h, prepare

NULL, INVALID = 161001, 161002


@pytest.fixture(scope="module")
def acl():
    return Acl()


def bf16(*shape: int) -> Tensor:
    return Tensor.zeros(shape, "bfloat16")


def fp32(*shape: int) -> Tensor:
    return Tensor.zeros(shape, "float32")


REFUSALS = {
    # presence
    "input missing": (fwd_h(w=None), NULL, "chunk_fwd_h: w is missing (null); it is required"),
    "required though named Optional": (
        fwd_h(gk=None),
        NULL,
        "chunk_fwd_h: gk is missing (null); it is required",
    ),
    "output missing": (fwd_h(h=None), NULL, "chunk_fwd_h: output h is missing (null); it is required"),
    "layout missing": (
        finalize(output_layout=None),
        NULL,
        "attribute output_layout is missing (null); it is one of BSND, BNSD",
    ),
    "data missing": (
        fwd_h(u=Tensor(bf16(1, 1, 64, 128).array, "bfloat16", null_data=True)),
        NULL,
        "chunk_fwd_h: u has no data",
    ),
    "port not served": (
        fwd_h(g=fp32(1, 1, 64)),
        INVALID,
        "chunk_fwd_h: g is given; the scalar gate belongs to",
    ),
    "final state unasked": (
        fwd_h(final_state=fp32(1, 1, 128, 128)),
        INVALID,
        "output final_state is given, but output_final_state is false",
    ),
    "final state without room": (
        fwd_h(output_final_state=True),
        INVALID,
        "output final_state is missing (null), but output_final_state is true",
    ),
    "no such mode": (
        prepare(qg=bf16(1, 1, 64, 128)),
        INVALID,
        "optional outputs given: qg; that is no mode. Modes: none (none); forward (akk); recompute (akk, q_hat",
    ),
    # dtypes
    "dtype": (
        fwd_h(k=Tensor.zeros((1, 1, 64, 128), "float16")),
        INVALID,
        "chunk_fwd_h: k is float16; it must be bfloat16",
    ),
    "dtype of two": (
        fwd_h(gk=Tensor.zeros((1, 1, 64, 128), "int32")),
        INVALID,
        "chunk_fwd_h: gk is int32; it must be float32 or bfloat16",
    ),
    "dtype of output": (
        fwd_h(v_new=fp32(1, 1, 64, 128)),
        INVALID,
        "chunk_fwd_h: output v_new is float32; it must be bfloat16",
    ),
    # shapes
    "rank": (
        fwd_h(k=bf16(1, 64, 128)),
        INVALID,
        "chunk_fwd_h: k has rank 3, shape [1, 64, 128]; expected [B, HV, T, K]",
    ),
    "rank of a layout": (
        finalize(qg_scaled=bf16(1, 64, 128)),
        INVALID,
        "expected [B, HV, T, K] for output_layout BSND",
    ),
    "letters clash": (
        fwd_h(w=bf16(1, 1, 63, 128)),
        INVALID,
        "chunk_fwd_h: w dim 2 (T) is 63, but k has T = 64",
    ),
    "fixed letter": (fwd_h(k=bf16(1, 1, 64, 64)), INVALID, "chunk_fwd_h: k dim 3 (K) is 64; it must be 128"),
    "zero tokens": (fwd_h(T=0, NT=1), INVALID, "chunk_fwd_h: k dim 2 (T) is 0; it must be at least 1"),
    "chunk count": (
        fwd_h(T=100, NT=3),
        INVALID,
        "output h dim 1 (NT) is 3, but T = 100 in chunks of 64 makes NT = 2",
    ),
    "product": (
        prepare(use_gate_in_kernel=True, a_log=fp32(1), dt_bias=fp32(64)),
        INVALID,
        "dt_bias dim 0 is 64, but HV*K = 128",
    ),
    "a packed rank-3 call has one batch entry": (
        finalize(layout="TND", v_new=bf16(2, 1, 64, 128)),
        INVALID,
        "v_new dim 0 is 2; it must be 1",
    ),
    "state count": (
        fwd_h(initial_state=fp32(2, 1, 128, 128)),
        INVALID,
        "initial_state dim 0 (N) is 2, but there is one state per batch entry, so N = 1",
    ),
    # attributes
    "layout": (
        finalize(output_layout="BHTD"),
        INVALID,
        'output_layout is "BHTD"; it must be one of BSND, BNSD, TND, NTD',
    ),
    "lower case": (prepare(layout="bnsd"), INVALID, 'layout is "bnsd"; it must be one of'),
    "chunk size": (fwd_h(chunk_size=32), INVALID, "chunk_size is 32; it must be 64"),
    "new value": (fwd_h(save_new_value=False), INVALID, "save_new_value is false; it must be true"),
    # packed sequences
    "offsets in a batch": (
        fwd_h(B=2, cu_seqlens=[0, 64]),
        INVALID,
        "cu_seqlens is given with B = 2; packed sequences need B = 1",
    ),
    "one offset": (fwd_h(cu_seqlens=[0]), INVALID, "cu_seqlens has 1 entries; one sequence needs 2"),
    "first offset": (fwd_h(cu_seqlens=[1, 64]), INVALID, "cu_seqlens[0] = 1; the first offset must be 0"),
    "offsets decrease": (
        fwd_h(cu_seqlens=[0, 40, 30, 64]),
        INVALID,
        "cu_seqlens[2] = 30 is below cu_seqlens[1] = 40; offsets must not decrease",
    ),
    "last offset": (
        fwd_h(cu_seqlens=[0, 63]),
        INVALID,
        "cu_seqlens ends at 63, but T = 64; the last offset must be T",
    ),
    "packed chunk count": (
        fwd_h(cu_seqlens=[0, 10, 64]),
        INVALID,
        "output h dim 1 (NT) is 1, but cu_seqlens makes NT = 2",
    ),
    "packed state count": (
        fwd_h(NT=2, cu_seqlens=[0, 10, 64], initial_state=fp32(1, 1, 128, 128)),
        INVALID,
        "but cu_seqlens makes N = 2",
    ),
    "indices alone": (fwd_h(chunk_indices=[0, 0]), INVALID, "chunk_indices is given without cu_seqlens"),
    "indices too few": (
        fwd_h(NT=2, cu_seqlens=[0, 10, 64], chunk_indices=[0, 0]),
        INVALID,
        "chunk_indices has 2 entries, but cu_seqlens makes 2 chunks, so 4 entries",
    ),
    "indices out of order": (
        fwd_h(NT=2, cu_seqlens=[0, 10, 64], chunk_indices=[1, 0, 0, 0]),
        INVALID,
        "chunk_indices[0] is 1, but the canonical order of cu_seqlens has 0 there",
    ),
    # what a plan knows and the contract does not
    "ranks mixed": (
        bwd_prepare(v_new=bf16(1, 64, 128)),
        INVALID,
        "v_new has rank 3, but aqk has rank 4: give all tensors with a batch axis, or none",
    ),
    "states of another rank": (
        bwd_prepare(rank=3, h=bf16(1, 1, 1, 128, 128)),
        INVALID,
        "h has rank 5, but aqk has rank 3",
    ),
    "scale of scores not finite": (
        bwd_prepare(scale=1e39),
        INVALID,
        "scale = 1e+39 is not a finite float32",
    ),
    "scale of queries not finite": (
        bwd_dhu(scale=float("nan")),
        INVALID,
        "scale = nan is not a finite float32",
    ),
    "h0 without dh0": (
        bwd_dhu(h0=fp32(1, 1, 128, 128)),
        INVALID,
        "h0 is given, but dh0 is null: give both or none",
    ),
    "dh0 without h0": (
        bwd_dhu(dh0=fp32(1, 1, 128, 128)),
        INVALID,
        "h0 is null, but dh0 is given: give both or none",
    ),
    "dh0 of another type": (
        bwd_dhu(h0=bf16(1, 1, 128, 128), dh0=fp32(1, 1, 128, 128)),
        INVALID,
        "h0 is bfloat16, but dh0 is float32: dh0 comes in the type of h0",
    ),
    "scalar gate of the backward": (
        bwd_dhu(g=fp32(1, 1, 64)),
        INVALID,
        "g is given; the scalar gate belongs to",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusal(acl, case):
    call, status, text = REFUSALS[case]
    assert acl.phase_one(call)[0] == status, acl.error()
    message = acl.error()
    assert message.startswith(call.op + ": ") and text in message, message
    assert acl.error() == "", "the text is handed over once"


def test_right_calls_pass(acl):
    for call in (fwd_h(), finalize(), prepare(), prepare(mode="save"), fwd_h(T=100, HV=2, B=2)):
        assert acl.run(call) == 0, acl.error()
    for layout in ("BSND", "BNSD", "TND", "NTD"):
        assert acl.run(finalize(T=70, HV=2, layout=layout)) == 0, acl.error()
    assert acl.run(finalize(layout="NTD", v_new=bf16(1, 1, 64, 128))) == 0, acl.error()
    state = {"h0": fp32(1, 2, 128, 128), "dht": bf16(1, 2, 128, 128), "dh0": fp32(1, 2, 128, 128)}
    for call in (bwd_dhu(), bwd_dhu(T=70, HV=2, **state), bwd_prepare(T=70, HV=2), bwd_prepare(rank=3)):
        assert acl.run(call) == 0, acl.error()


def test_indices_are_made_when_left_out(acl):
    cu = [0, 10, 10, 64]
    for indices in (None, [0, 0, 2, 0]):
        assert acl.run(fwd_h(NT=2, cu_seqlens=cu, chunk_indices=indices)) == 0, acl.error()


# Memory


def test_output_over_input(acl):
    shared = bf16(1, 1, 64, 128)
    call = fwd_h(u=shared, v_new=shared)
    assert acl.phase_one(call)[0] == INVALID
    assert "output v_new shares memory with input u" in acl.error()


def test_outputs_over_each_other(acl):
    memory = np.zeros(128 * 128 + 64 * 128, np.uint16)
    h = Tensor(memory[: 128 * 128].reshape(1, 1, 1, 128, 128), "bfloat16")
    v_new = Tensor(memory[128 * 128 - 1 :][: 64 * 128].reshape(1, 1, 64, 128), "bfloat16")
    assert acl.phase_one(fwd_h(h=h, v_new=v_new))[0] == INVALID
    assert "shares memory with output" in acl.error()
    v_new.array = memory[128 * 128 :].reshape(1, 1, 64, 128)
    assert acl.run(fwd_h(h=h, v_new=v_new)) == 0, acl.error()


def test_inputs_may_share(acl):
    shared = bf16(1, 1, 64, 128)
    assert acl.run(fwd_h(k=shared, w=shared, u=shared)) == 0, acl.error()


def test_strided_output(acl):
    wide = np.zeros((1, 1, 64, 256), np.uint16)
    call = fwd_h(v_new=Tensor(wide[..., :128], "bfloat16"))
    assert acl.phase_one(call)[0] == INVALID
    assert "output v_new is not contiguous; outputs must be" in acl.error()


def random_finalize(seed: int) -> Call:
    rng = np.random.default_rng(seed)
    call = finalize(T=70, HV=2)
    for name in ("qg_scaled", "aqk", "v_new", "h"):
        array = call.arguments[name].array
        # the upper half of small float32 numbers: bfloat16 values without a conversion
        array[...] = (rng.standard_normal(array.shape).astype(np.float32).view(np.uint32) >> 16).astype(
            np.uint16
        )
    return call


@pytest.mark.parametrize("view", ["transposed", "wide rows", "offset", "reversed heads"])
def test_strided_input_gives_the_same_bits(acl, view):
    plain = random_finalize(3)
    assert acl.run(plain) == 0, acl.error()
    strided = random_finalize(3)
    data = strided.arguments["v_new"].array
    if view == "transposed":
        made = np.ascontiguousarray(data.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    elif view == "wide rows":
        made = np.zeros((*data.shape[:-1], 200), np.uint16)[..., 7:135]
        made[...] = data
    elif view == "offset":
        made = np.zeros((3, *data.shape[1:]), np.uint16)[1:2]
        made[...] = data
    else:
        made = np.ascontiguousarray(data[:, ::-1])[:, ::-1]
    strided.arguments["v_new"] = Tensor(made, "bfloat16")
    assert acl.run(strided) == 0, acl.error()
    assert plain.arguments["attn_out"].array.any()
    assert np.array_equal(plain.arguments["attn_out"].array, strided.arguments["attn_out"].array)


# Workspace and executors


def test_workspace_holds_system_user_and_copies(acl):
    plain = acl.phase_one(finalize(T=70, HV=2))[1]
    call = finalize(T=70, HV=2)
    data = call.arguments["v_new"].array
    call.arguments["v_new"] = Tensor(np.zeros((1, 70, 2, 128), np.uint16).transpose(0, 2, 1, 3), "bfloat16")
    assert plain >= 16 << 20
    assert acl.phase_one(call)[1] - plain == -(-data.nbytes // 512) * 512


def test_workspace_too_small(acl):
    status, size, executor = acl.phase_one(finalize())
    assert status == 0
    assert acl.phase_two("chunk_kda_fwd_finalize", np.empty(100, np.uint8), 100, executor) == INVALID
    assert f"workspace has 100 bytes; phase 1 asked for {size}" in acl.error()
    executor = acl.phase_one(finalize())[2]
    assert acl.phase_two("chunk_kda_fwd_finalize", None, size, executor) == NULL
    assert "workspace is null" in acl.error()


def test_executor_runs_once(acl):
    call = finalize()
    _, size, executor = acl.phase_one(call)
    workspace = np.empty(size, np.uint8)
    assert acl.phase_two(call.op, workspace, size, executor) == 0, acl.error()
    assert acl.phase_two(call.op, workspace, size, executor) == INVALID
    assert "ran before or was destroyed" in acl.error()
    assert acl.phase_two(call.op, workspace, size, ctypes.c_void_p()) == NULL


def test_repeatable_executor(acl):
    call = random_finalize(5)
    _, size, executor = acl.phase_one(call)
    assert acl.twin.aclSetAclOpExecutorRepeatable(executor) == 0
    workspace = np.empty(size, np.uint8)
    results = []
    for _ in range(3):
        call.arguments["attn_out"].array[...] = 0
        assert acl.phase_two(call.op, workspace, size, executor) == 0, acl.error()
        results.append(call.arguments["attn_out"].array.copy())
    assert all(np.array_equal(results[0], again) for again in results[1:])
    assert acl.twin.aclDestroyAclOpExecutor(executor) == 0
    assert acl.phase_two(call.op, workspace, size, executor) == INVALID


def test_descriptions_may_go_after_phase_one(acl):
    """The executor owns copies: tensors and integer arrays may be destroyed before phase 2."""
    call = fwd_h(NT=2, cu_seqlens=[0, 10, 64])
    words = acl.words(call)
    size, executor = ctypes.c_uint64(), ctypes.c_void_p()
    assert acl.api.aclnnChunkFwdHGetWorkspaceSize(*words, ctypes.byref(size), ctypes.byref(executor)) == 0
    ints = words[9]
    acl.twin.aclDestroyIntArray(ints)
    junk = [acl.ints([7] * 3) for _ in range(64)]  # takes the freed memory
    for word in words:
        if isinstance(word, ctypes.c_void_p) and word is not ints:
            acl.twin.aclDestroyTensor(word)
    assert acl.phase_two(call.op, np.empty(size.value, np.uint8), size.value, executor) == 0, acl.error()
    assert len(junk) == 64


def test_null_results_of_phase_one(acl):
    words = acl.words(finalize())
    size = ctypes.c_uint64()
    assert acl.api.aclnnChunkKdaFwdFinalizeGetWorkspaceSize(*words, ctypes.byref(size), None) == NULL
    assert "workspaceSize and executor must not be null" in acl.error()


def test_epsilon_that_may_be_flushed_is_refused():
    acl = Acl()
    assert acl.run(prepare(epsilon=1e-38)) == 161002
    assert "epsilon = 1e-38" in acl.error()


@pytest.mark.parametrize(
    ("name", "value"),
    [("ISA", "sse"), ("SEED", "9" * 30), ("SKIP", ":5"), ("CORES", "0"), ("SOC", "Ascend910B")],
)
def test_a_switch_of_the_twin_that_is_not_understood_fails_the_launch(name, value, monkeypatch):
    monkeypatch.setenv(f"FLA_NPU_TWIN_{name}", value)
    acl = Acl()
    assert acl.run(finalize()) == 507015
    assert f"FLA_NPU_TWIN_{name}={value} is not understood" in acl.error()
