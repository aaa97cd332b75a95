"""The steps of an epoch, or of a run, in the little memory that a verdict needs.

Steps are summed in blocks of equal length; when there are too many blocks, neighbours are joined.
Whatever the number of steps, some 40 to 80 kB hold them, and every step is in a sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainobs.core.quotients import divided

Floats = npt.NDArray[np.float64]

STEP = "step/duration_ns"
LOADER = "loader/wait_ns"
TRANSFER = "phase/transfer_ns"
COMPUTE = ("phase/forward_ns", "phase/backward_ns", "phase/optimizer_ns")
CHECKPOINT = "phase/checkpoint_ns"
VALIDATION = "phase/validation_ns"
LOGGING = "phase/logging_ns"
OTHER = "phase/other_ns"
PHASES = (LOADER, TRANSFER, *COMPUTE, CHECKPOINT, VALIDATION, LOGGING, OTHER)
GARBAGE = "python/gc_ns"
INTERPRETER = "python/gil_wait_ns"
SPLIT = (
    "loader/device_ns",
    "loader/cpu_wait_ns",
    "loader/compute_ns",
    "loader/sleep_ns",
    "loader/handover_ns",
)

NOW_AND_THEN = (CHECKPOINT, VALIDATION, LOGGING, GARBAGE)
"""Costs that come every so many steps: they count by their sum, however few steps have them."""

INPUTS = (
    STEP,
    *PHASES,
    GARBAGE,
    INTERPRETER,
    *SPLIT,
    "sched/main_offcpu_ns",
    "sched/main_iowait_ns",
    "sched/main_runqueue_ns",
    "sched/thread_runqueue_ns",
    "sched/worker_iowait_ns",
    "sched/worker_runqueue_ns",
    "sched/others_cpu_ratio",
    "io/checkpoint_write_ns",
    "io/fsync_ns",
    "block/read_bytes",
    "block/read_count",
    "memory/major_fault_count",
    "memory/reclaim_ns",
    "pressure/memory_ns",
    "net/sent_bytes",
    "net/received_bytes",
    "ranks/wait_ns",
)
"""Metrics that a verdict looks at; any of them may be missing."""

_INDEX = {name: index for index, name in enumerate(INPUTS)}

BLOCKS = 64
"""Blocks kept at most."""

GROUPS = 32
"""Groups of blocks that the usual steps are chosen from, at most."""

GROUP_STEPS = 8
"""Steps in a group, at least, in all but short epochs: a loader with several workers makes a step
wait once for each round of its workers, and a group should hold a round."""

FEW_GROUPS = 5
"""Groups in a short epoch; the fastest and the slowest of them are left out."""


class Usual(NamedTuple):
    """What a step is like.

    Attributes:
        steps: number of steps.
        mean: metric -> value per step, NaN where it was not measured. Costs that come now and then
            are averaged over all steps, all else over the usual ones.
        marked: sum of the phases as a share of the sum of the steps; 1 where nothing is amiss.
        uneven: share of all the time that lies in slow steps beyond the time of usual ones.
    """

    steps: int
    mean: Mapping[str, float]
    marked: float
    uneven: float


class Blocks:
    """Sums of consecutive steps, block by block."""

    def __init__(self) -> None:
        self._length = 1
        self._sums: list[Floats] = []
        self._known: list[Floats] = []
        self._steps: list[int] = []

    def __len__(self) -> int:
        return sum(self._steps)

    def add(self, columns: Mapping[str, Floats]) -> None:
        """Take the next steps.

        Args:
            columns: metric -> values (n,), NaN for unknown; of these only `INPUTS` are looked at.
        """
        count = max((len(column) for column in columns.values()), default=0)
        matrix = np.full((count, len(INPUTS)), np.nan)
        for name, index in _INDEX.items():
            if name in columns:
                matrix[:, index] = columns[name]
        first = 0
        while first < count:
            first += self._fill(matrix[first:])

    def usual(self) -> Usual:
        """Usual steps: the middle half of the groups, by time without what comes now and then.

        A few steps that were disturbed spoil their groups, and nothing else; a stall that comes
        back every few steps is in every group. The same steps serve all metrics, so that parts
        still add up.
        """
        sums, known = np.array(self._sums), np.array(self._known)
        steps = np.array(self._steps)
        middle = _middle(np.array_split(np.arange(len(steps)), self._groups()), sums, steps)
        mean = _mean(sums[middle], known[middle])
        rare = [_INDEX[name] for name in NOW_AND_THEN]
        usual_core = _core(sums[middle].sum(axis=0)) / steps[middle].sum()
        total = sums.sum(axis=0)
        # Over all steps: a loop that marks its first checkpoint in step 999 had none before.
        mean[rare] = np.where(known[:, rare].any(axis=0), total[rare] / len(self), np.nan)
        whole = max(1.0, float(total[_INDEX[STEP]]))
        marked = sum(float(total[_INDEX[name]]) for name in PHASES)
        beyond = max(0.0, _core(total) - usual_core * len(self))
        values = dict(zip(INPUTS, mean.tolist(), strict=True))
        return Usual(len(self), values, marked / whole, float(beyond / whole))

    def _groups(self) -> int:
        wanted = len(self) // GROUP_STEPS
        return min(len(self._steps), GROUPS, max(FEW_GROUPS, wanted))

    def _fill(self, matrix: Floats) -> int:
        """Put rows into the open block; how many went into it."""
        if not self._steps or self._steps[-1] == self._length:
            self._make_room()
            self._sums.append(np.zeros(len(INPUTS)))
            self._known.append(np.zeros(len(INPUTS)))
            self._steps.append(0)
        rows = matrix[: self._length - self._steps[-1]]
        self._sums[-1] += np.nansum(rows, axis=0)
        self._known[-1] += np.isfinite(rows).sum(axis=0)
        self._steps[-1] += len(rows)
        return len(rows)

    def _make_room(self) -> None:
        if len(self._steps) < BLOCKS:
            return
        self._length *= 2
        self._sums = [a + b for a, b in zip(self._sums[::2], self._sums[1::2], strict=True)]
        self._known = [a + b for a, b in zip(self._known[::2], self._known[1::2], strict=True)]
        self._steps = [a + b for a, b in zip(self._steps[::2], self._steps[1::2], strict=True)]


def _middle(
    groups: list[npt.NDArray[np.intp]], sums: Floats, steps: npt.NDArray[np.intp]
) -> npt.NDArray[np.intp]:
    """Blocks of the middle half of the groups."""
    times = [_core(sums[group].sum(axis=0)) / steps[group].sum() for group in groups]
    order = np.argsort(times, kind="stable")
    spare = len(groups) // 4
    return np.concatenate([groups[index] for index in order[spare : len(order) - spare]])


def _core(sums: Floats) -> float:
    """Time of steps without what comes now and then; what was not measured adds nothing."""
    rare = sum(float(sums[_INDEX[name]]) for name in NOW_AND_THEN)
    return float(sums[_INDEX[STEP]]) - rare


def _mean(sums: Floats, known: Floats) -> Floats:
    """Mean over the steps in which a metric is known; NaN for none."""
    return divided(sums.sum(axis=0), known.sum(axis=0))
