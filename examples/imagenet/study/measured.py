"""The numbers of a study, out of its run logs; what a run did not measure is not there.

All reading and all formulas are trainobs' own (``trainobs.analysis``, ``trainobs.runlog``); here
they are taken epoch by epoch, and brought together over the runs of a cell.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from example import FORMATS, stop
from grid import STUDY, Cell, Grid, Run, asked_for, read_study

from trainobs.analysis.checkpoints import checkpoints
from trainobs.analysis.comparison.conditions import per_step
from trainobs.analysis.comparison.part_means import RunMeans, parts_of
from trainobs.analysis.verdicts import summed_steps
from trainobs.core.errors import RunLogError
from trainobs.core.records import SETUP
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import KERNEL
from trainobs.runlog.whole import whole_table
from trainobs.verdict.metric_names import CHECKPOINT, NAMED, PHASES, SPLIT, STEP, VALIDATION

TRAIN_STEP = "train_step_ns"
"""A step without validation and checkpoints, whose share depends on how long an epoch is."""

READ, DISK, HIT = "io/data_read_bytes", "block/data_read_bytes", "cache/hit_ratio"
OTHERS = "sched/others_cpu_ratio"
BUSY = ("batch/compute_ns", "batch/device_ns", "batch/sleep_ns", "batch/cpu_wait_ns")
"""What the maker of a batch did; as shares of the time of the loader's workers."""

UNKNOWN_WAIT = "loader/unknown_ns"
"""The part of the wait for data whose cause is not known, where that of other steps is."""

SAVED = ("blocking_ns", "written_bytes", "write_ns", "fsync_ns")
"""Of a checkpoint: see ``trainobs.analysis.checkpoints``."""

NOT_RUN, NOT_MEASURED = "not run", "not measured"
DISTURBS = 0.15
"""Share of the CPUs from which what others take is told, as benchmarks/faults tells it."""

Numbers = dict[str, float]
"""Name -> value; what was not measured is not there."""


class Spread(NamedTuple):
    """A number over the runs of a cell: the median, the least, the most, and how many."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def from_values(cls, values: Iterable[float]) -> Spread | None:
        """None of no values."""
        known = sorted(values)
        return cls(statistics.median(known), known[0], known[-1], len(known)) if known else None


@dataclass(frozen=True)
class Measured:
    """What one run measured.

    Attributes:
        run: which it is.
        result: what run.py kept of it.
        level: how much of it was observed.
        threads: of torch in the training process; None where the run log does not tell.
        epochs: numbers of each epoch, in ns, bytes and shares of one, times per step; the first
            step of the run is not in them, but its bytes are.
        whole: numbers of all of it: `OTHERS`, and of `SAVED` the means over its checkpoints.
    """

    run: Run
    result: dict[str, Any]
    level: str
    threads: int | None
    epochs: list[Numbers]
    whole: Numbers


@dataclass(frozen=True)
class Study:
    """What is kept of a study.

    Attributes:
        settings: what is the same in all cells.
        repeats: how often each cell that was asked for was to be run.
        runs: those that ended well, with the page cache as it should be.
        left_out: all others -> why.
    """

    settings: dict[str, Any]
    repeats: dict[Cell, int]
    runs: list[Measured]
    left_out: dict[Run, str]

    @classmethod
    def from_folder(cls, out: Path) -> Study:
        """Read all runs of a study; refuse a folder without any that ended."""
        kept = read_study(out)
        if kept is None:
            stop(f"cannot read a study in {out}", f"no {STUDY}", "give the --out of run.py")
        repeats = asked_for(kept)
        asked = (run for cell, count in repeats.items() for run in Grid((cell,), count).runs(out))
        runs, left_out = [], {}
        for run in sorted(asked, key=place):
            found = read_run(run)
            if isinstance(found, str):
                left_out[run] = found
            else:
                runs.append(found)
        if not runs:
            why = "; ".join(dict.fromkeys(left_out.values()))
            stop(f"cannot draw the study in {out}", f"no run to draw: {why}", "run run.py again")
        return cls(kept["settings"], repeats, runs, left_out)

    def of_epoch(self, cell: Cell, epoch: int, name: str) -> Spread | None:
        """A number of an epoch (-1: the last) over the runs of a cell; None: not measured."""
        epochs = (one.epochs for one in self.runs if one.run.cell == cell)
        rows = (rows[epoch] for rows in epochs if -len(rows) <= epoch < len(rows))
        return Spread.from_values(row[name] for row in rows if name in row)

    def of_run(self, cell: Cell, name: str) -> Spread | None:
        """A number of whole runs over those of a cell; None: not measured."""
        runs = (one.whole for one in self.runs if one.run.cell == cell)
        return Spread.from_values(whole[name] for whole in runs if name in whole)

    def middle_epoch(self, cell: Cell, epoch: int, name: str) -> Numbers:
        """All numbers of an epoch, of the run in which one of them is in the middle.

        Parts of one run add up to its whole, medians over several runs do not. Of two runs in the
        middle it is the lower one; nothing where nobody measured that number.
        """
        epochs = (one.epochs for one in self.runs if one.run.cell == cell)
        return middle((rows[epoch] for rows in epochs if -len(rows) <= epoch < len(rows)), name)

    def middle_run(self, cell: Cell, name: str) -> Numbers:
        """The same of numbers of whole runs."""
        return middle((one.whole for one in self.runs if one.run.cell == cell), name)

    def count(self, cell: Cell) -> int:
        """Runs of a cell that count."""
        return sum(one.run.cell == cell for one in self.runs)

    def why_none(self, cell: Cell) -> str:
        """What to say, in few words, in the place of a number that a cell does not have."""
        if self.count(cell):
            return NOT_MEASURED
        told = [why for run, why in self.left_out.items() if run.cell == cell]
        return next((why for why in told if why != NOT_RUN), NOT_RUN).partition(":")[0]

    def not_counted(self) -> list[str]:
        """What to say of runs that do not count."""
        told = [
            f"{run.cell}, run {run.repeat}: {why}"
            for run, why in self.left_out.items()
            if why != NOT_RUN
        ]
        missing = len(self.left_out) - len(told)
        return [*told, f"not run yet: {missing} of the runs"] if missing else told

    def disturbed(self) -> str | None:
        """What to say where other processes took much of the CPUs; None where they did not."""
        taken = [one.whole[OTHERS] for one in self.runs if OTHERS in one.whole]
        count = sum(share > DISTURBS for share in taken)
        if not count:
            return None
        return (
            f"other processes took up to {max(taken):.0%} of the CPUs, and more than "
            f"{DISTURBS:.0%} in {count} of {len(self.runs)} runs: times may be theirs"
        )

    def asked(self) -> list[Cell]:
        """All cells that were asked for, in order."""
        return sorted(self.repeats, key=cell_place)

    def drawn(self) -> list[Cell]:
        """Those with a run that counts."""
        return [cell for cell in self.asked() if self.count(cell)]


def middle(rows: Iterable[Numbers], name: str) -> Numbers:
    """That of some rows of numbers in which one is in the middle; see ``Study.middle_epoch``."""
    known = sorted((row for row in rows if name in row), key=lambda row: row[name])
    return known[(len(known) - 1) // 2] if known else {}


def cell_place(cell: Cell) -> tuple[Any, ...]:
    """Where a cell comes among others: formats as they are listed, then cold before warm."""
    saved = cell.checkpoints
    number = (1, int(saved)) if saved.isdecimal() else (0, 0)
    return FORMATS.index(cell.format), cell.cache, cell.workers, number, saved


def place(run: Run) -> tuple[Any, ...]:
    """Where a run comes among others."""
    return *cell_place(run.cell), run.repeat


def read_run(run: Run) -> Measured | str:
    """Read one run; or why it does not count."""
    result = run.result()
    if result is None:
        return NOT_RUN
    if result["outcome"] != "ok":
        return str(result["outcome"])
    try:
        log = RunLog.open(run.folder / "run")
        rank = next(iter(log.ranks.values()), RankLog(0, {}))
        threads = log.info.get("settings", {}).get("torch_threads")
        epochs = epochs_of(run, log, rank)
        return Measured(run, result, str(log.info["level"]), threads, epochs, whole(log))
    except RunLogError as error:
        return f"run log not readable: {error.found}"


def epochs_of(run: Run, log: RunLog, rank: RankLog) -> list[Numbers]:
    """Numbers of each epoch."""
    of_steps = summed_steps(log).epochs
    columns = rank.metrics((STEP, *(name for name in PHASES if name != NAMED), *SPLIT))
    is_step = rank.step() != SETUP
    is_step[np.flatnonzero(is_step)[:1]] = False  # in the first workers, caches, kernels are made
    found = []
    for epoch in np.unique(rank.epoch()).tolist():
        rows = is_step & (rank.epoch() == epoch)
        numbers = times_of({name: column[rows] for name, column in columns.items()})
        if TRAIN_STEP in numbers and run.cell.workers:
            made = of_steps[epoch].mean()
            whole_ns = run.cell.workers * numbers[TRAIN_STEP]
            numbers |= {name: made[name] / whole_ns for name in BUSY if not math.isnan(made[name])}
        found.append(numbers | bytes_of(run, log, rank, epoch))
    return found


def times_of(columns: dict[str, np.ndarray]) -> Numbers:
    """Times of a step; its parts add up to it, and what the loader was waited for to that wait."""
    means = RunMeans(columns)
    if not means.steps:
        return {}
    numbers = {STEP: means.of[STEP].all, "steps": float(means.steps)}
    for part in parts_of([means]):
        for one in (part, *part.parts):
            numbers[one.name] = one.runs[0].all
    now_and_then = numbers.get(VALIDATION, 0.0) + numbers.get(CHECKPOINT, 0.0)
    return numbers | {TRAIN_STEP: numbers[STEP] - now_and_then}


def bytes_of(run: Run, log: RunLog, rank: RankLog, epoch: int) -> Numbers:
    """Bytes of training data in an epoch, and which share the page cache had.

    Of a file that is mapped into memory no call tells what is read: that is not measured.
    """
    rows = rank.epoch() == epoch
    names = (DISK,) if run.cell.format == "memmap" else (READ, DISK)
    sums = {name: float(column[rows].sum()) for name, column in rank.metrics(names).items()}
    found = {name: value for name, value in sums.items() if not math.isnan(value)}
    is_known = READ in names and np.isfinite(rank.metric(HIT)).any()
    hit = hit_ratio(log, rank.step()[rows]) if is_known else None
    return found if hit is None else found | {HIT: hit}


def hit_ratio(log: RunLog, steps: np.ndarray) -> float | None:
    """``cache/hit_ratio`` of some steps, formed from their sums as the metric is."""
    table = whole_table(log, KERNEL)
    if table is None:
        return None
    own = pc.is_in(pc.fill_null(table["step"], SETUP), pa.array(steps, table["step"].type))
    table = table.filter(pc.and_(own, pc.equal(pc.cast(table["class"], "string"), "data")))
    ops = pc.cast(table["op"], "string")
    missed, read = (
        pc.sum(table.filter(pc.equal(ops, op))["bytes"]).as_py() or 0
        for op in ("cache_miss", "cache_read")
    )
    return max(0.0, 1 - missed / read) if read else None


def whole(log: RunLog) -> Numbers:
    """Numbers of a whole run."""
    found = {OTHERS: per_step(log, OTHERS)}
    saved = checkpoints(next(iter(log.ranks.values()), RankLog(0, {})))
    for name in SAVED:
        known = [one[name] for one in saved if one[name] is not None]
        found[name] = statistics.fmean(known) if known and len(known) == len(saved) else None
    return {name: value for name, value in found.items() if value is not None}
