# SPDX-License-Identifier: Apache-2.0
"""MindSpore front end: the functions that Hyper-Parallel imports.

Importing this package imports MindSpore (which the graph compiler needs in order to see that these
functions exist), but opens no operator library and compiles nothing. The first call of a function
does: it looks the operator up in the OPP, then compiles the C++ bridge if the cache has none.

Ran on: CPU with the twin. The Ascend branch of the bridge has not yet been run on an NPU.
"""

from .require import require_mindspore

require_mindspore()  # before the imports that need it, so that its message comes first

from ..chunk_kda import explain_route  # noqa: E402
from . import graph  # noqa: E402
from .kda import npu_chunk_kda  # noqa: E402
from .stages import (  # noqa: E402
    npu_chunk_kda_bwd_dhu,
    npu_chunk_kda_bwd_finalize,
    npu_chunk_kda_bwd_prepare,
    npu_chunk_kda_fwd_finalize,
    npu_chunk_kda_fwd_h,
    npu_chunk_kda_fwd_prepare,
)
from .summaries import (  # noqa: E402
    npu_chunk_kda_merge_fwd_bwd,
    npu_chunk_kda_pre_process_bwd,
    npu_chunk_kda_pre_process_fwd,
)

__all__ = [
    "explain_route",
    "graph",
    "npu_chunk_kda",
    "npu_chunk_kda_bwd_dhu",
    "npu_chunk_kda_bwd_finalize",
    "npu_chunk_kda_bwd_prepare",
    "npu_chunk_kda_fwd_finalize",
    "npu_chunk_kda_fwd_h",
    "npu_chunk_kda_fwd_prepare",
    "npu_chunk_kda_merge_fwd_bwd",
    "npu_chunk_kda_pre_process_bwd",
    "npu_chunk_kda_pre_process_fwd",
]
