"""The order of pure and mixed batches, and how test losses change it."""

from __future__ import annotations

import csv
import itertools

import numpy as np
import pytest
import torch

from trainobs.core.errors import FAEError, SettingError
from trainobs.fae import ShuffledOrder, ShuffleScheduler


def kinds(schedule, pure: int, mixed: int, epoch: int = 0, window: int = 0) -> str:
    """`P` and `M`, in the schedule's order."""
    schedule.begin(epoch, window, pure, mixed)
    order = ""
    while pure or mixed:
        is_pure = schedule.is_next_pure(pure, mixed)
        pure, mixed = (pure - 1, mixed) if is_pure else (pure, mixed - 1)
        order += "PM"[not is_pure]
    return order


def runs(order: str) -> list[int]:
    return [len(list(group)) for _, group in itertools.groupby(order)]


@pytest.mark.parametrize("seed", range(40))
def test_every_batch_comes_once_in_any_order(seed):
    draw = np.random.default_rng(seed)
    pure, mixed = (int(n) for n in draw.integers(0, 60, 2))
    scheduler = ShuffleScheduler(rate=float(draw.uniform(0.01, 1)))
    for schedule in (ShuffledOrder(seed), scheduler):
        order = kinds(schedule, pure, mixed)
        assert (order.count("P"), order.count("M")) == (pure, mixed)
    assert scheduler.state_dict()["where"]["pure_steps"] == pure


def test_the_shuffled_order_is_random_and_repeatable():
    first = kinds(ShuffledOrder(1), 40, 40)
    assert kinds(ShuffledOrder(1), 40, 40) == first
    assert kinds(ShuffledOrder(2), 40, 40) != first
    assert kinds(ShuffledOrder(1), 40, 40, epoch=1) != first
    assert kinds(ShuffledOrder(1), 40, 40, window=1) != first
    # Of n kinds in random order about half differ from their neighbour; 20 is 4 deviations off.
    assert 22 < len(runs(first)) < 60


@pytest.mark.parametrize(
    ("rate", "pure", "mixed", "expected"),
    [
        (1.0, 3, 4, "PPPMMMM"),
        (0.5, 4, 6, "PPMMMPPMMM"),
        (0.5, 3, 3, "PPMMPM"),
        (0.01, 3, 3, "PMPMPM"),
        (0.25, 8, 2, "PPMPPMPPPP"),
        (0.5, 0, 3, "MMM"),
        (0.5, 3, 0, "PPP"),
        (0.5, 0, 0, ""),
    ],
)
def test_a_run_is_a_share_of_its_kind(rate, pure, mixed, expected):
    assert kinds(ShuffleScheduler(rate=rate), pure, mixed) == expected


def test_after_each_run_a_test_loss_is_due():
    scheduler, due = ShuffleScheduler(rate=0.5), []
    scheduler.begin(0, 0, 4, 4)
    assert not scheduler.is_due
    left = {True: 4, False: 4}
    for _ in range(8):
        left[scheduler.is_next_pure(left[True], left[False])] -= 1
        due.append(scheduler.is_due)
        if scheduler.is_due:
            scheduler.report(1.0)
            assert not scheduler.is_due
    assert due == [False, True] * 4
    assert [report.step for report in scheduler.history] == [2, 4, 6, 8]


def rates(losses: list[float], **arguments) -> list[float]:
    scheduler = ShuffleScheduler(**arguments)
    for loss in losses:
        scheduler.report(loss)
    return [report.rate for report in scheduler.history]


def test_a_higher_loss_halves_the_rate_down_to_the_floor():
    assert rates([1, 2, 3, 4]) == [0.5, 0.25, 0.125, 0.0625]
    assert rates([float(i) for i in range(12)])[-1] == 0.01
    assert rates([1, 2, 3], floor=0.2) == [0.5, 0.25, 0.2]


def test_four_improvements_in_a_row_double_it():
    assert rates([9, 8, 7, 6, 5]) == [0.5, 0.5, 0.5, 0.5, 1.0]
    assert rates([9, 8, 7, 6, 5, 4, 3, 2, 1]) == [0.5] * 4 + [1.0] * 5  # and no higher
    assert rates([9, 8, 7, 7, 6, 5, 4, 3], rate=0.1) == [0.1] * 7 + [0.2]  # a row was broken
    assert rates([9, 8, 7, 6, 7, 6, 5, 4, 3], rate=0.2) == [0.2] * 4 + [0.1] * 4 + [0.2]
    assert rates([3, 2, 1], patience=2) == [0.5, 0.5, 1.0]


def test_a_state_goes_on_at_a_mark():
    one = ShuffleScheduler(rate=0.3)
    one.begin(0, 0, 9, 9)
    for pure, mixed in ((9, 9), (8, 9), (7, 9)):
        one.is_next_pure(pure, mixed)
    one.report(3.0)
    mark, state = one.mark(), one.state_dict()
    one.report(4.0)
    assert one.state_dict(mark) == state
    other = ShuffleScheduler(rate=0.3)
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert (other.rate, len(other.history)) == (0.3, 1)
    other.report(4.0)
    assert other.history == one.history


def test_the_history_goes_into_a_file(tmp_path):
    scheduler = ShuffleScheduler()
    kinds(scheduler, 2, 2)
    scheduler.report(0.5)
    scheduler.report(0.75)
    scheduler.write_csv(tmp_path / "history.csv")
    with open(tmp_path / "history.csv", newline="") as file:
        first, second = csv.DictReader(file)
    assert first == {
        "step": "4", "pure_steps": "2", "swaps": "3", "test_loss": "0.5", "rate": "0.5",
    }  # fmt: skip
    assert second["rate"] == "0.25"


@pytest.mark.parametrize(
    "arguments",
    [
        *({"rate": 0}, {"rate": 1.5}, {"rate": 0.1, "floor": 0.2}, {"floor": 0}, {"patience": 0}),
        *({"rate": "x"}, {"floor": None}, {"patience": "4"}),
    ],
)
def test_numbers_out_of_range_are_refused(arguments):
    with pytest.raises(SettingError, match="cannot schedule"):
        ShuffleScheduler(**arguments)


def test_a_seed_that_is_no_number_is_refused():
    with pytest.raises(SettingError, match="seed='x'"):
        ShuffledOrder("x")


def test_of_a_loss_on_a_device_the_number_is_kept():
    scheduler = ShuffleScheduler()
    scheduler.report(torch.tensor(0.5))
    assert type(scheduler.history[0].test_loss) is float
    assert "tensor" not in str(scheduler.state_dict())


def test_a_loss_that_is_no_number_is_refused():
    with pytest.raises(FAEError, match="not a number"):
        ShuffleScheduler().report(float("nan"))


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        (ShuffledOrder(1), ShuffledOrder(2)),
        (ShuffledOrder(1), ShuffleScheduler()),
        (ShuffleScheduler(), ShuffledOrder(1)),
        (ShuffleScheduler(), ShuffleScheduler(rate=0.4)),
        (ShuffleScheduler(), ShuffleScheduler(patience=3)),
    ],
)
def test_the_state_of_another_schedule_is_refused(mine, other):
    with pytest.raises(FAEError, match="cannot go on with this order"):
        mine.load_state_dict(other.state_dict())
