# SPDX-License-Identifier: Apache-2.0
"""npu_chunk_kda over MindSpore processes: as near to float64 as the call in one process.

Two processes in the fast tier, one to eight in the long one; they start once per number.
"""

from __future__ import annotations

import pytest

pytest.importorskip("mindspore")
pytest.importorskip("torch")

import mindspore_work  # noqa: E402
import torch  # noqa: E402
from mindspore_jobs import answers, jobs  # noqa: E402
from mindspore_pool import Pool  # noqa: E402
from test_torch_calls import CASES, TRANSPORTS, random_case, using  # noqa: E402
from torch_work import Case, assembled, error, judge, plain  # noqa: E402

CUT = Case((70, 60), (0, 20, 50, 130), state="float32")


@pytest.fixture(scope="module")
def pools():
    """Pools by size; one at a time, since each takes half a gigabyte per process."""
    made: dict[int, Pool] = {}

    def pool(size: int) -> Pool:
        for other in set(made) - {size}:
            made.pop(other).close()
        return made.setdefault(size, Pool(size))

    yield pool
    for one in made.values():
        one.close()


def results(pool: Pool, case: Case, members=None) -> list:
    return answers(pool.run(mindspore_work.run, jobs(case, pool.size, members)))


@pytest.mark.parametrize("name", ["cut", "relay", "recompute", "rows"])
def test_two_ranks_are_one_process(pools, name):
    case = {
        "cut": CUT,
        "relay": using(Case((0, 40), layout="BSND", state="bfloat16"), "relay"),
        "recompute": Case((40, 33), hk=5, hv=5, options={"disable_recompute": False, "state_v_first": True}),
        "rows": using(Case((30, 33), batch=2, layout="BNSD", state="float32"), "doubling"),
    }[name]
    judge(case, results(pools(2), case))
