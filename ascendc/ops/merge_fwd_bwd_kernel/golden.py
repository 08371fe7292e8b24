# SPDX-License-Identifier: Apache-2.0
"""merge_fwd_bwd_kernel in float64 NumPy: the state that enters a rank, from the summaries of the ranks around it.

A summary is [E | M], the affine map H_out = M @ H_in + E of a rank's tokens. With N ranks before (forward) or
behind (backward) `rank`, the farthest first:

    source(i) = rank - N + i  (forward),  rank + N - i  (backward)        i = 0 .. N - 1
    h = E[source(0)]                                                      the sequence starts there: no H_in
    h = M[source(i)] @ h + E[source(i)]                                   i = 1 .. N - 1

N = 0: no rank contributes, h is zero. A single summary (S = N = 1, rank 0) is merged as source 0.
"""

from __future__ import annotations

import numpy as np

#: The only list of shapes for this operator. S: summaries; N: ranks that contribute; dtype of h and ag_hm.
CASES = {
    "one_summary": {"S": 1, "HV": 1, "N": 1, "rank": 0},
    "one_summary_backward": {"S": 1, "HV": 2, "N": 1, "rank": 0, "forward": False},
    "none": {"S": 3, "HV": 2, "N": 0, "rank": 1},
    "none_backward": {"S": 2, "HV": 1, "N": 0, "rank": 1, "forward": False},
    "forward": {"S": 4, "HV": 3, "N": 3, "rank": 3},
    "forward_middle": {"S": 5, "HV": 2, "N": 2, "rank": 3},
    "backward": {"S": 4, "HV": 3, "N": 3, "rank": 0, "forward": False},
    "backward_middle": {"S": 5, "HV": 2, "N": 2, "rank": 1, "forward": False},
    "v_first": {"S": 4, "HV": 2, "N": 3, "rank": 3, "state_v_first": True},
    "v_first_backward": {"S": 3, "HV": 2, "N": 2, "rank": 0, "forward": False, "state_v_first": True},
    "bf16": {"S": 4, "HV": 2, "N": 3, "rank": 3, "dtype": "bfloat16"},
    "bf16_v_first": {"S": 3, "HV": 1, "N": 2, "rank": 2, "dtype": "bfloat16", "state_v_first": True},
    "many_heads": {"S": 3, "HV": 45, "N": 2, "rank": 2},
    "many_ranks": {"S": 33, "HV": 1, "N": 32, "rank": 32},
}


def bf16(x: np.ndarray) -> np.ndarray:
    """Round float64 to the nearest bfloat16 (8 significant bits, ties to even), kept as float64."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 256.0), exponent - 8)


def sources(summaries: int, count: int, rank: int, forward: bool) -> list[int]:
    """Rows of ag_hm in the order in which they are folded, the farthest rank first."""
    if summaries == count == 1:
        return [0]
    return [rank - count + i if forward else rank + count - i for i in range(count)]


def golden(
    *,
    ag_hm,
    pre_or_post_num_ranks,
    rank,
    forward=True,
    state_v_first=False,
    dtype="float32",
    round_slots=False,
):
    """Output h [HV, K, V], or [HV, V, K] with state_v_first. What h held before plays no part.

    Input: ag_hm [S, HV, K, V + K]; pre_or_post_num_ranks: N; 0 <= rank < S. Forward needs rank >= N, backward
    rank + N < S.
    round_slots: round h to `dtype`, its type, where it becomes the output; the fold itself is not rounded.
    """
    ag_hm = np.asarray(ag_hm, np.float64)
    summaries, heads, key_width, width = ag_hm.shape
    value_width = width - key_width
    offset, factor = ag_hm[..., :value_width], ag_hm[..., value_width:]
    h = np.zeros((heads, key_width, value_width))
    for i, source in enumerate(sources(summaries, pre_or_post_num_ranks, rank, forward)):
        h = offset[source] if i == 0 else factor[source] @ h + offset[source]
    if state_v_first:
        h = np.swapaxes(h, -1, -2)
    if round_slots:
        h = bf16(h) if dtype == "bfloat16" else h.astype(np.float32).astype(np.float64)
    return {"h": np.array(h)}
