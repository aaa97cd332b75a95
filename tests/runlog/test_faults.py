"""The run log under fire: a killed writer, a full disk, a directory that is taken away."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.samples import NO_LATENCY, batch, busy_run, info
from trainobs.core.abi import FIELDS, UNTABLED
from trainobs.runlog import writer
from trainobs.runlog.reader import RunLog
from trainobs.runlog.store import store
from trainobs.runlog.writer import RunLogSink

WRITER = """
import sys
from pathlib import Path
from tests.samples import busy_run, batch, info
from trainobs.runlog.writer import RunLogSink

sink = RunLogSink(Path(sys.argv[1]))
sink.begin(info())
whole = busy_run(64)
for first in range(0, 10**9, 64):
    steps = batch(range(first, first + 64), whole.cells, io__read_bytes=range(first, first + 64))
    sink.write(steps)
    sink.flush()
    print(first + 64, flush=True)
"""


@pytest.mark.parametrize("flushes", [1, 3, 40])
def test_a_killed_run_keeps_everything_up_to_its_last_flush(tmp_path, flushes):
    command = [sys.executable, "-c", WRITER, tmp_path / "run"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
        flushed = [int(writer.stdout.readline()) for _ in range(flushes)][-1]
        writer.send_signal(signal.SIGKILL)
    run = RunLog.open(tmp_path / "run")
    steps = run.ranks[0].step()
    assert run.unreadable == {}
    assert len(steps) >= flushed
    np.testing.assert_array_equal(steps, np.arange(len(steps)))
    np.testing.assert_array_equal(run.ranks[0].metric("io/read_bytes"), np.arange(len(steps)))
    assert run.info["summary"] is None


def test_a_full_disk_raises_and_nothing_is_lost_once_there_is_space(disk):
    small = disk("size=256k")
    sink = RunLogSink(small / "run")
    sink.begin(info())
    whole = busy_run(300)
    sink.write(whole)
    filler = small / "filler"
    filler.write_bytes(bytes(200 << 10))
    with pytest.raises(OSError, match="No space left") as fault:
        sink.flush()
    assert fault.value.errno == errno.ENOSPC
    assert not list(small.rglob("*.tmp")), "half a file would keep the disk full"
    filler.unlink()
    sink.write(batch([300], io__read_bytes=[7]))
    sink.end({"outcome": "ok"})
    run = RunLog.open(small / "run")
    np.testing.assert_array_equal(run.ranks[0].step(), np.arange(301))
    for field in FIELDS:
        total = whole.cells.rows()[field].sum(axis=0)
        total[list(UNTABLED)] = 0
        np.testing.assert_array_equal(run.ranks[0].cells()[field], total)
    assert sink.lost_steps == 0


def test_what_was_stored_outlives_a_disk_that_fills_up(disk):
    small = disk("size=256k")
    sink = RunLogSink(small / "run")
    sink.begin(info())
    sink.write(busy_run(100))
    sink.flush()
    (small / "filler").write_bytes(bytes(152 << 10))
    sink.write(busy_run(500))
    with pytest.raises(OSError, match="No space left"):
        sink.flush()
    assert len(RunLog.open(small / "run").ranks[0].step()) == 100


def test_a_disk_that_stays_full_costs_counted_steps_not_memory(disk, monkeypatch):
    monkeypatch.setattr(writer, "HELD_STEPS", 50)
    small = disk("size=64k")
    sink = RunLogSink(small / "run")
    sink.begin(info())
    filler = small / "filler"
    with pytest.raises(OSError, match="No space left"):
        filler.write_bytes(bytes(128 << 10))
    for first in range(0, 200, 10):
        sink.write(batch(range(first, first + 10), io__read_bytes=range(10)))
        with pytest.raises(OSError, match="No space left"):
            sink.flush()
    assert sink.lost_steps == 150
    filler.unlink()
    sink.end({})
    np.testing.assert_array_equal(RunLog.open(small / "run").ranks[0].step(), np.arange(50))


def summary_of(run):
    return RunLog.open(run).info["summary"]


def test_the_end_is_told_once_all_steps_are_in_the_files(tmp_path, monkeypatch):
    """A reader in between would look for steps that are not there yet, and call them gone."""
    meanwhile = []

    def look(path, table):
        meanwhile.append(summary_of(tmp_path / "run"))
        store(path, table)
        meanwhile.append(summary_of(tmp_path / "run"))

    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    sink.write(busy_run(20))
    sink.latency(NO_LATENCY)
    monkeypatch.setattr(writer, "store", look)
    sink.end({"outcome": "ok"})
    assert len(meanwhile) >= 6
    assert set(meanwhile) == {None}
    assert summary_of(tmp_path / "run") == {
        "outcome": "ok",
        "stored_steps": 20,
        "stored_rows": {"kernel": 606, "batches": 20},
    }


def test_an_end_that_cannot_store_its_last_steps_claims_none(tmp_path, monkeypatch):
    def no_room(path, table):
        raise MemoryError

    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    sink.write(busy_run(20))
    sink.flush()
    sink.write(batch([20]))
    monkeypatch.setattr(writer, "store", no_room)
    with pytest.raises(MemoryError):
        sink.end({"outcome": "ok"})
    assert summary_of(tmp_path / "run") == {"outcome": "ok"}


def test_a_disk_that_is_full_once_all_is_stored_loses_nothing(disk):
    small = disk("size=256k")
    sink = RunLogSink(small / "run")
    sink.begin(info())
    sink.write(batch([0], io__read_bytes=[7]))
    sink.flush()
    with pytest.raises(OSError, match="No space left"):
        (small / "filler").write_bytes(bytes(512 << 10))
    sink.end({"outcome": "ok"})
    assert summary_of(small / "run") == {"outcome": "ok", "stored_steps": 1}


def test_an_end_in_a_directory_that_was_removed_can_be_tried_again(tmp_path):
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    sink.write(batch([0], io__read_bytes=[7]))
    sink.flush()
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        sink.end({"outcome": "ok"})
    sink.end({"outcome": "ok"})
    assert len(RunLog.open(tmp_path / "run").ranks[0].step()) == 1
    assert summary_of(tmp_path / "run") == {"outcome": "ok", "stored_steps": 1}


def test_sealed_steps_that_were_removed_are_counted_as_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_STEPS", 10)
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    for first in (0, 10, 20):
        sink.write(batch(range(first, first + 10)))
    sink.flush()
    shutil.rmtree(tmp_path / "run")
    sink.write(batch([30]))
    with pytest.raises(OSError, match="No such file"):
        sink.flush()
    sink.end({"outcome": "ok"})
    assert sink.lost_steps == 30
    sink.flush()
    assert sink.lost_steps == 30


def test_short_steps_between_two_flushes_are_not_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_STEPS", 20)
    monkeypatch.setattr(writer, "HELD_STEPS", 50)
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    for first in range(0, 200, 10):
        sink.write(batch(range(first, first + 10), io__read_bytes=range(10)))
    sink.end({})
    assert sink.lost_steps == 0
    np.testing.assert_array_equal(RunLog.open(tmp_path / "run").ranks[0].step(), np.arange(200))


def test_a_removed_directory_raises_once_and_is_made_again(tmp_path):
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    sink.write(batch([0, 1], io__read_bytes=[1, 2]))
    sink.flush()
    shutil.rmtree(tmp_path / "run")
    sink.write(batch([2], io__read_bytes=[3]))
    with pytest.raises(FileNotFoundError):
        sink.flush()
    sink.flush()
    run = RunLog.open(tmp_path / "run")
    np.testing.assert_array_equal(run.ranks[0].metric("io/read_bytes"), [1, 2, 3])


def test_what_was_stored_in_a_removed_directory_is_stored_again(tmp_path):
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    sink.write(batch([0, 1], io__read_bytes=[1, 2]))
    sink.flush()
    shutil.rmtree(tmp_path / "run")
    sink.latency(NO_LATENCY)
    with pytest.raises(FileNotFoundError):
        sink.flush()
    sink.flush()
    assert len(RunLog.open(tmp_path / "run").ranks[0].step()) == 2


def test_a_directory_that_cannot_be_written_is_refused_at_begin(disk):
    with pytest.raises(OSError, match="Read-only file system"):
        RunLogSink(disk("ro") / "run").begin(info())


def test_a_file_where_the_directory_should_be_is_refused_at_begin(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(FileExistsError):
        RunLogSink(tmp_path / "run").begin(info())


def test_begin_can_be_tried_again(disk):
    small = disk("size=16k,nr_inodes=3")  # the root and two directories, but no file
    sink = RunLogSink(small / "run")
    with pytest.raises(OSError, match="No space left"):
        sink.begin(info())
    subprocess.run(["mount", "-o", "remount,nr_inodes=10", small], check=True)
    sink.begin(info())
    assert (small / "run" / "run.json").exists()


def test_a_leftover_of_a_killed_writer_disturbs_no_reader(tmp_path):
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    sink.write(batch([0], io__read_bytes=[1]))
    sink.end({})
    folder = tmp_path / "run" / "rank=0"
    (folder / ".steps-00001.parquet.tmp").write_bytes(b"PAR1 half")
    assert len(RunLog.open(tmp_path / "run").ranks[0].step()) == 1
    assert len(pq.read_table(folder)) == 1, "a data set reader takes the folder as it is"
