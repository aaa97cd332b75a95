"""Steps in blocks: nothing is lost, nothing grows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.verdict.constructed import MS, columns, every
from trainobs.verdict.blocks import BLOCKS, INPUTS, Blocks


def filled(steps: int, piece: int, **changed: object) -> Blocks:
    """Blocks that were handed `steps` steps, `piece` at a time."""
    record, whole = Blocks(), columns(steps=steps, **changed)
    for first in range(0, steps, piece):
        record.add({name: values[first : first + piece] for name, values in whole.items()})
    return record


@pytest.mark.parametrize("steps", [1, 8, 63, 64, 65, 129, 5000])
def test_every_step_counts_whatever_the_pieces_they_came_in(steps):
    costs = np.random.default_rng(0).integers(0, 9_000_000, steps)  # whole, so that sums are exact
    one, many = (filled(steps, piece, phase__checkpoint_ns=costs) for piece in (steps, 7))
    assert len(one) == len(many) == steps
    assert one.usual().mean["phase/checkpoint_ns"] == pytest.approx(np.mean(costs))
    assert many.usual().mean == pytest.approx(one.usual().mean, nan_ok=True)


def test_memory_does_not_grow_with_the_steps():
    record = filled(100_000, 1000)
    arrays = [*record._sums, *record._known]
    assert len(record._sums) <= BLOCKS
    assert sum(array.nbytes for array in arrays) <= 2 * BLOCKS * len(INPUTS) * 8


def test_parts_of_a_usual_step_add_up():
    rng = np.random.default_rng(1)
    waits, forward = rng.exponential(9 * MS, 777), rng.exponential(30 * MS, 777)
    usual = filled(777, 50, loader__wait_ns=waits, phase__forward_ns=forward).usual()
    parts = [name for name in usual.mean if name.startswith(("phase/", "loader/wait"))]
    total = np.nansum([usual.mean[name] for name in parts])
    assert total == pytest.approx(usual.mean["step/duration_ns"])
    assert usual.marked == pytest.approx(1.0)


def test_usual_steps_are_those_without_the_disturbed_ones():
    disturbed = [500 * MS if 100 <= step < 120 else 5 * MS for step in range(512)]
    assert filled(512, 64, loader__wait_ns=disturbed).usual().mean["loader/wait_ns"] == 5 * MS
    half = [500 * MS if step < 256 else 5 * MS for step in range(512)]
    assert filled(512, 64, loader__wait_ns=half).usual().mean["loader/wait_ns"] > 200 * MS


def test_what_was_not_measured_is_nan_and_not_zero():
    usual = filled(64, 64, without=("sched/main_runqueue_ns",)).usual()
    assert np.isnan(usual.mean["sched/main_runqueue_ns"])
    assert np.isnan(usual.mean["ranks/wait_ns"])
    assert usual.mean["sched/main_iowait_ns"] == 0.0


def test_a_value_known_in_some_steps_is_their_mean():
    values = [0.5 if step % 4 == 0 else float("nan") for step in range(256)]
    mean = filled(256, 64, sched__others_cpu_ratio=values).usual().mean
    assert mean["sched/others_cpu_ratio"] == pytest.approx(0.5)


def test_a_phase_that_is_marked_late_is_averaged_over_all_steps():
    checkpoint = np.full(100, np.nan)
    checkpoint[99] = 500 * MS
    usual = filled(100, 10, phase__checkpoint_ns=checkpoint).usual()
    assert usual.mean["phase/checkpoint_ns"] == pytest.approx(5 * MS)


def test_a_rare_cost_spoils_no_group_of_steps():
    usual = filled(640, 64, phase__checkpoint_ns=every(64, 9000 * MS, 640)).usual()
    assert usual.uneven == pytest.approx(0.0)
    assert usual.mean["phase/forward_ns"] == 38 * MS
