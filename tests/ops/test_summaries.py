# SPDX-License-Identifier: Apache-2.0
"""Summaries of windows: the affine maps [E | M] of a state and of its gradient."""

from __future__ import annotations

from functools import cache

import grad_run
import kda_run
import numpy as np
import pytest
import summary_run
import torch
from acl_calls import Acl, Call, Tensor
from goldens import golden_module, relative_l2
from kda_compare import FACTOR, GUARD, judge
from kda_inputs import WIDTH
from summary_run import BACKWARD, FORWARD, blocks

OPS = (FORWARD, BACKWARD)
#: Gates that let the first chunk count to the end, which those of the golden models do not.
SLOW = {"slow_decay": {"T": 400, "HV": 2, "g_scale": 0.01}, "no_decay": {"T": 150, "HV": 2, "g_scale": 0.0}}
CASES = [(op, name) for op in OPS for name in (*golden_module(op).CASES, *SLOW)]
#: Below what float32 holds: a block that decays can fall so far.
TINY = 1e-30
both = pytest.mark.parametrize("op", OPS, ids=["fwd", "bwd"])


@cache
def case_of(op: str, name: str):
    return summary_run.make(op, SLOW[name]) if name in SLOW else summary_run.named(op, name)


@cache
def dense(op: str, tokens: int):
    return summary_run.make(op, {"T": tokens, "HV": 2}, tokens)


def fresh(op: str, tokens: int):
    """A dense call whose tensors and arrays may be written to."""
    case = dense(op, tokens)
    tensors = {n: x.clone() for n, x in case.tensors.items()}
    arrays = {n: x.copy() for n, x in case.arrays.items()}
    return summary_run.SummaryCase(op, tensors, arrays, case.options)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return kda_run.same_bits(a.contiguous(), b.contiguous())


#: Long on the checked twin, and like another case there.
LONG = {"long", "slow_decay", "resets", "strong_decay", "window", "one_chunk", "windows"}
BUILDS = [pytest.param(*case, "fast", id=f"{case[0][12:15]}-{case[1]}-fast") for case in CASES]
BUILDS += [
    pytest.param(
        *c, "checked", id=f"{c[0][12:15]}-{c[1]}-checked", marks=[pytest.mark.full] if c[1] in LONG else []
    )
    for c in CASES
]


@pytest.mark.parametrize(("op", "name", "build"), BUILDS)
def test_values(op, name, build, twin):
    case = case_of(op, name)
    out = case.run()
    if build == "checked":
        twin(mode="checked")
        assert same(case.run(), out)
        return
    exact, rounded = (blocks(case.golden(r)) for r in (False, True))
    for block, x in blocks(kda_run.array(out)).items():
        judge(f"{op[12:15]}.{block}", x, exact[block], rounded[block], "float32", noise=TINY)


def cut(case, first: int, last: int) -> dict:
    return {n: x[:, :, first:last].contiguous() for n, x in case.tensors.items()}


@both
@pytest.mark.parametrize("rows", [1, 63, 64, 65, 130])
def test_a_window_has_the_bits_of_its_tokens_alone(op, rows):
    """Nothing outside of a window is read, wherever it lies."""
    case = fresh(op, 140)
    first, last = 7, 7 + rows
    alone = summary_run.run(op, cut(case, first, last), **case.options)
    assert torch.isfinite(alone).all()
    for x in case.tensors.values():
        x[:, :, :first] = x[:, :, last:] = float("nan")
    whole = summary_run.run(op, case.tensors, cu_seqlens=(first, last), **case.options)
    assert same(whole, alone)


def test_windows_do_not_know_each_other():
    case = summary_run.make(FORWARD, {"T": 300, "HV": 3}, 1)
    edges = [2, 3, 66, 67, 131, 260, 299]
    together = summary_run.run(FORWARD, case.tensors, edges)
    for n, (first, last) in enumerate(zip(edges, edges[1:])):
        assert same(together[n], summary_run.run(FORWARD, cut(case, first, last))[0]), (first, last)


def test_only_the_first_window_counts_backwards():
    case = summary_run.make(BACKWARD, {"T": 150, "HV": 2}, 2)
    want = summary_run.run(BACKWARD, case.tensors, (10, 90), **case.options)
    for rest in ((100, 150), (90, 90), (5, 1000)):
        assert same(summary_run.run(BACKWARD, case.tensors, (10, 90, *rest), **case.options), want)
    whole = summary_run.run(BACKWARD, case.tensors, (0, 150), **case.options)
    assert same(summary_run.run(BACKWARD, case.tensors, **case.options), whole)


@both
@pytest.mark.parametrize("gk_dtype", ["float32", "bfloat16"])
def test_g1_every_head_reads_its_own_gate(op, gk_dtype):
    """g = 0 everywhere, then -10 a token in heads 1 to 3: those change, head 0 keeps its bits."""
    case = summary_run.make(op, {"T": 128, "HV": 4, "gk_dtype": gk_dtype}, 3)
    gk = torch.zeros_like(case.tensors["gk"])
    open_ = case.run(gk=gk)
    gk[:, 1:] = -10.0 * (torch.arange(128) % 64 + 1)[None, None, :, None]
    shut = case.run(gk=gk)
    heads = [same(open_[..., h, :, :], shut[..., h, :, :]) for h in range(4)]
    assert heads == [True, False, False, False]
    gk[:, 1] = 0.0
    again = case.run(gk=gk)
    heads = [same(open_[..., h, :, :], again[..., h, :, :]) for h in range(4)]
    assert heads == [True, True, False, False]


@both
@pytest.mark.parametrize("gate", [0.0, -1.0, -126.0, -149.5, -1000.0, float("-inf")])
def test_gates_from_open_to_shut(op, gate):
    """Any decay, also in some channels only: no NaN, and what golden says."""
    case = fresh(op, 100)
    case.arrays["gk"][:] = -0.5
    case.arrays["gk"][:, 1, :, ::3] = case.arrays["gk"][:, 0, :64] = gate
    case.tensors["gk"] = kda_run.tensor(case.arrays["gk"], "float32")
    out = blocks(kda_run.array(case.run()))
    exact, rounded = (blocks(case.golden(r)) for r in (False, True))
    for block, x in out.items():
        judge(f"{op[12:15]}.{block}", x, exact[block], rounded[block], "float32", noise=TINY)


@both
def test_a_reset_forgets_the_first_chunks(op):
    """-inf at a chunk's end, and no keys in it: M is zero, and E that of the chunks behind it."""
    case = summary_run.make(op, {"T": 192, "HV": 2}, 5)
    t = case.tensors
    t["gk"][:, :, 64:128] = float("-inf")
    for name in ("q", "k", "w"):
        if name in t:
            t[name][:, :, 64:128] = 0.0
    out = blocks(case.run())
    kept = (128, 192) if op == FORWARD else (0, 64)
    assert not out["M"].any()
    want = blocks(
        summary_run.run(op, t, kept, **{n: x for n, x in case.options.items() if n != "cu_seqlens"})
    )
    assert torch.equal(out["E"], want["E"])


@both
def test_grouped_heads_equal_repeated_keys(op):
    case = summary_run.make(op, {"T": 130, "HV": 6, "HK": 2}, 6)
    repeated = {n: x.repeat_interleave(6 // x.shape[1], 1) for n, x in case.tensors.items()}
    assert same(case.run(**repeated), case.run())


def test_absent_gate_means_no_decay():
    case = case_of(BACKWARD, "no_gate")
    assert same(case.run(gk=torch.zeros_like(case.tensors["w"]).float()), case.run())


@both
def test_types_that_hold_the_same_values_give_the_same_bits(op):
    case = case_of(op, "gk_bf16")
    changes = {n: case.tensors[n].float() for n in ("gk", "u") if n in case.tensors}
    assert same(case.run(**changes), case.run())


@both
def test_views(op):
    """Inputs may be any view: here slices of wider rows and of more heads."""
    case = case_of(op, "window")
    views = {}
    for name, x in case.tensors.items():
        wide = torch.full((1, 2 * x.shape[1], x.shape[2], 140), float("nan"), dtype=x.dtype)
        wide[:, ::2, :, 5:133] = x
        views[name] = wide[:, ::2, :, 5:133]
    assert not views["w"].is_contiguous()
    assert same(case.run(**views), case.run())


@both
def test_threads_cores_and_schedules(op, twin):
    case = case_of(op, "grouped_windows" if op == FORWARD else "grouped_window")
    want = case.run()
    for threads in (1, 3):
        twin(threads=threads)
        assert same(case.run(), want), f"{threads} threads"
    for cores in (1, 3, 24):
        for mode in ("fast", "checked"):
            twin(mode=mode, cores=cores)
            assert same(case.run(), want), f"{cores} cores, {mode}"
    for seed, copies in ((1, "late"), (7, "eager"), (12345, "late")):
        twin(mode="checked", cores=2, seed=seed, copies=copies)
        assert same(case.run(), want), f"seed {seed}, {copies}"


@pytest.mark.full
@both
def test_many_schedules(op, twin):
    case = case_of(op, "ragged_tail")
    want = case.run()
    for seed in range(40):
        twin(mode="checked", seed=seed, cores=(1, 2, 5, 20)[seed % 4])
        assert same(case.run(), want), f"seed {seed}"


@pytest.mark.full
def test_many_windows_and_heads(twin):
    """More items than lanes by far, windows of one token among them."""
    rng = np.random.default_rng(8)
    edges = np.unique(rng.integers(0, 1500, 300))
    case = summary_run.make(FORWARD, {"T": 1500, "HV": 5, "cu": [int(x) for x in edges]}, 8)
    out = case.run()
    exact, rounded = case.golden(), case.golden(True)
    judge("fwd.windows", kda_run.array(out), exact, rounded, "float32")
    twin(mode="checked", cores=4)
    assert same(case.run(), out)


def summary_case(op: str, t: dict) -> summary_run.SummaryCase:
    names = summary_run.PORTS[op]
    arrays = {n: kda_run.array(t[n]) for n in names}
    return summary_run.SummaryCase(
        op, {n: t[n] for n in names}, arrays, {"scale": 0.1} if op == BACKWARD else {}
    )


@both
def test_summaries_of_parts_join_to_that_of_the_whole(op):
    """Cut between chunks: the map of the later part after that of the earlier one, forward; backward the other way."""
    case = summary_run.make(op, {"T": 230, "HV": 2, "g_scale": 0.01}, 12)
    runs = []
    for edges in ((0, 230), (0, 128), (128, 230)):
        out = summary_run.run(
            op, case.tensors, edges, **{n: x for n, x in case.options.items() if n != "cu_seqlens"}
        )
        runs.append({n: x.reshape(2, WIDTH, WIDTH) for n, x in blocks(kda_run.array(out)).items()})
    whole, first, last = runs
    then = (last, first) if op == FORWARD else (first, last)
    joined = {"M": then[0]["M"] @ then[1]["M"], "E": then[0]["M"] @ then[1]["E"] + then[0]["E"]}
    for block, x in blocks(case.golden()).items():
        x, floor = x.reshape(2, WIDTH, WIDTH), blocks(case.golden(True))[block]
        allowed = 2 * FACTOR * relative_l2(floor.reshape(x.shape), x) + GUARD["float32"]
        assert 1e-4 < allowed < 1e-2
        assert relative_l2(joined[block], x) <= allowed
        assert relative_l2(joined[block], whole[block]) <= allowed


def test_public_functions_make_this_call():
    from fla_npu.ops import ascendc

    case, other = case_of(FORWARD, "grouped_windows"), case_of(BACKWARD, "grouped_window")
    t, options = case.tensors, case.options
    for name in (FORWARD, f"npu_{FORWARD}"):
        assert same(getattr(ascendc, name)(t["k"], t["w"], t["u"], gk=t["gk"], **options), case.run())
    t, cu = other.tensors, tuple(other.options["cu_seqlens"])
    values = [t[n] for n in ("q", "k", "w", "d_o", "dv")]
    for name in (BACKWARD, f"npu_{BACKWARD}"):
        out = getattr(ascendc, name)(*values, other.options["scale"], 64, gk=t["gk"], cu_seqlens=cu)
        assert same(out, other.run())


@pytest.mark.full
@pytest.mark.parametrize("seed", range(60))
def test_any_legal_call(seed, twin):
    """Random sizes, windows, heads, types and gates: right, and the same on the checked twin."""
    rng = np.random.default_rng(1000 + seed)
    op = OPS[seed % 2]
    keys, tokens = int(rng.integers(1, 4)), int(rng.integers(1, 260))
    case = {
        "T": tokens,
        "HK": keys,
        "HV": keys * int(rng.integers(1, 4)),
        "g_scale": float(rng.choice([0.01, 0.1, 2.0])),
    }
    case["mask"] = float(rng.choice([0.0, 0.0, 0.3]))
    case |= {
        "gk_dtype": str(rng.choice(["float32", "bfloat16"])),
        "u_dtype": str(rng.choice(["float32", "bfloat16"])),
    }
    edges = np.unique(rng.integers(0, tokens + 1, int(rng.integers(2, 7))))
    if len(edges) > 1 and seed % 3:
        case["cu"] = [int(x) for x in edges]
    made = summary_run.make(op, case, seed)
    twin(cores=int(rng.integers(1, 8)))
    out = made.run()
    exact, rounded = (blocks(made.golden(r)) for r in (False, True))
    for block, x in blocks(kda_run.array(out)).items():
        judge(f"any.{block}", x, exact[block], rounded[block], "float32", noise=TINY)
    twin(mode="checked", seed=seed)
    assert same(made.run(), out)


@pytest.mark.parametrize("tokens", [64, 200])
def test_the_map_of_a_state_is_what_the_chunks_do_to_it(tokens):
    """M @ H_in + E is the final state of the state stage from H_in."""
    t = summary_run.prepared({"T": tokens, "HV": 3}, 9)
    case = summary_case(FORWARD, t)
    before = torch.randn(1, 3, WIDTH, WIDTH, generator=torch.Generator().manual_seed(9))
    stage = {"kg": t["k"], **{n: t[n] for n in ("w", "u", "gk")}}
    options = {"output_final_state": True, "use_exp2": True}
    from fla_npu.ops.ascendc import chunk_fwd_h

    after = chunk_fwd_h(
        *(stage[n] for n in ("kg", "w", "u")), gk=stage["gk"], initial_state=before, **options
    )[2]
    own = golden_module("chunk_fwd_h").golden
    kwargs = case.arrays | {"initial_state": before.double().numpy(), "use_exp2": True}
    exact, rounded = (own(**kwargs, round_slots=r)["final_state"] for r in (False, True))
    maps = [blocks(x) for x in (kda_run.array(case.run()), case.golden(), case.golden(True))]
    got, true, model = (m["M"] @ before.double().numpy() + m["E"] for m in maps)
    assert relative_l2(true, exact) < 1e-12
    judge("fwd.after", got, exact, model, "float32")
    allowed = FACTOR * (relative_l2(model, exact) + relative_l2(rounded, exact)) + GUARD["float32"]
    assert relative_l2(got, kda_run.array(after)) <= allowed


@pytest.mark.parametrize("tokens", [64, 200])
def test_the_map_of_a_gradient_is_what_the_chunks_do_to_it(tokens):
    """M @ dH_end + E is dh0 of the gradient stage from dht = dH_end."""
    t = summary_run.prepared({"T": tokens, "HV": 3}, 10)
    case = summary_case(BACKWARD, t)
    after = torch.randn(1, 3, WIDTH, WIDTH, generator=torch.Generator().manual_seed(10))
    before = grad_run.dhu(t | {"h0": after, "dht": after}, scale=0.1, use_exp2=True)["dh0"]
    own = golden_module("chunk_gated_delta_rule_bwd_dhu").golden
    kwargs = case.arrays | {"scale": 0.1, "use_exp2": True, "dht": after.double().numpy()}
    exact, rounded = (own(**kwargs, h0=kwargs["dht"], round_slots=r)["dh0"] for r in (False, True))
    maps = [blocks(x) for x in (kda_run.array(case.run()), case.golden(), case.golden(True))]
    got, true, model = ((m["M"] @ after.double().numpy()[0] + m["E"])[None] for m in maps)
    assert relative_l2(true, exact) < 1e-12
    judge("bwd.before", got, exact, model, "float32")
    allowed = FACTOR * (relative_l2(model, exact) + relative_l2(rounded, exact)) + GUARD["float32"]
    assert relative_l2(got, kda_run.array(before)) <= allowed


@pytest.mark.parametrize("tokens", [1, 64, 200])
def test_the_backward_map_is_the_transpose_of_the_forward_map(tokens):
    t = summary_run.prepared({"T": tokens, "HV": 3}, 11)
    cases = [summary_case(op, t) for op in OPS]
    forward, backward = (blocks(kda_run.array(case.run()))["M"] for case in cases)
    turned = np.swapaxes(forward[0], -1, -2)
    floors = [relative_l2(blocks(c.golden(True))["M"], blocks(c.golden())["M"]) for c in cases]
    assert relative_l2(backward, turned) <= FACTOR * sum(floors) + GUARD["float32"]
    assert not np.array_equal(backward, forward[0]) or tokens == 1


def test_scale_counts_for_queries_only():
    case = case_of(BACKWARD, "window")
    options = {n: x for n, x in case.options.items() if n != "scale"}
    zero, one, two = (
        blocks(kda_run.array(summary_run.run(BACKWARD, case.tensors, scale=s, **options)))
        for s in (0.0, 1.0, 2.0)
    )
    assert np.array_equal(zero["M"], one["M"]) and np.array_equal(one["M"], two["M"])
    assert np.abs(two["E"] - one["E"] - (one["E"] - zero["E"])).max() <= 0.02 * np.abs(one["E"]).max()
    assert np.abs(one["E"] - zero["E"]).max() > 0.1


def plain(op: str, T: int = 64, HK: int = 1, HV: int = 1, **changes) -> Call:
    """A right call at the C interface with `changes` put over it (None removes an argument)."""
    arguments = {n: Tensor.zeros((1, HV, T, WIDTH), "bfloat16") for n in summary_run.PORTS[op]}
    arguments |= {n: Tensor.zeros((1, HK, T, WIDTH), "bfloat16") for n in ("q", "k") if n in arguments}
    arguments["gk"] = Tensor.zeros((1, HV, T, WIDTH), "float32")
    lead = (1,) if op == FORWARD else ()
    arguments[summary_run.OUTPUT[op]] = Tensor.zeros((*lead, HV, WIDTH, 2 * WIDTH), "float32")
    return Call(op, arguments | ({"cu_seqlens": [0, T]} if op == FORWARD else {}) | changes)


NULL, INVALID = 161001, 161002
BAD = {
    "no_windows": (FORWARD, {"cu_seqlens": None}, NULL, "cu_seqlens is missing (null); it is required"),
    "no_gate": (FORWARD, {"gk": None}, NULL, "gk is missing (null)"),
    "one_edge": (FORWARD, {"cu_seqlens": [0]}, INVALID, "cu_seqlens has 1 entries; one window needs 2"),
    "below_0": (FORWARD, {"cu_seqlens": [-1, 5]}, INVALID, "cu_seqlens[0] = -1; a window begins at token 0 or later"),
    "empty": (BACKWARD, {"cu_seqlens": [5, 5]}, INVALID, "cu_seqlens[1] = 5 is not above cu_seqlens[0] = 5"),
    "beyond_t": (BACKWARD, {"cu_seqlens": [0, 65]}, INVALID, "cu_seqlens[1] = 65, but T = 64; windows lie inside"),
    "windows": (FORWARD, {"cu_seqlens": [0, 5, 9]}, INVALID, "hm dim 0 (N) is 1, but cu_seqlens makes N = 2"),
    "heads": (FORWARD, {"HK": 2, "HV": 3}, INVALID, "HV = 3 value heads do not share HK = 2 key heads evenly"),
    "more_key_heads": (BACKWARD, {"HK": 2}, INVALID, "HV = 1 value heads do not share HK = 2 key heads evenly"),
    "batch": (FORWARD, {"k": Tensor.zeros((2, 1, 64, WIDTH), "bfloat16")}, INVALID, "k dim 0 (B) is 2; it must be 1"),
    "chunk": (BACKWARD, {"chunk_size": 32}, INVALID, "chunk_size is 32; it must be 64"),
    "scale": (BACKWARD, {"scale": float("inf")}, INVALID, "scale = inf is not a finite float32"),
    "scalar_gate": (FORWARD, {"g": Tensor.zeros((1, 1, 64), "float32")}, INVALID, "pass gk, one decay per key channel"),
    "bg": (FORWARD, {"bg": Tensor.zeros((1, 1, 64, WIDTH), "bfloat16")}, INVALID, "leave it out"),
    "v": (FORWARD, {"v": Tensor.zeros((1, 1, 64, WIDTH), "bfloat16")}, INVALID, "pass u, which holds the values"),
    "wide_dv": (BACKWARD, {"dv": Tensor.zeros((1, 1, 64, WIDTH), "float32")}, INVALID, "dv is float32"),
    "narrow": (BACKWARD, {"dhm": Tensor.zeros((1, WIDTH, WIDTH), "float32")}, INVALID, "(KV) is 128; it must be 256"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_refusals(name):
    op, changes, status, text = BAD[name]
    acl = Acl()
    assert acl.run(plain(op, **changes)) == status
    said = acl.error()
    assert text in said and said.startswith(op)


@both
def test_the_plain_call_is_right(op):
    acl = Acl()
    assert acl.run(plain(op)) == 0, acl.error()
