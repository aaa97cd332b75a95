"""Changes of which a replay of a run would predict what is not so, and why."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan

import numpy as np
import numpy.typing as npt

from trainobs.core.text import percent
from trainobs.replay.metric_columns import Floats
from trainobs.verdict.facts import Facts
from trainobs.verdict.handover import are_uneven
from trainobs.verdict.metric_names import STEP
from trainobs.verdict.summed_steps import Sample

FALLS = 2 / 3
"""Share of the time of the first batches, from which on a data set may keep them, in memory or on a
disk. What a batch takes falls a little wherever code and memory warm up."""

NOTICED = 0.05
"""Share of the step that making a batch has to fall by, to matter to a prediction."""

ENOUGH = 8
"""Batches on either side, at least."""

_OF_CPUS = ("workers", "threads", "cpus", "others")

_CPUS_CHANGED = "the CPUs that the run may use, or their quota, changed while it ran"

_OTHERS_UNKNOWN = "nobody knows what other processes take of the CPUs"

STALLS = 0.05
"""Share of the step in which its control group, beyond memory.high, has to hold a run up."""

_BEYOND_HIGH = "its control group is beyond memory.high, and workers take memory, too"

_HELD_UP = "its control group was held up for want of memory, and workers take memory, too"

_UNEVEN = "the sampler of the loader takes long for some batches, and hardly anything for others"
_UNTIMED = "too few draws of the sampler of the loader were timed"

_COMPUTED, _SLEPT, _DEVICE = "batch/compute_ns", "batch/sleep_ns", "batch/device_ns"
_READ = "io/data_read_bytes"


def unpredictable(facts: Facts, sample: Sample, mean: Mapping[str, float]) -> dict[str, str]:
    """Name of a change, of `replay.changes.KNOWN` -> why nothing is predicted for it.

    Args:
        facts: of the run.
        sample: steps of it.
        mean: of all steps, name of `INPUTS` -> value.
    """
    found = {} if facts.most_cpus is None else dict.fromkeys(_OF_CPUS, _CPUS_CHANGED)
    if isnan(mean["sched/others_cpu_ratio"]):
        found["workers"] = _OTHERS_UNKNOWN
    stalled = mean["memory/stalled_ns"] / mean[STEP]
    freeing = mean["memory/reclaim_ns"] / mean[STEP]
    if mean["memory/high_count"] > 0 and stalled >= STALLS:
        found["workers"] = _BEYOND_HIGH
    elif facts.quota_hidden and stalled - freeing >= STALLS:  # memory.high of a group above
        found["workers"] = _HELD_UP
    if facts.draw is None:
        found["sampler"] = _UNEVEN if facts.uneven_draw_ns else _UNTIMED
    if are_uneven(facts, mean):
        # The training thread asks the sampler as it makes them.
        making = () if facts.workers else ("transform", "latency")
        found |= dict.fromkeys(("workers", *making), _UNEVEN)
    if cheaper := _cheaper(sample):
        found["workers"] = (
            f"{cheaper}: the data set may keep them, in memory (which each worker would do for "
            "itself) or on a disk"
        )
    return found


def _cheaper(sample: Sample) -> str:
    """How much less the batches after the first pass take to be made, if that is much; or "".

    What is waited for a device is no matter: the page cache is there for all workers.
    """
    first = sample.epochs == sample.epochs[0]
    later, told = ~first, "batches of later epochs are made in {} of the time of the first"
    go_on_at_once = (np.diff(sample.epochs) < 0).any()  # passes over several loaders, in turn
    if first.all() or go_on_at_once:  # they may be drawn from few samples, again and again
        quarters = np.arange(len(first)) * 4 // len(first)
        first, later = quarters == 0, quarters == 3
        told = "the last quarter of the batches is made in {} of the time of the first"
    made = sample.columns[_COMPUTED] + sample.columns[_SLEPT]
    known = np.isfinite(made)
    if min((first & known).sum(), (later & known).sum()) < ENOUGH:
        return ""
    before, after = np.median(made[first & known]), np.median(made[later & known])
    least = NOTICED * float(np.nanmean(sample.columns[STEP]))
    if after > FALLS * before or before - after < least:
        return ""
    return (
        "" if _reads(sample, first, later, before - after) else told.format(percent(after / before))
    )


def _reads(
    sample: Sample, first: npt.NDArray[np.bool_], later: npt.NDArray[np.bool_], fell: float
) -> bool:
    """Whether the data set reads as before: what it takes less is what the page cache saves.

    Nobody counts what it reads from mapped files; of these, the first pass waits for a device.
    """
    read = sample.columns[_READ]
    before, after = _mean(read[first]), _mean(read[later])
    if before > 0:
        return after >= FALLS * before
    return _mean(sample.columns[_DEVICE][first]) >= fell


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else 0.0
