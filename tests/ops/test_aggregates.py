# SPDX-License-Identifier: Apache-2.0
"""The aggregates: against their golden models, against chains of stage operators, whatever is left out."""

from __future__ import annotations

import re

import aggregate_run
import kda_run
import pytest
from goldens import ROOT, golden_module
from kda_compare import FACTOR, below_diagonal, judge
from kda_inputs import case_seed, make_inputs

CASES = golden_module("chunk_kda_fwd_v2").CASES
#: Two roundings of the operands of a score and one of the score itself (test_stages.py).
SCORE_FACTOR = {"aqk": 2.0, "akk": 2.0}
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


@pytest.mark.parametrize("build", ["fast", "checked"])
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


@pytest.mark.parametrize("mode", ["fast", "checked"])
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


def meeting_lines() -> list[str]:
    """`<file>:<line>` of the places where all cores meet between stages."""
    path = ROOT / "ascendc/common/stages/aggregate/run_stage.h"
    lines = path.read_text().splitlines()
    return [f"{path.name}:{i}" for i, line in enumerate(lines, 1) if re.search(r"\bSyncAll<", line)]


@pytest.mark.parametrize("line", meeting_lines())
def test_all_cores_must_meet_between_stages(line, twin):
    from fla_npu.errors import TwinFault

    twin(mode="checked", cores=2, skip=line)
    with pytest.raises(TwinFault):
        aggregate_run.forward(inputs_of("one_chunk"), ())
