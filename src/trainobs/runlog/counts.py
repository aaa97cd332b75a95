"""Access counts of the embedding tables, saved beside the run log: what FAE reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from trainobs.core.errors import AccessCountsError
from trainobs.core.files import make_directory
from trainobs.core.now import now_s
from trainobs.core.sink import Sink
from trainobs.runlog.schema import counts_file

if TYPE_CHECKING:
    from trainobs.access import AccessCounts

SAVE_S = 30.0
"""Least time between two saves: what a killed run loses of its counts."""

SHARE = 0.005
"""Part of the time that saving may take; large counts are saved more rarely."""


class CountsSink(Sink):
    """Saves the access counts of this rank now and then, and at the end.

    Args:
        run_dir: directory of the run.
        rank: this process in the job.
        take: the counts; None while there are none. They grow in the thread that calls the sink.
        now: time in seconds.
    """

    name = "access counts"
    stays = True

    def __init__(
        self,
        run_dir: Path,
        rank: int,
        take: Callable[[], AccessCounts | None],
        *,
        now: Callable[[], float] = now_s,
    ) -> None:
        self._path = counts_file(run_dir, rank)
        self._take = take
        self._now = now
        self._due = now() + SAVE_S

    def flush(self) -> None:
        """Save, if that is due.

        Raises:
            OSError: the disk refused; the next flush tries again.
        """
        if self._now() >= self._due:
            self._save()

    def end(self, summary: dict[str, object]) -> None:
        """Save for the last time."""
        self._save()

    def _save(self) -> None:
        counts = self._take()
        if counts is None:
            return
        begin = self._now()
        make_directory(self._path.parent)
        counts.save(self._path)
        end = self._now()
        self._due = end + max(SAVE_S, (end - begin) / SHARE)


class SavedCounts:
    """The access counts of this rank as they were saved last.

    Args:
        run_dir: directory of the run.
        rank: this process in the job.
    """

    def __init__(self, run_dir: Path, rank: int) -> None:
        self._path = counts_file(run_dir, rank)

    def __call__(self) -> AccessCounts | None:
        """The counts; None while there are none, or none that can be read."""
        from trainobs.access import AccessCounts

        try:
            return AccessCounts.load(self._path)
        except (OSError, AccessCountsError):
            return None
