# SPDX-License-Identifier: Apache-2.0
"""Framework-neutral validation and output planning; see `common` for the shapes of the data."""

from .aggregate import plan_whole_backward, plan_whole_forward
from .backward import plan_backward_finalize, plan_backward_prepare, plan_dhu
from .common import Desc, Output, Plan
from .finalize import plan_finalize
from .metadata import canonical_indices, chunk_count, read_chunk_indices, read_cu_seqlens
from .prepare import plan_prepare
from .state import check_state, plan_fwd_h
from .summary import plan_merge, plan_summarize, plan_summarize_backward

__all__ = [
    "Desc",
    "Output",
    "Plan",
    "canonical_indices",
    "check_state",
    "chunk_count",
    "plan_backward_finalize",
    "plan_backward_prepare",
    "plan_dhu",
    "plan_finalize",
    "plan_fwd_h",
    "plan_merge",
    "plan_prepare",
    "plan_summarize",
    "plan_summarize_backward",
    "plan_whole_backward",
    "plan_whole_forward",
    "read_chunk_indices",
    "read_cu_seqlens",
]
