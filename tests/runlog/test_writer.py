"""The run log: what is in its files, number by number."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.samples import NO_LATENCY, batch, busy_run, cells, info
from trainobs import __version__
from trainobs.core.abi import FileClass, Op, Role
from trainobs.core.catalogue import CATALOGUE
from trainobs.core.errors import RunLogError
from trainobs.core.metrics import MetricKind
from trainobs.core.records import BATCH_ROW, SETUP
from trainobs.runlog import arrow, directory, writer
from trainobs.runlog.columns import Column
from trainobs.runlog.directory import claim, next_free
from trainobs.runlog.table import Table
from trainobs.runlog.writer import RunLogSink

BUDGET = 335
"""Bytes of disk that a busy step may take."""


@pytest.fixture
def sink(tmp_path):
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    return sink


def table(tmp_path, name):
    return pq.read_table(tmp_path / "run" / "rank=0" / name, partitioning=None)


def test_a_step_is_a_row_with_a_column_for_every_metric(sink, tmp_path):
    sink.write(batch([SETUP, 7], io__read_bytes=[5, 123456789], cache__hit_ratio=[np.nan, 0.25]))
    sink.flush()
    steps = table(tmp_path, "steps-00000.parquet")
    assert steps.column_names == ["step", "epoch", "start_ns", *(m.name for m in CATALOGUE)]
    assert steps["step"].to_pylist() == [None, 7]
    assert steps["start_ns"].to_pylist() == [2_000_000_000, 3_000_000_000]
    assert steps["io/read_bytes"].to_pylist() == [5, 123456789]
    assert steps["cache/hit_ratio"].to_pylist() == [None, 0.25]
    assert steps["net/sent_bytes"].to_pylist() == [None, None], "no source is not zero"


@pytest.mark.parametrize("flushes", [0, 1])
def test_a_run_of_one_step_has_it(sink, tmp_path, flushes):
    sink.write(batch([7]))
    for _ in range(flushes):
        sink.flush()
    sink.end({})
    assert table(tmp_path, "steps-00000.parquet")["step"].to_pylist() == [7]


def test_the_reserve_takes_its_room_of_a_file_system_that_compresses(sink, tmp_path):
    reserve = (tmp_path / "run" / "rank=0" / ".reserve").read_bytes()
    assert len(zlib.compress(reserve)) > writer.RESERVE_BYTES * 0.99
    sink.end({})
    assert not (tmp_path / "run" / "rank=0" / ".reserve").exists()


def test_sums_are_whole_numbers_also_where_they_are_all_null(sink, tmp_path):
    sink.write(batch([0], io__read_bytes=[2**53 - 1]))
    sink.flush()
    steps = table(tmp_path, "steps-00000.parquet")
    assert steps["io/read_bytes"].to_pylist() == [2**53 - 1]
    for metric in CATALOGUE:
        wanted = pa.int64() if metric.kind is MetricKind.SUM else pa.float32()
        assert steps.schema.field(metric.name).type == wanted, metric.name


def test_the_kernel_table_holds_the_cells_that_are_not_zero(sink, tmp_path):
    read = {"count": 3, "bytes": 2**40, "ns": 1_234_567_891, "wait_ns": 17}
    rows = cells(
        2,
        (0, Op.WRITE, FileClass.CHECKPOINT, Role.MAIN, {"count": 1}),
        (1, Op.READ, FileClass.DATA, Role.WORKER, read),
        (1, Op.OFFCPU, FileClass.OTHER, Role.MAIN, {"ns": 9}),  # a sleep that began a step ago
    )
    sink.write(batch([SETUP, 0], cells=rows))
    sink.flush()
    assert table(tmp_path, "kernel-00000.parquet").to_pylist() == [
        {"step": 0, "op": "read", "class": "data", "role": "worker", **read},
        {"step": None, "op": "write", "class": "checkpoint", "role": "main"}
        | {"count": 1, "bytes": 0, "ns": 0, "wait_ns": 0},
        {"step": 0, "op": "offcpu", "class": "other", "role": "main"}
        | {"count": 0, "bytes": 0, "ns": 9, "wait_ns": 0},
    ]


def test_without_kernel_cells_there_is_no_kernel_table(sink, tmp_path):
    sink.write(batch([0], io__read_bytes=[1]))
    sink.flush()
    files = sorted(path.name for path in (tmp_path / "run" / "rank=0").glob("*.parquet"))
    assert files == ["steps-00000.parquet"]


def test_a_batch_is_a_row_and_what_is_unknown_of_it_is_null(sink, tmp_path):
    rows = np.zeros(2, BATCH_ROW)
    when = (10**13, 10**13 + 60, 10**13 + 50, 10**13 + 70)
    rows[0] = (7, 9, 1, 3, 2, 5, *when, 4096, 3, 50, 20, 10, 30, 5, 900, 64, 40, b"a.jpg")
    rows[1] = (SETUP, -1, 0, 1, -1, 0, 1, 2, -1, -1, 0, 0, 0, -1, -1, -1, -1, -1, -1, 0, b"")
    sink.write(replace(batch([6]), batches=rows[:0]))
    sink.flush()
    assert not (tmp_path / "run" / "rank=0" / "batches-00000.parquet").exists()
    sink.write(replace(batch([7]), batches=rows[:1]))
    sink.flush()
    sink.write(replace(batch([8]), batches=rows[1:]))
    sink.flush()
    known, unknown = table(tmp_path, "batches-00000.parquet").to_pylist()
    assert tuple(known) == BATCH_ROW.names
    assert tuple(known.values()) == (*rows[0].tolist()[:-1], "a.jpg")
    times = ("device_ns", "cpu_wait_ns", "compute_ns", "sleep_ns")
    fetched = ("fetch_begin_ns", "fetch_end_ns", "received_bytes", "handed_bytes")
    nothing = ("step", "for_step", "worker", *times, *fetched)
    assert {name for name, value in unknown.items() if value is None} == {*nothing, "slowest_file"}


def test_a_file_name_that_is_no_text_is_kept_as_far_as_it_is(sink, tmp_path):
    rows = np.zeros(1, BATCH_ROW)
    rows["slowest_file"] = "é.jpg".encode()[1:]  # cut in the middle of a letter
    sink.write(replace(batch([7]), batches=rows))
    sink.flush()
    names = table(tmp_path, "batches-00000.parquet")["slowest_file"].to_pylist()
    assert names == ["\ufffd.jpg"]


def test_latency_is_rewritten_with_what_it_grew_to(sink, tmp_path):
    buckets = NO_LATENCY.copy()
    for count in (1, 4):
        buckets[Op.FSYNC, FileClass.CHECKPOINT, Role.MAIN, 21] = count
        sink.latency(buckets)
        sink.flush()
    assert table(tmp_path, "latency.parquet").to_pylist() == [
        {"op": "fsync", "class": "checkpoint", "role": "main", "bucket": 21, "count": 4}
    ]


def test_run_json_says_what_is_true_and_how_it_ended(tmp_path):
    facts = info(host={"hostname": "h"}, capabilities={"block": "on"})
    sink = RunLogSink(tmp_path / "run")
    sink.begin(facts)
    begun = json.loads((tmp_path / "run" / "run.json").read_text())
    assert begun["schema"] == 1
    assert begun["trainobs"] == __version__
    assert begun["summary"] is None
    facts.capabilities["block"] = "given up"  # parts disarm themselves in mid-run
    sink.flush()
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    assert told["capabilities"] == {"block": "given up"}
    sink.end({"outcome": "ok"})
    ended = json.loads((tmp_path / "run" / "run.json").read_text())
    assert ended["summary"] == {"outcome": "ok", "stored_steps": 0}
    assert ended["host"] == {"hostname": "h"}


def test_only_rank_0_writes_the_run_json_of_the_run(tmp_path):
    sink = RunLogSink(tmp_path / "run", rank=3)
    sink.begin(info(rank=3))
    sink.end({})
    assert not (tmp_path / "run" / "run.json").exists()
    assert json.loads((tmp_path / "run" / "rank=3" / "rank.json").read_text())["rank"] == 3


def test_steps_across_sealed_parts_are_all_there_once(sink, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_STEPS", 100)
    whole = busy_run(250)
    for first in range(0, 250, 10):
        part = slice(first, first + 10)
        columns = {name.replace("/", "__"): x[part] for name, x in whole.columns.items()}
        sink.write(batch(whole.step[part], whole.cells[part], **columns))
        sink.flush()
    folder = tmp_path / "run" / "rank=0"
    names = sorted(path.name for path in folder.glob("steps-*"))
    assert names == [f"steps-0000{n}.parquet" for n in range(3)]
    parts = [table(tmp_path, name) for name in names]
    assert [len(part) for part in parts] == [100, 100, 50]
    steps = pa.concat_tables(parts)
    assert steps["step"].to_pylist() == list(range(250))
    read = np.array(steps["io/data_read_bytes"].to_pylist())
    np.testing.assert_array_equal(read, whole.columns["io/data_read_bytes"])
    kernel = pa.concat_tables(table(tmp_path, name.replace("steps", "kernel")) for name in names)
    for field in ("count", "bytes", "ns", "wait_ns"):
        assert sum(kernel[field].to_pylist()) == int(whole.cells.rows()[field][:, : Op.ONCPU].sum())


def test_a_busy_step_fits_the_budget(sink, tmp_path):
    whole = busy_run(2 * writer.SEAL_STEPS)
    used = (np.count_nonzero(whole.cells.rows()["count"]) / len(whole), len(whole.columns))
    assert used[0] > 29
    assert used[1] > 45
    sink.write(whole)
    sink.latency(NO_LATENCY)
    sink.end({})
    size = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert size / len(whole) <= BUDGET


def test_a_directory_that_holds_a_run_is_refused(sink, tmp_path):
    with pytest.raises(RunLogError, match="belongs to an earlier run"):
        RunLogSink(tmp_path / "run").begin(info())


def test_the_next_free_directory_is_found_by_every_rank(tmp_path):
    wanted = tmp_path / "run"
    for expected in ("run", "run-2", "run-3"):
        for rank in (1, 0):  # whichever begins first
            assert next_free(wanted, rank) == tmp_path / expected
            RunLogSink(tmp_path / expected, rank).begin(info(rank=rank))


def test_a_rank_does_not_join_a_run_that_has_ended(sink, tmp_path):
    sink.end({"outcome": "ok"})
    assert next_free(tmp_path / "run", 1) == tmp_path / "run-2"


def test_a_claim_is_made_once_and_a_sink_begins_in_it(tmp_path):
    places = [claim(tmp_path / "run", rank) for rank in (0, 1, 0, 1)]
    assert places == [tmp_path / name for name in ("run", "run", "run-2", "run-2")]
    RunLogSink(places[0], claimed=True).begin(info())
    assert (tmp_path / "run" / "run.json").exists()
    with pytest.raises(RunLogError):
        RunLogSink(places[2]).begin(info())


def test_a_claim_that_another_makes_first_is_passed_over(tmp_path, monkeypatch):
    claim(tmp_path / "run", 0)
    monkeypatch.setattr(directory, "_is_free", lambda run_dir, rank, job: True)
    assert claim(tmp_path / "run", 0) == tmp_path / "run-2"


def test_a_claim_that_was_removed_is_made_again(tmp_path):
    place = claim(tmp_path / "run", 0)
    shutil.rmtree(place)
    RunLogSink(place, claimed=True).begin(info())
    assert (place / "rank=0").is_dir()


def test_pandas_is_imported_neither_in_a_training_nor_by_a_report(tmp_path):
    writer = (
        "import sys\nfrom pathlib import Path\n"
        "from tests.samples import NO_LATENCY, busy_run, info\n"
        "from trainobs.runlog.writer import RunLogSink\n"
        "sink = RunLogSink(Path(sys.argv[1]))\n"
        "sink.begin(info()); sink.write(busy_run(10)); sink.latency(NO_LATENCY + 1); sink.end({})\n"
        "print('pandas' in sys.modules, 'pyarrow.fs' in sys.modules)\n"
    )
    command = [sys.executable, "-c", writer, tmp_path / "run"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "False False\n"
    reader = (
        "import sys\nfrom pathlib import Path\n"
        "from trainobs.analysis.summary import summarize\n"
        "from trainobs.runlog.reader import RunLog\n"
        "summarize(RunLog.open(Path(sys.argv[1])))\n"
        "print('pandas' in sys.modules)\n"
    )
    command[2] = reader
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("private", [None, SimpleNamespace(), SimpleNamespace(ParquetWriter=dict)])
def test_a_pyarrow_whose_own_writer_is_another_writes_the_same(monkeypatch, private):
    columns = Column("step"), Column("share", "<f4", np.nan), Column("is", "?")
    values = np.arange(100), np.linspace(0, 1, 100), np.ones(100, np.bool_)
    table = Table(columns, dict(zip(("step", "share", "is"), values, strict=True)))
    usual = arrow.encode(table)
    monkeypatch.setitem(sys.modules, "pyarrow._parquet", private)
    assert arrow.encode(table) == usual
