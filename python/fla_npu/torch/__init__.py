# SPDX-License-Identifier: Apache-2.0
"""Chunk KDA on PyTorch tensors: `npu_chunk_kda`. Needs torch; CPU tensors run on the twin."""

from .kda import npu_chunk_kda

__all__ = ["npu_chunk_kda"]
