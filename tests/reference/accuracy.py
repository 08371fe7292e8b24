# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/accuracy.md: python tests/reference/accuracy.py [--write]

Runs npu_chunk_kda and the six stage operators on model-like inputs, forward and backward, and prints the
relative L2 error of every quantity against float64 beside the floor: the error of a float64 model that
rounds what the operators publish, and nothing else, to its type. Both are root mean squares over seeds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "ops")]

import grad_run  # noqa: E402
import kda_run  # noqa: E402
from backward import (  # noqa: E402
    Cotangents,
    backward_stages,
    finalize_kwargs,
    make_cotangents,
    saved_slots,
)
from goldens import golden_module, relative_l2  # noqa: E402
from kda_compare import below_diagonal  # noqa: E402
from kda_inputs import make_inputs, to_bf16  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "accuracy.md"
BEGIN, END = "<!-- figures: tests/reference/accuracy.py -->\n", "<!-- end of figures -->\n"

MODEL = {"T": 512, "HK": 2, "HV": 2, "gate": "bounded", "l2norm": True, "beta": "sigmoid", "layout": "BSND"}
CASES = {
    "dense": {**MODEL, "B": 2},
    "state": {**MODEL, "B": 2, "state": "float32"},
    "packed": {**MODEL, "cu": [0, 100, 100, 357, 960], "layout": "TND", "state": "float32"},
    "grouped": {**MODEL, "HV": 6},
    "softplus": {**MODEL, "B": 2, "gate": "softplus"},
    "no gate": {**MODEL, "B": 2, "gate": "none"},
    "bf16 gate": {**MODEL, "B": 2, "g_dtype": "bfloat16", "beta_dtype": "bfloat16"},
}
#: Inputs away from a model's: see `limit_inputs`.
LIMITS = {
    "equal keys, beta 0.98, no decay": {"keys": "equal", "logit": 4.0},
    "equal keys, beta 1.96, no decay": {"keys": "equal", "logit": 4.0, "beta": "negative"},
    "nearly equal keys, beta 1.96, no decay": {"keys": "near", "logit": 4.0, "beta": "negative"},
    "nearly equal keys, beta 1.96, decay 0.9": {
        "keys": "near",
        "logit": 4.0,
        "beta": "negative",
        "step": -0.105,
    },
    "40 % of the steps -1000": {"mask": 0.4},
    "loss on final_state only, T = 65": {"T": 65, "g_scale": 20.0, "final": True},
}
NAMES = {
    "o": "o", "final_state": "final_state", "q": "dq", "k": "dk", "v": "dv", "g": "dg", "beta": "dbeta",
    "a_log": "dA_log", "dt_bias": "ddt_bias", "initial_state": "dh0",
}  # fmt: skip
#: Slots of the stages, in the order in which a training step makes them.
STAGES = {
    "chunk_kda_fwd_prepare": (
        "gk", "aqk", "akk", "w", "u", "qg", "kg", "qg_scaled", "q_hat", "k_hat", "q_rstd", "k_rstd", "beta_eff",
    ),
    "chunk_fwd_h": ("h", "v_new", "final_state"),
    "chunk_kda_fwd_finalize": ("o",),
    "chunk_kda_bwd_prepare": ("d_aqk", "dv_local", "dq_raw"),
    "chunk_gated_delta_rule_bwd_dhu": ("dh", "dh0", "dv2"),
    "chunk_kda_bwd_finalize": ("dq", "dk", "dv", "dbeta", "dg", "da_log", "ddt_bias"),
}  # fmt: skip


def model_inputs(case: dict, seed: int):
    """(inputs, cotangents) of an entry of CASES; a loss on the final state where there is a first one."""
    inputs = make_inputs(case, seed)
    return inputs, make_cotangents(inputs, seed, final=bool(case.get("state")))


def call_scores(inputs, seeds) -> dict[str, tuple[float, float]]:
    """{quantity: (error, floor)} of npu_chunk_kda."""
    got = grad_run.gradients(inputs, seeds)
    exact, rounded = grad_run.reference(inputs, seeds)
    scores = {
        NAMES[n]: (relative_l2(kda_run.array(x), exact[n]), relative_l2(rounded[n], exact[n]))
        for n, x in got.items()
    }
    if "a_log" in got:  # one number per head, left over by cancellation: its floor is that of four draws
        draws = (grad_run.scaled_chain(inputs, seeds, *d)["a_log"] for d in grad_run.DRAWS)
        floors = [scores["dA_log"][1], *(relative_l2(x, exact["a_log"]) for x in draws)]
        scores["dA_log"] = scores["dA_log"][0], rms(floors)
    return scores


def limit_inputs(case: dict, seed: int):
    """(inputs, cotangents) of an entry of LIMITS: one head, T = 128, gate steps given."""
    beta = case.get("beta", "sigmoid")
    model = {"T": 128, "l2norm": True, "beta": beta}
    inputs = make_inputs(model | {n: case[n] for n in ("T", "mask", "g_scale") if n in case}, seed)
    arrays, seeds = inputs.arrays, make_cotangents(inputs, seed, final=True)
    if "keys" in case:
        noise = {"equal": 0.0, "near": 0.1}[case["keys"]]
        arrays["k"] = to_bf16(arrays["k"][..., :1, :] + noise * arrays["k"])
        arrays["g"] = np.full_like(arrays["g"], case.get("step", 0.0))
        arrays["beta"] = np.full_like(arrays["beta"], case["logit"])
    if case.get("final"):
        # The last key's gradient is the sum of its row of new values: small against the row itself.
        arrays["v"][..., -1, :] = to_bf16(arrays["v"][..., -1, :] - arrays["v"][..., -1, :].mean() + 0.003)
        seeds = Cotangents(np.zeros_like(seeds.out), np.ones_like(seeds.final))
    return inputs, seeds


def stage_slots(inputs, seeds, rounded: bool) -> dict[str, np.ndarray]:
    """Every slot of the six operators in a row by the golden models, with the ABI's bf16 slots."""
    slots = saved_slots(inputs, rounded, wide=False)
    slots |= backward_stages(inputs, slots, seeds, rounded)
    last = golden_module("chunk_kda_bwd_finalize").golden(
        **finalize_kwargs(inputs, slots), round_slots=rounded
    )
    return slots | last


def stage_scores(seed: int) -> dict[str, tuple[float, float]]:
    """{slot: (error, floor)} of the stage operators called one after another, each with what the last made."""
    inputs = make_inputs({**CASES["state"], "layout": "BNSD"}, seed)
    seeds = make_cotangents(inputs, seed)
    made = grad_run.chain(inputs, seeds)
    made["o"] = kda_run.finalize(made, inputs)
    got = {n: kda_run.array(x) for n, x in made.items()}
    exact, rounded = (stage_slots(inputs, seeds, r) for r in (False, True))
    for slots in (got, exact, rounded):  # its diagonal of ones is exact, and would hide the rest
        slots["akk"] = below_diagonal(slots["akk"])
        slots["ddt_bias"] = slots["ddt_bias"].reshape(-1)
    names = [n for slots in STAGES.values() for n in slots]
    return {n: (relative_l2(got[n], exact[n]), relative_l2(rounded[n], exact[n])) for n in names}


def rms(values) -> float:
    return float(np.sqrt(np.mean(np.square(list(values)))))


def mean_scores(runs: list[dict]) -> dict[str, tuple[float, float]]:
    """Root mean squares over seeds."""
    return {n: tuple(rms(run[n][i] for run in runs) for i in (0, 1)) for n in runs[0]}


def cell(score: tuple[float, float] | None) -> str:
    """'0.312 % / 0.305 %', or parts per million where per cent have no digits."""
    if score is None:
        return ""
    unit, text = (1e2, "%") if max(score) >= 1e-4 else (1e6, "ppm")
    return " / ".join(f"{x * unit:.3g}" for x in score) + f" {text}"


def report(count: int) -> str:
    """Both tables in Markdown."""
    table = {}
    for name, case in CASES.items():
        print(f"{name} ..", file=sys.stderr, flush=True)
        table[name] = mean_scores([call_scores(*model_inputs(case, seed)) for seed in range(count)])
    lines = [
        f"Root mean squares over {count} seed{'s' * (count > 1)}. npu_chunk_kda, error / floor:",
        "",
        "| | " + " | ".join(CASES) + " |",
        "| --- |" + " --- |" * len(CASES),
        *(f"| {n} | " + " | ".join(cell(t.get(n)) for t in table.values()) + " |" for n in NAMES.values()),
        "",
        "Stage operators in a row, input `state`, error / floor:",
        "",
        "| operator | output | error / floor |",
        "| --- | --- | --- |",
    ]
    stages = mean_scores([stage_scores(seed) for seed in range(count)])
    for op, slots in STAGES.items():
        lines += [f"| {op} | {n} | {cell(stages[n])} |" for n in slots]
    lines += ["", "Away from model-like inputs, npu_chunk_kda, error / floor:", ""]
    shown = [n for n in NAMES.values() if n not in ("dA_log", "ddt_bias", "dh0")]
    lines += ["| | " + " | ".join(shown) + " |", "| --- |" + " --- |" * len(shown)]
    for name, case in LIMITS.items():
        scores = mean_scores([call_scores(*limit_inputs(case, seed)) for seed in range(count)])
        lines.append(f"| {name} | " + " | ".join(cell(scores[n]) for n in shown) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    given = parser.parse_args()
    tables = report(given.seeds)
    print(tables)
    if given.write:
        head, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(head + BEGIN + tables + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
