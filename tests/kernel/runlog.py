"""The tables of a finished run, read with nothing of trainobs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


class RunTables:
    """What one rank of a run stored.

    Attributes:
        path: the run directory.
        info: `run.json`.
        steps: rows of the `steps` table, in order.
        batches: rows of the `batches` table, in order.
        truth: what the job wrote down beside the run log.
    """

    def __init__(self, run_dir: Path, rank: int = 0) -> None:
        self.path = run_dir
        folder = run_dir / f"rank={rank}"
        self.info: dict[str, Any] = json.loads(
            (run_dir if rank == 0 else folder).joinpath("run.json").read_text()
        )
        self.steps = _rows(folder, "steps")
        self.batches = _rows(folder, "batches")
        truth = run_dir / "truth.json"
        self.truth: dict[str, Any] = json.loads(truth.read_text()) if truth.exists() else {}
        self._cells = _rows(folder, "kernel")
        self._epochs = {row["step"]: row["epoch"] for row in self.steps}

    def total(self, field: str, op: str, cls: str | None = None, role: str | None = None) -> int:
        """Sum over all steps; a class or role of None stands for all."""
        return sum(self.by_step(field, op, cls, role).values())

    def by_step(
        self, field: str, op: str, cls: str | None = None, role: str | None = None
    ) -> Counter[int | None]:
        """Sum for each step; None is the set-up."""
        found: Counter[int | None] = Counter()
        for cell in self._cells:
            if cell["op"] == op and cls in (None, cell["class"]) and role in (None, cell["role"]):
                found[cell["step"]] += cell[field]
        return found

    def by_epoch(self, field: str, op: str, cls: str, role: str | None = None) -> Counter[int]:
        """Sum for each epoch."""
        found: Counter[int] = Counter()
        for step, value in self.by_step(field, op, cls, role).items():
            found[self._epochs[step]] += value
        return found


def _rows(folder: Path, table: str) -> list[dict[str, Any]]:
    parts = sorted(folder.glob(f"{table}-*.parquet"))
    if not parts:
        return []
    return pa.concat_tables(pq.read_table(p, partitioning=None) for p in parts).to_pylist()
