# SPDX-License-Identifier: Apache-2.0
"""Seeded inputs of the three backward operators: values that their types hold, and what must come out.

A case is an entry of `CASES` of the operator's golden model. Each function returns a `StageCase`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from backward import backward_stages, finalize_kwargs, make_cotangents, saved_slots
from goldens import golden_module
from kda_inputs import WIDTH, make_inputs, to_bf16, to_dtype


@dataclass
class StageCase:
    """A call of one operator: arrays (float64) with their types, options, the exact result and its floor."""

    arrays: dict[str, np.ndarray]
    dtypes: dict[str, str]
    options: dict
    exact: dict[str, np.ndarray]
    rounded: dict[str, np.ndarray]
    #: Which type an output has, where its golden model does not fix it.
    out_dtypes: dict[str, str] = field(default_factory=dict)


def prepare_case(case: dict, seed: int = 0) -> StageCase:
    """bwd_prepare; aqk carries noise above the diagonal, which must not be read."""
    rng = np.random.default_rng(seed)
    cu, heads = case.get("cu"), case["HV"]
    batch, tokens = case.get("B", 1), cu[-1] if cu else case["T"]
    lengths = [b - a for a, b in zip(cu, cu[1:])] if cu else [tokens]
    arrays = {
        "aqk": rng.standard_normal((batch, heads, tokens, 64)) / 11.3,
        "v_new": rng.standard_normal((batch, heads, tokens, WIDTH)),
        "d_o": rng.standard_normal((batch, heads, tokens, WIDTH)),
        "h": rng.standard_normal((batch, sum(-(-n // 64) for n in lengths), heads, WIDTH, WIDTH)),
    }
    layout = case.get("layout", "BNSD")
    arrays = {name: to_bf16(x[0] if layout == "NTD" else x) for name, x in arrays.items()}
    options = {"scale": case.get("scale", WIDTH**-0.5), "layout": layout}
    options |= {"state_v_first": case.get("state_v_first", False)} | ({"cu_seqlens": list(cu)} if cu else {})
    golden = golden_module("chunk_kda_bwd_prepare").golden
    exact, rounded = (golden(**arrays, **options, round_slots=r) for r in (False, True))
    return StageCase(arrays, dict.fromkeys(arrays, "bfloat16"), options, exact, rounded)


def dhu_case(case: dict, seed: int = 0) -> StageCase:
    """dhu, fed with what prepare and bwd_prepare would hand on."""
    inputs = make_inputs({**case, "HK": 1, "use_exp2": case.get("use_exp2", True)}, seed)
    slots, seeds = (
        saved_slots(inputs, True, wide=False),
        make_cotangents(inputs, seed, final=bool(case.get("dht"))),
    )
    local = backward_stages(inputs, slots, seeds, True)["dv_local"]
    arrays = {
        "q": slots["qg"],
        "k": slots["kg"],
        "w": slots["w"],
        "d_o": seeds.out,
        "dv": local,
        "gk": slots["gk"],
    }
    dtypes = dict.fromkeys(arrays, "bfloat16") | {"gk": case.get("gk_dtype", "float32")}
    for name, kind, x in (
        ("h0", case.get("state"), inputs.initial_state),
        ("dht", case.get("dht"), seeds.final),
    ):
        if kind:
            arrays[name], dtypes[name] = x, kind
    arrays = {name: to_dtype(x, dtypes[name]) for name, x in arrays.items()}
    options = {n: inputs.options[n] for n in ("scale", "use_exp2", "cu_seqlens") if n in inputs.options}
    options["state_v_first"] = inputs.state_v_first
    golden = golden_module("chunk_gated_delta_rule_bwd_dhu").golden
    exact, rounded = (golden(**arrays, **options, round_slots=r) for r in (False, True))
    if case.get("state"):
        rounded["dh0"] = to_dtype(rounded["dh0"], case["state"])
    kinds = {"dh0": case.get("state"), "dh": "bfloat16", "dv2": "bfloat16"}
    return StageCase(arrays, dtypes, options, exact, rounded, kinds)


FINALIZE_BF16 = ("q", "k", "v", "akk", "v_new", "h", "dh", "dv_scan")
OPTIONS = (
    "scale", "use_exp2", "use_gate_in_kernel", "safe_gate", "lower_bound", "cu_seqlens", "output_layout",
    "state_v_first",
)  # fmt: skip


def finalize_case(case: dict, seed: int = 0) -> StageCase:
    """bwd_finalize on a rounded chain's slots.

    Its outputs carry the error of those slots, which no kernel can undo. `rounded` is therefore the exact
    result on the given slots plus that error: a kernel may add no more than what is in its inputs anyway.
    """
    inputs = make_inputs({**case, "layout": "BNSD"}, seed)
    seeds, results = make_cotangents(inputs, seed), []
    golden = golden_module("chunk_kda_bwd_finalize").golden
    for rounded in (False, True):
        slots = saved_slots(inputs, rounded, wide=case.get("planes", False))
        stages = slots | backward_stages(inputs, slots, seeds, rounded)
        kwargs = finalize_kwargs(inputs, stages) | {"state_v_first": inputs.state_v_first}
        rank3, layout = case.get("layout") == "NTD", case.get("output_layout")
        kwargs["output_layout"] = layout or ("NTD" if rank3 else "BNSD")
        if inputs.state_v_first:
            kwargs["h"] = np.swapaxes(kwargs["h"], -1, -2)
        if rank3:
            shared = ("a_log", "dt_bias", *OPTIONS)
            kwargs = {n: x if n in shared or x is None else x[0] for n, x in kwargs.items()}
        if rounded:
            kwargs["beta"] = to_dtype(kwargs["beta"], case.get("beta_dtype", "float32"))
        results.append(golden(**kwargs, round_slots=rounded))
    arrays = {n: x for n, x in kwargs.items() if n not in OPTIONS and x is not None}
    dtypes = {n: "bfloat16" if n in FINALIZE_BF16 else "float32" for n in arrays}
    dtypes |= {"raw_g": case.get("g_dtype", "float32"), "beta": case.get("beta_dtype", "float32")}
    same = golden(**kwargs)
    same = {n: x for n, x in same.items() if x is not None}
    floor = {n: x + results[1][n] - results[0][n] for n, x in same.items()}
    options = {n: kwargs[n] for n in OPTIONS if n in kwargs}
    return StageCase(arrays, dtypes, options, same, floor, {"dbeta": dtypes["beta"]})
