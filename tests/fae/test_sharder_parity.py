"""Training with hot rows comes to what training without comes to.

A case is a random model, plan, optimizer, mode and list of batches, all from its seed; half of them
pool their lookups, and half give them as sequences. For more of them:
`TRAINOBS_PARITY_CASES=1200 pytest tests/fae/test_sharder_parity.py` (2,780, of 1, 2 and 4 ranks).
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.fae.batches import batches, packed
from tests.fae.cases import Case, profile_of
from tests.fae.compared import Trained, difference
from tests.fae.course import run
from tests.fae.dimensions import varied
from tests.fae.parity import SEQUENCES, build, fae_sharder, stock_sharder, train
from tests.fae.random_cases import random_case
from tests.fae.ranks import Ranks
from tests.fae.shared_features import with_shared_features
from trainobs.fae.kjt.split import SlotMap

TOLERANCE = 4e-6  # of 1, or of the value: what another order of float32 sums explains
CASES_A_TEST = 10
LONE_CASES = int(os.environ.get("TRAINOBS_PARITY_CASES", 400))
PAIR_CASES = LONE_CASES // 8
FOUR_CASES = max(LONE_CASES // 32, CASES_A_TEST)


@pytest.mark.usefixtures("lone_rank")
@SEQUENCES
@pytest.mark.parametrize("first", range(0, LONE_CASES, CASES_A_TEST))
def test_one_rank_trains_what_the_stock_sharder_trains(first: int, sequences: bool) -> None:
    print("seeds", first, "to", first + CASES_A_TEST - 1)
    seen = {_check(seed, 1, sequences) for seed in range(first, first + CASES_A_TEST)}
    assert len(seen) > CASES_A_TEST // 2  # plans and optimizers: the cases are what they seem


@SEQUENCES
@pytest.mark.parametrize("first", range(0, PAIR_CASES, CASES_A_TEST))
def test_two_ranks_train_what_the_stock_sharder_trains(
    first: int, sequences: bool, pair: Ranks
) -> None:
    print("seeds", first, "to", first + CASES_A_TEST - 1)
    assert pair.run(_check_ranks, first, CASES_A_TEST, sequences, 2) == [None, None]


@SEQUENCES
def test_four_ranks_train_what_the_stock_sharder_trains(sequences: bool) -> None:
    ranks = Ranks(4)
    try:
        for first in range(0, FOUR_CASES, CASES_A_TEST):
            assert ranks.run(_check_ranks, first, CASES_A_TEST, sequences, 4) == [None] * 4
    finally:
        ranks.stop()


@pytest.mark.usefixtures("lone_rank")
@SEQUENCES
@pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])
def test_where_no_row_is_hot_it_trains_the_same(mode: str, sequences: bool) -> None:
    plain = replace(_every_kind(sequences), mode=mode)
    cold = tuple(replace(table, hot=()) for table in plain.tables)
    assert max(run(replace(plain, tables=cold), 0).values()) < TOLERANCE


@pytest.mark.usefixtures("lone_rank")
@SEQUENCES
def test_a_difference_is_found(sequences: bool) -> None:
    case = replace(_every_kind(sequences), optimizer="rowwise_adagrad")
    assert max(difference(*_both(case)).values()) < TOLERANCE
    for where in ("hot row", "optimizer state", "learning rate", "slot"):
        assert max(difference(*_both(case, spoil=where)).values()) > 100 * TOLERANCE, where


def _check(seed: int, world_size: int, sequences: bool, rank: int = 0) -> tuple[str, ...]:
    case = random_case(seed, world_size, sequences)
    if seed % 4 == 3:
        case = with_shared_features(case)
    case = varied(case)
    worst = run(case, rank)
    assert max(worst.values()) < case.tolerance, (worst, case)
    return (case.mode, case.optimizer, *sorted({table.sharding for table in case.tables}))


def _check_ranks(rank: int, first: int, count: int, sequences: bool, world_size: int) -> None:
    for seed in range(first, first + count):
        _check(seed, world_size, sequences, rank)


def _every_kind(sequences: bool) -> Case:
    """A case with lookups of all kinds, in which whatever goes wrong shows."""
    return next(
        case
        for case in (random_case(seed, 1, sequences) for seed in range(10_000))
        if len(set(case.kinds)) >= 4
        and case.kinds[0] == "pure"
        and all(0 < len(t.hot) < t.rows for t in case.tables)
        and case.inputs >= 4
        and len(case.tables[-1].hot) > 1
        and not case.pipelined
        and case.mode == "overlay"
        and case.tolerance == TOLERANCE
        and not case.weight_decay
    )


def _both(case: Case, spoil: str = "") -> tuple[Trained, Trained]:
    profile = profile_of(case)
    feed = batches(case, 0)
    stock = train(case, build(case, stock_sharder(case)), [kjt for _, kjt in feed])
    model = build(case, fae_sharder(case, profile))
    given = [packed(kind, kjt, SlotMap.from_profile(profile)) for kind, kjt in feed]
    overlay = model.module.collection._overlay
    overlay._catch_up(0)
    kernels = overlay.rows.kernels
    if spoil == "hot row":
        kernels[0].tensors[0][:] += 0.01
    elif spoil == "optimizer state":
        kernels[0].tensors[1][:] += 0.01
    elif spoil == "learning rate":
        overlay.rows._rates.now = lambda: [[0.11] * len(k.layout.slabs) for k in kernels]
    elif spoil == "slot":
        values, hot_count = given[0].values(), given[0].length_per_key()[-1]
        values[-hot_count:] = (values[-hot_count:] + 1) % len(case.tables[-1].hot)
    return stock, train(case, model, given)
