"""Learning rates, and other settings, that change in mid-training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.fae.batches import Batch, batches
from tests.fae.cases import Case, profile_of
from tests.fae.compared import difference
from tests.fae.course import run
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


@pytest.mark.parametrize("mode", ["overlay", "paper"])
@pytest.mark.usefixtures("lone_rank")
def test_a_step_may_train_no_hot_row_of_a_group(mode: str) -> None:
    assert _one_group(0, _of_two_groups(1, mode)) < TOLERANCE


def test_it_may_on_all_ranks(pair: Ranks) -> None:
    assert max(pair.run(_one_group, _of_two_groups(2, "overlay"))) < TOLERANCE


def _of_two_groups(world_size: int, mode: str) -> Case:
    """Tables of two parameter groups whose hot rows are in one kernel."""
    one = case("row_wise", world_size, mode=mode, kinds=("pure",) * 4, optimizer="sgd")
    second = replace(one.tables[1], pooling=one.tables[0].pooling)
    return replace(one, tables=(one.tables[0], second))


def _one_group(rank: int, one: Case) -> float:
    """Steps without a lookup of the second table."""
    results = []
    for sharder in (stock_sharder(one), fae_sharder(one, profile_of(one))):
        feed = fed(one, rank) if results else [kjt for _, kjt in batches(one, rank)]
        model = build(one, sharder)
        _set_rates(model, 0, 0.5)
        results.append(train(one, model, [_of_first(kjt) for kjt in feed]))
    return max(difference(*results).values())


def _of_first(kjt: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """The batch with lookups of the first table alone."""
    parted = [(kjt[key], key.startswith("f0")) for key in kjt.keys()]  # noqa: SIM118
    return KeyedJaggedTensor(
        keys=kjt.keys(),
        values=torch.cat([part.values()[: len(part.values()) * keep] for part, keep in parted]),
        lengths=torch.cat([part.lengths() * keep for part, keep in parted]),
    )


@MODES
@pytest.mark.usefixtures("lone_rank")
def test_other_settings_reach_hot_rows_and_those_of_a_refresh(mode: str) -> None:
    one = case(mode=mode, kinds=KINDS, optimizer="adam", events=("settings", "refresh"))
    assert max(run(one).values()) < TOLERANCE


@MODES
def test_they_reach_those_of_all_ranks(pair: Ranks, mode: str) -> None:
    one = case("table_wise", world_size=2, kinds=KINDS, mode=mode, events=("settings",))
    lone = replace(one, tables=one.tables[:1])  # on one rank alone
    assert max(pair.run(_run, lone)) < TOLERANCE


def _run(rank: int, one: Case) -> float:
    return max(run(one, rank).values())
