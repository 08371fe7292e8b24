# SPDX-License-Identifier: Apache-2.0
"""Operator calls recorded on one machine and repeated on another: which bits differ, and by how much.

    python call_records.py record FILE      runs the operators over seeded cases (PyTorch, tests/ops, tests/reference)
    python call_records.py replay FILE      repeats every call of FILE and prints the comparison as JSON (NumPy only)

Every call gets the inputs that it got when it was recorded, so that a difference is of that call alone.
"""

from __future__ import annotations

import ctypes
import json
import pickle
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"bfloat16": 2, "float16": 2, "float32": 4, "int32": 4, "int64": 8}
#: Layouts, gates, tails, grouped heads, packing, both orientations of the state, short and strong cases.
CASES = {
    "dense": {"T": 200, "HK": 2, "HV": 4, "l2norm": True, "gate": "bounded", "state": "float32"},
    "packed": {"cu": [0, 0, 65, 131, 202, 281], "HK": 1, "HV": 3, "gate": "softplus", "layout": "NTD",
               "state": "float32", "state_v_first": True, "l2norm": True},
    "one_row": {"T": 1, "HV": 2, "state": "float32"},
    "tail": {"B": 2, "T": 79, "HV": 2, "gate": "softplus", "beta": "negative", "state": "bfloat16"},
    "strong": {"T": 128, "HK": 1, "HV": 2, "g_scale": 5.0, "state": "float32"},
    "shut": {"T": 100, "HV": 2, "mask": 0.05, "g_dtype": "bfloat16", "use_exp2": False, "beta": "sigmoid"},
}  # fmt: skip


def storage(argument) -> tuple[int, int]:
    """Address and bytes of what a tensor argument covers."""
    steps = argument.strides
    if steps is None:
        count = int(np.prod(argument.shape))
    else:
        count = 1 + sum((length - 1) * step for length, step in zip(argument.shape, steps))
    return argument.ptr, count * SIZES[argument.dtype]


class Recorder:
    """Keeps every call of an operator: arguments, the tensors' bytes before, and those that changed after."""

    def __init__(self) -> None:
        self.calls: list[dict] = []

    def __enter__(self) -> Recorder:
        from fla_npu import aclnn

        self.kept = aclnn._Caller.__call__

        def call(caller, values, *rest):
            given = {n: x for n, x in values.items() if x is not None}
            tensors = {n: aclnn.TensorArg(*given[n]) for _, n in caller.tensors if n in given}
            others = {n: x for n, x in given.items() if n not in tensors}
            before = {n: ctypes.string_at(*storage(x)) for n, x in tensors.items()}
            self.kept(caller, values, *rest)
            after = {n: ctypes.string_at(*storage(x)) for n, x in tensors.items()}
            self.calls.append({
                "op": caller.op.name, "others": others, "before": before,
                "kinds": {n: (x.dtype, tuple(x.shape), x.strides and tuple(x.strides)) for n, x in tensors.items()},
                "after": {n: data for n, data in after.items() if data != before[n]},
            })  # fmt: skip

        aclnn._Caller.__call__ = call
        return self

    def __exit__(self, *_) -> None:
        from fla_npu import aclnn

        aclnn._Caller.__call__ = self.kept


def run_everything() -> None:
    """Every operator, over CASES or over those of its golden model."""
    sys.path[:0] = [str(ROOT / "tests" / name) for name in ("reference", "ops")]
    import aggregate_run
    import grad_run
    import kda_run
    import merge_run
    import summary_run
    from backward import make_cotangents
    from goldens import golden_module
    from kda_inputs import make_inputs

    for seed, case in enumerate(CASES.values()):
        inputs = make_inputs(case, seed)
        seeds = make_cotangents(inputs, seed, final=True)
        kda_run.forward(inputs)
        grad_run.chain(inputs, seeds)
        aggregate_run.forward(inputs)
        values, saved = aggregate_run.backward_inputs(inputs, seeds)
        for op in ("chunk_kda_bwd_v2", "chunk_kda_bwd"):
            aggregate_run.backward(values, saved, op)
    for op in (summary_run.FORWARD, summary_run.BACKWARD):
        for name in golden_module(op).CASES:
            summary_run.named(op, name).run()
    for name in golden_module(merge_run.OP).CASES:
        merge_run.named(name).run()


def as_floats(data: bytes, kind: str) -> np.ndarray:
    if kind == "bfloat16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, kind)


def ordered(data: bytes, kind: str) -> np.ndarray:
    """Numbers that are one apart for neighbouring floats of the type."""
    width = 8 * SIZES[kind]
    bits = np.frombuffer(data, f"u{width // 8}").astype(np.int64)
    return np.where(bits >> (width - 1), -(bits & ((1 << (width - 1)) - 1)), bits)


def compare(got: bytes, want: bytes, kind: str) -> dict:
    """Elements, how many differ in bits (any NaN equals any other), by how many units at most, relative L2."""
    if got == want:
        return {"count": len(got) // SIZES[kind], "differ": 0, "units": 0, "relative": 0.0}
    a, b = as_floats(got, kind).astype(np.float64), as_floats(want, kind).astype(np.float64)
    nan = np.isnan(a) & np.isnan(b)
    apart = np.abs(ordered(got, kind) - ordered(want, kind))
    apart[nan] = 0
    a, b = np.where(nan, 0, a), np.where(nan, 0, b)
    size = float(np.linalg.norm(b))
    return {"count": a.size, "differ": int((apart != 0).sum()), "units": int(apart.max(initial=0)),
            "relative": float(np.linalg.norm(a - b)) / size if size else 0.0}  # fmt: skip


def repeat(call: dict) -> dict[str, dict]:
    """One recorded call here: {output: comparison}."""
    from fla_npu import aclnn

    blocks = {n: ctypes.create_string_buffer(data, len(data) + 64) for n, data in call["before"].items()}
    start = {n: -ctypes.addressof(block) % 64 for n, block in blocks.items()}
    arguments = {}
    for name, (kind, shape, strides) in call["kinds"].items():
        address = ctypes.addressof(blocks[name]) + start[name]
        ctypes.memmove(address, call["before"][name], len(call["before"][name]))
        arguments[name] = aclnn.TensorArg(address, kind, shape, strides)
    aclnn.call(call["op"], {**call["others"], **arguments})
    changed = {}
    for name, data in call["before"].items():
        got = ctypes.string_at(arguments[name].ptr, len(data))
        want = call["after"].get(name, data)
        if got != data or name in call["after"]:
            changed[name] = compare(got, want, call["kinds"][name][0])
    return changed


def summary(calls: list[dict]) -> dict[str, dict]:
    """{operator: {output: counts added up, the worst units and relative L2}} of all calls repeated."""
    total: dict[str, dict] = {}
    for call in calls:
        of_op = total.setdefault(call["op"], {})
        for name, seen in repeat(call).items():
            row = of_op.setdefault(name, {"count": 0, "differ": 0, "units": 0, "relative": 0.0})
            for key in ("count", "differ"):
                row[key] += seen[key]
            for key in ("units", "relative"):
                row[key] = max(row[key], seen[key])
    return total


def main() -> None:
    task, file = sys.argv[1:]
    if task == "record":
        with Recorder() as recorder:
            run_everything()
        Path(file).write_bytes(pickle.dumps(recorder.calls))
    else:
        print(json.dumps(summary(pickle.loads(Path(file).read_bytes()))))


if __name__ == "__main__":
    main()
