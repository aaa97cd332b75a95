"""Learning rates that change in mid-training, by step and by parameter group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.fae.batches import Batch, batches
from tests.fae.cases import Case, profile_of
from tests.fae.compared import difference
from tests.fae.parity import build, fae_sharder, stock_sharder, train
from tests.fae.ranks import Ranks
from tests.fae.small import case, fed

TOLERANCE = 4e-6
KINDS = ("mixed", "pure", "pure", "mixed", "pure")
MODES = pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])
WHEN = pytest.mark.parametrize("when", ["before", "between"])


@MODES
@WHEN
@pytest.mark.usefixtures("lone_rank")
def test_a_new_rate_reaches_hot_rows(mode: str, when: str) -> None:
    assert _with_schedule(0, case(mode=mode, kinds=KINDS), when) < TOLERANCE


@MODES
@WHEN
def test_it_reaches_those_of_all_ranks(pair: Ranks, mode: str, when: str) -> None:
    one = case("table_wise", world_size=2, kinds=KINDS, optimizer="sgd", mode=mode)
    lone = replace(one, tables=one.tables[:1])  # on one rank alone: the other has to be told
    assert max(pair.run(_with_schedule, lone, when)) < TOLERANCE


@MODES
@WHEN
def test_each_group_has_a_rate_of_its_own(pair: Ranks, mode: str, when: str) -> None:
    # t0 and t1 are trained by two kernels, and their hot rows by one
    one = case("row_wise", world_size=2, kinds=KINDS, optimizer="sgd", mode=mode)
    assert max(pair.run(_with_schedule, one, when, 0.5)) < TOLERANCE


@MODES
@WHEN
@pytest.mark.usefixtures("lone_rank")
def test_each_group_has_one_on_a_single_rank(mode: str, when: str) -> None:
    assert _with_schedule(0, case(mode=mode, kinds=KINDS), when, 0.5) < TOLERANCE


def _with_schedule(rank: int, one: Case, when: str, factor: float = 1.0) -> float:
    """A rate that changes before a forward, or between it and its backward."""
    results = []
    for sharder in (stock_sharder(one), fae_sharder(one, profile_of(one))):
        model = build(one, sharder)
        feed = fed(one, rank) if results else [kjt for _, kjt in batches(one, rank)]
        for number, kjt in enumerate(feed):
            if when == "before":
                _set_rates(model, number, factor)
            loss, _ = model(Batch(kjt))
            if when == "between":
                _set_rates(model, number, factor)
            loss.backward()
        results.append(train(one, model, feed))
    assert max(result.weights["over.weight"].abs().max() for result in results) > 0
    return max(difference(*results).values())


def _set_rates(model: Any, step: int, factor: float) -> None:
    for number, group in enumerate(model.fused_optimizer.param_groups):
        group["lr"] = 0.7 / (step + 1) * factor**number
    model.fused_optimizer.step()


@pytest.mark.usefixtures("lone_rank")
def test_that_rates_count_shows() -> None:
    one = case(kinds=KINDS)
    runs = []
    for factor in (1.0, 0.5):
        model = build(one, stock_sharder(one))
        _set_rates(model, 0, factor)
        assert len(model.fused_optimizer.param_groups) == 2
        runs.append(train(one, model, [kjt for _, kjt in batches(one, 0)]))
    assert max(difference(*runs).values()) > 1e-3
