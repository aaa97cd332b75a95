"""What of the counts of files is told, and what of it is unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.runs import write
from tests.files_read import with_files
from tests.samples import EVERY_PROGRAM, batch, cells
from trainobs.analysis.io_numbers import files_read
from trainobs.analysis.summary import summarize
from trainobs.core.abi import FileClass, Op, Role
from trainobs.core.file_rows import IO_ROW, NOTHING, IoRows
from trainobs.report import io_text
from trainobs.runlog.io import IoSink
from trainobs.runlog.reader import RunLog

ON = {**EVERY_PROGRAM, "files": "on"}
OK = {"outcome": "ok"}


def told(
    path: Path, *values: tuple, end: dict[str, Any] | None = OK, capabilities: Any = ON, **more: int
) -> dict[str, Any]:
    table = batch([0, 1], cells(2, *values))
    run = RunLog.open(with_files(write(path, table, end=end, capabilities=capabilities), **more))
    found = files_read(run, run.ranks[0])
    assert found is not None
    return found


def times(found: dict[str, Any]) -> tuple[float | None, float | None]:
    (one,) = found["classes"]
    return one["times_least"], one["times_most"]


def test_what_is_known_is_told(tmp_path: Path) -> None:
    found = told(tmp_path)
    assert found["unknown"] == []
    assert times(found) == (2, 2.5)
    (one,) = found["classes"]
    places = [one[how] for how in ("first", "consecutive", "forward", "backward")]
    assert places == [count / 95 for count in (10, 40, 30, 15)]
    assert one["aligned"] == 0.5


def call(op: Op, file_class: FileClass = FileClass.OTHER) -> tuple:
    return (0, op, file_class, Role.MAIN, {"count": 3})


RING = {**ON, "tobs_uring": "not on this kernel"}


@pytest.mark.parametrize(
    ("values", "options", "said"),
    [
        ([call(Op.AIO)], {}, "libaio was used"),
        ([call(Op.URING_ENTER)], {"capabilities": RING}, "reads and writes are not seen here"),
        ([call(Op.URING_ENTER)], {}, "its writes are not among these"),
        (
            [call(Op.FAULT, FileClass.DATA)],
            {},
            "(0 new mappings, 3 faults that fault-around did not serve)",
        ),
        ([], {"mmap_count": 2}, "(2 new mappings, 0 faults that fault-around did not serve)"),
        ([], {"end": {**OK, "losses": {"runs": 7}}}, "7 events that the probes lost"),
    ],
)
def test_what_was_not_seen_makes_it_unknown_how_often_bytes_were_read(
    values: list[tuple], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    found = told(tmp_path, *values, **options)
    assert [said in text for text in found["unknown"]] == [True]
    assert times(found) == (None, None)
    assert found["files"][0]["times_most"] is None


def test_losses_of_other_things_take_nothing_away(tmp_path: Path) -> None:
    found = told(tmp_path, end={**OK, "losses": {"requests": 7, "runs": 0}})
    assert found["unknown"] == []
    assert times(found) == (2, 2.5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"unlisted_count": 4}, "the files of 4 calls, for which there was no room; the sums have"),
        ({"end": None}, "the run goes on, or died"),
        ({"epoch": 1}, "epochs without a record: 0;"),
    ],
)
def test_what_is_left_out_is_said(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    found = told(tmp_path, **options)
    assert [said in text for text in found["unknown"]] == [True]


def test_what_workers_read_after_the_last_step_is_no_epoch(tmp_path: Path) -> None:
    run = RunLog.open(with_files(write(tmp_path, batch([0, 1], cells(2)), end=OK, capabilities=ON)))
    summary = summarize(run)
    (trained,) = summary["io"]["epochs"]
    assert trained["is_ahead"] is False
    summary["io"]["epochs"].append({**trained, "epoch": 1, "seconds": None, "is_ahead": True})
    text = io_text.render(summary)
    assert ": rank 0, 1 epoch\n" in text
    assert "\n  read ahead " in text
    assert "read ahead: after the epochs that have steps, by workers" in text
    assert told(tmp_path / "ahead", epoch=1)["epochs"][0]["is_ahead"] is True


def test_bytes_that_nobody_can_place_may_be_new_or_not(tmp_path: Path) -> None:
    assert times(told(tmp_path, untold_bytes=300_000)) == (1e6 / 800_000, 2.5)


def test_where_no_byte_is_known_to_be_the_first_nothing_is_said(tmp_path: Path) -> None:
    """As versions before have it of a class whose files another class had read before."""
    assert times(told(tmp_path, unique_least=0, unique_most=0)) == (None, None)


def test_reads_that_took_no_call_have_no_time(tmp_path: Path) -> None:
    values = {"ns": 5_000_000}
    (one,) = told(tmp_path, **values)["classes"]
    assert one["ns"] == 5_000_000
    (one,) = told(tmp_path / "ring", call(Op.URING_READ, FileClass.DATA), **values)["classes"]
    assert one["ns"] is None


def test_files_of_one_number_are_told_apart_by_name_and_in_one_epoch(tmp_path: Path) -> None:
    def rows(*files: tuple[int, bytes, int]) -> np.ndarray:
        found = np.zeros(len(files), IO_ROW)
        found["inode"] = 7
        for row, (epoch, name, count) in zip(found, files, strict=True):
            row["epoch"], row["file"], row["bytes"] = epoch, name, count
        return found

    listed = rows((0, b"a", 1), (0, b"a", 10), (0, b"b", 100), (1, b"a", 2), (1, b"b", 200))
    run = write(tmp_path, batch([0, 1], cells(2)), end=OK, capabilities=ON)
    sink = IoSink(run, 0, lambda is_last: IoRows(listed, NOTHING.spread))
    sink.end({})
    log = RunLog.open(run)
    found = files_read(log, log.ranks[0])
    assert found is not None
    told = [(one["file"], one["bytes"], one["epochs"]) for one in found["files"]]
    assert told == [("b", 300, 2), ("a", 10, 1), ("a", 3, 2)]
