# SPDX-License-Identifier: Apache-2.0
"""The merge operator through the public PyTorch function, and seeded summaries for it."""

from __future__ import annotations

from dataclasses import dataclass

import kda_run
import numpy as np
import torch
from goldens import golden_module
from kda_inputs import WIDTH, case_seed, to_dtype

OP = "merge_fwd_bwd_kernel"


@dataclass
class MergeCase:
    """A call: the summaries, their values in float64, and what is passed beside them."""

    summaries: torch.Tensor
    array: np.ndarray
    count: int
    rank: int
    options: dict

    @property
    def kind(self) -> str:
        return str(self.summaries.dtype).removeprefix("torch.")

    def run(self, summaries: torch.Tensor | None = None, **options) -> torch.Tensor:
        """h, filled with NaN before."""
        from fla_npu.ops.ascendc import merge_fwd_bwd_kernel

        summaries = self.summaries if summaries is None else summaries
        h = torch.full((summaries.shape[1], WIDTH, WIDTH), float("nan"), dtype=summaries.dtype)
        made = merge_fwd_bwd_kernel(h, summaries, self.count, self.rank, **self.options | options)
        assert made is h
        return h

    def golden(self, round_slots: bool = False, **options) -> np.ndarray:
        options = {"pre_or_post_num_ranks": self.count, "rank": self.rank, **self.options, **options}
        golden = golden_module(OP).golden
        return golden(ag_hm=self.array, dtype=self.kind, round_slots=round_slots, **options)["h"]


def make(case: dict, seed: int = 0) -> MergeCase:
    """Random maps of about unit size, which do not commute. `case`: an entry of the golden's CASES."""
    rng = np.random.default_rng(seed)
    kind = case.get("dtype", "float32")
    array = rng.standard_normal((case["S"], case["HV"], WIDTH, 2 * WIDTH))
    array[..., WIDTH:] /= np.sqrt(WIDTH)
    array = to_dtype(array, kind)
    options = {n: case[n] for n in ("forward", "state_v_first") if n in case}
    return MergeCase(kda_run.tensor(array, kind), array, case["N"], case["rank"], options)


def named(name: str) -> MergeCase:
    """A case of the golden model by its name."""
    return make(golden_module(OP).CASES[name], case_seed(name))
