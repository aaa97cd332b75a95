"""Opening run logs: whole, several, damaged, foreign."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kernel.privileges import another_user
from tests.samples import EVERY_PROGRAM, batch, busy_run, info
from trainobs.analysis.summary import summarize
from trainobs.core.abi import FileClass, Op, Role
from trainobs.core.errors import RunLogError
from trainobs.core.records import SETUP
from trainobs.runlog import writer
from trainobs.runlog.info import read_info
from trainobs.runlog.parquet import why_unreadable
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import run_file
from trainobs.runlog.writer import RunLogSink


def test_a_rank_reads_back_what_was_written(write_run):
    run = RunLog.open(write_run())
    rank = run.ranks[0]
    np.testing.assert_array_equal(rank.step(), [SETUP, 0, 1, 2, 3])
    np.testing.assert_array_equal(rank.start_ns(), 2_000_000_000 + 10**9 * np.arange(5))
    np.testing.assert_array_equal(rank.metric("cache/hit_ratio"), [0, 1, np.nan, 0.25, np.nan])
    np.testing.assert_array_equal(rank.metric("net/sent_bytes"), [np.nan] * 5)
    assert rank.cells()[Op.READ, FileClass.DATA, Role.WORKER].tolist() == (2, 3000, 500, 0)
    assert rank.cells()["bytes"].sum() == 2 * (1000 + 1000 + 3000)
    assert rank.latency()[Op.BLOCK_READ, FileClass.OTHER, Role.KERNEL, 19] == 1
    assert rank.latency().sum() == 4
    assert run.unreadable == {}


def test_a_metric_that_the_run_did_not_know_is_missing(write_run):
    rank = RunLog.open(write_run()).ranks[0]
    np.testing.assert_array_equal(rank.metric("gpu/not_yet"), [np.nan] * 5)


def test_zeros_of_a_program_that_was_off_are_unknown(write_run):
    """Older versions wrote them."""
    off = {**EVERY_PROGRAM, "tobs_cache_add": "refused"}
    rank = RunLog.open(write_run(capabilities=off)).ranks[0]
    np.testing.assert_array_equal(rank.metric("cache/hit_ratio"), [np.nan] * 5)
    assert np.isfinite(rank.metric("io/data_read_bytes")).all()


def test_ranks_are_read_apart(write_run):
    write_run(rank=0)
    path = write_run(rank=10)
    (path / "rank=\N{ARABIC-INDIC DIGIT THREE}").mkdir()  # a digit, but none of ours
    assert list(RunLog.open(path).ranks) == [0, 10]


def test_another_rank_is_told_of_as_it_was_when_the_run_was_opened(write_run):
    write_run(rank=0)
    run = RunLog.open(write_run(rank=10))
    told = run.of(10).info
    assert told["rank"] == 10
    run_file(run.path, 10).unlink()
    assert run.of(10).info == told


def test_columns_of_a_run_that_goes_on_fit_each_other(tmp_path):
    sink = RunLogSink(tmp_path, 0)
    sink.begin(info())
    steps = busy_run(40)
    for first in (0, 20):
        now = slice(first, first + 20)
        sink.write(replace(steps.select(now), batches=steps.batches[now]))
        sink.flush()
        if not first:
            rank = RunLog.open(tmp_path).rank
            told, numbers = rank.step(), rank.batches("number")
    assert len(rank.metric("step/duration_ns")) == rank.files.rows("steps")[0] == len(told) == 20
    assert len(rank.batches("end_ns")) == len(numbers) == 20
    other = RunLog.open(tmp_path).rank
    assert other.files.rows("steps") == [40] == [len(other.step())]
    summary = summarize(RunLog(tmp_path, RunLog.open(tmp_path).info, {0: rank}))
    assert summary["steps"] == 20


@pytest.mark.parametrize("below", ["old", "deep/old"])
def test_of_several_runs_below_a_directory_the_newest_is_read(write_run, tmp_path, below):
    newest = write_run(below, wall_ns=20)
    write_run(f"{below}-2", wall_ns=10)  # written later, begun earlier, as after a copy
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text('{"tool": "another"}')
    assert RunLog.open(tmp_path).path == newest


def test_a_cut_part_is_named_and_the_rest_is_read(write_run):
    path = write_run()
    kernel = path / "rank=0" / "kernel-00000.parquet"
    kernel.write_bytes(kernel.read_bytes()[:-10])
    run = RunLog.open(path)
    assert list(run.unreadable) == [kernel]
    assert "not a whole Parquet file" in run.unreadable[kernel]
    assert len(run.ranks[0].step()) == 5
    assert run.ranks[0].cells()["bytes"].sum() == 0


def test_a_part_that_is_gone_is_named(write_run):
    path = write_run()
    folder = path / "rank=0"
    (folder / "steps-00000.parquet").rename(folder / "steps-00001.parquet")
    run = RunLog.open(path)
    assert [file.name for file in run.unreadable] == ["steps-00000.parquet"]
    assert len(run.ranks[0].step()) == 5


def test_a_foreign_parquet_file_is_named(write_run):
    path = write_run()
    folder = path / "rank=0"
    (folder / "steps-00000.parquet").write_bytes((folder / "latency.parquet").read_bytes())
    (reason,) = RunLog.open(path).unreadable.values()
    assert reason == "without the columns step, epoch, start_ns"


def test_a_file_that_is_no_longer_what_it_was_is_an_error(write_run):
    path = write_run()
    rank = RunLog.open(path).ranks[0]
    kernel = path / "rank=0" / "kernel-00000.parquet"
    assert rank.files["kernel"] == (kernel,)
    table = pq.read_table(kernel, partitioning=None)
    index = table.column_names.index("op")
    pq.write_table(table.set_column(index, "op", pa.array(["bogus"] * len(table))), kernel)
    with pytest.raises(RunLogError, match="with unusable values in op"):
        rank.cells()


@pytest.mark.parametrize("column", ["start_ns", "step/duration_ns"])
def test_a_flipped_bit_is_never_a_wrong_number(write_run, column):
    path = write_run()
    steps = path / "rank=0" / "steps-00000.parquet"
    rank = RunLog.open(path).ranks[0]
    assert rank.files["steps"] == (steps,)  # it was whole when it was looked at
    names = pq.read_schema(steps).names
    page = pq.read_metadata(steps).row_group(0).column(names.index(column))
    whole = steps.read_bytes()
    end = page.data_page_offset + page.total_compressed_size
    for position in range(end - 12, end):
        steps.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        np.testing.assert_array_equal(rank.metric("obs/cpu_ns"), [0, 1000, 1000, 1000, 1000])
        if column == "start_ns":
            with pytest.raises(RunLogError, match="A part of the run log cannot be read") as error:
                rank.start_ns()
            assert str(steps) in error.value.found
            continue
        both = rank.metrics([column, "obs/cpu_ns"])
        np.testing.assert_array_equal(both[column], [np.nan] * 5)
        np.testing.assert_array_equal(both["obs/cpu_ns"], [0, 1000, 1000, 1000, 1000])
        assert RunLog.open(path).unreadable == {steps: f"with unusable values in {column}"}


@pytest.mark.parametrize(
    ("text", "found", "do"),
    [
        ('{"schema": 1, "trainobs"', "Expecting", "restore the file"),
        ('{"tool": "another"}', "not written by trainobs", "give the directory of a run log"),
        ("[1, 2]", "not written by trainobs", "give the directory of a run log"),
        (
            json.dumps({"schema": 2, "trainobs": "9.1", "clock": {}}),
            "schema 2, written by trainobs 9.1",
            "update trainobs, which knows schema 1",
        ),
    ],
)
def test_a_run_json_that_cannot_be_used_says_why(tmp_path, text, found, do):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunLogError) as error:
        RunLog.open(tmp_path)
    assert str(tmp_path) in error.value.failed
    assert found in error.value.found
    assert do in error.value.do


def test_nothing_there_says_what_is(tmp_path, write_run):
    def found(path):
        with pytest.raises(RunLogError, match="There is no run to read in") as error:
            RunLog.open(path)
        return error.value.found

    assert found(tmp_path / "nowhere") == "no such file or directory"
    assert found(tmp_path) == "no run.json of trainobs in it, nor four levels below"
    (tmp_path / "file").touch()
    assert found(tmp_path / "file") == "a file, where a directory was expected"
    only_rank_1 = write_run(rank=1)
    assert found(only_rank_1) == (
        "no run.json: rank 0, which writes it, did not observe its training, was killed as it "
        "began, or is elsewhere"
    )


def test_a_directory_that_may_not_be_read_is_an_error_of_ours(write_run, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    path = write_run()
    monkeypatch.setattr("trainobs.runlog.schema.ranks", refuse)
    with pytest.raises(RunLogError, match="see that you may read it") as error:
        RunLog.open(path)
    assert "Permission denied" in error.value.found


def test_a_run_killed_before_its_first_flush_has_no_steps(tmp_path, write_run):
    path = write_run()
    for file in (path / "rank=0").iterdir():
        file.unlink()
    rank = RunLog.open(path).ranks[0]
    assert len(rank.step()) == 0
    assert len(rank.metric("step/duration_ns")) == 0


@pytest.mark.parametrize("change", [1, 64])
def test_a_damaged_footer_never_ends_the_process(tmp_path, change):
    path = tmp_path / "part.parquet"
    pq.write_table(pa.table({"step": [0, 1, 2], "op": ["read", "write", "read"]}), path)
    job = f"""
from pathlib import Path
from trainobs.runlog.columns import Column
from trainobs.runlog.parquet import why_unreadable
path = Path({str(path)!r})
whole, columns = path.read_bytes(), (Column("step", "<i8"), Column("op", "S8"))
assert why_unreadable(path, columns) is None
footer = int.from_bytes(whole[-8:-4], "little")
reasons = set()
for place in range(len(whole) - 8 - footer, len(whole) - 8):
    path.write_bytes(whole[:place] + bytes([whole[place] ^ {change}]) + whole[place + 1 :])
    reasons.add(why_unreadable(path, columns))
assert len(reasons) > 5
"""
    subprocess.run([sys.executable, "-c", job], check=True, timeout=60)


def test_each_batch_has_its_slowest_file_whichever_part_it_is_in(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_STEPS", 20)
    steps = busy_run(20)
    names = [f"{number}.jpg" for number in range(len(steps.batches))]
    steps.batches["slowest_file"] = names
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    for of_part in (steps.batches["for_step"] < 8, steps.batches["for_step"] >= 8):
        sink.write(replace(steps, batches=steps.batches[of_part]))
        sink.flush()
    rank = RunLog.open(tmp_path / "run").ranks[0]
    assert len(rank.files["batches"]) == 2
    assert rank.slowest_files(range(len(names))) == names


@pytest.mark.parametrize("column", ["slowest_file", "worker"])
def test_a_part_without_a_column_is_refused_whichever_is_asked_for_first(tmp_path, column):
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    sink.write(busy_run(4))
    sink.flush()
    (part,) = (tmp_path / "run").rglob("batches-*.parquet")
    pq.write_table(pq.read_table(part).drop_columns([column]), part)
    rank = RunLog.open(tmp_path / "run").ranks[0]
    assert len(rank.batches("for_step")) == 0
    assert rank.files.unreadable("batches") == {part: f"without the columns {column}"}
    with pytest.raises(IndexError):
        rank.slowest_file(0)


def test_a_column_whose_pages_are_of_another_kind_is_told(write_run):
    """pyarrow passes over such pages, and then has fewer rows than the file says."""
    path = write_run()
    (part,) = path.rglob("steps-*.parquet")
    data, column = bytearray(part.read_bytes()), "obs/cpu_ns"
    number = pq.read_schema(part).names.index(column)
    page = pq.read_metadata(part).row_group(0).column(number).data_page_offset
    assert data[page : page + 2] == b"\x15\x00"  # in Thrift: PageHeader::type is DATA_PAGE
    data[page + 1] = 2  # INDEX_PAGE
    part.write_bytes(data)
    run = RunLog.open(path)
    np.testing.assert_array_equal(run.ranks[0].metric(column), [np.nan] * 5)
    assert run.unreadable == {part: f"with unusable values in {column}"}


def test_a_wait_of_a_version_that_knew_no_thread_of_gloo_is_not_one_for_other_ranks(tmp_path):
    """It took every sleep for another thread for one."""
    for names in ({}, {"tobs_waking": "on"}):
        sink = RunLogSink(tmp_path / f"run{len(names)}", 0)
        sink.begin(info(capabilities={"tobs_await": "on", **names}))
        sink.write(batch(range(3), ranks__wait_ns=[5.0] * 3))
        sink.end({})
        found = RunLog.open(tmp_path / f"run{len(names)}").rank.metric("ranks/wait_ns")
        assert np.isfinite(found).all() == bool(names)


@pytest.fixture
def secret_run(write_run, monkeypatch):
    run = write_run()
    monkeypatch.chdir(run / "rank=0")  # what is above it may be closed to another user
    for path in (*run.iterdir(), run / "rank=0" / "steps-00000.parquet"):
        path.chmod(0o755 if path.is_dir() else 0)
    run.chmod(0o755)


@pytest.mark.usefixtures("secret_run")
def test_files_of_another_user_are_not_called_damaged():
    denied = r"(?s)Permission denied.*do: +see that you may read it"
    with another_user():
        with pytest.raises(RunLogError, match=denied):
            read_info(Path("../run.json"))
        assert why_unreadable(Path("steps-00000.parquet"), ()) == "Permission denied"
