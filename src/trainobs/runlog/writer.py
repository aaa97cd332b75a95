"""The run log: the numbers of record, as Parquet files that any tool opens."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainobs.core.coverage import Coverage
from trainobs.core.errors import RunLogError
from trainobs.core.files import replace_file
from trainobs.core.records import RunInfo, StepTable
from trainobs.core.sink import Sink
from trainobs.core.strict_json import dumps
from trainobs.core.version import __version__
from trainobs.runlog.directory import refuse_foreign
from trainobs.runlog.part import RunLogPart, latency_table
from trainobs.runlog.schema import (
    BATCHES,
    KERNEL,
    LATENCY,
    SCHEMA,
    STEPS,
    latency_file,
    part_file,
    rank_dir,
    run_file,
)
from trainobs.runlog.store import store

SEAL_STEPS = 2048
"""Steps in a part before the next one is begun. A slow run rewrites its open part at each flush, so
a larger part writes more; a smaller one has more file footers (4 bytes a step at this length)."""

HELD_STEPS = 4 * SEAL_STEPS
"""Steps kept in memory (some 15 MB) while the disk refuses them; what follows is lost, counted."""


RESERVE_BYTES = 1 << 15
"""Kept on the disk while a run goes on, so that `run.json` can still say that the disk was full."""


class RunLogSink(Sink):
    """Writes the run log of one rank.

    The part that is still open is rewritten whole at each flush and sealed at `SEAL_STEPS`: a
    killed run loses what came after its last flush and leaves nothing unreadable, and a slow run
    does not leave thousands of files. Measured on busy steps (30 kernel cells, one batch): 326
    bytes a step.

    A directory that already holds this rank is refused, never mixed: see `directory.claim`, which
    makes one that does not.

    Args:
        run_dir: directory of the run.
        rank: this process in the job.
        claimed: whether `directory.claim` has made the directory of this rank for this sink.

    Attributes:
        lost_steps: steps dropped because the disk refused them for longer than memory allows, or
            removed after they were written.
    """

    name = "runlog"

    def __init__(self, run_dir: Path, rank: int = 0, *, claimed: bool = False) -> None:
        self._run_dir = Path(run_dir)
        self._rank = rank
        self._claimed = claimed
        self._info: RunInfo | None = None
        self._summary: dict[str, object] | None = None
        self._written_run = b""
        self._coverage = Coverage.whole()
        self._part = RunLogPart(self._coverage)
        self._sealed_steps: list[int] = []
        self._stored = 0
        self._sealed_rows: Counter[str] = Counter()
        self._rows: dict[str, int] = {}
        self._are_rows_known = True
        self._latency: npt.NDArray[np.uint64] | None = None
        self._failing = self._has_begun = False

    def begin(self, info: RunInfo) -> None:
        """Claim the directory, where that was not done before, and write `run.json`.

        Raises:
            OSError: the directory cannot be made or written.
            RunLogError: it already holds a run of this rank.
        """
        self._info = info
        self._coverage = Coverage(info.capabilities)
        self._part = RunLogPart(self._coverage)
        if self._claimed:
            self._make_again()  # someone may have removed it since
            self._store_run()
        else:
            self._begin_unclaimed()
        self._has_begun = True
        with suppress(OSError):  # then the end may go unrecorded, as without it
            # Of zeros, a file system that compresses would keep next to nothing.
            replace_file(self._reserve, os.urandom(RESERVE_BYTES))

    def _begin_unclaimed(self) -> None:
        directory = rank_dir(self._run_dir, self._rank)
        taken = run_file(self._run_dir, self._rank)
        self._run_dir.mkdir(parents=True, exist_ok=True)
        refuse_foreign(self._run_dir)
        if taken.exists():
            raise _taken(taken)
        try:
            directory.mkdir()  # the claim: of two processes only one succeeds
        except FileExistsError:
            raise _taken(directory) from None
        try:
            self._store_run()
        except OSError:
            directory.rmdir()  # give the claim back, or a second attempt would find it taken
            raise

    def write(self, table: StepTable) -> None:
        """Take the next closed steps; those beyond `HELD_STEPS` are dropped and counted."""
        if len(self._part) and len(self._part) + len(table) > HELD_STEPS:
            self.lost_steps += table.step_count
            return
        self._part.append(table)
        if len(self._part) >= SEAL_STEPS and not self._failing:
            self._seal_early()

    def latency(self, buckets: npt.NDArray[np.uint64]) -> None:
        """Take the latency histograms since the run began, shape (op, class, role, BUCKETS)."""
        self._latency = buckets.copy()

    def flush(self) -> None:
        """Bring the files up to date.

        Raises:
            OSError: the disk refused; what was taken is kept, and the next flush tries again.
        """
        try:
            if self._failing:
                self._make_again()
            self._store_run()
            self._store_part()
            self._store_latency()
        except OSError:
            self._failing = True
            raise
        self._failing = False

    def has_all_steps(self) -> bool:
        """They are written before the latencies."""
        return self._stored == len(self._part)

    def end(self, summary: dict[str, object]) -> None:
        """Flush, and add `summary` to `run.json`.

        Raises:
            OSError: the disk refused; `end` may be called again.
        """
        try:
            self.flush()  # first: who reads the end will look for all steps in the files
        except Exception:
            self._failing = True  # also where it was no fault of the disk
            if self._latency is not None:  # an older one would be told as that of the whole run
                with suppress(OSError):
                    latency_file(self._run_dir, self._rank).unlink()
            self._store_end(summary)
            raise
        self._store_end(summary)

    def end_disarmed(self, summary: dict[str, object]) -> None:
        """Say in `run.json` how the run ended, which takes neither pyarrow nor much memory."""
        if self._has_begun:  # else the directory may be of an earlier run
            self._failing = True
            self._store_end(summary)

    def _store_end(self, summary: dict[str, object]) -> None:
        self._summary = summary
        self._give_up_reserve()
        try:
            self._store_run()
        except OSError:
            self._failing = True  # the directory may be gone: should `end` be called again
            raise

    def _give_up_reserve(self) -> None:
        with suppress(OSError):
            self._reserve.unlink()

    @property
    def _reserve(self) -> Path:
        return rank_dir(self._run_dir, self._rank) / ".reserve"

    def _seal_early(self) -> None:
        """Many short steps may fill a part before the next flush is due."""
        try:
            self._store_part()
        except OSError:
            self._failing = True  # the next flush meets the same error and raises it

    def _make_again(self) -> None:
        """Someone may have removed the directory: what is still in memory is written anew."""
        for number, steps in enumerate(self._sealed_steps):
            if not part_file(self._run_dir, self._rank, STEPS, number).exists():
                self.lost_steps += steps
                self._sealed_steps[number] = 0
                self._are_rows_known = False
        rank_dir(self._run_dir, self._rank).mkdir(parents=True, exist_ok=True)
        self._written_run = b""
        self._stored = 0

    def _store_run(self) -> None:
        """Write `run.json` if it changed: parts that disarm themselves say so in it."""
        assert self._info is not None, "begin comes first"
        facts = dataclasses.asdict(self._info)
        for some in ("tables", "phases", "counters"):  # a run without any says nothing of them
            if not facts[some]:
                del facts[some]
        document = {
            "schema": SCHEMA,
            "trainobs": __version__,
            **facts,
            "summary": self._summary and {**self._summary, **self._all_stored(self._summary)},
        }
        text = dumps(document, indent=2).encode()
        if text != self._written_run:
            replace_file(run_file(self._run_dir, self._rank), text)
            self._written_run = text

    def _all_stored(self, summary: Mapping[str, object]) -> dict[str, object]:
        """Steps, and rows of other tables, in the files of a run that has ended.

        By these a reader notices that some are gone, or are another run's. Not where the disk
        refuses: then nobody knows them, but which are lost.
        """
        others = summary.get("stored_rows", {})
        assert isinstance(others, Mapping)
        if self._failing or not self._has_begun:
            return {}
        rows = self._sealed_rows + Counter(self._rows)  # drops zeros
        steps = sum(self._sealed_steps) + self._part.step_count
        told = {**(rows if self._are_rows_known else {}), **others}
        return {"stored_steps": steps, **({"stored_rows": told} if told else {})}

    def _store_part(self) -> None:
        if len(self._part) == self._stored:
            return
        # First, so that a step in the table always has its cells.
        for table, rows in ((KERNEL, self._part.kernel()), (BATCHES, self._part.batches())):
            if rows is not None:
                store(self._part_file(table), rows)
                self._rows[table] = len(rows)
        store(self._part_file(STEPS), self._part.steps())
        self._stored = len(self._part)
        if self._stored >= SEAL_STEPS:
            self._sealed_steps.append(self._part.step_count)
            for table in (KERNEL, BATCHES):
                self._sealed_rows[table] += self._rows.pop(table, 0)
            self._part, self._stored = RunLogPart(self._coverage), 0

    def _store_latency(self) -> None:
        if self._latency is not None:
            path = latency_file(self._run_dir, self._rank)
            rows = latency_table(self._latency)
            store(path, rows)
            self._latency, self._rows[LATENCY] = None, len(rows)

    def _part_file(self, table: str) -> Path:
        return part_file(self._run_dir, self._rank, table, len(self._sealed_steps))


def _taken(path: Path) -> RunLogError:
    return RunLogError(
        failed="The run log was not started.",
        found=f"{path} belongs to an earlier run",
        do="give another directory, or take the one that trainobs.runlog.directory.claim makes",
    )
