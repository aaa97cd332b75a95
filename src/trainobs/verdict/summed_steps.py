"""The steps of an epoch, or of a run, in the little memory that a verdict needs.

All steps are summed in blocks of equal length; when there are too many blocks, neighbours are
joined. Beside the sums a sample of whole steps is kept, in windows of consecutive ones, for the
replay and to see how even the steps are. Some 0.4 MB hold both, whatever the number of steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainobs.core.catalogue.named import named_phase
from trainobs.core.quotients import divided
from trainobs.core.records import SETUP, StepTable
from trainobs.replay.metric_columns import Floats
from trainobs.verdict import metric_names as names

_INDEX = {name: index for index, name in enumerate(names.INPUTS)}
_ALL_STEPS = [
    _INDEX[name]
    for name in (*names.PHASES, names.GARBAGE, names.START, names.STARTING_WORKERS, *names.SPLIT)
]

_OVER_TIME = ("sched/others_cpu_ratio",)
"""Shares of time: their mean is that over time, not over steps."""

_TIMES = np.array([name.endswith("_ns") and name != names.STEP for name in names.INPUTS])

MOST = 0.7
"""Share of the time that has to lie in some steps, for it to be theirs."""

FEW = 0.15
"""Share of the steps that are few."""

BLOCKS = 64
"""Blocks kept at most."""

WINDOW = 64
"""Consecutive steps of a window of the sample."""

WINDOWS = 8
"""Windows kept at most."""


class Sample(NamedTuple):
    """Whole steps, in windows of consecutive ones.

    Attributes:
        epochs: of each step, shape (n,).
        columns: name of `INPUTS` -> values (n,), NaN for unknown.
    """

    epochs: npt.NDArray[np.int64]
    columns: Mapping[str, Floats]


class StepInputs:
    """What `SummedSteps` take of some steps, by column; made once for all that take them.

    Args:
        columns: metric -> values (n,), NaN for unknown; of these only `INPUTS`, and phases with a
            name of the user's, are looked at.
    """

    def __init__(self, columns: Mapping[str, Floats]) -> None:
        self.named = {name: column for name, column in columns.items() if named_phase(name)}
        count = max((len(column) for column in columns.values()), default=0)
        rows = np.full((len(names.INPUTS), count), np.nan)
        for name, index in _INDEX.items():
            if name in columns:
                rows[index] = columns[name]
        if self.named:
            rows[_INDEX[names.NAMED]] = np.nansum(list(self.named.values()), axis=0)
        self.values = rows.T
        self.known = np.isfinite(self.values).astype(np.float64)
        for name in _OVER_TIME:  # a long step is more of the time
            self.known[:, _INDEX[name]] *= np.nan_to_num(rows[_INDEX[names.STEP]])
        self.parts = np.nan_to_num(self.values) * self.known

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice) -> StepInputs:
        some = object.__new__(StepInputs)
        some.named = {name: column[rows] for name, column in self.named.items()}
        some.values, some.known = self.values[rows], self.known[rows]
        some.parts = self.parts[rows]
        return some


class SummedSteps:
    """Steps in sums, and a sample of them; taken as they come.

    Attributes:
        first: number of the first step.
        is_whole: whether no steps came before the first, but that of the run.
        are_consecutive: whether each has the number after that of the one before.
        first_batch: what the first step of the run had to make, which is none of these: name of
            `BATCH` -> value.
    """

    def __init__(self) -> None:
        self._length = 1
        self._sums: list[Floats] = []
        self._known: list[Floats] = []
        self._steps: list[int] = []
        self._named: dict[str, float] = {}
        self._stride = 1
        self._seen = 0
        self._windows: list[tuple[int, npt.NDArray[np.int64], Floats]] = []
        self.first = self._next = 0
        self.are_consecutive = self.is_whole = True
        self.first_batch: Mapping[str, float] = {}

    def __len__(self) -> int:
        return sum(self._steps)

    def add(
        self,
        columns: Mapping[str, Floats],
        epochs: npt.NDArray[np.integer[Any]] | None = None,
        steps: npt.NDArray[np.integer[Any]] | None = None,
    ) -> None:
        """Take the next steps, as `take`; for `columns` see `StepInputs`."""
        self.take(StepInputs(columns), epochs, steps)

    def take(
        self,
        inputs: StepInputs,
        epochs: npt.NDArray[np.integer[Any]] | None = None,
        steps: npt.NDArray[np.integer[Any]] | None = None,
    ) -> None:
        """Take the next steps.

        Args:
            inputs: of the steps.
            epochs: of each step; one epoch where nobody says.
            steps: their numbers; 0, 1, ... where nobody says.
        """
        count = len(inputs)
        if not count:
            return
        if steps is not None:
            if not self._seen:
                self.first = self._next = int(steps[0])
            self.are_consecutive &= bool((np.diff(steps, prepend=self._next - 1) == 1).all())
            self._next = int(steps[-1]) + 1
        numbers = np.zeros(count, np.int64) if epochs is None else epochs.astype(np.int64)
        for name, column in inputs.named.items():
            self._named[name] = self._named.get(name, 0.0) + float(np.nansum(column))
        self._sample(inputs.values, numbers)
        filled = 0
        while filled < count:
            filled += self._fill(inputs.parts[filled:], inputs.known[filled:])

    def mean(self) -> dict[str, float]:
        """Each metric per step, NaN where it was not measured.

        Phases and what comes now and then are averaged over all steps: a loop that marks its first
        checkpoint in step 999 had none before. So is what the loader was waited for: of a step that
        does not know it, all of the wait is left unexplained. And so is a time that came once: the
        steps that do not know it need not have had it again. Else it is the mean of the steps that
        know.
        """
        sums, known = np.array(self._sums).sum(axis=0), np.array(self._known).sum(axis=0)
        mean = divided(sums, known)
        over_all = np.isin(np.arange(len(sums)), _ALL_STEPS) | (_TIMES & self._came_once(sums))
        mean[over_all] = np.where(known[over_all] > 0, sums[over_all] / len(self), np.nan)
        named = {name: total / len(self) for name, total in self._named.items()}
        return named | dict(zip(names.INPUTS, mean.tolist(), strict=True))

    def _came_once(self, sums: Floats) -> npt.NDArray[np.bool_]:
        """Of which metrics one block of few steps has most of all, and others know it, too."""
        blocks, known, steps = np.array(self._sums), np.array(self._known), np.array(self._steps)
        few = (steps <= FEW * len(self))[:, None] & (known <= known.sum(axis=0) / 2)
        most = np.where(few, blocks, 0.0).max(axis=0)
        found: npt.NDArray[np.bool_] = (most > 0) & (most >= MOST * sums)
        return found

    def known_share(self, name: str) -> float:
        """Share of the steps that know a metric; 1 for what is 0 where nobody tells, see `mean`."""
        index = _INDEX[name]
        known = float(np.array(self._known)[:, index].sum())
        return 1.0 if index in _ALL_STEPS else known / max(1, len(self))

    def course(self, name: str) -> tuple[npt.NDArray[np.int64], Floats]:
        """How a metric went: of each block its steps, and the value per step (0 for unknown)."""
        steps = np.array(self._steps)
        return steps, np.array(self._sums)[:, _INDEX[name]] / steps

    def sample(self) -> Sample:
        """Whole steps; all of them where there are not many."""
        epochs = np.concatenate([window[1] for window in self._windows])
        rows = np.concatenate([window[2] for window in self._windows])
        return Sample(epochs, {name: rows[:, index] for name, index in _INDEX.items()})

    def _sample(self, matrix: Floats, epochs: npt.NDArray[np.int64]) -> None:
        first = 0
        while first < len(matrix):
            number, at = divmod(self._seen, WINDOW)
            rows = slice(first, first + WINDOW - at)
            if number % self._stride == 0:
                self._keep(number, epochs[rows], matrix[rows])
            taken = len(epochs[rows])
            self._seen += taken
            first += taken

    def _keep(self, number: int, epochs: npt.NDArray[np.int64], rows: Floats) -> None:
        if self._windows and self._windows[-1][0] == number:
            _, old_epochs, old_rows = self._windows.pop()
            epochs = np.concatenate([old_epochs, epochs])
            rows = np.concatenate([old_rows, rows])
        elif len(self._windows) == WINDOWS:
            self._windows = self._windows[::2]
            self._stride *= 2
            if number % self._stride:
                return
        self._windows.append((number, epochs, rows.copy()))

    def _fill(self, values: Floats, known: npt.NDArray[np.bool_]) -> int:
        """Put rows into the open block; how many went into it."""
        if not self._steps or self._steps[-1] == self._length:
            self._make_room()
            self._sums.append(np.zeros(len(names.INPUTS)))
            self._known.append(np.zeros(len(names.INPUTS)))
            self._steps.append(0)
        room = self._length - self._steps[-1]
        self._sums[-1] += values[:room].sum(axis=0)
        self._known[-1] += known[:room].sum(axis=0)
        taken = len(values[:room])
        self._steps[-1] += taken
        return taken

    def _make_room(self) -> None:
        if len(self._steps) < BLOCKS:
            return
        self._length *= 2
        self._sums = [a + b for a, b in zip(self._sums[::2], self._sums[1::2], strict=True)]
        self._known = [a + b for a, b in zip(self._known[::2], self._known[1::2], strict=True)]
        self._steps = [a + b for a, b in zip(self._steps[::2], self._steps[1::2], strict=True)]


class FirstSteps:
    """Leaves out what comes before the first step of a run, and that one.

    In the first step workers, caches and kernels are made: no other is like it.

    Attributes:
        seen: whether there was a step.
        first: the first step, with what is known of batches; None before it.
    """

    def __init__(self) -> None:
        self.seen = False
        self.first: StepTable | None = None

    def without(self, table: StepTable) -> StepTable:
        """The others of the next steps, with all that is known of batches."""
        rows = np.flatnonzero(table.step != SETUP)
        skipped = 0 if self.seen else 1
        if skipped and len(rows):
            first = table.select(np.arange(len(table)) == rows[0])
            self.first = replace(first, batches=table.batches)
        self.seen = self.seen or len(rows) > 0
        if len(rows) == len(table) and not skipped:
            return table
        kept = np.zeros(len(table), np.bool_)
        kept[rows[skipped:]] = True
        return replace(table.select(kept), batches=table.batches)
