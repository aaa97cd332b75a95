"""Steps in blocks and windows: nothing is lost, nothing grows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.verdict.constructed import MS, columns
from trainobs.core.records import SETUP, StepTable
from trainobs.verdict.batch_columns import batch_columns
from trainobs.verdict.metric_names import INPUTS, STEP
from trainobs.verdict.summed_steps import BLOCKS, WINDOW, WINDOWS, FirstSteps, SummedSteps


def filled(steps: int, piece: int, **changed: object) -> SummedSteps:
    """`steps` steps in sums, taken `piece` at a time."""
    summed, whole = SummedSteps(), columns(steps=steps, **changed)
    for first in range(0, steps, piece):
        summed.add({name: values[first : first + piece] for name, values in whole.items()})
    return summed


@pytest.mark.parametrize("steps", [1, 8, 63, 64, 65, 129, 5000])
def test_every_step_counts_whatever_the_pieces_they_came_in(steps):
    costs = np.random.default_rng(0).integers(0, 9_000_000, steps)  # whole, so that sums are exact
    one, many = (filled(steps, piece, phase__checkpoint_ns=costs) for piece in (steps, 7))
    assert len(one) == len(many) == steps
    assert one.mean()["phase/checkpoint_ns"] == pytest.approx(np.mean(costs))
    assert many.mean() == pytest.approx(one.mean(), nan_ok=True)
    for name in (STEP, "phase/checkpoint_ns"):
        assert many.sample().columns[name].tolist() == one.sample().columns[name].tolist()


def test_memory_does_not_grow_with_the_steps():
    summed = filled(100_000, 1000)
    assert len(summed._sums) <= BLOCKS
    kept = [*summed._sums, *summed._known, *(rows for _, _, rows in summed._windows)]
    most = 2 * BLOCKS + WINDOWS * WINDOW
    assert sum(array.nbytes for array in kept) <= most * len(INPUTS) * 8
    assert all(rows.base is None for _, _, rows in summed._windows)  # and hold on to nothing else


@pytest.mark.parametrize("steps", [40, 512, 513, 1500, 100_000])
def test_the_sample_is_windows_of_consecutive_steps_from_all_over_the_run(steps):
    summed = SummedSteps()
    numbers = np.arange(steps, dtype=float)
    for part in np.array_split(numbers, 7):
        summed.add({STEP: part})
    seen = summed.sample().columns[STEP]
    assert len(seen) == (steps if steps <= WINDOW * WINDOWS else len(seen)) <= WINDOW * WINDOWS
    for first in range(0, len(seen) - WINDOW, WINDOW):
        assert (np.diff(seen[first : first + WINDOW]) == 1).all()
    assert seen[0] == 0
    assert seen[-1] >= 0.5 * steps - 1


def test_the_parts_of_a_mean_step_add_up():
    rng = np.random.default_rng(1)
    waits, forward = rng.exponential(9 * MS, 777), rng.exponential(30 * MS, 777)
    mean = filled(777, 50, loader__wait_ns=waits, phase__forward_ns=forward).mean()
    parts = [name for name in mean if name.startswith(("phase/", "loader/wait"))]
    assert np.nansum([mean[name] for name in parts]) == pytest.approx(mean["step/duration_ns"])


def test_what_was_not_measured_is_nan_and_not_zero():
    mean = filled(64, 64, without=("sched/main_runqueue_ns",)).mean()
    assert np.isnan(mean["sched/main_runqueue_ns"])
    assert np.isnan(mean["ranks/wait_ns"])
    assert mean["sched/main_iowait_ns"] == 0.0


def test_a_value_known_in_some_steps_is_their_mean():
    values = [0.5 if step % 4 == 0 else float("nan") for step in range(256)]
    mean = filled(256, 64, sched__others_cpu_ratio=values).mean()
    assert mean["sched/others_cpu_ratio"] == pytest.approx(0.5)


def test_a_phase_that_is_marked_late_is_averaged_over_all_steps():
    checkpoint = np.full(100, np.nan)
    checkpoint[99] = 500 * MS
    mean = filled(100, 10, phase__checkpoint_ns=checkpoint).mean()
    assert mean["phase/checkpoint_ns"] == pytest.approx(5 * MS)


def test_the_batches_of_a_step_are_added_up_and_the_last_one_tells_when():
    batches = {
        "for_step": np.array([7, 5, 7, -1, 99]),
        "loader": np.array([1, 1, 2, 1, 1]),
        "compute_ns": np.array([10, 20, 30, 40, 50]),
        "device_ns": np.array([1, -1, 2, 3, 4]),
        **{name: np.arange(5) for name in ("sleep_ns", "cpu_wait_ns", "received_bytes")},
        "handed_bytes": np.array([8, 8, 8, 8, 8]),
        **{name: np.array([100, 50, 90, 0, 0]) for name in ("begin_ns", "end_ns")},
        **{name: np.array([100, 50, 90, 0, 0]) for name in ("fetch_begin_ns", "fetch_end_ns")},
    }
    found = batch_columns(np.array([5, 6, 7]), np.array([60.0, 60.0, 110.0]), batches)
    assert found["batch/compute_ns"][[0, 2]].tolist() == [20, 40]
    assert found["batch/end_ns"][[0, 2]].tolist() == [50, 100]
    assert found["batch/loaders"][[0, 2]].tolist() == [1, 2]
    assert np.isnan(found["batch/device_ns"][0]), "unknown is not zero"
    assert all(np.isnan(column[1]) for column in found.values()), "a step without a batch"
    early = batch_columns(np.array([5, 6, 7]), np.array([60.0, 60.0, 95.0]), batches)
    assert early["batch/compute_ns"][2] == 30, "what is asked for after the wait is no training"


def test_what_comes_before_the_second_step_is_left_out_once():
    first = FirstSteps()

    def table(*steps: int) -> StepTable:
        count = len(steps)
        return StepTable(np.array(steps), np.zeros(count, np.int32), np.zeros(count, np.int64), {})

    assert first.without(table(SETUP)).step.tolist() == []
    assert not first.seen
    assert first.first is None
    assert first.without(table(SETUP, 0, 1)).step.tolist() == [1]
    assert first.first is not None
    assert first.first.step.tolist() == [0]
    assert first.without(table(2, 3)).step.tolist() == [2, 3]


def test_the_batch_that_was_asked_for_first_is_the_step_s_even_if_late():
    times = dict.fromkeys(("begin_ns", "end_ns", "fetch_end_ns"), np.array([90, 200]))
    zeros = ("sleep_ns", "cpu_wait_ns", "received_bytes", "handed_bytes", "device_ns")
    batches = {
        "for_step": np.array([5, 5]),
        "loader": np.array([1, 1]),
        "compute_ns": np.array([10, 20]),
        "fetch_begin_ns": np.array([80, 150]),
        **times,
        **dict.fromkeys(zeros, np.zeros(2)),
    }
    found = batch_columns(np.array([5]), np.array([60.0]), batches)
    assert found["batch/compute_ns"].tolist() == [10]


def _asked(*rows: tuple[int, int, float]) -> dict[str, np.ndarray]:
    """Batches that take 1 each to make, of (step, loader, when it was asked for)."""
    step, loader, when = (np.array(column) for column in zip(*rows, strict=True))
    rest = ("device_ns", "sleep_ns", "cpu_wait_ns", "received_bytes", "handed_bytes", "begin_ns")
    return {
        "for_step": step,
        "loader": loader,
        "fetch_begin_ns": when,
        "compute_ns": np.ones(len(step)),
        **dict.fromkeys((*rest, "end_ns", "fetch_end_ns"), np.zeros(len(step))),
    }


def test_all_batches_count_of_a_step_that_accumulates_gradients():
    steps = np.arange(6)
    rows = [(step, 1, 10.0 * step + part) for step in range(6) for part in (0, 3, 5, 7)]
    found = batch_columns(steps, 10.0 * steps + 2, _asked(*rows))
    assert found["batch/compute_ns"].tolist() == [4] * 6


def test_batches_of_a_validation_do_not_count():
    steps = np.arange(12)
    training = [(step, 1, 10.0 * step) for step in range(12)]
    between = [(step, 2, 10.0 * step + 3 + part) for step in (3, 7) for part in range(4)]
    one_by_one = [(9, loader, 95.0 + part) for loader in (3, 4) for part in range(3)]
    found = batch_columns(steps, 10.0 * steps + 2, _asked(*training, *between, *one_by_one))
    assert found["batch/compute_ns"].tolist() == [1] * 12


def test_where_numbers_begin_again_nobody_knows_which_step_a_batch_was_for():
    batches = {
        name: np.array([1, 0, 1])
        for name in ("for_step", "loader", "compute_ns", "device_ns", "sleep_ns", "cpu_wait_ns")
    }
    more = ("received_bytes", "handed_bytes", "begin_ns", "end_ns")
    batches |= dict.fromkeys((*more, "fetch_begin_ns", "fetch_end_ns"), np.zeros(3))
    found = batch_columns(np.array([0, 1, 2, 0, 1]), np.full(5, 10.0), batches)
    assert all(np.isnan(column).all() for column in found.values())
