"""Who made the batches, and what one step waited for, worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.samples import batch, cells, info
from trainobs.analysis.batches import workers
from trainobs.analysis.one_step import explain
from trainobs.analysis.summary import summarize
from trainobs.cli import main
from trainobs.core.abi import FileClass, Op, Role
from trainobs.core.errors import RunLogError
from trainobs.core.records import BATCH_ROW, SETUP, UNKNOWN
from trainobs.report import brief, one_step
from trainobs.report.full import render
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import BATCHES, part_file
from trainobs.runlog.writer import RunLogSink

MS = 1_000_000
START = 3_000 * MS  # of step 7, see `samples.batch`


def made(for_step: int, worker: int, end_ms: float, took: tuple[int, int, int], **more) -> np.void:
    """A batch that took so many ms asleep for a device, without a CPU and computing, and 1 else."""
    row = np.zeros(1, BATCH_ROW)[0]
    row["for_step"], row["worker"], row["number"] = for_step, worker, 5
    row["device_ns"], row["cpu_wait_ns"], row["compute_ns"] = (ms * MS for ms in took)
    row["sleep_ns"] = MS
    row["fetch_begin_ns"] = row["fetch_end_ns"] = UNKNOWN
    row["end_ns"] = START + end_ms * MS
    row["begin_ns"] = row["end_ns"] - (sum(took) + 1) * MS
    for name, value in more.items():
        row[name] = value
    return row


ROWS = [
    made(7, 0, -900, (10, 2, 3), slowest_ns=4 * MS, slowest_file=b"a.jpg", read_count=2),
    made(7, 1, 60, (70, 1, 9), slowest_ns=55 * MS, slowest_file=b"b.jpg", read_bytes=4000),
    made(8, 0, 900, (30, 0, 5), slowest_ns=5 * MS, slowest_file=b"c.jpg"),
    made(-1, 1, 950, (500, 500, 500), slowest_ns=900 * MS, slowest_file=b"never consumed"),
    made(
        9, -1, 2100, (-1, -1, -1), sleep_ns=-1, end_ns=START + 2100 * MS, begin_ns=START + 2090 * MS
    ),
]


@pytest.fixture
def run(tmp_path) -> Path:
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    steps = batch(
        [SETUP, 7, 8, 9],
        step__duration_ns=[0, 300 * MS, 100 * MS, 200 * MS],
        loader__wait_ns=[0, 80 * MS, 4 * MS, 20 * MS],
        loader__device_ns=[0, 60 * MS, 0, np.nan],
        loader__handover_ns=[0, 5 * MS, 4 * MS, np.nan],
        loader__start_stop_ns=[0, 3 * MS, 0, np.nan],
        phase__forward_ns=[0, 220 * MS, 96 * MS, 180 * MS],
    )
    sink.write(replace(steps, batches=np.array(ROWS, BATCH_ROW)))
    sink.flush()
    return tmp_path / "run"


def test_each_worker_has_what_its_batches_took_and_how_long_they_were_waited_for(run):
    main_thread, zero, one = workers.workers(RunLog.open(run).ranks[0])
    assert zero == {
        "worker": 0,
        "of_no_step": 0,
        "batches": 2,
        "made_ns": 26 * MS,
        "device_ns": 20 * MS,
        "cpu_wait_ns": 1 * MS,
        "compute_ns": 4 * MS,
        "sleep_ns": 1 * MS,
        "wait_ns": 4 * MS,  # of step 7 worker 1 finished last
        "handover_ns": 4 * MS,
        "slowest_ns": 5 * MS,
        "slowest_file": "c.jpg",
        "slowest_step": 8,
    }
    assert (one["batches"], one["device_ns"], one["wait_ns"]) == (1, 70 * MS, 80 * MS)
    assert (one["slowest_file"], one["slowest_step"]) == ("b.jpg", 7)
    assert (main_thread["worker"], main_thread["made_ns"]) == (None, 10 * MS)
    assert (main_thread["wait_ns"], main_thread["handover_ns"]) == (20 * MS, None)
    assert main_thread["device_ns"] is None
    assert main_thread["slowest_file"] is None


def test_the_page_has_the_worker_that_was_waited_for_first_and_the_slowest_file(run):
    lines = render(summarize(RunLog.open(run))).splitlines()
    at = lines.index(next(line for line in lines if line.startswith("Who made the batches")))
    assert [line.split()[0:2] for line in lines[at + 1 : at + 4]] == [
        ["worker", "1"],
        ["the", "training"],
        ["worker", "0"],
    ]
    times = ["70 ms", "1 ms", "9 ms", "1 ms", "80 ms", "5 ms"]
    assert lines[at + 1].endswith("".join(f"{time:>11}" for time in times))
    assert lines[at + 4] == "  and 1 batch of no known step: 1 by worker 1"
    assert lines[at + 5] == "  slowest file: b.jpg, 55 ms"
    assert lines[at + 6] == "    read by worker 1 for step 7"


def test_batches_of_no_known_step_are_told_apart(run):
    summary = summarize(RunLog.open(run))
    assert (summary["loader"]["batches"], summary["loader"]["of_no_step"]) == (4, 1)
    (line,) = lines_of(brief.render(summary, 0), "Loader: 2 workers")
    assert line.startswith("Loader: 2 workers and the training thread made 5 batches; 4 of known ")


@pytest.mark.parametrize(("in_turn", "count"), [(False, 4), (True, 2)])
def test_workers_of_several_loaders_at_once_are_not_taken_for_each_other(tmp_path, in_turn, count):
    """Two loaders of two workers each: both in each step, or in turn."""
    rows = [
        made(7 + (2 * i + loader if in_turn else i), worker, 100 * i, (1, 1, 1), loader=loader)
        for i in range(3)
        for loader in range(2)
        for worker in range(2)
    ]
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    sink.write(replace(batch([*range(7, 13)]), batches=np.array(rows)))
    sink.end({})
    summary = summarize(RunLog.open(tmp_path / "run"))
    assert summary["loader"]["workers"] == count
    assert f"Loader: {count} workers made 12 batches" in brief.render(summary, 0)
    told = "  4 workers at once: those of several loaders share numbers"
    assert (told in render(summary)) == (count == 4)


def test_what_was_waited_for_is_of_all_steps_and_the_rest_is_not_known(tmp_path):
    """One step of three does not know why it waited, for most of all: no share is of the others."""
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    parts = ("device", "cpu_wait", "compute", "sleep", "handover")
    split = {f"loader__{part}_ns": [0, 0, 0, 0, np.nan] for part in parts}
    split["loader__handover_ns"] = [0, 0, 15 * MS, 15 * MS, np.nan]
    waited = {"loader__wait_ns": [0, 0, 15 * MS, 15 * MS, 70 * MS]}
    took = {"step__duration_ns": [0, *4 * [80 * MS]]}
    sink.write(batch([SETUP, 6, 7, 8, 9], **took, **waited, **split))
    sink.flush()
    summary = summarize(RunLog.open(tmp_path / "run"))
    (line,) = lines_of(brief.render(summary, 0), "Loader: ")  # nobody knows who made batches
    assert line.startswith("Loader: waited for ")
    assert line.endswith(" a step: not known 70 %, batches made, not yet received 30 %")


def test_a_step_says_what_it_waited_for(run):
    found = explain(RunLog.open(run), 7)
    assert found["metrics"]["loader/wait_ns"] == {"value": 80 * MS, "median": 20 * MS}
    assert found["metrics"]["loader/compute_ns"] == {"value": None, "median": None}
    last, first = found["batches"]
    assert (last["worker"], last["number"], last["ended_ns"]) == (1, 5, 60 * MS)
    assert (last["device_ns"], last["made_ns"], last["read_bytes"]) == (70 * MS, 81 * MS, 4000)
    assert (last["slowest_file"], last["slowest_ns"]) == ("b.jpg", 55 * MS)
    assert (first["worker"], first["ended_ns"]) == (0, -900 * MS)


def test_a_step_has_no_batches_of_steps_with_its_number_in_other_epochs(tmp_path):
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    asked = {"fetch_begin_ns": START + 1, "fetch_end_ns": START + 2}
    rows = [made(7, 0, 2, (1, 0, 0), **asked)]
    rows += [made(7, 1, 40_000, (1, 0, 0), fetch_begin_ns=START + 30_000 * MS)]
    steps = batch([*range(5, 25), *range(5, 25)], step__duration_ns=[1000 * MS] * 40)
    started = START + 1000 * MS * np.arange(-2, 38)
    sink.write(replace(steps, start_ns=started, batches=np.array(rows, BATCH_ROW)))
    sink.flush()
    (found,) = explain(RunLog.open(tmp_path / "run"), 7)["batches"]
    assert found["worker"] == 0


def test_the_command_answers_for_one_step(run, capsys):
    assert main(["report", str(run), "--step", "7"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"step 7 of {run}, rank 0, epoch 0\n")
    assert "A batch of worker 1, finished 60 ms after the step began" in text
    assert "A batch of worker 0, finished 900 ms before the step began" in text
    assert "  slowest file: b.jpg, 55 ms" in text
    (starts,) = lines_of(text, "      of these: loaders starting and ending")
    assert starts.split()[-4:] == ["3", "ms", "1.50", "ms"]
    assert main(["report", str(run), "--step", "9", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["batches"][0]["worker"], answer["batches"][0]["device_ns"]) == (None, None)


def test_a_step_has_the_words_of_the_report(tmp_path, capsys):
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    times = {"phase__other_ns": [2 * MS] * 3, "phase__transfer_ns": [3 * MS] * 3}
    sink.write(batch([5, 6, 7], step__duration_ns=[9 * MS] * 3, **times))
    sink.flush()
    assert main(["report", str(tmp_path / "run"), "--step", "6"]) == 0
    text = capsys.readouterr().out
    for label, took in (("moving the batch to the device", "3 ms"), ("everything else", "2 ms")):
        (line,) = lines_of(text, f"  {label}")
        assert line.split() == [*label.split(), *2 * took.split()]


READ = (0, Op.READ, FileClass.DATA, Role.WORKER)
FAULT = (0, Op.FAULT, FileClass.DATA, Role.WORKER, {"count": 1})


@pytest.mark.parametrize(
    ("counted", "told"),
    [
        ([(*READ, {"count": 1, "bytes": 4000})], []),
        ([(*READ, {"count": 1, "bytes": 4020})], []),  # of a batch that nobody took
        ([(*READ, {"count": 2, "bytes": 9000})], ["and maybe by others: 5 kB read in the run are"]),
        ([(*READ, {"count": 1, "bytes": 4000}), FAULT], ["and through mappings, how much is"]),
    ],
)
def test_what_a_batch_may_have_read_beside_is_told(tmp_path, counted, told):
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    sink.write(replace(batch([7], cells(1, *counted)), batches=np.array(ROWS[:2], BATCH_ROW)))
    sink.flush()
    text = one_step.render(explain(RunLog.open(tmp_path / "run"), 7))
    for maker in text.split("A batch of ")[1:]:
        below = maker.split("reads by its maker")[1].splitlines()[1:]
        beside = [line.strip() for line in below if line.startswith("    ")]
        assert [line[: len(begin)] for line, begin in zip(beside, told, strict=True)] == told


@pytest.mark.parametrize("step", [6, -1])  # what was before the first step is none
def test_a_step_that_is_not_there_is_three_lines(run, step):
    with pytest.raises(
        RunLogError,
        match=r"(?s)no step .*found: steps 7 to 9, 3 of them.*do: *give one from 7 to 9",
    ):
        explain(RunLog.open(run), step)


def test_of_a_run_without_steps_none_is_asked_for(write_run):
    path = write_run()
    for file in (path / "rank=0").iterdir():
        file.unlink()
    with pytest.raises(RunLogError, match=r"(?s)found: none, in .*do: +leave --step out"):
        explain(RunLog.open(path), 1)


def test_without_batches_nothing_is_made_up(write_run):
    run = RunLog.open(write_run())
    assert summarize(run)["workers"] == []
    assert "Who made the batches" not in render(summarize(run))
    assert "Its batches are not known" in one_step.render(explain(run, 2))


def test_a_step_says_how_long_it_was_stopped(tmp_path):
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    sink.write(batch([7, 8], sched__main_stopped_ns=[0, 500 * MS]))
    sink.flush()
    before, stopped = (
        one_step.render(explain(RunLog.open(tmp_path / "run"), step)) for step in (7, 8)
    )
    assert "stopped" not in before
    (line,) = lines_of(stopped, "    stopped, by a signal or debugger")
    assert line.split()[-4:-2] == ["500", "ms"]


def test_a_damaged_table_of_batches_is_left_out_and_told(run):
    file = part_file(run, 0, BATCHES, 0)
    file.write_bytes(file.read_bytes()[:-7])
    summary = summarize(RunLog.open(run))
    assert summary["workers"] == []
    assert list(summary["lost"]["files"]) == [str(file)]


def rewritten(run, name, change):
    file = part_file(run, 0, BATCHES, 0)
    table = pq.read_table(file, partitioning=None)
    index = table.column_names.index(name)
    values = pa.array([change(value) for value in table[name].to_pylist()], table[name].type)
    pq.write_table(table.set_column(index, name, values), file)
    return file


def test_a_batch_that_ended_before_it_began_has_an_unknown_time(run):
    rewritten(run, "end_ns", lambda _: 0)
    summary = summarize(RunLog.open(run))
    assert {one["made_ns"] for one in summary["workers"]} == {None}
    assert explain(RunLog.open(run), 7)["batches"][0]["made_ns"] is None
    assert "-" not in "".join(lines_of(brief.render(summary, 0), "Loader:"))


def test_times_of_a_century_are_no_times(run):
    file = rewritten(run, "compute_ns", lambda _: 2**62)
    assert RunLog.open(run).unreadable == {file: "with unusable values in compute_ns"}


def lines_of(page: str, begin: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith(begin)]
