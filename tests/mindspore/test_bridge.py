# SPDX-License-Identifier: Apache-2.0
"""What the bridge promises about order, memory and errors, shown with a C library under our control."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from in_step import in_step


def random_bf16(tools, rng, shape=(32, 32)):
    return tools.bf16(rng.integers(-8, 8, shape))


def chain(tensor, other, double):
    """Built-in operators and ours, each reading what the one before wrote."""
    first = double(tensor + other) * other
    second = double(double(first) - tensor) + first
    return double(second.T) - second


def test_long_chains_are_ordered_in_asynchronous_mode(fake, tools):
    """A stock runner launches a stage later than built-in operators: a third of such chains is wrong."""
    rng = np.random.default_rng(1)
    fake.delay_us = 100
    pending = []
    for _ in range(200):
        a, b = random_bf16(tools, rng), random_bf16(tools, rng)
        pending.append((a, b, chain(a, b, fake.double)))
    fake.delay_us = 0

    def by_numpy(x):
        return tools.bf16(2 * tools.f32(x))

    wrong = [i for i, (a, b, got) in enumerate(pending)
             if not np.array_equal(tools.f32(got), tools.f32(chain(a, b, by_numpy)))]  # fmt: skip
    assert not wrong, f"{len(wrong)} of {len(pending)} chains are wrong, the first is number {wrong[0]}"


def test_inputs_need_not_be_contiguous(fake, tools):
    x = tools.bf16(np.arange(24).reshape(4, 6))
    for view in (x.T, x[1:], x[:, 2:5], x.reshape(2, 2, 6).transpose(1, 0, 2)):
        assert np.array_equal(tools.f32(fake.double(view)), 2 * tools.f32(view))


def test_parameters_are_tensors(fake, tools):
    x = ms.Parameter(tools.bf16([[1, 2, 3]]), name="x")
    assert np.array_equal(tools.f32(fake.double(x)), [[2, 4, 6]])


def test_dimensions_can_be_presented_differently(fake, tools):
    x = tools.bf16(np.ones((4, 6)))
    assert np.array_equal(tools.f32(fake.double(x, dims=(1, 2, 2, 6))), 2 * np.ones((4, 6)))
    assert fake.last_rank == 4


@pytest.mark.parametrize("size", [1, 513, 17 << 20])
def test_workspace_is_aligned_and_large_enough(fake, tools, size):
    fake.workspace = size
    assert np.array_equal(tools.f32(fake.double(tools.bf16([1.0]))), [2.0])
    assert fake.workspace_aligned == 1


@pytest.mark.parametrize("phase, symbol", [(1, "aclnnChunkKdaFwdFinalizeGetWorkspaceSize"),
                                           (2, "aclnnChunkKdaFwdFinalize")])  # fmt: skip
def test_failures_reach_python_with_the_text_of_acl(fake, tools, phase, symbol):
    """In asynchronous mode at the next synchronisation; afterwards operators work again."""
    x = tools.bf16([1.0, 2.0])
    tools.f32(x)
    setattr(fake, f"phase{phase}_status", 507015)
    with pytest.raises(RuntimeError, match=rf"{symbol} returned 507015: .*fake .* of phase {phase}"):
        fake.double(x).asnumpy()
    setattr(fake, f"phase{phase}_status", 0)
    assert np.array_equal(tools.f32(fake.double(x)), [2.0, 4.0])


def test_every_acl_object_is_freed(fake, tools):
    x = tools.bf16([1.0])
    for status in (0, 161002):
        fake.phase1_status = status
        for _ in range(20):
            try:
                fake.double(x, cu=[0, 3]).asnumpy()
            except RuntimeError:
                pass
    assert fake.alive == 0


def test_out_of_memory_is_an_error_and_drops_the_executor(fake, tools):
    fake.workspace = 1 << 60
    dropped = fake.dropped
    with pytest.raises((RuntimeError, MemoryError)):
        fake.double(tools.bf16([1.0])).asnumpy()
    fake.workspace = 0
    assert fake.dropped == dropped + 1
    assert np.array_equal(tools.f32(fake.double(tools.bf16([1.0]))), [2.0])


def test_calls_from_several_threads_take_turns(fake, tools):
    from concurrent.futures import ThreadPoolExecutor

    fake.workspace, fake.delay_us = 4096, 50
    inputs = [tools.bf16(np.full((8, 8), i)) for i in range(64)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(fake.double, inputs))
    assert all(np.array_equal(tools.f32(y), 2 * tools.f32(x)) for x, y in in_step(inputs, results))


def test_unknown_operator_and_bad_counts_are_refused(bridge, fake, tools):
    with pytest.raises(KeyError, match="without operator no_such_op"):
        bridge.bind("no_such_op", 0, 0, [0] * 7, False)
    x = tools.bf16([1.0])
    with pytest.raises(RuntimeError, match="cannot return 0 tensors"):
        bridge.call(fake._number, [x, x, x, x, None, None, "BSND", True], [None])
    with pytest.raises(IndexError):
        bridge.call(10**6, [], [])


def test_table_equals_the_contracts(bridge):
    """The compiled table and the installed contracts name the same parameters in the same order."""
    from fla_npu.mindspore import codegen
    from fla_npu.spec import names, spec

    assert bridge.operators() == {n: (spec(n).aclnn, codegen.kinds(spec(n))) for n in names()}
