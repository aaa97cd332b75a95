"""A run log for notebooks and scripts: its tables, and what the report says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from trainobs.analysis.io.unnamed_reads import OF_DATA, READ_FOR_A_BATCH, unnamed_bytes
from trainobs.analysis.summary import Summary, summarize
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import BATCHES, EMBEDDINGS, KERNEL, STEPS
from trainobs.runlog.whole import whole_table


class LoadedRun:
    """What a run recorded. Nothing is read before it is asked for, and then it is kept.

    Tables are `pyarrow.Table`, of all ranks, with the columns of docs/run-log.md and `rank` in
    front of them: `run.steps.to_pandas()`. One that the run does not have is None.

    Args:
        path: a run directory, taken as it is, or one that holds runs: the newest.
        rank: the one that `summary` and `verdict` are about; None: the lowest.

    Attributes:
        run_dir: the run directory.

    Raises:
        RunLogError: there is no run to read, or no such rank.
    """

    def __init__(self, path: Path, rank: int | None = None) -> None:
        self._run, self._rank = RunLog.open(path, rank=rank), rank
        self.run_dir = self._run.path

    def __repr__(self) -> str:
        """Which run it is."""
        return f"<trainobs run in {str(self.run_dir)!r}>"

    @cached_property
    def steps(self) -> Any:
        """One row a step, with every metric; what is not known in the end is null."""
        return whole_table(self._run, STEPS, self._unknown(OF_DATA))

    @cached_property
    def batches(self) -> Any:
        """Batches of loaders: who made which, for which step."""
        return whole_table(self._run, BATCHES, self._unknown(READ_FOR_A_BATCH))

    @cached_property
    def kernel(self) -> Any:
        """What the kernel counted, by step, operation, class of file and role."""
        return whole_table(self._run, KERNEL)

    @cached_property
    def embeddings(self) -> Any:
        """Lookups by step and embedding table."""
        return whole_table(self._run, EMBEDDINGS)

    @cached_property
    def summary(self) -> Summary:
        """What `trainobs report --json` prints."""
        return summarize(self._run)

    @property
    def verdict(self) -> str:
        """What bounds a step, in one sentence, or why that is not known."""
        return self.summary["verdict"]["run"]["text"][0]

    def _unknown(self, of_data: Sequence[str]) -> dict[int, Sequence[str]]:
        """Rank -> the columns whose numbers are known to be none, now that all was read."""
        run = self._run
        unknown = [
            number for number, rank in run.ranks.items() if unnamed_bytes(run, rank) is not None
        ]
        return dict.fromkeys(unknown, of_data)
