"""What of the counts of files is told, and what of it is unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.runs import write
from tests.files_read import with_files
from tests.samples import EVERY_PROGRAM, batch, cells
from trainobs.analysis.io.files import files_read
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
    found = files_read(run, run.ranks[0], None)
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


@pytest.mark.parametrize(
    ("counts", "aligned"),
    [
        ({}, 0.5),  # all places are known; only the calls before five of them are not
        ({"untold_bytes": 50_000}, None),
        ({"untold_bytes": 50_000, "aligned_count": 100}, 1),
        ({"untold_bytes": 10_000, "first_count": 14}, 0.5),
        (
            {"first_count": 0, "consecutive_count": 0, "forward_count": 0, "backward_count": 0}
            | {"untold_bytes": 1_000_000, "aligned_count": 0},
            None,
        ),  # sendfile
    ],
)
def test_how_many_calls_began_at_a_page_is_unknown_where_calls_do_not_tell_where(
    counts: dict[str, int], aligned: float | None, tmp_path: Path
) -> None:
    (one,) = told(tmp_path, **counts)["classes"]
    assert one["aligned"] == aligned


def test_no_call_moves_a_byte_twice(tmp_path: Path) -> None:
    """A copy of a file by one call, which does not tell where, and a small read."""
    counts = {"count": 2, "untold_bytes": 999_000, "unique_least": 1000, "unique_most": 1000}
    assert times(told(tmp_path, **counts)) == (1, 2)


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


def listed(path: Path, *files: dict[str, Any]) -> dict[str, Any]:
    """The summary of a run with rows of these files."""
    rows = np.zeros(len(files), IO_ROW)
    rows["class"] = FileClass.DATA
    for row, fields in zip(rows, files, strict=True):
        for name, value in fields.items():
            row[name] = value
    rows = np.append(rows, np.zeros(1, IO_ROW))  # of a class
    rows["class"][-1], rows["count"][-1] = FileClass.DATA, 1
    run = write(path, batch([0, 1], cells(2)), end=OK, capabilities=ON)
    sink = IoSink(run, 0, lambda is_last: IoRows(rows, NOTHING.spread))
    sink.end({})
    return summarize(RunLog.open(run))


def test_files_of_one_number_are_told_apart_by_name_and_in_one_epoch(tmp_path: Path) -> None:
    files = ((0, b"a", 1), (0, b"a", 10), (0, b"b", 100), (1, b"a", 2), (1, b"b", 200))
    rows = ({"epoch": e, "file": name, "bytes": n, "inode": 7} for e, name, n in files)
    found = listed(tmp_path, *rows)["io"]
    told = [(one["file"], one["bytes"], one["epochs"]) for one in found["files"]]
    assert told == [("b", 300, 2), ("a", 10, 1), ("a", 3, 2)]


def test_files_of_one_name_are_told_apart_by_inode(tmp_path: Path) -> None:
    long = b"a" * 60 + b"/0"
    files = ((b"0/0", 11), (b"0/0", 12), (b"1/0", 13), (long, 14), (long, 2**40))
    rows = [{"file": name, "inode": at, "bytes": 99 - n} for n, (name, at) in enumerate(files)]
    summary = listed(tmp_path / "r", *rows)
    lines = io_text.render(summary).splitlines()
    (at,) = (at for at, line in enumerate(lines) if line.startswith("Largest files"))
    shown = [line.split(" read ")[0].strip() for line in lines[at + 1 : at + 6]]
    assert shown[:3] == ["0/0 #11", "0/0 #12", "1/0"]
    assert [name[-6:] for name in shown[3:4]] == ["/0 #14"]
    assert shown[4].endswith(f"a/0 #{2**40}")
    assert len(set(map(len, lines[at + 1 : at + 6]))) == 1
    note = "#: the inode of a file whose name others have, too"
    assert note in " ".join(" ".join(lines).split())
    assert note not in " ".join(io_text.render(listed(tmp_path / "s", *rows[1:3])).split())


def test_what_passes_through_shared_memory_is_in_no_list_of_files(tmp_path: Path) -> None:
    shm, other = int(FileClass.SHM), int(FileClass.OTHER)
    files = ((b"/sem.p7DBBu", shm), (b"/torch_12_3_4", shm), (b"/cache.bin", shm))
    files += ((b"/sem.other", other), (b"in/torch_1", shm))
    rows = ({"file": name, "class": of, "bytes": 9 - n} for n, (name, of) in enumerate(files))
    found = listed(tmp_path, *rows)["io"]["files"]
    assert [one["file"] for one in found] == ["/cache.bin", "/sem.other", "in/torch_1"]


LOOK = {"file_count": 9, "is_all": True, "sampled_count": 9, "sampled_bytes": 1, "cached_bytes": 1}


@pytest.mark.parametrize(
    ("look", "told"),
    [
        ({}, "of all 9 files of the data set"),
        ({"file_count": 1, "sampled_count": 1}, "of 1 file of the data set"),
        ({"file_count": 9000, "sampled_count": 512}, "of 512 of the 9,000 files of the data set"),
        ({"is_all": False}, "of 9 files of the data set that were found; it may have more"),
        (
            {"file_count": 9000, "sampled_count": 512, "is_all": False},
            "of 512 of the 9,000 files of the data set that were found; it may have more",
        ),
    ],
)
def test_of_which_files_it_is_known_what_is_in_memory_is_said(
    look: dict[str, Any], told: str, tmp_path: Path
) -> None:
    summary = summarize(
        RunLog.open(with_files(write(tmp_path, batch([0, 1], cells(2)), end=OK, capabilities=ON)))
    )
    summary["io"]["epochs"][-1]["cache"] = LOOK | look
    text = " ".join(io_text.render(summary).split())
    said = "in memory: what the page cache held at the end, "
    assert said + told in text


def test_why_it_is_not_known_what_is_in_memory_is_said(tmp_path: Path) -> None:
    summary = listed(tmp_path, {"file": b"a", "bytes": 1})
    told = "in memory: unknown; give `data_roots`: the record has names of files, and no paths"
    assert told in io_text.render(summary)
    summary["io"]["epochs"][0]["classes"].clear()  # as where all comes from a server
    assert "in memory: unknown; no file was seen to be data" in io_text.render(summary)
    summary["io"]["data_is_mapped"] = True  # and was before the run
    assert told in io_text.render(summary)
    summary["io"]["data_is_named"] = True
    told = "in memory: unknown; no file in `data_roots` could be asked about"
    assert told in io_text.render(summary)
