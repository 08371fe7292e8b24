# SPDX-License-Identifier: Apache-2.0
"""Chunk KDA on PyTorch tensors: `npu_chunk_kda`, differentiable. Needs torch; CPU tensors run on the twin."""

from ..chunk_kda import explain_route
from .kda import npu_chunk_kda

__all__ = ["explain_route", "npu_chunk_kda"]
