"""Embedding lookups and hot rows: who tells of them, and what becomes of a fault of theirs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from trainobs.core.embedding_table import EmbeddingTable
from trainobs.core.errors import what_to_do
from trainobs.core.log import logger
from trainobs.core.records import RunInfo
from trainobs.core.signals import let_signals_through
from trainobs.core.sink import Sink
from trainobs.runlog.counts import CountsSink
from trainobs.runlog.embeddings import EmbeddingsSink
from trainobs.steps.closed_step import ClosedStep
from trainobs.steps.timeline import Columns

if TYPE_CHECKING:
    from trainobs.access import AccessCounts

LOOKUPS, HOT_ROWS = "embeddings", "hot_rows"
"""Names of these parts among the capabilities of a run; not there in a run without them."""


class OptionalPart:
    """Tells of a part that a run may have: in its capabilities, and, if it is given up, aloud.

    Args:
        info: of the run; it says nothing of the part before `begin`.
        name: of the part among the capabilities.
        given_up: what is to be told of a fault, such as "lookups are no longer counted".
    """

    def __init__(self, info: RunInfo, name: str, given_up: str) -> None:
        self._info = info
        self._name = name
        self._given_up = given_up

    def begin(self) -> None:
        """The run has it."""
        self._say("on")

    def give_up(self, error: Exception) -> None:
        """It failed, and nobody asks it any more."""
        what, found = type(error).__name__, str(error).partition("\n")[0]
        self._say(f"given up: {what}: {found}")
        logger.warning(
            "%s; the training goes on\n  found: %s: %s\n  do:    %s",
            self._given_up,
            what,
            found,
            what_to_do(error),
        )
        logger.debug("the fault in %s", self._name, exc_info=error)

    def _say(self, state: str) -> None:
        """A new dictionary, since the observer's thread may be going through the old one."""
        self._info.capabilities = {**self._info.capabilities, self._name: state}


class LookupReadings(Protocol):
    """What the torch side tells of lookups; see `trainobs.embeddings.model_lookups.ModelLookups`.

    `rows`, `begin_epoch` and `counts` belong to the observer's thread.
    """

    tables: tuple[EmbeddingTable, ...]
    counts: AccessCounts

    @property
    def fault(self) -> Exception | None:
        """Why nothing more is noted in the thread that trains; None where it is."""

    def ready(self, step: ClosedStep) -> bool:
        """Whether all is known of a closed step."""

    def rows(self, steps: Sequence[ClosedStep]) -> npt.NDArray[np.void]:
        """Rows of `LOOKUP_ROW` for consecutive closed steps, each asked for once."""

    def begin_epoch(self, epoch: int) -> None:
        """The steps asked for from now on are of another epoch."""

    def close(self) -> None:
        """Take the hooks off the model; `rows` still answers for what was taken."""


class LookupWatch:
    """Brings lookups to the steps once a model with tables is known.

    A source that fails is told once and asked no more; its hooks come off in the training thread,
    at the end of the step, since that may be in the middle of them.

    Args:
        run_dir: where the record of lookups goes; None for nowhere.

    Attributes:
        failed: whether a source has failed: the training thread is to `close`, between steps.
    """

    def __init__(self, run_dir: Path | None = None) -> None:
        self._run_dir = run_dir
        self._source: LookupReadings | None = None
        self._part: OptionalPart | None = None
        self._epoch: int | None = None
        self.failed = False
        self._at_end: Callable[[], None] | None = None
        self._is_asked = True
        self._closed = False
        self._pid = os.getpid()

    def attach(self, source: LookupReadings, info: RunInfo) -> list[Sink]:
        """Record what a source tells from now on; one a run.

        Returns:
            Sinks for that record, which a run without tables does not have.
        """
        info.tables = source.tables
        self._part = OptionalPart(info, LOOKUPS, "embedding lookups are no longer counted")
        self._part.begin()
        self._source = source
        if self._run_dir is None:
            return []
        return [
            EmbeddingsSink(self._run_dir, info.rank),
            CountsSink(self._run_dir, info.rank, self.counts),
        ]

    def look_at_end(self, look: Callable[[], None]) -> None:
        """Have this done when a run without tables ends, but not in a forked child."""
        self._at_end = look

    def counts(self) -> AccessCounts | None:
        """How often each row was looked up so far, or until a fault; None for nothing."""
        counts = self._source.counts if self._source else None
        if counts and self.failed and not any(map(counts.total, counts.tables)):
            return None
        return counts

    def ready(self, step: ClosedStep) -> bool:
        """See `LookupSource`."""
        source = self._source
        if source is None or not self._is_asked:
            return True
        try:
            return source.ready(step)
        except Exception as error:
            self._fail(error)
            return True

    def rows(self, steps: Sequence[ClosedStep]) -> npt.NDArray[np.void] | None:
        """See `LookupSource`."""
        source = self._source
        if source is None or not self._is_asked:
            return None
        try:
            rows = np.concatenate(
                [self._of_epoch(source, epoch, list(part)) for epoch, part in _by_epoch(steps)]
            )
            if source.fault is not None:  # of steps from there on it tells that nothing is known
                self._give_up(source.fault)
            return rows
        except Exception as error:
            self._fail(error)
            return None

    def close(self) -> None:
        """Take the hooks off. May be called twice."""
        source, at_end = self._source, self._at_end
        if self._closed:
            return
        try:
            if source is not None:
                self._closed = True
                source.close()
            elif at_end is not None and os.getpid() == self._pid:
                self._at_end = None
                at_end()
        except Exception as error:
            self._fail(error)

    def _of_epoch(
        self, source: LookupReadings, epoch: int, steps: list[ClosedStep]
    ) -> npt.NDArray[np.void]:
        if epoch != self._epoch:
            self._epoch = epoch
            source.begin_epoch(epoch)
        return source.rows(steps)

    def _fail(self, error: Exception) -> None:
        let_signals_through()
        self._is_asked = False
        self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if self._part and not self.failed:
            self.failed = True
            self._part.give_up(error)


class HotRowSource(Protocol):
    """What the torch side tells of hot rows; see `trainobs.embeddings.hot_row_readings`."""

    def stepped(self, serial: int) -> None:
        """A step is over; called in the thread that trains."""

    def columns(self, steps: Sequence[ClosedStep]) -> Columns:
        """See `StepSource`."""


class HotRowWatch:
    """Brings hot rows to the steps, once a model has any; a source that fails is asked no more.

    Attributes:
        source: who tells of them; None for nobody.
    """

    def __init__(self, info: RunInfo) -> None:
        self._part = OptionalPart(info, HOT_ROWS, "hot embedding rows are no longer observed")
        self.source: HotRowSource | None = None

    def attach(self, source: HotRowSource) -> None:
        """Record what a source tells from now on."""
        self.source = source
        self._part.begin()

    def stepped(self, serial: int) -> None:
        """A step is over; for the thread that trains."""
        if self.source is not None:
            try:
                self.source.stepped(serial)
            except Exception as error:
                self._fail(error)

    def columns(self, steps: Sequence[ClosedStep]) -> Columns:
        """See `StepSource`; none in a run without hot rows."""
        source = self.source
        if source is None:
            return {}
        try:
            return source.columns(steps)
        except Exception as error:
            self._fail(error)
            return {}

    def _fail(self, error: Exception) -> None:
        let_signals_through()
        self.source = None
        self._part.give_up(error)


def _by_epoch(steps: Sequence[ClosedStep]) -> groupby[int, ClosedStep]:
    return groupby(steps, key=lambda step: step.epoch)
