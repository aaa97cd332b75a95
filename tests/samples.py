"""Batches of steps with known numbers, a run of realistic ones, and small disks."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from trainobs.core.abi import BUCKETS, CELL, CELLS_SHAPE, FileClass, Op, Phase, Role
from trainobs.core.catalogue import METRICS, kernel_metrics, phase_metric
from trainobs.core.cells import StepCells
from trainobs.core.coverage import Coverage
from trainobs.core.embedding_table import LOOKUP_FIELDS, LOOKUP_ROW, EmbeddingTable
from trainobs.core.metrics import evaluate
from trainobs.core.records import BATCH_ROW, RunInfo, StepTable
from trainobs.runlog.schema import files_of

CLOCK = {"monotonic_ns": 1_000_000_000, "wall_ns": 1_700_000_000_000_000_000}
NO_LATENCY = np.zeros((*CELLS_SHAPE, BUCKETS), np.uint64)


EVERY_PROGRAM = dict(Coverage.EVERY_PROGRAM)


def info(level: str = "ebpf", **facts: object) -> RunInfo:
    return RunInfo(level, clock=CLOCK, **{"capabilities": EVERY_PROGRAM, **facts})


def batch(steps, cells=None, latency=None, **columns) -> StepTable:
    """Steps of one second each; a column `io__read_bytes=[1, 2]` is the metric io/read_bytes."""
    step = np.asarray(steps, np.int64)
    named = {name.replace("__", "/"): np.asarray(x, float) for name, x in columns.items()}
    assert named.keys() <= METRICS.keys()
    start = 2_000_000_000 + np.arange(len(step), dtype=np.int64) * 1_000_000_000
    return StepTable(step, np.zeros(len(step), np.int32), start, named, cells, latency)


def part_files(run_dir: Path, rank: int, table: str) -> list[Path]:
    """Parts of one table of a run log, in the order of steps."""
    return files_of(run_dir, rank, [table])[table]


USER = EmbeddingTable("user", 1000, 16, 64, "model.ebc", ("u",), "host")
ITEM = EmbeddingTable("item", 100, 8, 32, "model.ebc", ("i", "j"), "hbm")


def lookup_rows(*values: tuple) -> np.ndarray:
    """Rows of `LOOKUP_ROW`; each value is (step, table, {field: number}), the rest unknown."""
    rows = np.empty(len(values), LOOKUP_ROW)
    rows["epoch"] = 0
    for name in LOOKUP_FIELDS:
        rows[name] = np.nan
    for row, (step, table, fields) in zip(rows, values, strict=True):
        row["step"], row["table"] = step, table
        row["sampled"] = "unique_rows" in fields
        for field, number in fields.items():
            row[field] = number
    return rows


def cells(count: int, *values: tuple) -> StepCells:
    """Rows of `count` steps; each value is (row, op, class, role, {field: number})."""
    rows = np.zeros((count, *CELLS_SHAPE), CELL)
    for row, op, file_class, role, fields in values:
        for field, number in fields.items():
            rows[row, op, file_class, role][field] = number
    return StepCells.from_rows(rows)


_BUSY = (  # op, class, role, mean count, bytes per event, ns per event, share of it asleep
    (Op.READ, FileClass.DATA, Role.WORKER, 64, 110_000, 90_000, 0.4),
    (Op.READ, FileClass.PSEUDO, Role.WORKER, 3, 400, 20_000, 0),
    (Op.READ, FileClass.LIBRARY, Role.WORKER, 2, 4_000, 9_000, 0),
    (Op.READ, FileClass.PIPE, Role.MAIN, 14, 80, 4_000, 0),
    (Op.READ, FileClass.OTHER, Role.THREAD, 2, 500, 8_000, 0),
    (Op.READ, FileClass.SOCKET, Role.MAIN, 6, 64, 9_000, 0),
    (Op.READ, FileClass.PIPE, Role.WORKER, 8, 90, 5_000, 0),
    (Op.WRITE, FileClass.PIPE, Role.WORKER, 8, 300, 5_000, 0),
    (Op.WRITE, FileClass.SOCKET, Role.WORKER, 4, 60, 9_000, 0),
    (Op.WRITE, FileClass.OTHER, Role.THREAD, 2, 9_000, 12_000, 0),
    (Op.WRITE, FileClass.PIPE, Role.MAIN, 4, 60, 3_000, 0),
    (Op.WRITE, FileClass.SHM, Role.WORKER, 3, 150_000, 100_000, 0),
    (Op.OPEN, FileClass.DATA, Role.WORKER, 64, 0, 12_000, 0),
    (Op.OPEN, FileClass.PSEUDO, Role.WORKER, 4, 0, 8_000, 0),
    (Op.OPEN, FileClass.SHM, Role.MAIN, 4, 0, 7_000, 0),
    (Op.MMAP, FileClass.SHM, Role.MAIN, 4, 600_000, 9_000, 0),
    (Op.MMAP, FileClass.SHM, Role.WORKER, 4, 600_000, 9_000, 0),
    (Op.CACHE_READ, FileClass.DATA, Role.WORKER, 64, 110_000, 5_000, 0),
    (Op.CACHE_MISS, FileClass.DATA, Role.WORKER, 900, 4_096, 5_000, 0),
    (Op.DEMAND_MISS, FileClass.DATA, Role.WORKER, 40, 0, 5_000, 0),
    (Op.FAULT, FileClass.LIBRARY, Role.MAIN, 2, 0, 9_000, 0),
    (Op.BLOCK_READ, FileClass.DATA, Role.WORKER, 50, 65_536, 160_000, 0),
    (Op.BLOCK_WRITE, FileClass.OTHER, Role.KERNEL, 2, 16_384, 300_000, 0),
    (Op.OFFCPU, FileClass.OTHER, Role.MAIN, 20, 0, 900_000, 0.1),
    (Op.OFFCPU, FileClass.OTHER, Role.THREAD, 40, 0, 2_000_000, 0.05),
    (Op.OFFCPU, FileClass.OTHER, Role.WORKER, 90, 0, 3_000_000, 0.3),
    (Op.RUNQUEUE, FileClass.OTHER, Role.MAIN, 20, 0, 9_000, 0),
    (Op.RUNQUEUE, FileClass.OTHER, Role.THREAD, 40, 0, 9_000, 0),
    (Op.RUNQUEUE, FileClass.OTHER, Role.WORKER, 90, 0, 12_000, 0),
    (Op.SEND, FileClass.SOCKET, Role.MAIN, 6, 64, 5_000, 0),
    (Op.RECEIVE, FileClass.SOCKET, Role.MAIN, 6, 64, 5_000, 0),
    (Op.ONCPU, FileClass.OTHER, Role.THREAD, 40, 0, 100_000, 0),
    (Op.ONCPU, FileClass.OTHER, Role.WORKER, 90, 0, 300_000, 0),
    (Op.PHASE_OFF, FileClass(Phase.LOADER), Role.MAIN, 4, 0, 900_000, 0.1),
    (Op.PHASE_OFF, FileClass(Phase.BACKWARD), Role.MAIN, 12, 0, 900_000, 0.1),
    (Op.PHASE_SLEEP, FileClass(Phase.LOADER), Role.MAIN, 4, 0, 900_000, 0),
)


def busy_run(steps: int, seed: int = 0) -> StepTable:
    """Steps as a busy loader makes them: 31 cells with a time of their own, every phase used."""
    random = np.random.default_rng(seed)
    rows = np.zeros((steps, *CELLS_SHAPE), CELL)
    for op, file_class, role, count, size, ns, asleep in _BUSY:
        cell = rows[:, op, file_class, role]
        cell["count"] = random.poisson(count, steps)
        cell["bytes"] = cell["count"] * size * random.lognormal(0, 0.3, steps)
        cell["ns"] = cell["count"] * ns * random.lognormal(0, 0.4, steps)
        cell["wait_ns"] = cell["ns"] * random.uniform(0, 2 * asleep, steps)
    counted = StepCells.from_rows(rows)
    columns = {metric.name: evaluate(metric, counted) for metric in kernel_metrics()}
    for phase in Phase:
        columns[phase_metric(phase)] = np.rint(1e7 * random.lognormal(0, 0.2, steps))
    columns["step/duration_ns"] = sum(columns[phase_metric(phase)] for phase in Phase)
    columns["block/read_p99_ns"] = random.lognormal(13, 1, steps)
    columns["obs/lost_count"] = np.zeros(steps)
    columns["obs/cpu_ns"] = np.rint(1.5e5 * random.lognormal(0, 0.2, steps))
    columns["obs/probe_ns"] = np.rint(3e5 * random.lognormal(0, 0.2, steps))
    for phase in (Phase.CHECKPOINT, Phase.VALIDATION, Phase.LOGGING):  # now and then
        columns[phase_metric(phase)][np.arange(steps) % RARELY != 0] = 0
    _split_the_wait(columns, random)
    start = np.concatenate([[0], columns["step/duration_ns"].cumsum()[:-1]]).astype(np.int64)
    return StepTable(
        np.arange(steps),
        np.zeros(steps, np.int32),
        10**13 + start,
        columns,
        counted,
        batches=batches(np.repeat(10**13 + start, BATCHES_A_STEP), random),
    )


def _split_the_wait(columns: dict[str, np.ndarray], random: np.random.Generator) -> None:
    """Mostly the batch was made ahead, and all that is waited for is the hand-over."""
    wait = columns["loader/wait_ns"]
    ahead = random.random(len(wait)) < 0.75
    rest = wait.copy()
    asleep = random.random(len(wait)) < 0.1  # a maker that reads files seldom sleeps otherwise
    for part in ("device", "cpu_wait", "compute", "sleep"):
        none = ahead | ~asleep if part == "sleep" else ahead
        share = np.where(none, 0, random.uniform(0, 0.25, len(wait)))
        columns[f"loader/{part}_ns"] = np.floor(wait * share)
        rest -= columns[f"loader/{part}_ns"]
    columns["loader/handover_ns"] = rest
    starts = np.arange(len(wait)) % RARELY == 1
    columns["loader/start_stop_ns"] = np.where(starts, np.floor(rest / 2), 0)


RARELY = 50
BATCHES_A_STEP, WORKERS = 1, 4


def batches(start_ns: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """One batch of 32 photos at each of some times, made by each worker in turn."""
    count = len(start_ns)
    turn = np.arange(count)
    rows = np.zeros(count, BATCH_ROW)
    rows["for_step"] = turn // BATCHES_A_STEP
    rows["step"] = np.maximum(0, rows["for_step"] - random.integers(0, 3, count))
    rows["loader"] = 1
    rows["worker"], rows["number"] = turn % WORKERS, turn // WORKERS
    rows["read_count"] = random.poisson(96, count)
    rows["read_bytes"] = 32 * 110_000 * random.lognormal(0, 0.05, count)
    rows["read_ns"] = 96 * 90_000 * random.lognormal(0, 0.4, count)
    rows["device_ns"] = rows["read_ns"] * random.uniform(0, 0.8, count)
    rows["cpu_wait_ns"] = 1e6 * random.lognormal(0, 1, count)
    rows["compute_ns"] = 1.5e8 * random.lognormal(0, 0.2, count)
    rows["begin_ns"] = start_ns + random.integers(0, 10**7, count)
    times = [rows[name] for name in ("begin_ns", "device_ns", "cpu_wait_ns", "compute_ns")]
    rows["end_ns"] = sum(times)
    rows["fetch_begin_ns"] = start_ns
    rows["fetch_end_ns"] = start_ns + random.integers(0, 10**7, count)
    rows["handed_bytes"] = 32 * 3 * 224 * 224 * 4
    rows["slowest_ns"] = 1e6 * random.lognormal(0, 0.5, count)
    photos = random.integers(0, 50_000, count)
    rows["slowest_file"] = [f"ILSVRC2012_val_{photo:08d}.JPEG".encode() for photo in photos]
    return rows


@contextmanager
def small_disk(path: Path, options: str) -> Iterator[Path]:
    """A tmpfs of its own at `path`; needs root."""
    path.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True)
    try:
        yield path
    finally:
        _unmount(path)


def _unmount(path: Path) -> None:
    # Threads of pyarrow close a file some milliseconds after the call that read it has returned.
    deadline = time.monotonic() + 5
    while subprocess.run(["umount", path], check=False).returncode:
        if time.monotonic() > deadline:
            subprocess.run(["umount", "--lazy", path], check=True)
            raise RuntimeError(f"something still uses a file of {path}")
        time.sleep(0.02)
