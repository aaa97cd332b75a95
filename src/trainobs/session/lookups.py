"""The lookups of embedding rows: who counts them, and what becomes of a fault of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainobs.access import AccessCounts
from trainobs.core.embedding_table import EmbeddingTable
from trainobs.core.records import RunInfo
from trainobs.core.sink import Sink
from trainobs.runlog.counts import CountsSink
from trainobs.runlog.embeddings import EmbeddingsSink
from trainobs.session.parts import OptionalPart
from trainobs.steps.clock import ClosedStep

PART = "embeddings"
"""Name of this part among the capabilities of a run; not there in a run without tables."""


class LookupReadings(Protocol):
    """What the torch side tells of lookups; see `trainobs.embeddings.model_lookups.Lookups`.

    `rows`, `begin_epoch` and `counts` belong to the observer's thread.
    """

    tables: tuple[EmbeddingTable, ...]
    counts: AccessCounts

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
    """

    def __init__(self, run_dir: Path | None = None) -> None:
        self._run_dir = run_dir
        self._source: LookupReadings | None = None
        self._part: OptionalPart | None = None
        self._epoch: int | None = None
        self._failed = False
        self._closed = False

    def attach(self, source: LookupReadings, info: RunInfo) -> list[Sink]:
        """Record what a source tells from now on; one a run.

        Returns:
            Sinks for that record, which a run without tables does not have.
        """
        info.tables = source.tables
        self._part = OptionalPart(info, PART, "embedding lookups are no longer counted")
        self._part.begin()
        self._source = source
        if self._run_dir is None:
            return []
        return [
            EmbeddingsSink(self._run_dir, info.rank),
            CountsSink(self._run_dir, info.rank, self.counts),
        ]

    def counts(self) -> AccessCounts | None:
        """How often each row was looked up so far, or until a fault; None for nothing."""
        counts = self._source.counts if self._source else None
        if counts and self._failed and not any(map(counts.total, counts.tables)):
            return None
        return counts

    def ready(self, step: ClosedStep) -> bool:
        """See `LookupSource`."""
        source = self._source
        if source is None or self._failed:
            return True
        try:
            return source.ready(step)
        except Exception as error:
            self._fail(error)
            return True

    def rows(self, steps: Sequence[ClosedStep]) -> npt.NDArray[np.void] | None:
        """See `LookupSource`."""
        source = self._source
        if source is None or self._failed:
            return None
        try:
            return np.concatenate(
                [self._of_epoch(source, epoch, list(part)) for epoch, part in _by_epoch(steps)]
            )
        except Exception as error:
            self._fail(error)
            return None

    def tend(self) -> None:
        """Take the hooks of a source that failed off; for the training thread, between steps."""
        if self._failed:
            self.close()

    def close(self) -> None:
        """Take the hooks off. May be called twice."""
        source = self._source
        if source is None or self._closed:
            return
        self._closed = True
        try:
            source.close()
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
        if self._part and not self._failed:
            self._failed = True
            self._part.give_up(error)


def _by_epoch(steps: Sequence[ClosedStep]) -> groupby[int, ClosedStep]:
    return groupby(steps, key=lambda step: step.epoch)
