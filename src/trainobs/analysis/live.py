"""A run that goes on, or has not begun yet, looked at again and again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from trainobs.analysis.summary import Summary, summarize
from trainobs.runlog.info import cannot_read
from trainobs.runlog.reader import RunLog, find_run

PARTS = 2
"""Parts of each table that are read: the newest `SEAL_STEPS` to twice as many steps, however
long the run is."""

SHARE = 0.05
"""Share of a CPU that reading may take: the run that is watched needs the CPUs."""


class LiveRun:
    """The newest steps of a run; once it has ended, all of it.

    Args:
        path: a run directory, or one that holds runs, or that does not exist yet.
        clock: now, in seconds.
        cpu: CPU time of this process, in seconds.
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self._path = path
        self._clock, self._cpu = clock, cpu
        self._run_dir: Path | None = None
        self._seen: tuple[int, ...] = ()
        self._not_before = 0.0
        self.summary: Summary | None = None

    def look(self) -> bool:
        """Read what is new into `summary`, if it is time to; whether there was anything.

        Raises:
            RunLogError: what is there is no run that this version can read.
        """
        try:
            self._run_dir = self._run_dir or find_run(self._path)
        except OSError as error:
            raise cannot_read(self._path, str(error), "see that you may read it") from error
        if self._run_dir is None or self._clock() < self._not_before:
            return False
        # Files are replaced, never written into, and each replacement changes its directory.
        now = tuple(_changed(folder) for folder in (self._run_dir, *self._run_dir.glob("rank=*")))
        if now == self._seen:
            return False
        began = self._cpu()
        self._seen = now
        self.summary = summarize(RunLog.open(self._run_dir, newest_parts=PARTS))
        if self.summary["outcome"] is not None:
            self.summary = summarize(RunLog.open(self._run_dir))
        self._not_before = self._clock() + (self._cpu() - began) / SHARE
        return True


def _changed(folder: Path) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:  # removed meanwhile
        return 0
