# SPDX-License-Identifier: Apache-2.0
"""The public cases of context-parallel KDA with a tenth of their tokens, and eight processes."""

from __future__ import annotations

import pytest
import torch_layers
import torch_work
from test_torch_calls import TRANSPORTS, random_case, using
from torch_pool import Pool
from torch_work import Case, assembled, cuts, error, judge, plain

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def pool():
    pool = Pool(8, 120.0)
    yield pool
    pool.close()


def public(ranks: int, lengths: tuple[int, ...], **options) -> Case:
    """bfloat16, B = 1, 12 heads, bounded gate, norms in the kernel; equal parts for all ranks."""
    total = sum(lengths)
    return Case(
        (total // ranks,) * ranks, cuts(total, lengths), hk=12, hv=12, layout="BSND", inputs="public",
        options={"output_final_state": False, **options},
    )  # fmt: skip


PUBLIC = {
    "CP2_SequenceCut": public(2, (300, 400, 324)),
    "CP2_BoundaryAligned": public(2, (512, 512)),
    "CP4_Complex": public(4, (700, 324)),
    "CP4_SingleSequence": public(4, (1024,)),
    "CP8_SingleSequence": public(8, (2048,)),
    "CP2_ManyShortSequences": public(2, (100, 150, 200, 250, 124, 100, 100)),
    "CP2_DisableRecompute": public(2, (300, 400, 324), disable_recompute=False),
    "CP2_TransposeState": public(2, (300, 400, 324), state_v_first=True),
    "CP4_TransposeState": public(4, (1024,), state_v_first=True),
}


def on_the_grid(case: Case) -> bool:
    cut = [sum(case.lengths[:r]) for r in range(1, len(case.lengths))]
    return all((x - max(a for a in case.cu if a <= x)) % 64 == 0 for x in cut)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_cases(pool, name):
    """As near to float64 as one process is, and to one process within the public rule: 8e-3.

    Where a cut is not on the chunk grid of its sequence, the roundings of the two calls are unrelated, so
    that they differ by more than either does from float64.
    """
    case = PUBLIC[name]
    results = pool.run(torch_work.run, case)
    judge(case, results)
    got, single = assembled(case, results), plain(case)
    for n in ("o", "dq", "dk", "dv", "dg", "dbeta"):
        assert error(got[n], single[n]) < (8e-3 if on_the_grid(case) else 8e-3 * 2**0.5), n


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ["CP8_SingleSequence", "uneven"])
def test_transports_of_eight(pool, name, transport):
    uneven = Case((40, 0, 3, 64, 1, 0, 90, 20), (0, 10, 10, 150, 218), hk=2, hv=4, state="float32")
    case = using(PUBLIC.get(name, uneven), transport)
    judge(case, pool.run(torch_work.run, case))


@pytest.mark.parametrize("seed", range(200, 220))
def test_random_packings_of_eight(pool, seed):
    case = random_case(seed, 5 + seed % 4)
    judge(case, pool.run(torch_work.run, case))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_g16_memory_and_bytes_of_eight(pool, transport):
    """The formula's bytes; no gathered buffer outlives the forward, however many ranks there are."""
    from fla_npu.parallel import make_plan
    from fla_npu.parallel.scaling import cost

    case = using(Case((20,) * 8), transport)
    seen = pool.run(torch_layers.traffic, case)
    want = cost(make_plan(case.lengths, transport=transport, group_size=case.group_size), case.hv)
    assert sum(r["forward"] for r in seen) == want.total
    assert max(r["forward"] for r in seen) == want.busiest
    assert all(r["kept"] == 0 for r in seen)
