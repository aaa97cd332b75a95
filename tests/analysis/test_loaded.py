"""`load_run`: the tables of a run, and what the report says of it."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainobs import load_run, observe
from trainobs.analysis.summary import summarize
from trainobs.core.errors import RunLogError
from trainobs.runlog.reader import RunLog


def test_tables_are_those_of_all_ranks_with_their_rank_in_front(write_run):
    path = write_run()
    run = load_run(path)
    log = RunLog.open(path)
    assert run.run_dir == path
    assert run.steps.column_names[:4] == ["rank", "step", "epoch", "start_ns"]
    assert run.steps.num_rows == sum(len(rank.step()) for rank in log.ranks.values())
    assert sorted(set(run.steps["rank"].to_pylist())) == sorted(log.ranks)
    assert run.kernel.column_names[:3] == ["rank", "step", "op"]
    assert run.steps is run.steps
    assert str(path) in repr(run)


def test_a_table_that_the_run_has_not_is_none(write_run):
    assert load_run(write_run()).embeddings is None


def test_summary_and_verdict_are_those_of_the_report(write_run):
    path = write_run()
    run = load_run(str(path))
    told = summarize(RunLog.open(path))
    for one in (run.summary, told):
        one["lost"].pop("free_bytes")  # of the disk, now
    assert json.dumps(run.summary) == json.dumps(told)
    assert run.verdict == run.summary["verdict"]["run"]["text"][0]


def test_a_directory_without_a_run_is_an_error(tmp_path):
    with pytest.raises(RunLogError):
        load_run(tmp_path)


@pytest.mark.parametrize(
    ("value", "found"), [(2**63 - 1, "not in range"), (b"\0", "incompatible types")]
)
def test_parts_that_do_not_fit_each_other_are_an_error(write_run, value, found):
    path = write_run()
    write_run(rank=1)
    part = path / "rank=1" / "steps-00000.parquet"
    table = pq.read_table(part)
    at = table.column_names.index("block/read_p99_ns")
    values = pa.array([value] * len(table))
    pq.write_table(table.set_column(at, "block/read_p99_ns", values), part)
    with pytest.raises(RunLogError, match=found):
        _ = load_run(path).steps


def test_it_needs_no_torch(write_run):
    path = write_run()
    script = (
        "import sys; sys.modules['torch'] = None; import trainobs\n"
        f"print(trainobs.load_run({str(path)!r}).verdict)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, bool(done.stdout)) == (0, True), done.stderr


@pytest.mark.parametrize("value", [None, 3, "''"])
def test_what_is_no_path_is_told_in_three_lines(value):
    with pytest.raises(RunLogError, match=rf"found: {value}, where a path.*\n.*TRAINOBS=off"):
        load_run("" if value == "''" else value)


def test_a_run_below_the_home_of_the_user_is_found_by_its_sign(write_run, monkeypatch):
    path = write_run()
    monkeypatch.setenv("HOME", str(path.parent))
    assert load_run(f"~/{path.name}").run_dir == path


def test_a_rank_that_is_no_number_is_shown_as_what_it_is(write_run):
    with pytest.raises(RunLogError, match=r"no record of rank '0' in .*\n.*of 1 rank: 0\n"):
        load_run(write_run(), rank="0")


def test_an_observation_that_is_off_has_no_run(monkeypatch, tmp_path):
    monkeypatch.setenv("TRAINOBS", "off")
    with observe(run_dir=tmp_path / "run") as obs:
        pass
    with pytest.raises(RunLogError, match="There is no run to read"):
        load_run(obs.run_dir)
