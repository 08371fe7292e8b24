# SPDX-License-Identifier: Apache-2.0
"""Chunk KDA, independent of the framework: the stages, their composition, and its gradient.

A front end hands in an `Adapter`, which knows the framework's tensors and how to launch. Where the
tokens are a part of longer sequences, a `Boundary` knows the states at their ends; it gets them
with `summarize`, `summarize_backward` and `merge`.
"""

from .adapter import Adapter
from .boundary import Boundary
from .compose import (
    BACKWARD_STAGES,
    SAVED,
    STAGES,
    TENSORS,
    backward,
    check,
    forward,
    head_slices,
    save_forward,
    settled,
)
from .route import Route, explain_route
from .stages import (
    backward_finalize,
    backward_prepare,
    dhu,
    finalize,
    fwd_h,
    merge,
    prepare,
    summarize,
    summarize_backward,
    whole_backward,
    whole_forward,
)

__all__ = [
    "BACKWARD_STAGES",
    "SAVED",
    "STAGES",
    "TENSORS",
    "Adapter",
    "Boundary",
    "Route",
    "backward",
    "backward_finalize",
    "backward_prepare",
    "check",
    "dhu",
    "explain_route",
    "finalize",
    "forward",
    "fwd_h",
    "head_slices",
    "merge",
    "prepare",
    "save_forward",
    "settled",
    "summarize",
    "summarize_backward",
    "whole_backward",
    "whole_forward",
]
