"""Files that may be training data and may not: what is said of data then, and what is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.analysis.runs import write
from tests.files_read import with_files
from tests.samples import EVERY_PROGRAM, batch, cells
from trainobs.analysis.comparison.changes import changes
from trainobs.analysis.comparison.conditions import conditions
from trainobs.analysis.io.unnamed_reads import unnamed_bytes
from trainobs.analysis.loaded import LoadedRun
from trainobs.analysis.one_step import explain
from trainobs.analysis.summary import summarize
from trainobs.analysis.view import RunView
from trainobs.core.abi import FileClass, Op, Role
from trainobs.core.records import BATCH_ROW, DATA_IS_NAMED, SETUP, UNKNOWN
from trainobs.report import brief, full, io_text
from trainobs.report.pieces import piece
from trainobs.runlog.reader import RunLog

MB = 1_000_000
STEPS = 4
ON = {**EVERY_PROGRAM, "files": "on"}


def reads(role: Role, amount: int, of: FileClass = FileClass.OTHER, step: int = 1) -> tuple:
    return (step, Op.READ, of, role, {"count": 9, "bytes": amount})


def fills(
    role: Role, amount: int, op: Op = Op.FAULT_FILL, of: FileClass = FileClass.OTHER
) -> tuple:
    return (1, op, of, role, {"count": 9, "bytes": amount})


def run(
    path: Path,
    *values: tuple,
    settings: dict | None = None,
    missed: float = 0.0,
    batches: int = 0,
    waited: float = 1e6,
) -> RunLog:
    columns = {
        "loader__wait_ns": [waited] * STEPS,
        "step__duration_ns": [1e7] * STEPS,
        "io__data_read_bytes": [2048.0] * STEPS,
        "cache__miss_bytes": [missed] * STEPS,
        "cache__hint_bytes": [0.0] * STEPS,
        "cache__hit_ratio": [0.75] * STEPS,
    }
    table = batch([SETUP, *range(STEPS - 1)], cells(STEPS, *values), **columns)
    made = np.ones(batches, BATCH_ROW)  # for step 1
    made["fetch_begin_ns"] = UNKNOWN
    table = replace(table, batches=made)
    settings = settings or {}
    facts = {"capabilities": ON, "settings": settings, "end": {"outcome": "ok"}}
    return RunLog.open(with_files(write(path, table, **facts), bytes=0, count=0, epoch=0))


@pytest.mark.parametrize(
    ("values", "unnamed"),
    [
        ([reads(Role.THREAD, 3 * MB)], 3 * MB),
        ([reads(Role.THREAD, 2 * MB), reads(Role.CHILD, MB, step=2)], 3 * MB),
        ([reads(Role.THREAD, 3 * MB), reads(Role.MAIN, 5 * MB, FileClass.DATA)], 3 * MB),
        ([reads(Role.THREAD, 3 * MB), reads(Role.WORKER, 9 * MB, FileClass.DATA)], None),
        ([reads(Role.THREAD, MB // 2)], None),  # no data set
        ([reads(Role.MAIN, 3 * MB)], None),  # not as it waits for its loader: a checkpoint, say
        ([reads(Role.THREAD, 3 * MB, FileClass.LIBRARY)], None),
        ([reads(Role.WORKER, 3 * MB, FileClass.SHM)], 3 * MB),  # a block device
        ([reads(Role.THREAD, 3 * MB, step=0)], None),  # before the first step
        ([fills(Role.THREAD, 3 * MB)], 3 * MB),
        ([fills(Role.MAIN, 3 * MB)], None),  # weights, say
        ([fills(Role.MAIN, 3 * MB, Op.UNNAMED_FILL)], 3 * MB),  # as it waits for its loader
        ([fills(Role.WORKER, 3 * MB), fills(Role.WORKER, 2 * MB, Op.UNNAMED_FILL)], 2 * MB),
        ([fills(Role.CHILD, 3 * MB), fills(Role.WORKER, 9 * MB, of=FileClass.DATA)], None),
    ],
)
def test_what_rivals_the_data_makes_it_doubtful(values, unnamed, tmp_path: Path) -> None:
    found = run(tmp_path, *values)
    assert unnamed_bytes(found, found.rank) == unnamed


@pytest.mark.parametrize("role", [Role.MAIN, Role.WORKER])
def test_without_a_known_loader_the_training_thread_may_read_data(role, tmp_path: Path) -> None:
    found = run(tmp_path, reads(role, 3 * MB), waited=np.nan)
    assert unnamed_bytes(found, found.rank) == 3 * MB
    assert LoadedRun(tmp_path).steps["io/data_read_bytes"].null_count == STEPS


@pytest.mark.parametrize("step", [0, 1])  # 0: before the first step
def test_data_that_somebody_named_is_not_doubted(step: int, tmp_path: Path) -> None:
    read = reads(Role.MAIN, 1, FileClass.DATA, step=step)
    found = run(tmp_path, read, reads(Role.THREAD, 3 * MB), settings={DATA_IS_NAMED: True})
    assert unnamed_bytes(found, found.rank) is None


@pytest.mark.parametrize("of", [FileClass.OTHER, FileClass.SHM])
@pytest.mark.parametrize("role", [Role.MAIN, Role.WORKER, Role.THREAD, Role.CHILD])
def test_data_that_was_named_is_doubted_where_other_files_alone_are_read(
    role: Role, of: FileClass, tmp_path: Path
) -> None:
    """As those that links in it lead to, or a block device that is named itself."""
    found = run(tmp_path, reads(role, 3 * MB, of), settings={DATA_IS_NAMED: True})
    summary = summarize(found)
    assert summary["unnamed_bytes"] == 3 * MB
    told = (
        "nothing in `data_roots` was seen read, and 3 MB of other files were; where links in it "
        "lead elsewhere, name that; block devices are not told apart"
    )
    for text in (brief.render(summary, 0), io_text.render(summary), full.render(summary)):
        assert told in " ".join(text.split())


def test_of_parts_of_the_log_nobody_says_that_nothing_of_named_data_was_read(
    tmp_path: Path,
) -> None:
    found = run(tmp_path, reads(Role.MAIN, 3 * MB), settings={DATA_IS_NAMED: True})
    found.is_part = True
    assert unnamed_bytes(found, found.rank) is None
    (kernel,) = tmp_path.rglob("kernel-*.parquet")
    kernel.write_bytes(kernel.read_bytes()[:-9])
    found = RunLog.open(tmp_path)
    assert summarize(found)["unnamed_bytes"] is None


def test_a_report_says_that_data_is_unknown_and_what_to_do(tmp_path: Path) -> None:
    summary = summarize(run(tmp_path, reads(Role.THREAD, 3 * MB)))
    told = "the run read 3 MB of files that nobody named; give `data_roots`"
    for text in (brief.render(summary, 0), io_text.render(summary), full.render(summary)):
        assert told in " ".join(text.split())
    files = io_text.render(summary)
    (row,) = (line for line in files.splitlines() if line.startswith("  epoch 0"))
    assert row.split() == ["epoch", "0", "30", "ms", "unknown"]
    for text in (brief.render(summary, 0), full.render(summary)):
        assert "the page cache" not in text
        assert "training data read" not in text
        assert "page cache hits" not in text


@pytest.mark.parametrize("values", [[], [reads(Role.CHILD, 3 * MB)]])
def test_numbers_of_data_are_unknown_to_programs_and_the_page_too(values, tmp_path: Path) -> None:
    found = run(tmp_path, *values, reads(Role.MAIN, 1, FileClass.DATA, step=0), batches=1)
    is_known, summary = not values, summarize(found)
    assert (summary["metrics"]["io/data_read_bytes"]["sum"] is not None) == is_known
    assert summary["metrics"]["step/duration_ns"]["mean"] == 1e7
    assert ("io/data_read_bytes" in summary["setup"]) == is_known
    columns = RunView(found).piece("steps/storage/1/0")["columns"]
    shown = columns.get("io/data_read_bytes", [])
    assert any(value is not None for value in shown) == is_known
    assert (RunView(found).piece("lanes/0")["batches"]["read_bytes"] == [1]) == is_known
    assert ("data_read_count" in full.render(summary)) == is_known
    loaded = LoadedRun(tmp_path)
    assert (loaded.steps["io/data_read_bytes"].null_count == 0) == is_known
    assert (loaded.batches["read_bytes"].null_count == 0) == is_known
    assert loaded.steps["step/duration_ns"].null_count == 0
    assert ("io/data_read_bytes" in piece(RunView(found), "summary")["doubtful"]) != is_known


@pytest.mark.parametrize(("values", "read"), [([], 1), ([reads(Role.CHILD, 3 * MB)], None)])
def test_what_was_read_for_a_batch_is_unknown_where_data_is(values, read, tmp_path: Path) -> None:
    (found,) = explain(run(tmp_path, *values, batches=1), 1)["batches"]
    assert (found["read_bytes"], found["read_count"]) == (read, read)


def test_nothing_is_said_of_the_cache_where_data_is_unknown(tmp_path: Path) -> None:
    logs = {
        name: run(tmp_path / name, *values, missed=missed)
        for name, missed, values in (
            ("warm", 0.0, ()),
            ("cold", 2048.0, ()),
            ("doubtful", 2048.0, [reads(Role.CHILD, 3 * MB)]),
        )
    }
    assert "data from a device" in changes([logs["warm"]], [logs["cold"]])
    assert "data from a device" not in changes([logs["warm"]], [logs["doubtful"]])
    doubtful = {
        one["name"]: one["values"] for one in conditions([logs["doubtful"]], [logs["cold"]])
    }
    assert doubtful["cache/miss_bytes"] == [None, 2048.0]
