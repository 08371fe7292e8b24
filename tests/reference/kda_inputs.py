# SPDX-License-Identifier: Apache-2.0
"""Seeded inputs for the operators, in float64 NumPy with values that bf16 or fp32 hold exactly.

A case is a small dict (see `CASES` of the golden models); `make_inputs` turns it into arrays and options
named as in the contracts. Nothing here imports a framework.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np
from goldens import golden_module
from recurrence import from_head_major

WIDTH = 128  # K = V


def to_bf16(x):
    """Nearest bfloat16 of float64 values, as float64."""
    return golden_module("chunk_kda_fwd_prepare").bf16(np.asarray(x, np.float64))


def to_dtype(x, dtype: str):
    """`x` rounded to "bfloat16" or "float32", kept as float64."""
    return to_bf16(x) if dtype == "bfloat16" else np.asarray(x, np.float32).astype(np.float64)


def unit_rows(x):
    """Rows of length one."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-30)


@dataclass
class KdaInputs:
    """Arrays (float64), the dtype each has on the device, and the options of the call."""

    arrays: dict[str, np.ndarray]
    dtypes: dict[str, str]
    options: dict
    mode: str = "save"
    #: As the operators take it: [N, HV, K, V], or [N, HV, V, K] with state_v_first.
    initial_state: np.ndarray | None = None
    state_dtype: str = "float32"
    state_v_first: bool = False

    def golden_kwargs(self) -> dict:
        """Keyword arguments of Prepare's golden model."""
        return {**self.arrays, **self.options}

    def recurrence_kwargs(self) -> dict:
        """Keyword arguments of the token recurrence."""
        kwargs = {**self.arrays, **self.options}
        kwargs.pop("use_exp2")
        return kwargs | {"initial_state": self.initial_state, "state_v_first": self.state_v_first}

    @property
    def heads(self) -> int:
        """Value heads."""
        return self.arrays["beta"].shape[{"BNSD": 1, "BSND": 2, "NTD": 0, "TND": 1}[self.options["layout"]]]


def case_seed(name: str) -> int:
    """A seed that depends on the name only, so that a failure can be repeated alone."""
    return zlib.crc32(name.encode()) & 0xFFFF


def _gate_arrays(rng, case, batch, heads, tokens):
    """Raw gate, a_log, dt_bias and gate options of a case."""
    kind, size = case.get("gate", "none"), case.get("g_scale", 1.0)
    shape = (batch, heads, tokens, WIDTH)
    if kind == "none":
        g = -size * rng.uniform(0.0, 0.2 if size == 1.0 else 1.0, shape)
        if case.get("mask"):
            g = np.where(rng.uniform(size=shape) < case["mask"], -1000.0, g)
        return g, {}, {}
    params = {"a_log": np.linspace(-1.0, 1.0, heads) + 0.1 * rng.standard_normal(heads)}
    if not case.get("no_bias"):
        params["dt_bias"] = rng.standard_normal(heads * WIDTH)
    options = {"use_gate_in_kernel": True}
    if kind == "bounded":
        options |= {"safe_gate": True, "lower_bound": case.get("lower_bound", -5.0)}
    return size * rng.standard_normal(shape) - 1.0, params, options


def make_inputs(case: dict, seed: int = 0) -> KdaInputs:
    """Inputs of a forward call.

    Case keys: B, T | cu; HK, HV; layout; gate none|bounded|softplus; g_scale; mask (share of -1000 steps);
    l2norm; beta raw|sigmoid|negative; g_dtype, beta_dtype; use_exp2; lower_bound; no_bias; epsilon; scale;
    mode; state (dtype of initial_state) and state_v_first.
    """
    rng = np.random.default_rng(seed)
    cu = case.get("cu")
    batch, tokens = case.get("B", 1), cu[-1] if cu else case["T"]
    key_heads, heads = case.get("HK", 1), case.get("HV", case.get("HK", 1))
    layout = case.get("layout", "BNSD")
    q, k = (rng.standard_normal((batch, key_heads, tokens, WIDTH)) for _ in range(2))
    if not case.get("l2norm"):
        q, k = unit_rows(q), unit_rows(k)
    v = rng.standard_normal((batch, heads, tokens, WIDTH))
    beta = rng.uniform(0.1, 0.9, (batch, heads, tokens))
    if case.get("beta", "raw") != "raw":
        beta = rng.standard_normal((batch, heads, tokens))
    g, params, options = _gate_arrays(rng, case, batch, heads, tokens)
    dtypes = {
        "q": "bfloat16",
        "k": "bfloat16",
        "v": "bfloat16",
        "a_log": "float32",
        "dt_bias": "float32",
    }
    dtypes |= {"g": case.get("g_dtype", "float32"), "beta": case.get("beta_dtype", "float32")}
    arrays = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
    arrays = {name: from_head_major(to_dtype(x, dtypes[name]), layout) for name, x in arrays.items()}
    arrays |= {name: to_dtype(x, "float32") for name, x in params.items()}
    options |= {
        "layout": layout,
        "scale": case.get("scale", 1.0 / math.sqrt(WIDTH)),
        "use_qk_l2norm_in_kernel": bool(case.get("l2norm")),
        "use_beta_sigmoid_in_kernel": case.get("beta", "raw") != "raw",
        "allow_neg_eigval": case.get("beta") == "negative",
        "use_exp2": case.get("use_exp2", True),
        "epsilon": case.get("epsilon", 1e-6),
    }
    if cu:
        options["cu_seqlens"] = list(cu)
    state, v_first = None, case.get("state_v_first", False)
    if case.get("state"):
        count = len(cu) - 1 if cu else batch
        state = to_dtype(rng.standard_normal((count, heads, WIDTH, WIDTH)) * 0.5, case["state"])
    return KdaInputs(
        arrays,
        dtypes,
        options,
        case.get("mode", "save"),
        state,
        case.get("state") or "float32",
        v_first,
    )


def stage_h_inputs(case: dict, seed: int = 0) -> KdaInputs:
    """Inputs of chunk_fwd_h: what Prepare would hand on, rounded to the slots' types."""
    inputs = make_inputs({**case, "HK": 1, "layout": "BNSD", "use_exp2": case.get("use_exp2", True)}, seed)
    prepared = golden_module("chunk_kda_fwd_prepare").golden(**inputs.golden_kwargs(), round_slots=True)
    dtypes = {
        "k": "bfloat16",
        "w": "bfloat16",
        "u": "bfloat16",
        "gk": case.get("gk_dtype", "float32"),
    }
    arrays = {"k": prepared["kg"], "w": prepared["w"], "u": prepared["u"], "gk": prepared["gk"]}
    arrays = {name: to_dtype(x, dtypes[name]) for name, x in arrays.items()}
    options = {"use_exp2": inputs.options["use_exp2"], "state_v_first": inputs.state_v_first}
    options["output_final_state"] = case.get("output_final_state", True)
    if case.get("cu"):
        options["cu_seqlens"] = list(case["cu"])
    return KdaInputs(
        arrays,
        dtypes,
        options,
        "save",
        inputs.initial_state,
        inputs.state_dtype,
        inputs.state_v_first,
    )


def stage_finalize_inputs(case: dict, seed: int = 0) -> KdaInputs:
    """Inputs of finalize; aqk carries noise above the diagonal, which the operator must not read into o."""
    rng = np.random.default_rng(seed)
    cu, heads = case.get("cu"), case["HV"]
    batch, tokens = case.get("B", 1), cu[-1] if cu else case["T"]
    lengths = [b - a for a, b in zip(cu, cu[1:])] if cu else [tokens]
    chunks = sum(-(-n // 64) for n in lengths)
    rank3 = case["layout"] in ("TND", "NTD")
    arrays = {
        "qg_scaled": rng.standard_normal((batch, heads, tokens, WIDTH)) / 11.3,
        "aqk": rng.standard_normal((batch, heads, tokens, 64)) / 11.3,
        "v_new": rng.standard_normal((batch, heads, tokens, WIDTH)),
        "h": rng.standard_normal((batch, chunks, heads, WIDTH, WIDTH)),
    }
    arrays = {name: to_bf16(x) for name, x in arrays.items()}
    for name in ("qg_scaled", "aqk") + (("v_new",) if case.get("v_new_rank") == 3 else ()):
        arrays[name] = arrays[name][0] if rank3 else arrays[name]
    options = {"output_layout": case["layout"], "state_v_first": case.get("state_v_first", False)}
    if cu:
        options["cu_seqlens"] = list(cu)
    return KdaInputs(arrays, dict.fromkeys(arrays, "bfloat16"), options)
