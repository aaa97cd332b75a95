"""Hot embedding rows: who tells of them, and what becomes of a fault of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trainobs.core.records import RunInfo
from trainobs.session.parts import OptionalPart
from trainobs.steps.clock import ClosedStep
from trainobs.steps.timeline import Columns

PART = "hot_rows"
"""Name of this part among the capabilities of a run; not there in a run without hot rows."""


class HotRowSource(Protocol):
    """What the torch side tells of hot rows; see `trainobs.embeddings.hot_row_readings`."""

    def stepped(self, serial: int) -> None:
        """A step is over; called in the thread that trains."""

    def columns(self, steps: Sequence[ClosedStep]) -> Columns:
        """See `StepSource`."""


class HotRowWatch:
    """Brings hot rows to the steps, once a model has any; a source that fails is asked no more."""

    def __init__(self, info: RunInfo) -> None:
        self._part = OptionalPart(info, PART, "hot embedding rows are no longer observed")
        self._source: HotRowSource | None = None

    def attach(self, source: HotRowSource) -> None:
        """Record what a source tells from now on."""
        self._source = source
        self._part.begin()

    def stepped(self, serial: int) -> None:
        """A step is over; for the thread that trains."""
        if self._source is not None:
            try:
                self._source.stepped(serial)
            except Exception as error:
                self._fail(error)

    def columns(self, steps: Sequence[ClosedStep]) -> Columns:
        """See `StepSource`; none in a run without hot rows."""
        source = self._source
        if source is None:
            return {}
        try:
            return source.columns(steps)
        except Exception as error:
            self._fail(error)
            return {}

    def _fail(self, error: Exception) -> None:
        self._source = None
        self._part.give_up(error)
