"""The table of arrivals: whole parts, the same collectives on every rank, bounded."""

from __future__ import annotations

import errno

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.samples import batch, info, part_files
from trainobs.core.collectives import Collective
from trainobs.core.file_rows import IO_ROW, NOTHING, IoRows
from trainobs.core.records import UNKNOWN
from trainobs.hooks.distributed import GROUPS
from trainobs.runlog import row_sink
from trainobs.runlog.arrivals import ALL, BLOCK, ArrivalsSink
from trainobs.runlog.io import IoSink
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import ARRIVALS
from trainobs.runlog.writer import RunLogSink
from trainobs.session.delivery import Deliveries

REST = Collective.ALL_GATHER, 8, UNKNOWN


@pytest.fixture
def log(tmp_path):
    """A sink, and the rows that the next look will find."""
    run_log = RunLogSink(tmp_path / "run")
    run_log.begin(info())
    run_log.write(batch([0]))
    run_log.end({})
    rows: list[tuple[int, int, int]] = []

    def take(at_once: bool) -> list[tuple[int, ...]]:
        taken, rows[:] = [(*row, *REST) for row in rows], []
        return taken

    return ArrivalsSink(tmp_path / "run", 0, take), rows, tmp_path / "run"


def test_what_was_taken_is_read_back(log):
    sink, rows, run = log
    rows += [(0, 1, 10**15), (1, 1, 10**15 + 5), (0, 2, 10**15 + 7)]
    sink.look()
    sink.flush()
    assert RunLog.open(run).ranks[0].arrivals() == {
        (0, 1): 10**15,
        (1, 1): 10**15 + 5,
        (0, 2): 10**15 + 7,
    }
    rows.append((0, 3, 10**15 + 9))
    sink.end({})
    rank = RunLog.open(run).ranks[0]
    assert len(rank.arrivals()) == 4
    for name, value in zip(("kind", "input_bytes", "output_bytes"), REST, strict=True):
        assert rank.columns(ARRIVALS, [name])[name].tolist() == [value] * 4


def test_a_long_run_keeps_one_block_in_eight_in_small_parts(log):
    sink, rows, run = log
    total = ALL + 16 * BLOCK * 8
    for first in range(0, total, 1000):
        rows += [(0, seq, 10**15 + 1000 * seq) for seq in range(first, min(first + 1000, total))]
        sink.look()
        sink.flush()
    sink.end({})
    found = RunLog.open(run).ranks[0].arrivals()
    assert len(found) == ALL + 16 * BLOCK
    kept = sorted(seq for _, seq in found)
    assert kept[:ALL] == list(range(ALL))
    sizes = [pq.read_metadata(path).num_rows for path in part_files(run, 0, ARRIVALS)]
    whole, rest = divmod(len(found), ArrivalsSink.seal_rows)
    assert sizes == [ArrivalsSink.seal_rows] * whole + [rest] * bool(rest)
    stored = sum(path.stat().st_size for path in part_files(run, 0, ARRIVALS))
    assert stored / len(found) < 6


def test_the_last_look_is_made_at_once(log):
    _, _, run = log
    sink = ArrivalsSink(run, 0, lambda at_once: [(0, 7, 10**15, *REST)] if at_once else [])
    sink.look()
    sink.flush()
    assert part_files(run, 0, ARRIVALS) == []
    sink.end({})
    assert RunLog.open(run).ranks[0].arrivals() == {(0, 7): 10**15}


def test_groups_that_a_job_makes_anew_stay_apart(log):
    _, _, run = log
    rows = [(group, 7, 10**15 + group, *REST) for group in (0, 1, GROUPS, 3 * GROUPS + 1)]
    ArrivalsSink(run, 0, lambda at_once: rows).end({})
    assert RunLog.open(run).ranks[0].arrivals() == {(row[0], 7): row[2] for row in rows}


def test_without_arrivals_there_is_no_file(log):
    sink, _, run = log
    sink.look()
    sink.end({})
    assert part_files(run, 0, ARRIVALS) == []
    assert RunLog.open(run).ranks[0].arrivals() == {}


def test_a_disk_that_refuses_is_tried_again_and_what_memory_cannot_hold_is_counted(
    log, monkeypatch
):
    sink, rows, run = log
    monkeypatch.setattr(ArrivalsSink, "held_rows", 100)
    monkeypatch.setattr(row_sink, "store", refuse)
    deliveries = Deliveries([sink])
    for first in range(0, 240, 40):
        rows += [(0, seq, 10**15 + seq) for seq in range(first, first + 40)]
        deliveries.write(batch([first // 40]))
        deliveries.flush()
    monkeypatch.undo()
    summary = deliveries.settle({})
    assert summary["lost_steps"] == {"log of arrivals": 4}
    assert summary["lost_because"] == {"log of arrivals": "ENOSPC: No space left on device"}
    assert len(RunLog.open(run).ranks[0].arrivals()) == 80


def test_lost_files_of_an_epoch_count_all_its_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(IoSink, "held_rows", 3)
    monkeypatch.setattr(row_sink, "store", refuse)
    over: list[IoRows] = []
    deliveries = Deliveries([IoSink(tmp_path, 0, lambda is_last: over.pop() if over else NOTHING)])
    for step in range(30):
        if step % 10 == 9:
            over.append(IoRows(np.zeros(2, IO_ROW), NOTHING.spread))
        deliveries.write(batch([step]))
    monkeypatch.undo()
    assert deliveries.settle({})["lost_steps"] == {"log of files": 20}


def test_what_was_held_leaves_room_for_the_last_ones(log, monkeypatch):
    """The disk takes them again as the run ends."""
    sink, rows, run = log
    monkeypatch.setattr(ArrivalsSink, "held_rows", 100)
    monkeypatch.setattr(ArrivalsSink, "seal_rows", 50)
    rows += [(0, seq, 10**15 + seq) for seq in range(100)]
    sink.look()
    rows += [(0, seq, 10**15 + seq) for seq in range(100, 150)]
    sink.end({})
    assert len(RunLog.open(run).ranks[0].arrivals()) == 150


def refuse(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
