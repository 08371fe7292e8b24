# SPDX-License-Identifier: Apache-2.0
"""Where the tokens of a call are only a part of longer sequences: who knows the states at its ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

__all__ = ["Boundary"]


class Boundary(Protocol):
    """Two hooks between stages. N, the sequences of a call, are here the pieces it has of them.

    `made` holds stage tensors by name, head-major with a batch axis; states are as the call has them,
    K-first or V-first.
    """

    def entry(self, made: Mapping[str, Any], state: Any | None) -> Any | None:
        """The state before the first token of every piece, float32 [N, HV, 128, 128], or None for zeros.

        Called between prepare and the state recurrence, when gk, kg, w and u (float32) are made; again
        in the backward of recompute mode. `state`: initial_state in float32, or None.
        """

    def exit(self, made: Mapping[str, Any], d_out: Any, dv_local: Any, d_state: Any | None) -> Any | None:
        """The gradient of the state after the last token of every piece, like `d_state`, or None for zeros.

        Called between backward_prepare and the recurrence of the gradient, once per backward, or once
        per slice of heads. gk, qg, kg and w are made; d_out, dv_local bfloat16 [B, HV, T, 128].
        """

    def part(self, first: int, count: int) -> Boundary:
        """The same of `count` value heads from `first` on: recompute mode works on slices of the heads."""
