# SPDX-License-Identifier: Apache-2.0
"""Programs for graphs, replayed by their C function on NumPy memory: no graph, no operator in between."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest
from fla_npu.mindspore.record import Recorder, Symbol
from fla_npu.spec import ACL_DTYPE
from in_step import in_step
from kda_inputs import to_bf16

numbers = itertools.count(10**6)


def bits16(x: np.ndarray) -> np.ndarray:
    """bfloat16 values, held as float32, as their bit patterns."""
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


class Eager:
    """The adapter's methods on float32 arrays; `kinds` remembers which of them stand for bfloat16."""

    def cast(self, x, dtype):
        array, _ = x
        return (to_bf16(array) if dtype == "bfloat16" else array), dtype

    def swap(self, x, a, b):
        return x[0].swapaxes(a, b), x[1]

    def part(self, x, axis, start, length):
        return x[0].take(range(start, start + length), axis), x[1]

    def join(self, parts, axis):
        return np.concatenate([x for x, _ in parts], axis), parts[0][1]

    def dense(self, x):
        return x

    def reshape(self, x, shape):
        return x[0].reshape(shape), x[1]

    def zeros(self, shape, dtype, like):
        return np.zeros(shape, np.float32), dtype


class Graph:
    """What MindSpore does with a program: parameters with shapes, and one C call."""

    def __init__(self, bridge) -> None:
        self.bridge = bridge
        self.replay = ctypes.CDLL(bridge.__file__).FlaNpuReplay

    def run(self, program, arrays: list[tuple[np.ndarray, str]]) -> list[np.ndarray]:
        """program(recorder, symbols) -> symbols; returns what it leaves, bfloat16 as bit patterns."""
        recorder = Recorder(first=1)
        results = program(recorder, [recorder.parameter(x.shape, dtype) for x, dtype in arrays])
        kinds = [(r.shape, r.dtype) for r in results]
        scratch, steps = recorder.program(results)
        number = np.array([next(numbers)])
        given = [bits16(x) if dtype == "bfloat16" else np.ascontiguousarray(x) for x, dtype in arrays]
        made = [np.full(shape, 77, np.uint16 if dtype == "bfloat16" else np.float32)
                for shape, dtype in kinds]  # fmt: skip
        memory = [number, *given, *made]
        dtypes = ["int64", *(dtype for _, dtype in arrays), *(dtype for _, dtype in kinds)]
        key = [int(number[0])]
        for x, dtype in in_step(memory, dtypes):
            key += (x.ndim, *x.shape, ACL_DTYPE[dtype])
        self.bridge.record(key, scratch, steps)
        self.scratch = scratch
        shapes = [(ctypes.c_int64 * max(x.ndim, 1))(*x.shape) for x in memory]
        pointers = (ctypes.POINTER(ctypes.c_int64) * len(memory))(
            *(ctypes.cast(s, ctypes.POINTER(ctypes.c_int64)) for s in shapes)
        )
        status = self.replay(
            len(memory), (ctypes.c_void_p * len(memory))(*(x.ctypes.data for x in memory)),
            (ctypes.c_int * len(memory))(*(x.ndim for x in memory)), pointers,
            (ctypes.c_char_p * len(memory))(*(d.encode() for d in dtypes)), None, None,
        )  # fmt: skip
        assert status == 0
        return made


@pytest.fixture
def graph(bridge):
    return Graph(bridge)


def random_step(rng, adapters, values):
    """One random rearrangement of a random value, on every adapter alike."""
    pick = int(rng.integers(len(values[0])))
    shape = values[0][pick][0].shape
    axis, other = (int(i) for i in rng.integers(len(shape), size=2))
    start = int(rng.integers(shape[axis]))
    length = int(rng.integers(1, shape[axis] - start + 1))
    second = int(rng.choice([i for i, (x, dtype) in enumerate(values[0])
                             if dtype == values[0][pick][1] and len(x.shape) == len(shape)
                             and x.shape[:axis] + x.shape[axis + 1:] == shape[:axis] + shape[axis + 1:]]))  # fmt: skip
    kind = rng.choice(["swap", "part", "join", "cast", "dense", "reshape", "zeros"])
    dtype = str(rng.choice(["float32", "bfloat16"]))
    steps = {
        "swap": lambda a, v: a.swap(v[pick], axis, other),
        "part": lambda a, v: a.part(v[pick], axis, start, length),
        "join": lambda a, v: a.join([v[pick], v[second]], axis),
        "cast": lambda a, v: a.cast(v[pick], dtype),
        "dense": lambda a, v: a.dense(v[pick]),
        "reshape": lambda a, v: a.reshape(v[pick], (int(np.prod(shape)),)),
        "zeros": lambda a, v: a.zeros(shape, dtype, v[pick]),
    }
    for adapter, held in in_step(adapters, values):
        held.append(steps[kind](adapter, held))


@pytest.mark.parametrize("seed", range(40))
def test_any_rearrangement_is_the_one_of_numpy(graph, seed):
    """Random chains: views of views, memory that is used again, results that are inputs."""
    arrays = [(np.random.default_rng(seed).standard_normal(shape, np.float32), "float32")
              for shape in ((2, 3, 4), (5, 2), (7,))]  # fmt: skip
    arrays.append((to_bf16(arrays[0][0] * 3), "bfloat16"))
    want: list = []

    def program(recorder, symbols):
        rng = np.random.default_rng(seed)
        held = [list(arrays), list(symbols)]
        for _ in range(30):
            random_step(rng, (Eager(), recorder), held)
        chosen = rng.choice(len(held[0]), 6, replace=False)
        want.extend(held[0][i] for i in chosen)
        return [held[1][i] for i in chosen]

    for got, (exact, dtype) in in_step(graph.run(program, arrays), want):
        assert np.array_equal(got, bits16(exact) if dtype == "bfloat16" else exact)


def test_conversions_round_to_nearest_even_and_keep_what_is_special(graph):
    words = [0x3F808000, 0x3F818000, 0x3F807FFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00001, 0x7F800001,
             0x00000001, 0x00008000, 0x80000000, 0x477FE000]  # fmt: skip
    x = np.array(words, np.uint32).view(np.float32)
    (narrow,) = graph.run(lambda r, s: [r.cast(s[0], "bfloat16")], [(x, "float32")])
    want = [0x3F80, 0x3F82, 0x3F80, 0x7F80, 0x7F80, 0xFF80]
    assert narrow[:6].tolist() == want and narrow[8:].tolist() == [0, 0, 0x8000, 0x4780]
    assert np.isnan((narrow[6:8].astype(np.uint32) << 16).view(np.float32)).all()
    (wide,) = graph.run(lambda r, s: [r.cast(s[0], "float32")], [(x, "bfloat16")])
    assert np.array_equal(wide.view(np.uint32), x.view(np.uint32) & 0xFFFF0000)


def test_sigmoid_and_its_slope(graph):
    x = np.array([-200, -90, -20, -1, 0, 1, 17, 40, 90, 200], np.float32)
    grad = np.arange(1, 11, dtype=np.float32)

    def program(recorder, symbols):
        return [recorder.sigmoid(symbols[0], 2.0), recorder.sigmoid_grad(symbols[1], symbols[0], 2.0)]

    value, slope = graph.run(program, [(x, "float32"), (grad, "float32")])
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        rising, falling = 1 / (1 + np.exp(-wide)), 1 / (1 + np.exp(wide))
    assert np.allclose(value, 2 * rising, rtol=3e-7, atol=1e-37)
    assert np.allclose(slope, 2 * grad * rising * falling, rtol=6e-7, atol=1e-37)
    assert slope[7] > 0  # 1 - s(40) is 0 in float32


def test_scratch_is_used_again(graph):
    """A chain of copies needs room for two of them, whatever its length."""

    def program(recorder, symbols):
        value: Symbol = symbols[0]
        for _ in range(20):
            value = recorder.dense(recorder.swap(value, 0, 1))
        return [value]

    x = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    (got,) = graph.run(program, [(x, "float32")])
    assert np.array_equal(got, x)
    assert graph.scratch == 2 * x.nbytes


def test_one_value_can_be_two_results(graph):
    x = np.arange(6, dtype=np.float32)

    def program(recorder, symbols):
        made = recorder.cast(recorder.cast(symbols[0], "bfloat16"), "float32")
        return [made, made, symbols[0]]

    assert all(np.array_equal(got, x) for got in graph.run(program, [(x, "float32")]))


def test_what_is_written_in_place_is_written_there(graph):
    """The merge's state is a slice of scratch that other steps wrote before and read after."""
    from fla_npu import chunk_kda
    from merge_run import make

    case = make({"S": 3, "HV": 2, "N": 2, "rank": 2}, 1)

    def program(recorder, symbols):
        state = recorder.zeros((2, 128, 128), "float32", None)
        made = chunk_kda.merge(recorder, state, symbols[0], 2, 2)
        assert made is state
        return [recorder.swap(state, 1, 2), made]

    turned, made = graph.run(program, [(case.array.astype(np.float32), "float32")])
    assert np.array_equal(made, case.run().numpy())
    assert np.array_equal(turned.swapaxes(1, 2), made)


def test_bad_programs_are_refused(bridge):
    with pytest.raises(RuntimeError, match="no step is called jump"):
        bridge.record([1], 0, [("jump", (0, 0, 0, (1,), (1,)), (0, 0, 0, (1,), (1,)), 1.0)])
    with pytest.raises(RuntimeError, match="2 values for the"):
        number = bridge.bind("chunk_kda_fwd_finalize", 0, 0, [0] * 7, False)
        bridge.record([1], 0, [("call", number, [None, None])])
