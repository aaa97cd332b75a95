"""What is told of one rank of a job, which need not be the lowest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.samples import batch, info
from trainobs import load_run
from trainobs.analysis.view import RunView
from trainobs.cli import main
from trainobs.runlog.writer import RunLogSink

SECOND = 1_000_000_000


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two ranks on two machines; the second waits for no other, but for its loader."""
    for rank, (wait_ns, loader_ns) in enumerate([(5e8, 1e6), (1e7, 5e8)]):
        sink = RunLogSink(tmp_path / "run", rank)
        host = {"hostname": f"node{rank}", "kernel": "6.18"}
        sink.begin(info(rank=rank, world_size=2, host=host))
        columns = {"ranks__wait_ns": [wait_ns] * 10, "loader__wait_ns": [loader_ns] * 10}
        columns["phase__forward_ns"] = [SECOND - loader_ns] * 10
        sink.write(batch(range(10), step__duration_ns=[SECOND] * 10, **columns))
        sink.end({"outcome": "ok"} if rank else {"outcome": "exception: KeyError"})
    return tmp_path / "run"


def test_the_lowest_is_told_of_and_which_other_to_look_at(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(job)]) == 0
    told = capsys.readouterr().out
    assert "rank 0 of 2" in told
    assert "STRAGGLER: rank 1 makes the others wait for 490 ms a step" in told
    told = " ".join(told.split())
    assert (
        "of it; that rank: waiting for data 500 ms a step, and 1 ms on rank 0; see "
        "`report --rank 1`" in told
    )


def test_another_is_told_of_where_it_is_asked_for(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(job), "--rank", "1", "--full"]) == 0
    told = capsys.readouterr().out
    assert "host       node1, Linux 6.18" in told
    assert "rank       1, of 2 in the job" in told
    assert "ended      ok" in told
    assert "STRAGGLER: rank 1" in told
    assert "see `report --rank 1`" not in told
    assert main(["report", str(job), "--rank", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metrics"]["loader/wait_ns"]["mean"] == 5e8
    assert (
        found["verdict"]["run"]["text"] == load_run(job, rank=1).summary["verdict"]["run"]["text"]
    )
    assert load_run(job).summary["metrics"]["loader/wait_ns"]["mean"] == 1e6
    assert main(["report", str(job), "--rank", "1", "--step", "2"]) == 0
    assert "rank 1" in capsys.readouterr().out
    head = RunView.open(job, rank=1).head()
    assert (head["rank"], head["info"]["host"]["hostname"]) == (1, "node1")
    assert load_run(job, rank=1)._repr_html_() != load_run(job)._repr_html_()


def test_of_a_rank_that_was_killed_early_nothing_is_told_of_another(job: Path) -> None:
    (job / "rank=1" / "rank.json").unlink()
    found = load_run(job, rank=1).summary
    assert (found["rank"], found["outcome"], found["level"], found["host"]) == (1, None, None, {})
    assert found["world_size"] == 2


@pytest.mark.parametrize("rank", ["2", "-1"])
def test_a_rank_without_a_record_is_refused(
    job: Path, capsys: pytest.CaptureFixture[str], rank: str
) -> None:
    assert main(["report", str(job), f"--rank={rank}"]) == 2
    assert capsys.readouterr().err == (
        f"There is no record of rank {rank} in {job}.\n"
        "  found: records of 2 ranks, from 0 to 1\n"
        "  do:    give one from 0 to 1; a rank on another machine may have its record there\n"
    )


@pytest.mark.parametrize("other", [["--watch"], ["--after", "run"]])
def test_what_is_of_no_single_rank_is_refused(
    job: Path, capsys: pytest.CaptureFixture[str], other: list[str]
) -> None:
    assert main(["report", str(job), "--rank", "1", *other]) == 2
    assert "--rank" in capsys.readouterr().err
