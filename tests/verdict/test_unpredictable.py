"""Where what batches took does not tell what they would take in other workers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.verdict.constructed import MS, TWO_CPUS
from trainobs.replay.handover import NO_DRAW
from trainobs.verdict.metric_names import INPUTS
from trainobs.verdict.summed_steps import Sample
from trainobs.verdict.unpredictable import unpredictable

FIRST, LATER = 20, 60
ITSELF = (
    ": the data set may keep them, in memory (which each worker would do for itself) or on a disk"
)


MEAN = dict.fromkeys(INPUTS, np.nan) | {
    "step/duration_ns": 15 * MS,
    "sched/others_cpu_ratio": 0.1,
}


def sample(*, epochs: bool = True, **ms: tuple[float, float]) -> Sample:
    """A first epoch, and three others, with two values of each column."""
    is_first = np.arange(FIRST + LATER) < FIRST
    columns = {name: np.full(FIRST + LATER, np.nan) for name in INPUTS}
    columns["step/duration_ns"] = np.where(is_first, 30 * MS, 10 * MS)
    usual = {"batch__compute_ns": (5, 5), "batch__sleep_ns": (0, 0), "batch__device_ns": (0, 0)}
    for name, (first, later) in (usual | ms).items():
        columns[name.replace("__", "/")] = np.where(is_first, first, later) * MS
    number = (np.arange(FIRST + LATER) // FIRST) * epochs
    return Sample(number, columns)


def why(made: Sample) -> str | None:
    return unpredictable(TWO_CPUS, made, MEAN).get("workers")


@pytest.mark.parametrize("what", ["batch__compute_ns", "batch__sleep_ns"])
def test_batches_that_take_much_less_after_the_first_epoch_may_be_kept_in_memory(what):
    less = {"batch__compute_ns": (0.2, 0.2)} | {what: (20, 0.2)}
    told = why(sample(**less))
    assert told
    assert told.startswith("batches of later epochs are made in ")
    assert told.endswith(ITSELF)
    told = why(sample(epochs=False, **less))
    assert told
    assert told.startswith("the last quarter of the batches is made in ")
    assert why(sample(**{what: (20, 16)})) is None  # what warms up falls as much


def test_passes_that_go_on_at_once_are_no_later_epochs():
    by_turns = sample()
    by_turns.epochs[:] = np.arange(FIRST + LATER) % 2
    by_turns.columns["batch/compute_ns"][:] = np.where(by_turns.epochs, 0.2, 20) * MS
    assert why(by_turns) is None


def test_what_the_page_cache_saves_it_saves_for_all_workers():
    cold = {"batch__device_ns": (50, 0), "batch__compute_ns": (8, 3)}
    assert why(sample(batch__device_ns=(50, 0))) is None
    assert why(sample(**cold, io__data_read_bytes=(2, 2))) is None
    assert why(sample(**cold)) is None, "a mapped file: nobody counts what is read of it"
    kept = why(sample(**cold, io__data_read_bytes=(2, 0)))
    assert kept
    assert "are made in 38 % of" in kept


def test_a_fall_that_is_no_matter_to_the_step_is_none():
    assert why(sample(batch__compute_ns=(0.4, 0.1))) is None


def test_of_a_run_without_batches_nothing_is_said():
    nothing = sample(batch__compute_ns=(np.nan, np.nan))
    assert unpredictable(replace(TWO_CPUS, draw=NO_DRAW), nothing, MEAN) == {}
    changed = unpredictable(replace(TWO_CPUS, most_cpus=4.0, draw=NO_DRAW), nothing, MEAN)
    assert changed.keys() == {"workers", "threads", "cpus", "others"}


def test_nothing_is_said_of_workers_where_nobody_knows_what_others_take_of_the_cpus():
    unknown = MEAN | {"sched/others_cpu_ratio": np.nan}
    told = unpredictable(TWO_CPUS, sample(), unknown)["workers"]
    assert told == "nobody knows what other processes take of the CPUs"


@pytest.mark.parametrize(("high", "stalled_ms"), [(3, 50), (0, 50), (3, 0.01), (np.nan, 50)])
def test_beyond_memory_high_nothing_is_predicted_of_workers_which_take_memory_too(high, stalled_ms):
    held = MEAN | {"memory/high_count": high, "memory/stalled_ns": stalled_ms * MS}
    told = unpredictable(TWO_CPUS, sample(), held).get("workers", "")
    assert ("memory.high" in told) == ((high, stalled_ms) == (3, 50))


@pytest.mark.parametrize(
    ("hidden", "stalled_ms", "freeing_ms", "told"),
    [
        (True, 5, 1, True),
        (True, 5, 6, False),  # what is freed for the pages of files that are read is no harm
        (True, 5, np.nan, False),
        (False, 5, 1, False),
    ],
)
def test_nor_where_a_container_is_held_up_and_groups_above_are_hidden(
    hidden, stalled_ms, freeing_ms, told
):
    """As beyond memory.high of its pod, which nothing in it counts."""
    held = MEAN | {"memory/high_count": 0.0, "memory/stalled_ns": stalled_ms * MS}
    held |= {"memory/reclaim_ns": freeing_ms * MS}
    found = unpredictable(replace(TWO_CPUS, quota_hidden=hidden), sample(), held)
    assert ("held up for want of memory" in found.get("workers", "")) == told


@pytest.mark.parametrize(
    ("known", "sampler", "workers"),
    [
        ({"draw": NO_DRAW}, None, False),
        ({}, "too few draws of the sampler of the loader were timed", False),
        ({"uneven_draw_ns": 0.1 * MS}, "the sampler of the loader takes long for some", False),
        ({"uneven_draw_ns": 2 * MS}, "the sampler of the loader takes long for some", True),
    ],
)
def test_a_sampler_that_is_not_known_is_not_predicted(known, sampler, workers):
    found = unpredictable(replace(TWO_CPUS, **known), sample(), MEAN)
    assert ("sampler" in found) == (sampler is not None)
    assert found.get("sampler", "").startswith(sampler or "")
    assert ("workers" in found) == workers
    assert not {"transform", "latency"} & found.keys()
    alone = unpredictable(replace(TWO_CPUS, workers=0, **known), sample(), MEAN)
    assert ("transform" in alone) == ("latency" in alone) == workers
