"""Run logs whose files are not those that the run stored: a broken copy, or two runs in one."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.samples import ITEM, NO_LATENCY, USER, busy_run, info, lookup_rows
from trainobs.analysis import no_steps
from trainobs.analysis.stored import go_back
from trainobs.analysis.summary import summarize
from trainobs.analysis.view import RunView
from trainobs.cli import main
from trainobs.core.abi import FileClass, Op, Role
from trainobs.core.collectives import Collective
from trainobs.core.file_rows import IO_ROW, NOTHING, IoRows
from trainobs.core.records import UNKNOWN
from trainobs.report.pieces import piece
from trainobs.runlog.arrivals import ArrivalsSink
from trainobs.runlog.embeddings import EmbeddingsSink
from trainobs.runlog.io import IoSink
from trainobs.runlog.reader import RunLog
from trainobs.runlog.writer import RunLogSink
from trainobs.session.delivery import Deliveries

REST = Collective.ALL_GATHER, 8, UNKNOWN


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a run of busy steps in parts of 10; returns its directory."""
    monkeypatch.setattr("trainobs.runlog.writer.SEAL_STEPS", 10)

    def write(name, steps, *, ended=True, after_ns=0, ranks=1, **metrics):
        for rank in range(ranks):
            sink = RunLogSink(tmp_path / name, rank)
            facts = info(rank=rank, world_size=ranks)
            facts.clock = {"monotonic_ns": 0, "wall_ns": 1 + after_ns}
            sink.begin(facts)
            whole = busy_run(steps)
            for metric, value in metrics.items():
                whole.columns[metric] = np.full(steps, value)
            for begin in range(0, steps, 10):
                rows = slice(begin, begin + 10)
                part, batches = whole.select(rows), whole.batches[rows]
                sink.write(replace(part, start_ns=part.start_ns + after_ns, batches=batches))
            buckets = NO_LATENCY.copy()
            buckets[Op.BLOCK_READ, FileClass.DATA, Role.WORKER, 17] = 3
            sink.latency(buckets)
            sink.end({"outcome": "ok"}) if ended else sink.flush()
        return tmp_path / name

    return write


def lost_of(path):
    return summarize(RunLog.open(path))["lost"]


def told(path, capsys):
    assert main(["report", str(path), "--full"]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_of_a_whole_run_nothing_is_at_odds(write, capsys):
    path = write("run", 40)
    found = lost_of(path)
    assert (found["at_odds"], found["are_mixed"], found["files"]) == ({}, False, {})
    assert "lost nothing" in told(path, capsys)


@pytest.mark.parametrize("file", ["batches", "latency"])
def test_that_a_table_is_gone_is_told(write, capsys, file):
    path = write("run", 10)
    (gone,) = (path / "rank=0").glob(f"{file}*.parquet")
    gone.unlink()
    assert lost_of(path)["files"] == {str(gone): "no such file"}
    assert f"{gone.name}: no such file" in told(path, capsys)
    assert main(["report", str(path)]) == 0
    assert f"Unreadable: rank=0/{gone.name}: no such file" in capsys.readouterr().out


def test_that_the_last_file_of_a_table_is_gone_is_told(write, capsys):
    path = write("run", 40)
    (path / "rank=0" / "batches-00003.parquet").unlink()
    at_odds = lost_of(path)["at_odds"]
    assert at_odds == {"batches": {"found": 30, "stored": 40}}
    assert "batches: 30 rows of 40 stored: some are gone, or" in told(path, capsys)


def test_files_of_a_longer_run_are_not_taken_for_those_of_this_one(write, capsys):
    """As of a copy over what an earlier run left there."""
    path, other = write("run", 20), write("other", 40, after_ns=10**15)
    for number in (2, 3):
        for table in ("steps", "kernel", "batches"):
            name = f"rank=0/{table}-{number:05d}.parquet"
            shutil.copy(other / name, path / name)
    assert lost_of(path)["at_odds"]["steps"] == {"found": 40, "stored": 20}
    words = told(path, capsys)
    assert "steps are there twice, or those of another run (40, of 20 stored)" in words
    assert "batches: 40 rows of 20 stored: some are there twice" in words
    assert main(["report", str(path)]) == 0
    assert "trust no number of this report" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("ended", [True, False])
def test_steps_that_go_back_in_time_are_told_of_a_killed_run_too(write, capsys, ended):
    path = write("run", 30, ended=ended)
    shutil.copy(path / "rank=0" / "steps-00000.parquet", path / "rank=0" / "steps-00003.parquet")
    assert lost_of(path)["are_mixed"]
    assert "steps are there twice, or those of another run" in told(path, capsys)


def test_steps_of_a_run_that_goes_on_meanwhile_do_not_go_back(write):
    path, later = write("run", 5, ended=False), write("later", 8, ended=False)
    run = RunLog.open(path)
    assert len(run.rank.step()) == 5
    shutil.copy(later / "rank=0" / "steps-00000.parquet", path / "rank=0" / "steps-00000.parquet")
    assert not go_back(run, run.rank)


def test_steps_from_before_the_run_are_another_s(write, capsys):
    path, other = write("run", 10), write("other", 10, after_ns=-(10**12))
    about = json.loads((path / "run.json").read_text())
    about["clock"]["monotonic_ns"] = 10**13 + 10**8  # a first fetch may begin a little before
    (path / "run.json").write_text(json.dumps(about))
    assert not lost_of(path)["are_mixed"]
    shutil.copy(other / "rank=0" / "steps-00000.parquet", path / "rank=0" / "steps-00000.parquet")
    assert lost_of(path)["are_mixed"]
    assert "trust no number of this report" in told(path, capsys)


def test_what_a_sink_makes_again_is_not_at_odds(tmp_path, monkeypatch):
    """Of parts that were removed before the end nobody knows what else is there."""
    monkeypatch.setattr("trainobs.runlog.writer.SEAL_STEPS", 10)
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    whole = busy_run(30)
    sink.write(whole.select(slice(0, 10)))
    shutil.rmtree(tmp_path / "run")
    sink.write(whole.select(slice(10, 25)))
    sink.flush()
    assert sink.lost_steps == 10
    sink.write(whole.select(slice(25, 30)))
    sink.end({"outcome": "ok", "lost_steps": {"runlog": sink.lost_steps}})
    found = lost_of(tmp_path / "run")
    assert (found["at_odds"], found["are_mixed"], found["missing_steps"]) == ({}, False, 0)


@pytest.mark.parametrize("damage", [None, b"", b"{}"])
def test_what_is_unknown_of_a_rank_is_told(write, capsys, damage):
    path = write("run", 10, ranks=2)
    file = path / "rank=1" / "rank.json"
    file.unlink() if damage is None else file.write_bytes(damage)
    assert list(lost_of(path)["files"]) == [str(file)]
    words = told(path, capsys)
    assert "lost 1 file about a rank cannot be read" in words
    assert "rank=1/rank.json: " in words


def test_a_comparison_tells_that_steps_are_of_two_runs(write, capsys):
    path, other = write("run", 30), write("other", 30, after_ns=10**15)
    shutil.copy(path / "rank=0" / "steps-00000.parquet", path / "rank=0" / "steps-00003.parquet")
    assert main(["compare", str(other), str(path)]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"steps of {path} are there twice, or those of another run: trust no number" in words


GOT = {"loader/batch_count": 1.0, "loader/device_ns": 0.0}


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("gone", ["*", "00003"])
def test_nothing_is_said_that_rests_on_batches_of_which_some_are_gone(write, capsys, ended, gone):
    path = write("run", 80, ended=ended, **GOT)
    whole = summarize(RunLog.open(path))
    assert whole["loader"]["are_all"]
    for file in (path / "rank=0").glob(f"batches-{gone}.parquet"):
        file.unlink()
    found = summarize(RunLog.open(path))
    assert found["would_help"]["refused"].startswith("unreadable files: rank=0/batches-")
    assert found["verdict"]["run"]["replayed"] is None
    assert found["step"] == whole["step"]  # which rests on the steps alone
    words = told(path, capsys)
    assert "batches-0000" in words
    assert "it is not known which step got which" not in words
    assert ("and 10 batches of which nothing is known" in words) == (gone != "*")
    assert main(["report", str(path)]) == 0
    loader = "Loader: of 80 batches 70 are known, made by 4 workers, "
    assert (loader in capsys.readouterr().out) == (gone != "*")
    assert main(["whatif", str(path)]) == 2
    assert "found: unreadable files: rank=0/batches-" in capsys.readouterr().err
    assert main(["report", str(path), "--step", "35"]) == 0
    assert "Its batches are not known: rank=0/batches-" in capsys.readouterr().out


def test_the_last_batches_of_a_run_that_goes_on_may_come_with_its_next_part(write):
    path = write("run", 16, ended=False, **GOT)
    (path / "rank=0" / "batches-00001.parquet").unlink()
    assert lost_of(path)["files"] == {}


def test_of_batches_that_nobody_knows_the_number_is_told(write, capsys):
    """As after a loss of the service: the steps still tell how many they got."""
    path = write("run", 40, **GOT | {"loader/batch_count": 2.0})
    assert main(["report", str(path)]) == 0
    loader = "Loader: of 80 batches 40 are known, made by 4 workers, "
    assert loader in capsys.readouterr().out


@pytest.fixture
def of_every_sink(tmp_path):
    """A run with lookups, arrivals and files, as a session writes it; its directory."""
    path, over = tmp_path / "run", [IoRows(np.zeros(3, IO_ROW), NOTHING.spread)]
    arrived = [(0, number, 10**15, *REST) for number in range(20)]
    deliveries = Deliveries(
        [
            RunLogSink(path),
            IoSink(path, 0, lambda is_last: over.pop() if over else NOTHING),
            ArrivalsSink(path, 0, lambda is_last: arrived if is_last else []),
            EmbeddingsSink(path, 0),
        ]
    )
    deliveries.begin(info(tables=(USER, ITEM), capabilities={"embeddings": "on", "files": "on"}))
    looked_up = {"lookup_count": 8, "bytes": 512.0}
    lookups = lookup_rows(*((step, 0, looked_up) for step in range(12)))
    deliveries.write(replace(busy_run(12), lookups=lookups))
    deliveries.end({"outcome": "ok"})
    return path


@pytest.mark.parametrize(("table", "rows"), [("io", 3), ("arrivals", 20), ("embeddings", 12)])
def test_files_of_every_table_are_missed(of_every_sink, capsys, table, rows):
    path = of_every_sink
    found = lost_of(path)
    assert (found["at_odds"], found["files"]) == ({}, {})
    assert RunLog.open(path).info["summary"]["stored_rows"][table] == rows
    file = path / "rank=0" / f"{table}-00000.parquet"
    half = pq.read_table(file).slice(0, rows // 2)
    pq.write_table(half, file)
    assert lost_of(path)["at_odds"] == {table: {"found": rows // 2, "stored": rows}}
    assert f"{table}: {rows // 2} rows of {rows} stored" in told(path, capsys)
    file.unlink()
    assert lost_of(path)["files"] == {str(file): "no such file"}
    assert f"{file.name}: no such file" in told(path, capsys)


def test_nothing_is_said_that_rests_on_lookups_of_which_some_are_gone(of_every_sink, capsys):
    read = "embedding/bytes{table=user}"
    assert summarize(RunLog.open(of_every_sink))["metrics"][read]["sum"] == 12 * 512
    file = of_every_sink / "rank=0" / "embeddings-00000.parquet"
    pq.write_table(pq.read_table(file).slice(0, 5), file)
    assert read not in summarize(RunLog.open(of_every_sink))["metrics"]
    assert main(["report", str(of_every_sink)]) == 0
    assert ", lookups unknown" in capsys.readouterr().out


def test_nobody_is_said_to_have_made_more_batches_than_steps_got(write, capsys):
    path = write("run", 40, **GOT)
    file = path / "rank=0" / "batches-00003.parquet"
    shutil.copy(file, path / "rank=0" / "batches-00004.parquet")
    found = summarize(RunLog.open(path))
    assert (found["workers"], found["loader"]) == ([], None)
    assert "batches: 50 rows of 40 stored: some are there twice" in told(path, capsys)


def test_of_steps_that_are_gone_nobody_says_that_none_was_recorded(write, capsys):
    path = write("run", 10)
    (path / "rank=0" / "steps-00000.parquet").unlink()
    summary = summarize(RunLog.open(path))
    assert no_steps.found(summary) == "No step can be read"
    of_page = piece(RunView(RunLog.open(path)), "summary")["no_steps"]
    assert of_page.startswith("No step can be read. 1 file of steps cannot be read")
    assert "No step can be read 1 file of steps cannot be read" in told(path, capsys)


@pytest.mark.parametrize("number", [1, 3])  # bits: with two, it is another name
def test_a_bit_that_flipped_in_the_name_of_a_column_is_told(write, number):
    path = write("run", 10)
    file = path / "rank=0" / "steps-00000.parquet"
    table = pq.read_table(file, partitioning=None)
    flipped = chr(ord("r") ^ number)
    names = [name.replace("io/read_b", f"io/{flipped}ead_b") for name in table.column_names]
    pq.write_table(table.rename_columns(names), file)
    summary = summarize(RunLog.open(path))
    assert summary["metrics"]["io/read_bytes"]["sum"] is None
    told = {str(file): "with unusable values in io/read_bytes"}
    assert summary["lost"]["files"] == (told if number == 1 else {})


def test_of_the_newest_steps_no_older_batches_are_told(write):
    path = write("run", 40, ended=False, **GOT)
    (path / "rank=0" / "batches-00003.parquet").unlink()
    found = summarize(RunLog.open(path, newest_parts=2))
    assert (found["steps"], found["loader"]["batches"], found["loader"]["got"]) == (20, 10, 20)


@pytest.mark.parametrize("seal_rows", [9, 19, 99])
def test_of_the_newest_steps_lookups_are_told_as_of_all(write, monkeypatch, seal_rows):
    """Their files have parts of their own; a part may begin with the second table of a step."""
    path = write("run", 40, ended=False)
    monkeypatch.setattr(EmbeddingsSink, "seal_rows", seal_rows)
    about = json.loads((path / "run.json").read_text())
    of_each = {"lookup_count": 8, "bytes": 512.0}
    sink = EmbeddingsSink(path, 0)
    sink.begin(info(tables=(USER, ITEM)))
    rows = lookup_rows(*((step, table, of_each) for step in range(40) for table in (0, 1)))
    sink.write(replace(busy_run(40), lookups=rows))
    sink.flush()
    tables = [asdict(table) for table in (USER, ITEM)]
    (path / "run.json").write_text(json.dumps(about | {"tables": tables}))
    for parts in (0, 1, 2, 4, 100):
        metrics = summarize(RunLog.open(path, newest_parts=parts))["metrics"]
        means = [metrics[f"embedding/bytes{{table={one}}}"]["mean"] for one in ("user", "item")]
        assert means == [512, 512], parts


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("steps-00003", "rank=1/steps: 30 rows of 40 stored: some are gone"),
        ("steps-*", "rank=1/steps: 0 rows of 40 stored: all are gone"),
        ("batches-00003", "rank=1/batches: 30 rows of 40 stored: some are gone"),
        ("latency", "rank=1/latency.parquet: no such file"),
    ],
)
def test_files_of_other_ranks_are_missed_too(write, capsys, gone, said):
    path = write("run", 40, ranks=2)
    assert "lost nothing" in told(path, capsys)
    for file in (path / "rank=1").glob(f"{gone}.parquet"):
        file.unlink()
    words = told(path, capsys)
    assert said in words
    assert "lost nothing" not in words


def test_what_a_rank_stored_is_not_asked_of_the_rank_that_is_told_of(write, capsys):
    path = write("run", 40, ranks=2)
    (path / "rank=1" / "batches-00003.parquet").unlink()
    file = path / "rank=1" / "rank.json"
    about = json.loads(file.read_text())
    about["summary"]["stored_rows"]["batches"] = 30
    file.write_text(json.dumps(about))
    assert "lost nothing" in told(path, capsys)
    lost = summarize(RunLog.open(path, rank=1))["lost"]
    assert (lost["at_odds"], lost["files"]) == ({}, {})


def test_batches_whose_file_lacks_a_column_are_all_known_to_have_been_made(write, capsys):
    path = write("run", 40, **GOT)
    file = path / "rank=0" / "batches-00001.parquet"
    table = pq.read_table(file, partitioning=None)
    at = table.column_names.index("fetch_end_ns")
    texts = pa.array(["?"] * len(table))
    pq.write_table(table.set_column(at, "fetch_end_ns", texts), file)
    assert main(["report", str(path)]) == 0
    out = capsys.readouterr().out
    assert "Loader: 4 workers made 40 batches" in out
    assert "What would help: not known; unreadable files: rank=0/batches-00001" in out
