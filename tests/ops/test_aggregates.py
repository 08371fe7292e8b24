# SPDX-License-Identifier: Apache-2.0
"""The aggregates: against their golden models, against chains of stage operators, whatever is left out."""

from __future__ import annotations

import re

import aggregate_run
import kda_run
import pytest
import torch
from backward import make_cotangents
from goldens import ROOT, golden_module
from kda_compare import FACTOR, below_diagonal, judge
from kda_inputs import case_seed, make_inputs, to_dtype

CASES = golden_module("chunk_kda_fwd_v2").CASES
BACKWARD_CASES = golden_module("chunk_kda_bwd_v2").CASES
#: Two roundings of the operands of a score and one of the score itself (test_stages.py).
SCORE_FACTOR = {"aqk": 2.0, "akk": 2.0}
#: The stages run checked in their own tests; the aggregates, which share them, in the long tier.
BUILDS = ["fast", pytest.param("checked", marks=pytest.mark.full)]
PATTERNS = {
    "none": (),
    "no_recompute_flag": ("akk", "q_hat", "k_hat", "q_rstd", "k_rstd", "beta_eff", "final_state"),
    "states": ("h", "final_state"),
    "save": ("gk", "akk", "w", "u", "qg", "kg", "v_new", "h"),
    **{name: (name,) for name in aggregate_run.OPTIONAL},
}


def inputs_of(case: str):
    return make_inputs(CASES[case], case_seed(case))


@pytest.mark.parametrize("case", CASES)
def test_forward_against_float64(case):
    inputs = inputs_of(case)
    golden = golden_module("chunk_kda_fwd_v2").golden
    kwargs = inputs.golden_kwargs() | {
        "initial_state": inputs.initial_state,
        "state_v_first": inputs.state_v_first,
    }
    exact, rounded = golden(**kwargs), golden(**kwargs, round_slots=True)
    for name, x in aggregate_run.forward(inputs).items():
        got, want, model = kda_run.array(x), exact[name], rounded[name]
        if name == "akk":
            cu = inputs.options.get("cu_seqlens")
            got, want, model = (below_diagonal(a, cu) for a in (got, want, model))
        judge(f"fwd_v2.{name}", got, want, model, str(x.dtype)[6:], SCORE_FACTOR.get(name, FACTOR))


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("planes", [False, True], ids=["one_plane", "two_planes"])
@pytest.mark.parametrize("case", CASES)
def test_forward_has_the_bits_of_the_chain(case, planes, build, twin):
    inputs = inputs_of(case)
    want = aggregate_run.forward_chain(inputs, planes)
    twin(mode=build)
    assert kda_run.differing(aggregate_run.forward(inputs, planes=planes), want) == []


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("case", ["packed", "v_first"])
def test_forward_writes_the_same_whatever_is_left_out(case, pattern):
    inputs = inputs_of(case)
    want = aggregate_run.forward(inputs)
    got = aggregate_run.forward(inputs, PATTERNS[pattern])
    assert kda_run.differing(got, {n: want[n] for n in got}) == []


@pytest.mark.parametrize("mode", BUILDS)
@pytest.mark.parametrize("case", ["grouped", "packed_empty", "ragged_tail"])
def test_forward_on_any_number_of_cores(case, mode, twin):
    inputs = inputs_of(case)
    want = aggregate_run.forward(inputs)
    for cores in (1, 3, 20):
        twin(mode=mode, cores=cores)
        assert kda_run.differing(aggregate_run.forward(inputs), want) == [], f"{cores} cores"


def test_forward_on_any_number_of_threads(twin):
    """Repeated, because who sleeps when all cores meet depends on the machine."""
    inputs = inputs_of("grouped")
    want = aggregate_run.forward(inputs)
    for threads in (1, 2, 5) * 4:
        twin(threads=threads)
        assert kda_run.differing(aggregate_run.forward(inputs), want) == [], f"{threads} threads"


def test_forward_workspace_is_what_its_page_says(twin):
    """Relays per row and per state, then scratch that does not know T."""
    twin(cores=1)
    sizes = []
    for tokens in (64, 128, 640):
        inputs = make_inputs({"T": tokens, "HV": 2, "gate": "bounded"})
        for wanted in ((), aggregate_run.OPTIONAL):
            values, out = aggregate_run.forward_values(inputs, wanted)
            sizes.append(aggregate_run.call("chunk_kda_fwd_v2", {**values, **out}))
    scratch = sizes[0] - 2560 * 64 * 2
    assert sizes[::2] == [scratch + 2560 * tokens * 2 for tokens in (64, 128, 640)]
    assert sizes[1::2] == [scratch + 768 * tokens * 2 for tokens in (64, 128, 640)]
    assert scratch < (16 << 20) + (1 << 20)


REFUSALS = {
    "aqk missing": ({"aqk": None}, "output aqk is missing"),
    "no a_log": ({"use_gate_in_kernel": True}, "chunk_kda_fwd_v2: a_log is missing"),
    "safe without gate": ({"safe_gate": True}, "chunk_kda_fwd_v2: safe_gate is true, but use_gate"),
    "epsilon": ({"epsilon": 0.0}, "chunk_kda_fwd_v2: epsilon = 0"),
    "allow_neg": ({"allow_neg_eigval": True}, "chunk_kda_fwd_v2: allow_neg_eigval is true"),
    "scale": ({"scale": float("inf")}, "chunk_kda_fwd_v2: scale = inf"),
    "chunk_size": ({"chunk_size": 32}, "chunk_size is 32; it must be 64"),
    "layout": ({"layout": "SBND"}, 'layout is "SBND"'),
    "packed batch": ({"cu_seqlens": [0, 3, 70]}, "cu_seqlens is given with B = 2"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_forward_refuses(name):
    from fla_npu.errors import ArgumentError

    changes, words = REFUSALS[name]
    inputs = make_inputs({"B": 2, "T": 70, "HV": 2})
    with pytest.raises(ArgumentError, match=re.escape(words)):
        aggregate_run.forward(inputs, **changes)


def backward_case(case: str, planes: bool = True):
    """What aggregate_run.backward takes."""
    inputs = make_inputs(BACKWARD_CASES[case], case_seed(case))
    return aggregate_run.backward_inputs(inputs, make_cotangents(inputs), planes)


#: A handful of sums of thousands of terms: their errors are single draws of a normal variable.
FEW = {"da_log": 3.0}


@pytest.mark.parametrize(
    ("op", "case"),
    [(op, case) for op in ("chunk_kda_bwd", "chunk_kda_bwd_v2") for case in golden_module(op).CASES],
)
def test_backward_against_float64(op, case):
    """The model starts from what this forward saved; the floor is what its own slots cost."""
    values, saved = backward_case(case)
    arrays = {n: kda_run.array(x) if isinstance(x, torch.Tensor) else x for n, x in (values | saved).items()}
    golden = golden_module(op).golden
    exact, rounded = golden(**arrays), golden(**arrays, round_slots=True)
    for name, x in aggregate_run.backward(values, saved, op).items():
        got, want, model = kda_run.array(x), exact[name], rounded[name]
        want, model = (y.reshape(got.shape) for y in (want, model))
        if name == "dh0":
            model = to_dtype(model, str(x.dtype)[6:])
        judge(f"{op[10:]}.{name}", got, want, model, str(x.dtype)[6:], FEW.get(name, FACTOR))


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("planes", [False, True], ids=["one_plane", "two_planes"])
@pytest.mark.parametrize("case", BACKWARD_CASES)
def test_backward_has_the_bits_of_the_chain(case, planes, build, twin):
    values, saved = backward_case(case, planes)
    want = aggregate_run.backward_chain(values, saved)
    twin(mode=build)
    assert kda_run.differing(aggregate_run.backward(values, saved), want) == []


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("case", BACKWARD_CASES)
def test_recompute_has_the_bits_of_save(case, build, twin):
    values, saved = backward_case(case)
    want = aggregate_run.backward(values, saved)
    twin(mode=build)
    assert kda_run.differing(aggregate_run.backward(values, None), want) == []
    scores = {n: saved[n] for n in ("gk", "aqk", "akk")}
    assert kda_run.differing(aggregate_run.backward({**values, **scores}, None), want) == []


@pytest.mark.parametrize("case", ["one_row", "grouped", "bf16_inputs"])
def test_the_two_versions_differ_in_type_only(case):
    values, saved = backward_case(case)
    new = aggregate_run.backward(values, saved)
    old = aggregate_run.backward(values, saved, "chunk_kda_bwd")
    for name in ("dq", "dk"):
        assert old[name].dtype == torch.float32
        old[name] = old[name].bfloat16()
    assert kda_run.differing(old, new) == []


@pytest.mark.parametrize("left_out", [("dh0",), ("da_log",), ("ddt_bias",), ("dh0", "da_log", "ddt_bias")])
@pytest.mark.parametrize("recompute", [False, True], ids=["save", "recompute"])
def test_backward_writes_the_same_whatever_is_left_out(left_out, recompute):
    values, saved = backward_case("ragged_tail")
    saved = None if recompute else saved
    want = aggregate_run.backward(values, saved)
    got = aggregate_run.backward(values, saved, **dict.fromkeys(left_out))
    assert kda_run.differing(got, {n: want[n] for n in got}) == [] and not set(left_out) & got.keys()


@pytest.mark.parametrize("dtype", [torch.bfloat16, None], ids=["bf16", "none"])
def test_dht_in_another_type_or_none(dtype):
    values, saved = backward_case("packed_empty")
    dht = values["dht"].bfloat16()
    values["dht"] = dht if dtype else None
    same = {**values, "dht": dht.float() if dtype else torch.zeros_like(dht, dtype=torch.float32)}
    got, want = aggregate_run.backward(values, saved), aggregate_run.backward(same, saved)
    assert kda_run.differing(got, want) == []


@pytest.mark.parametrize("mode", BUILDS)
@pytest.mark.parametrize("case", ["grouped", "packed_empty"])
def test_backward_on_any_number_of_cores(case, mode, twin):
    values, saved = backward_case(case)
    want = aggregate_run.backward(values, saved)
    for cores in (1, 3, 20):
        twin(mode=mode, cores=cores)
        assert kda_run.differing(aggregate_run.backward(values, None), want) == [], f"{cores} cores"


def test_backward_on_any_number_of_threads(twin):
    values, saved = backward_case("grouped")
    want = aggregate_run.backward(values, saved)
    for threads in (1, 2, 5) * 3:
        twin(threads=threads)
        assert kda_run.differing(aggregate_run.backward(values, None), want) == [], f"{threads} threads"


def test_backward_workspace_is_what_its_page_says(twin):
    """Relays per row and per state, a record per chunk, then scratch that does not know T."""
    twin(cores=1)
    sizes = {True: [], False: []}
    lengths = (64, 128, 640)
    for tokens in lengths:
        inputs = make_inputs({"T": tokens, "HV": 2, "gate": "bounded"})
        values, saved = aggregate_run.backward_inputs(inputs, make_cotangents(inputs))
        out = aggregate_run.gradient_outputs(values)
        for save in sizes:
            given = {**values, **(saved if save else {}), **out, "disable_recompute": save}
            sizes[save].append(aggregate_run.call("chunk_kda_bwd_v2", given))
    for save, per_row in ((True, 1536), (False, 4096)):
        scratch = sizes[save][0] - (per_row + 16) * 64 * 2
        assert sizes[save] == [scratch + (per_row + 16) * tokens * 2 for tokens in lengths]
        assert scratch < (16 << 20) + (4 << 20)


BACKWARD_REFUSALS = {
    "saved and recompute": ({"disable_recompute": False}, "w is given, but disable_recompute is false"),
    "v_new missing": ({"v_new": None}, "v_new is missing (null); disable_recompute is true"),
    "gk missing": ({"gk": None}, "gk is missing (null); disable_recompute is true"),
    "raw_g missing": ({"raw_g": None}, "raw_g is missing (null)"),
    "one rstd": ({"k_rstd": None}, "q_rstd is given without k_rstd"),
    "no gate": ({"use_gate_in_kernel": False}, "da_log is given, but use_gate_in_kernel is false"),
    "no state": ({"initial_state": None}, "dh0 is given, but initial_state is null"),
    "no a_log": ({"a_log": None}, "a_log is missing"),
    "scale": ({"scale": float("nan")}, "scale = nan is not a finite float32"),
}


@pytest.mark.parametrize("name", BACKWARD_REFUSALS)
def test_backward_refuses(name):
    from fla_npu.errors import ArgumentError

    changes, words = BACKWARD_REFUSALS[name]
    values, saved = backward_case("ragged_tail")
    with pytest.raises(ArgumentError, match=re.escape("chunk_kda_bwd_v2: " + words)):
        aggregate_run.backward(values, saved, **changes)


def test_backward_refuses_mixed_ranks_and_types():
    from fla_npu.errors import ArgumentError

    values, saved = backward_case("one_row")
    with pytest.raises(ArgumentError, match="d_o has rank 3, but q has rank 4"):
        aggregate_run.backward({**values, "d_o": values["d_o"][0]}, saved)
    with pytest.raises(ArgumentError, match="initial_state is float32, but dh0 is bfloat16"):
        aggregate_run.backward(values, saved, dh0=values["initial_state"].bfloat16())


def meeting_lines() -> list[str]:
    """`<file>:<line>` of the places where all cores meet between stages."""
    path = ROOT / "ascendc/common/stages/aggregate/run_stage.h"
    lines = path.read_text().splitlines()
    return [f"{path.name}:{i}" for i, line in enumerate(lines, 1) if re.search(r"\bSyncAll<", line)]


@pytest.mark.parametrize("line", meeting_lines())
def test_all_cores_must_meet_between_stages(line, twin):
    from fla_npu.errors import TwinFault

    values, _ = backward_case("one_chunk")
    twin(mode="checked", cores=2, skip=line)
    with pytest.raises(TwinFault):
        aggregate_run.forward(inputs_of("one_chunk"), ())
    with pytest.raises(TwinFault):
        aggregate_run.backward(values, None)
