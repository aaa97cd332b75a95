"""What a sink is: somewhere the record goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainobs.core.records import RunInfo, StepTable


class Points(NamedTuple):
    """Points of curves, all at one step.

    Attributes:
        step: their x.
        at_ns: when that step was, of CLOCK_MONOTONIC.
        values: tag of each curve, and its value.
    """

    step: int
    at_ns: int
    values: Sequence[tuple[str, float]]


class Sink:
    """Takes the record of one run on the observer thread, in order.

    A sink raises `OSError` for a fault that may pass (disk full, directory removed): it keeps what
    it could not store, within bounds, and is called again. Any other exception disarms it.
    """

    name: str
    stays = False
    """Whether it has to be called in the training process, since it needs more of that than what
    calls bring."""
    ends_first = False
    """Whether it is ended before those that tell how many rows it stored."""
    lost_steps = 0
    """Steps whose records, or what belongs to them, this sink had to drop."""

    def prepare(self) -> None:
        """Import what the first steps will need."""

    def begin(self, info: RunInfo) -> None:
        """Open the run."""

    def look(self) -> None:
        """Take what comes without steps, and may not be kept elsewhere until the next ones.

        Called several times a second, and before steps are written.
        """

    def write(self, table: StepTable) -> None:
        """Take the next closed steps."""

    def latency(self, buckets: npt.NDArray[np.uint64]) -> None:
        """Take the latency histograms since the run began, shape (op, class, role, BUCKETS)."""

    def points(self, points: Points) -> None:
        """Take points of curves that are made elsewhere, for a sink that logs curves."""

    def made(self) -> Sequence[Points]:
        """Points of curves that it made for such a sink, each told once."""
        return ()

    def flush(self) -> None:
        """Make what was taken so far safe; called every few seconds."""

    def has_all_steps(self) -> bool:
        """Whether the steps are in its files, also where a flush failed at what is beside them."""
        return False

    def stored_rows(self) -> Mapping[str, int]:
        """Table of the run log -> rows in its files, where that is known and not 0."""
        return {}

    def end(self, summary: dict[str, object]) -> None:
        """Flush and close; `summary` holds how the run ended, what was lost and what it cost.

        And `stored_rows` of the sinks that were ended first.
        """

    def end_disarmed(self, summary: dict[str, object]) -> None:
        """Instead of `end`, once a fault has disarmed it: tell what was lost, if that is possible.

        What it raises is ignored.
        """
