# SPDX-License-Identifier: Apache-2.0
"""The two summary operators through the aclnn call on torch tensors, and seeded inputs for them."""

from __future__ import annotations

from dataclasses import dataclass

import aggregate_run
import kda_run
import numpy as np
import torch
from goldens import golden_module
from kda_inputs import WIDTH, case_seed, make_inputs, to_dtype

FORWARD, BACKWARD = "pre_process_fwd_kernel_merged", "pre_process_bwd_kernel_merged"
OUTPUT = {FORWARD: "hm", BACKWARD: "dhm"}
#: Tensors of a call, in the order of the public functions.
PORTS = {FORWARD: ("k", "w", "u", "gk"), BACKWARD: ("q", "k", "w", "d_o", "dv", "gk")}


def run(op: str, t: dict, cu_seqlens=None, **options) -> torch.Tensor:
    """The summary of a call: hm [N, HV, K, V + K] or dhm [HV, K, V + K], poisoned before."""
    heads, tokens = t["w"].shape[1:3]
    if op == FORWARD and cu_seqlens is None:
        cu_seqlens = (0, tokens)
    lead = (len(cu_seqlens) - 1,) if op == FORWARD else ()
    out = aggregate_run.empty((*lead, heads, WIDTH, 2 * WIDTH), torch.float32)
    ints = {} if cu_seqlens is None else {"cu_seqlens": [int(x) for x in cu_seqlens]}
    aggregate_run.call(
        op, {n: t[n] for n in PORTS[op] if t.get(n) is not None} | ints | options | {OUTPUT[op]: out}
    )
    return out


@dataclass
class SummaryCase:
    """A call: tensors, their values in float64, its options, the exact result and its floor."""

    op: str
    tensors: dict[str, torch.Tensor]
    arrays: dict[str, np.ndarray]
    options: dict

    def run(self, **changes) -> torch.Tensor:
        return run(self.op, self.tensors | changes, **self.options)

    def golden(self, round_slots: bool = False) -> np.ndarray:
        golden = golden_module(self.op).golden
        return golden(**self.arrays, **self.options, round_slots=round_slots)[OUTPUT[self.op]]


def make(op: str, case: dict, seed: int = 0) -> SummaryCase:
    """What the preparing stages would hand on, rounded to its types. `case`: an entry of the golden's CASES."""
    heads = case["HV"]
    shared = heads // case.get("HK", heads)
    inputs = make_inputs({n: x for n, x in case.items() if n not in ("cu", "HK", "scale")}, seed)
    slots = golden_module("chunk_kda_fwd_prepare").golden(**inputs.golden_kwargs(), round_slots=True)
    arrays = {"k": slots["kg"][:, ::shared], "w": slots["w"], "gk": slots["gk"]}
    if op == FORWARD:
        arrays["u"] = slots["u"] * (1.0 + 2.0**-10)  # with bits that float32 alone keeps
    else:
        rng = np.random.default_rng(seed)
        arrays["q"] = slots["qg"][:, ::shared]
        arrays |= {n: rng.standard_normal(slots["u"].shape) for n in ("d_o", "dv")}
    dtypes = dict.fromkeys(arrays, "bfloat16")
    dtypes |= {"gk": case.get("gk_dtype", "float32"), "u": case.get("u_dtype", "bfloat16")}
    if dtypes["gk"] is None:
        del arrays["gk"]
    arrays = {name: to_dtype(x, dtypes[name]) for name, x in arrays.items()}
    tensors = {name: kda_run.tensor(x, dtypes[name]) for name, x in arrays.items()}
    options = {"cu_seqlens": case["cu"]} if "cu" in case else {}
    if op == BACKWARD:
        options["scale"] = case.get("scale", WIDTH**-0.5)
    return SummaryCase(op, tensors, arrays, options)


def named(op: str, name: str) -> SummaryCase:
    """A case of the golden model by its name."""
    return make(op, golden_module(op).CASES[name], case_seed(name))


def blocks(summary) -> dict:
    """E and M, the halves of a summary."""
    return {"E": summary[..., :WIDTH], "M": summary[..., WIDTH:]}


def prepared(case: dict, seed: int = 0) -> dict[str, torch.Tensor]:
    """Tensors for both operators, and for the stages beside them, of one well-formed call (cu in `case`)."""
    inputs = make_inputs({**case, "l2norm": True, "gate": "bounded"}, seed)
    slots = kda_run.prepare(inputs)
    rng = np.random.default_rng(seed)
    values = {n: kda_run.tensor(rng.standard_normal(slots["u"].shape), "bfloat16") for n in ("d_o", "dv")}
    return {"q": slots["qg"], "k": slots["kg"], **{n: slots[n] for n in ("w", "u", "gk")}, **values}
