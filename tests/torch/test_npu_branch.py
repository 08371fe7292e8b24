# SPDX-License-Identifier: Apache-2.0
"""The NPU branch, as far as it can be followed without an NPU: guard, stream, workspace, refusals."""

from __future__ import annotations

import contextlib
import types

import pytest
import torch
from fla_npu import aclnn, errors, loader
from fla_npu.torch import adapter
from torch_calls import make, prepare


@pytest.fixture
def fake_npu(monkeypatch):
    """torch.npu with one stream; records what the adapter does with it."""
    seen: list = []

    @contextlib.contextmanager
    def device(which):
        seen.append(("enter", which))
        yield
        seen.append(("leave", which))

    stream = types.SimpleNamespace(npu_stream=4711)
    npu = types.SimpleNamespace(device=device, current_stream=lambda which: stream)
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, s: seen.append(("record", s)))
    return seen, stream


def test_guard_stream_and_workspace(fake_npu, monkeypatch):
    seen, stream = fake_npu

    def call(op, values, stream, allocate):
        address, owner = allocate(1000)
        seen.append(("call", op, stream, address == owner.data_ptr(), owner.numel(), owner.dtype))

    monkeypatch.setattr(aclnn, "call", call)
    where = torch.device("cpu")
    adapter._call_on_npu("chunk_fwd_h", {}, where)
    assert seen == [
        ("enter", where),
        ("record", stream),
        ("call", "chunk_fwd_h", 4711, True, 1000, torch.uint8),
        ("leave", where),
    ]


@pytest.mark.parametrize(
    ("backend", "device", "words"),
    [
        ("twin", "npu:0", ("'npu:0'", "twin build", r"\.cpu\(\)")),
        ("cann", "cpu", ("on the CPU", "CANN build", r"\.npu\(\)")),
    ],
)
def test_tensors_and_opp_of_two_worlds(monkeypatch, backend, device, words):
    monkeypatch.setattr(loader, "bind", lambda op: types.SimpleNamespace(backend=backend))
    wanted = {"npu:0": "cann", "cpu": "twin"}[device]
    with pytest.raises(errors.ArgumentError, match=".*".join(words)):
        adapter._require("chunk_fwd_h", wanted, device)


def test_cpu_tensors_with_a_cann_opp_are_not_launched(monkeypatch):
    monkeypatch.setattr(loader, "bind", lambda op: types.SimpleNamespace(backend="cann"))
    monkeypatch.setattr(aclnn, "call", lambda *_, **__: pytest.fail("launched"))
    with pytest.raises(errors.ArgumentError, match="CANN build"):
        prepare(make())
