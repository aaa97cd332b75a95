"""Run logs that are damaged, odd or hostile: a report of the rest, or three lines."""

from __future__ import annotations

import json
import os
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.analysis.runs import loader_bound
from tests.samples import batch, info
from trainobs.analysis.no_steps import reason
from trainobs.analysis.summary import summarize
from trainobs.cli import main
from trainobs.core.errors import RunLogError
from trainobs.report.full import render
from trainobs.runlog.reader import RunLog
from trainobs.runlog.writer import RunLogSink

ESCAPE = "\x1b]0;pwned\x07"


def edit(path, **fields):
    """Overwrite fields of `run.json`."""
    file = path / "run.json"
    file.write_text(json.dumps(json.loads(file.read_bytes()) | fields))
    return path


def replace_column(file, name, values):
    table = pq.read_table(file, partitioning=None)
    index = table.column_names.index(name)
    pq.write_table(table.set_column(index, name, values), file)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"schema": "x"}, "schema in run.json is not an integer"),
        ({"schema": None}, "schema in run.json is not an integer"),
        ({"schema": True}, "schema in run.json is not an integer"),
        ({"trainobs": []}, "trainobs in run.json is not a string"),
        ({"clock": []}, "clock in run.json is not an object"),
        ({"clock": {"wall_ns": "x"}}, "clock.wall_ns in run.json is not an integer"),
        ({"level": []}, "level in run.json is not a string"),
        ({"world_size": "2"}, "world_size in run.json is not an integer"),
        ({"host": []}, "host in run.json is not an object"),
        ({"host": {"hostname": {}}}, "host.hostname in run.json is not a string"),
        ({"capabilities": []}, "capabilities in run.json is not an object"),
        ({"capabilities": {"ebpf": 1}}, "capabilities.ebpf in run.json is not a string"),
        ({"host": {"cpu_quota": "2"}}, "quota in run.json is not a number or an integer or null"),
        ({"settings": 3}, "settings in run.json is not an object"),
        (
            {"settings": {"loader_workers": "2"}},
            "loader_workers in run.json is not an integer or null",
        ),
        ({"loaders": [5]}, "loaders.0 in run.json is not an object"),
        ({"loaders": [{"workers": "2"}]}, "loaders.0.workers in run.json is not an integer"),
        ({"loaders": [{"iterable": 0}]}, "loaders.0.iterable in run.json is not true or false"),
        ({"loaders": [{"sampler": [8]}]}, "sampler in run.json is not an object or null"),
        ({"loaders": [{"sampler": {"ns": None}}]}, "sampler.ns in run.json is not an integer"),
        ({"summary": [1]}, "summary in run.json is not an object or null"),
        ({"summary": {"outcome": []}}, "summary.outcome in run.json is not a string or null"),
        ({"summary": {"losses": []}}, "summary.losses in run.json is not an object"),
        ({"summary": {"dropped_steps": {}}}, "summary.dropped_steps in run.json is not an integer"),
        ({"summary": {"lost_steps": [1]}}, "summary.lost_steps in run.json is not an object"),
        ({"summary": {"lost_steps": {"a": "x"}}}, "lost_steps.a in run.json is not an integer"),
    ],
)
def test_a_field_of_another_type_is_named(write_run, fields, found):
    with pytest.raises(RunLogError, match="cannot be read") as error:
        RunLog.open(edit(write_run(), **fields))
    assert error.value.found.endswith(found)
    assert error.value.do == "restore the file from where the run wrote it"


@pytest.mark.parametrize("depth", [400, 100_000])  # too deep to be printed, and to be parsed
def test_a_deeply_nested_run_json_is_refused(write_run, depth):
    path = write_run()
    text = json.dumps(json.loads((path / "run.json").read_bytes()) | {"settings": "HERE"})
    (path / "run.json").write_text(text.replace('"HERE"', "[" * depth + "]" * depth))
    with pytest.raises(RunLogError) as error:
        RunLog.open(path)
    assert error.value.found == "run.json is nested too deeply"


@pytest.mark.timeout(60)
def test_a_pipe_is_not_waited_for(write_run):
    path = write_run()
    fifo = path / "rank=0" / "steps-00001.parquet"
    os.mkfifo(fifo)
    assert RunLog.open(path).unreadable == {fifo: "not a regular file"}
    (path / "run.json").unlink()
    os.mkfifo(path / "run.json")
    with pytest.raises(RunLogError) as error:
        RunLog.open(path)
    assert error.value.found == "run.json: not a regular file"


@pytest.mark.parametrize(
    ("file", "column", "values"),
    [
        ("kernel-00000", "op", pa.array(["read"] * 5 + ["bogus"])),
        ("kernel-00000", "op", pa.array(["read"] * 5 + [None])),
        ("kernel-00000", "class", pa.array([1, 2, 3, 4, 5, 6])),
        ("kernel-00000", "count", pa.array(["1"] * 6)),
        ("kernel-00000", "bytes", pa.array([1, 2, 3, 4, 5, 0.5])),
        ("kernel-00000", "ns", pa.array([1.0, 2.0, 3.0, 4.0, 5.0, float("inf")])),
        ("latency", "role", pa.array(["main", "nobody"])),
        ("latency", "bucket", pa.array([1, 99])),
        ("latency", "bucket", pa.array([1, -1])),
        ("latency", "count", pa.array([1, 2**64 - 1], pa.uint64())),
        ("steps-00000", "step", pa.array(["a"] * 5)),
        ("steps-00000", "step", pa.array([0, 1, 2, 3, -7])),
        ("steps-00000", "io/read_bytes", pa.array(["a"] * 5)),
        ("steps-00000", "io/read_bytes", pa.array([1.0, 2.0, 3.0, 4.0, float("inf")])),
        ("steps-00000", "io/read_bytes", pa.array([1e308] * 5)),
        ("steps-00000", "cache/hit_ratio", pa.array([[1.0]] * 5)),
    ],
)
def test_values_out_of_range_are_left_out_and_told(write_run, file, column, values):
    path = write_run()
    damaged = path / "rank=0" / f"{file}.parquet"
    replace_column(damaged, column, values)
    run = RunLog.open(path)
    assert run.unreadable == {damaged: f"with unusable values in {column}"}
    summary = summarize(run)
    assert f"{damaged.name}: with unusable values in {column}" in render(summary)
    if file == "steps-00000":  # without a metric, its steps are steps
        assert summary["steps"] == (0 if column == "step" else 4)
    if "/" in column:
        assert summary["metrics"][column]["mean"] is None
        assert summary["metrics"]["step/duration_ns"]["mean"] is not None


def test_steps_whose_times_cannot_be_used_are_none(write_run):
    """Their bytes, held against the time of the others, would be rates that never were."""
    path = write_run()
    damaged = path / "rank=0" / "steps-00000.parquet"
    replace_column(damaged, "step/duration_ns", pa.array([1.0, 2.0, 3.0, 4.0, float("inf")]))
    assert RunLog.open(path).ranks[0].step().size == 0
    run = RunLog.open(path)
    why = "with unusable values in step/duration_ns"
    assert run.ranks[0].files.unreadable("steps") == {damaged: why}
    summary = summarize(run)
    assert (summary["steps"], summary["training_ns"]) == (0, 0)
    assert f"{damaged.name}: {why}" in render(summary)


def test_a_column_that_is_there_twice_is_left_out(write_run):
    path = write_run()
    damaged = path / "rank=0" / "latency.parquet"
    table = pq.read_table(damaged, partitioning=None)
    pq.write_table(table.append_column("bucket", table["bucket"]), damaged)
    assert RunLog.open(path).unreadable == {damaged: "with unusable values in bucket"}


def test_numbers_beyond_the_digits_of_a_float_are_read(write_run):
    path = write_run()
    replace_column(
        path / "rank=0" / "steps-00000.parquet", "io/read_bytes", pa.array([2**60 + 1] * 5)
    )
    run = RunLog.open(path)
    assert run.unreadable == {}
    np.testing.assert_array_equal(run.ranks[0].metric("io/read_bytes"), [2.0**60] * 5)


def test_steps_that_took_no_time_have_no_rate(write_run):
    path = write_run()
    replace_column(path / "rank=0" / "steps-00000.parquet", "step/duration_ns", pa.array([0] * 5))
    assert "steps per second" not in render(summarize(RunLog.open(path)))


def test_a_directory_that_is_not_utf_8_is_read(write_run, capsys):
    path = write_run(os.fsdecode(b"run\xff"))
    assert main(["report", str(path)]) == 0
    assert "run\\udcff: 4 steps in 10 ms, not ended" in capsys.readouterr().out


def test_the_page_does_not_steer_the_terminal(write_run):
    path = write_run(summary={"outcome": ESCAPE}, capabilities={ESCAPE: ESCAPE, "bidi": "\u202eno"})
    edit(path, host={"hostname": ESCAPE + "\n", "kernel": "\ud800"}, level=ESCAPE)
    page = render(summarize(RunLog.open(path)))
    assert all(line.isprintable() for line in page.splitlines())
    assert "  host       \\x1b]0;pwned\\x07\\n, Linux \\ud800" in page.splitlines()
    assert "  ended      \\x1b]0;pwned\\x07" in page.splitlines()
    assert "  bidi: \\u202eno" in page.splitlines()


def test_an_error_does_not_steer_the_terminal(write_run, capsys):
    assert main(["report", str(edit(write_run(), schema=9, trainobs=ESCAPE))]) == 2
    message = capsys.readouterr().err
    assert "written by trainobs \\x1b]0;pwned\\x07\n" in message
    assert len(message.splitlines()) == 3


def test_what_no_run_can_have_measured_is_shown_as_not_measured(write_run):
    path = write_run(summary={"outcome": "ok"})
    file = path / "rank=0" / "steps-00000.parquet"
    rows = pq.read_metadata(file).num_rows
    impossible = {"step/duration_ns": -5_000_000, "sched/main_offcpu_ns": 2**62}
    for name, value in impossible.items():
        replace_column(file, name, pa.array([value] * rows, pa.int64()))
    summary = summarize(RunLog.open(path))
    for name in impossible:
        assert summary["metrics"][name]["mean"] is None
        assert summary["metrics"][name]["sum"] is None
    assert summary["step"] is None
    assert not re.search(r"\s-\d", render(summary))


@pytest.fixture
def in_parts(tmp_path, monkeypatch):
    """Writes a run of several parts with 4 steps each; returns its directory."""

    def write(first=0, parts=3, ranks=1):
        monkeypatch.setattr("trainobs.runlog.writer.SEAL_STEPS", 4)
        for rank in range(ranks):
            sink = RunLogSink(tmp_path / "run", rank)
            sink.begin(info(rank=rank, world_size=ranks))
            for begin in range(first, first + 4 * parts, 4):
                sink.write(batch(range(begin, begin + 4), step__duration_ns=[1e6] * 4))
            sink.end({"outcome": "ok"})
        return tmp_path / "run"

    return write


UNREAD = "files of steps are gone or cannot be read"


def missing_steps(path, newest_parts=0):
    return summarize(RunLog.open(path, newest_parts))["lost"]["missing_steps"]


def test_missing_steps_are_told_at_the_head(in_parts, capsys):
    path = in_parts()
    assert missing_steps(path) == 0
    (path / "rank=0" / "steps-00000.parquet").unlink()
    assert main(["report", str(path), "--full"]) == 0
    head = capsys.readouterr().out.partition("\n\n")[0]
    assert (
        f"lost       {UNREAD}: 4 steps are missing\n{' ' * 13}1 file of steps cannot be read"
        in head
    )
    assert main(["report", str(path)]) == 0
    assert ": 8 steps in 8 ms, 4 missing, ended: ok" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize("gone", [["00002"], ["00001", "00002"], ["00000", "00001", "00002"]])
def test_what_the_last_files_had_is_missing_from_a_run_that_ended(in_parts, capsys, gone):
    """As of a copy that was broken off."""
    path = in_parts()
    for number in gone:
        (path / "rank=0" / f"steps-{number}.parquet").unlink()
    assert missing_steps(path) == 4 * len(gone)
    assert main(["report", str(path), "--full"]) == 0
    text = capsys.readouterr().out
    if len(gone) < 3:
        assert f"lost       files of steps are gone: {4 * len(gone)} steps are missing" in text
    else:
        assert f"lost       {UNREAD}: 12 steps are missing" in text


def test_what_the_last_file_had_is_missing_where_it_cannot_be_read(in_parts, capsys):
    path = in_parts()
    (path / "rank=0" / "steps-00002.parquet").write_bytes(b"")
    assert main(["report", str(path)]) == 0
    assert ": 8 steps in 8 ms, 4 missing, ended: ok" in capsys.readouterr().out.splitlines()[0]


def test_what_gone_files_had_is_not_laid_on_one_that_cannot_be_read(in_parts, capsys):
    path = in_parts()
    (path / "rank=0" / "steps-00002.parquet").unlink()
    (path / "rank=0" / "steps-00001.parquet").write_bytes(b"")
    assert main(["report", str(path), "--full"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"  lost       {UNREAD}: 8 steps are missing" in lines
    assert f"{' ' * 13}1 file of steps cannot be read" in lines


@pytest.mark.parametrize(("stored", "missing"), [(True, 4), (False, None)])
def test_a_step_is_not_both_lost_and_missing(in_parts, capsys, stored, missing):
    """Of three numbers that leap over a file that is gone, how many were never stored?"""
    path = in_parts(parts=4)
    replace_column(path / "rank=0/steps-00003.parquet", "step", pa.array([15, 16, 17, 18]))
    (path / "rank=0" / "steps-00002.parquet").unlink()
    told = {"stored_steps": 16} if stored else {}
    edit(path, summary={"outcome": "ok", "dropped_steps": 3, **told})
    assert missing_steps(path) == missing
    assert main(["report", str(path), "--full"]) == 0
    head = capsys.readouterr().out.partition("\n\n")[0]
    assert ("are missing" in head) is stored
    assert "1 file of steps cannot be read" in head
    assert "3 steps have no record: the observer was held up" in head


@pytest.mark.parametrize("first", [0, 1, 10_001])
@pytest.mark.parametrize("gone", [1, 2])
def test_steps_are_missing_only_where_files_are(in_parts, first, gone):
    path = in_parts(first, parts=4)
    for part in range(1, 1 + gone):
        (path / "rank=0" / f"steps-{part:05d}.parquet").unlink()
    assert missing_steps(path) == 4 * gone


def test_numbers_of_a_loop_that_leaves_some_out_are_not_missing(in_parts):
    path = in_parts(parts=4)
    replace_column(path / "rank=0/steps-00003.parquet", "step", pa.array([12, 20, 30, 40]))
    (path / "rank=0" / "steps-00001.parquet").unlink()
    assert missing_steps(path) == 4


def test_older_parts_that_are_not_read_are_not_missing(in_parts):
    path = in_parts(parts=8)
    (path / "rank=0" / "steps-00007.parquet").write_bytes(b"")
    assert missing_steps(path, newest_parts=2) == 0
    (path / "rank=0" / "steps-00005.parquet").unlink()
    assert missing_steps(path, newest_parts=4) == 4


def test_steps_of_a_file_that_lacks_a_column_are_not_missing(in_parts, capsys):
    path = in_parts(first=30)
    damaged = path / "rank=0" / "steps-00001.parquet"
    replace_column(damaged, "io/read_bytes", pa.array(["a"] * 4))
    lost = summarize(RunLog.open(path))["lost"]
    assert lost["missing_steps"] == 0
    assert lost["partly"] == [str(damaged)]
    assert main(["report", str(path), "--full"]) == 0
    head = capsys.readouterr().out.partition("\n\n")[0]
    assert "lost       1 file of steps cannot be read in all columns" in head
    assert "missing" not in head


def test_a_file_that_lacks_a_column_is_not_why_there_are_no_steps(in_parts):
    path = in_parts(parts=1)
    damaged = path / "rank=0" / "steps-00000.parquet"
    replace_column(damaged, "step", pa.nulls(4, pa.int64()))
    replace_column(damaged, "io/read_bytes", pa.array(["a"] * 4))
    assert "cannot be read" not in reason(summarize(RunLog.open(path)))


def test_of_several_ranks_it_is_said_whose_steps_are_missing(in_parts, capsys):
    path = in_parts(ranks=2)
    for rank in (0, 1):
        (path / f"rank={rank}" / "steps-00001.parquet").unlink()
    assert main(["report", str(path), "--full"]) == 0
    head = capsys.readouterr().out.partition("\n\n")[0]
    assert f"lost       {UNREAD}: 4 steps of rank 0 are missing" in head
    assert "2 files of steps cannot be read" in head


@pytest.mark.parametrize("steps", [range(2), ()])
def test_what_rank_0_stored_is_not_missing_from_another(in_parts, steps):
    """As where the directory of rank 0 was removed: `run.json` stays."""
    path = in_parts()
    sink = RunLogSink(path, 1)
    sink.begin(info(rank=1, world_size=2))
    if steps:
        sink.write(batch(steps, step__duration_ns=[1e6] * len(steps)))
    sink.flush()
    shutil.rmtree(path / "rank=0")
    run = RunLog.open(path)
    assert run.rank.rank == 1
    lost = summarize(run)["lost"]
    assert (lost["missing_steps"], lost["files"]) == (0, {})


def test_that_all_cells_of_the_kernel_are_gone_is_told(write_run, capsys):
    path = write_run()
    assert summarize(RunLog.open(path))["lost"]["files"] == {}
    for file in (path / "rank=0").glob("kernel-*.parquet"):
        file.unlink()
    assert main(["report", str(path), "--full"]) == 0
    text = capsys.readouterr().out
    assert "lost       1 file of other tables cannot be read" in text
    assert "  rank=0/kernel-00000.parquet: no such file" in text


def test_a_run_without_ebpf_never_had_cells_of_the_kernel(write_run):
    path = write_run(level="procfs", capabilities={"ebpf": "Operation not permitted"})
    for file in (path / "rank=0").glob("kernel-*.parquet"):
        file.unlink()
    assert summarize(RunLog.open(path))["lost"]["files"] == {}


def test_that_all_steps_are_gone_is_told_where_batches_name_them(tmp_path, capsys):
    path = loader_bound(tmp_path / "run")
    for file in (path / "rank=0").glob("steps-*.parquet"):
        file.unlink()
    assert main(["report", str(path)]) == 0
    text = capsys.readouterr().out
    assert "1 file of steps cannot be read" in text
    assert "rank=0/steps-00000.parquet: no such file" in text
