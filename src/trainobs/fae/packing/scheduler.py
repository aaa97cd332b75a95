"""In which order pure and mixed batches come."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, fields
from numbers import Real
from typing import Any, Protocol

import numpy as np

from trainobs.core.arguments import check_whole
from trainobs.core.errors import FAEError, SettingError, shown

Mark = tuple[Any, ...]
"""Where a schedule stands; small, so that one can be taken in each step."""

_CANNOT_ADAPT = "cannot adapt the rate of pure and mixed batches"


class Schedule(Protocol):
    """Decides, step by step, whether a pure or a mixed batch comes.

    All ranks ask the same questions and must get the same answers.
    """

    def begin(self, epoch: int, window: int, pure_count: int, mixed_count: int) -> None:
        """A window begins, with so many batches of each kind."""

    def is_next_pure(self, pure_left: int, mixed_left: int) -> bool:
        """The kind of the next batch; asked only while there are some of both kinds, or of one."""

    def mark(self) -> Mark:
        """Where it stands."""

    def state_dict(self, mark: Mark | None = None) -> dict[str, Any]:
        """What `load_state_dict` needs to go on at a mark, or here."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken."""


class ShuffledOrder:
    """Kinds in random order: what plain shuffling of packed batches gives. Needs no test loss.

    Args:
        seed: of the order, which depends on nothing else but epoch, window and counts.

    Raises:
        SettingError: the seed is no whole number.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = check_whole(seed, "seed")
        self._order = np.zeros(0, dtype=bool)

    def begin(self, epoch: int, window: int, pure_count: int, mixed_count: int) -> None:
        """Draw the order of a window."""
        kinds = np.arange(pure_count + mixed_count) < pure_count
        generator = np.random.default_rng([abs(self._seed), epoch, window])
        self._order = generator.permutation(kinds)

    def is_next_pure(self, pure_left: int, mixed_left: int) -> bool:
        """The kind of the next batch."""
        return bool(self._order[len(self._order) - pure_left - mixed_left])

    def mark(self) -> Mark:
        """Nothing: the order follows from what is left."""
        return ()

    def state_dict(self, mark: Mark | None = None) -> dict[str, Any]:
        """Nothing but the kind of schedule."""
        return {"kind": "shuffled", "seed": self._seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Check that it is the same order.

        Raises:
            FAEError: the state is another schedule's, or has another seed.
        """
        if dict(state) != self.state_dict():
            _refuse(f"a state of {dict(state)}", self.state_dict())


@dataclass(frozen=True)
class Report:
    """A test loss, and what the scheduler made of it.

    Attributes:
        step: batches handed out before it.
        pure_steps: those of them that were pure.
        swaps: between pure and mixed runs, so far.
        test_loss: as reported.
        rate: from then on.
    """

    step: int
    pure_steps: int
    swaps: int
    test_loss: float
    rate: float


@dataclass
class _SchedulePosition:
    """Where a ShuffleScheduler stands."""

    rate: float
    is_pure: bool = False
    run_left: int = 0
    steps: int = 0
    pure_steps: int = 0
    swaps: int = 0
    improvements: int = 0
    last_loss: float | None = None
    is_due: bool = False
    reports: int = 0


class ShuffleScheduler:
    """Alternates runs of pure and of mixed batches, whose length follows the test loss.

    A run takes `rate` of the window's batches of its kind, at least one. Long runs swap rarely,
    which is cheap where a swap costs something (the sharder's mode "paper"); short ones
    are nearer to shuffled training. At the end of each run, where kinds swap, `is_due` asks for a
    test loss: one higher than the last halves the rate, `patience` lower ones in a row double it.
    As in FAE (Adnan et al., VLDB 2022, "shuffle scheduler"), by the figures that are told of it:
    50 % at first, halved, doubled after about 4 improvements, not below 1 %.

        for batch in packed:
            train(batch)
            if scheduler.is_due:
                scheduler.report(test_loss(model))  # the same number on every rank

    The paper's runs are shares of all batches of an epoch. Here they are shares of a window: make
    `pack(window=...)` as long as the epoch for the same.

    Args:
        rate: at first, of the batches of a kind.
        floor: it never goes below.
        patience: improvements in a row that double it.

    Raises:
        SettingError: a number is out of range.
    """

    def __init__(self, rate: float = 0.5, floor: float = 0.01, patience: int = 4) -> None:
        numbers = (rate, floor, patience)
        if not all(isinstance(n, Real) for n in numbers) or not (
            0 < floor <= rate <= 1 and patience >= 1
        ):
            raise SettingError(
                "cannot schedule pure and mixed batches",
                f"rate={rate!r}, floor={floor!r}, patience={patience!r}",
                "give 0 < floor <= rate <= 1, and a patience of at least 1",
            )
        self._settings = {"kind": "adaptive", "floor": floor, "patience": patience, "start": rate}
        self._floor = floor
        self._patience = patience
        self._now = _SchedulePosition(rate)
        self._counts = (0, 0)
        self.history: list[Report] = []

    @property
    def rate(self) -> float:
        """Share of a kind's batches in the next run."""
        return self._now.rate

    @property
    def is_due(self) -> bool:
        """Whether a run has ended and no test loss was reported since."""
        return self._now.is_due

    def begin(self, epoch: int, window: int, pure_count: int, mixed_count: int) -> None:
        """Learn how many batches of each kind the window has."""
        self._counts = (pure_count, mixed_count)

    def is_next_pure(self, pure_left: int, mixed_left: int) -> bool:
        """The kind of the next batch."""
        now = self._now
        if now.run_left == 0:
            self._begin_run(pure_left, mixed_left)
        now.run_left -= 1
        now.steps += 1
        now.pure_steps += now.is_pure
        now.is_due = now.is_due or now.run_left == 0
        return now.is_pure

    def report(self, test_loss: float) -> None:
        """Adapt the rate.

        Args:
            test_loss: of the model as it is now, lower is better; the same on every rank. Of a
                tensor the number is kept.

        Raises:
            SettingError: the loss is no number.
            FAEError: it is NaN.
        """
        try:
            loss = float(test_loss)
        except (TypeError, ValueError) as error:
            found = f"{shown(test_loss)} in the place of a test loss"
            raise SettingError(_CANNOT_ADAPT, found, "give a number") from error
        if math.isnan(loss):
            raise FAEError(
                _CANNOT_ADAPT,
                "a test loss that is not a number",
                "look whether training has diverged; report a loss of test data",
            )
        now = self._now
        if now.last_loss is not None:
            self._adapt(loss, now.last_loss)
        now.last_loss, now.is_due = loss, False
        self.history.append(Report(now.steps, now.pure_steps, now.swaps, loss, now.rate))
        now.reports = len(self.history)

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the history: one line a report, with names in the first."""
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Report)])
            writer.writeheader()
            writer.writerows(asdict(report) for report in self.history)

    def mark(self) -> Mark:
        """Where it stands."""
        return astuple(self._now)

    def state_dict(self, mark: Mark | None = None) -> dict[str, Any]:
        """Everything, the history up to the mark included."""
        where = self._now if mark is None else _SchedulePosition(*mark)
        history = [astuple(report) for report in self.history[: where.reports]]
        return {**self._settings, "where": asdict(where), "history": history}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken.

        Raises:
            FAEError: it is the state of another schedule, or has other arguments.
        """
        if any(state.get(name) != value for name, value in self._settings.items()):
            _refuse(f"a state of {dict(state)}"[:200], self._settings)
        self._now = _SchedulePosition(**state["where"])
        self.history = [Report(*report) for report in state["history"]]

    def _begin_run(self, pure_left: int, mixed_left: int) -> None:
        """Of the other kind, if there is some left; a run ends with its window at the latest."""
        now = self._now
        is_pure = pure_left > 0 and not (now.is_pure and mixed_left > 0)
        now.swaps += is_pure != now.is_pure and now.steps > 0
        now.is_pure = is_pure
        left, count = (pure_left, self._counts[0]) if is_pure else (mixed_left, self._counts[1])
        now.run_left = min(left, max(1, math.ceil(now.rate * count)))

    def _adapt(self, loss: float, last: float) -> None:
        now = self._now
        if loss > last:
            now.rate = max(self._floor, now.rate / 2)
        now.improvements = now.improvements + 1 if loss < last else 0
        if now.improvements == self._patience:
            now.rate = min(1.0, now.rate * 2)
            now.improvements = 0


def _refuse(found: str, wanted: Mapping[str, Any]) -> None:
    raise FAEError(
        "cannot go on with this order of batches",
        found,
        f"resume with the scheduler of the interrupted run; this one is {dict(wanted)}",
    )
