# SPDX-License-Identifier: Apache-2.0
"""The table of bad inputs through the public PyTorch functions, and what only tensors can do wrong."""

from __future__ import annotations

import pytest
import torch
from bad_inputs import CASES, GOOD, PACKED, T, V, arguments, case_id
from fla_npu import aclnn, errors
from fla_npu.ops import ascendc
from fla_npu.torch import npu_chunk_kda
from torch_calls import make, prepare

FUNCTIONS = {
    "prepare": ascendc.chunk_kda_fwd_prepare,
    "fwd_h": ascendc.chunk_fwd_h,
    "finalize": ascendc.chunk_kda_fwd_finalize,
    "bwd_prepare": ascendc.chunk_kda_bwd_prepare,
    "dhu": ascendc.chunk_gated_delta_rule_bwd_dhu,
    "bwd_finalize": ascendc.chunk_kda_bwd_finalize,
    "summarize": ascendc.pre_process_fwd_kernel_merged,
    "summarize_backward": ascendc.pre_process_bwd_kernel_merged,
    "merge": ascendc.merge_fwd_bwd_kernel,
    "kda": npu_chunk_kda,
}


@pytest.fixture
def no_launch(monkeypatch):
    def launched(*_, **__):
        raise AssertionError("a bad call reached the operator")

    monkeypatch.setattr(aclnn, "call", launched)


def real(value):
    if not isinstance(value, T):
        return value
    return torch.ones(value.shape, dtype=getattr(torch, value.dtype), device=value.device)


def renamed(function: str, keywords: dict) -> dict:
    """The arguments under the names of FLA-NPU, which differ from one operator to the next."""
    merge = {"summaries": "ag_hm", "count": "pre_or_post_num_ranks"}
    other = {"prepare": {"a_log": "A_log"}, "dhu": {"gk": "gK"}, "merge": merge}.get(function, {})
    return {other.get(name, name): real(value) for name, value in keywords.items()}


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_refused(case, no_launch):
    keywords = renamed(case.function, arguments(case))
    expected = errors.ArgumentError if case.error == V else errors.ArgumentTypeError
    with pytest.raises(expected) as raised:
        FUNCTIONS[case.function](**keywords)
    missing = [word for word in case.words if word not in str(raised.value)]
    assert not missing, f"{missing} not in: {raised.value}"


@pytest.mark.parametrize(
    ("cu", "error", "word"),
    [
        (torch.tensor([0.0, 70.0]), errors.ArgumentTypeError, "float32"),
        (torch.tensor([0, 70], dtype=torch.int16), errors.ArgumentTypeError, "int16"),
        (torch.tensor([[0, 70]]), errors.ArgumentError, r"\(1, 2\)"),
        (torch.tensor([0, 70], device="meta"), errors.ArgumentTypeError, "meta"),
        (torch.tensor([0, 60]), errors.ArgumentError, "T = 70"),
    ],
)
@pytest.mark.parametrize("function", PACKED)
def test_refused_cu_tensors(no_launch, function, cu, error, word):
    keywords = renamed(function, GOOD[function])
    with pytest.raises(error, match=word):
        FUNCTIONS[function](**keywords, cu_seqlens=cu)


@pytest.mark.parametrize("name", ["bg", "v"])
def test_what_belongs_to_another_rule_is_not_implemented(no_launch, name):
    keywords = renamed("summarize", GOOD["summarize"])
    with pytest.raises(NotImplementedError, match=f"{name} is given") as raised:
        FUNCTIONS["summarize"](**keywords, **{name: torch.ones(1, 4, 70, 128, dtype=torch.bfloat16)})
    assert isinstance(raised.value, errors.NotServed) and isinstance(raised.value, ValueError)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_sparse_nested_and_numpy_are_named(no_launch):
    t = make()
    with pytest.raises(errors.ArgumentTypeError, match=r"g has layout torch.sparse_coo.*to_dense"):
        prepare({**t, "g": t["g"].to_sparse()})
    with pytest.raises(errors.ArgumentTypeError, match=r"v is a ndarray"):
        prepare({**t, "v": t["beta"].numpy()})
    with pytest.raises(errors.ArgumentTypeError, match=r"q is a numpy.ndarray"):
        prepare({**t, "q": t["beta"].numpy()})
    with pytest.raises(errors.ArgumentTypeError, match=r"k is a nested tensor.*cu_seqlens"):
        prepare({**t, "k": torch.nested.nested_tensor([t["k"][0]])})
