"""Several ranks of a Hugging Face Trainer: each has its own record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.models import (
    DURATION,
    FILE_BYTES,
    logged_steps,
    read_steps,
    step_numbers,
    told_by_trainobs,
)
from tests.session.jobs import end_of_two_ranks
from trainobs.analysis.summary import summarize
from trainobs.core.catalogue.ranks import over_ranks
from trainobs.runlog.reader import RunLog

JOB = Path(__file__).with_name("hf_ddp_job.py")
EIGHT = list(range(1, 9))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, list[str], str]:
    """A directory, and how two ranks that trained there ended."""
    directory = tmp_path_factory.mktemp("ddp")
    return (directory, *end_of_two_ranks(JOB, directory))


def test_both_ranks_come_to_their_end_and_write_to_one_run(job):
    directory, status, lines, errors = job
    assert status == 0, errors
    said = sorted(line for line in lines if line.startswith("rank "))
    run = directory / "out" / "trainobs" / "run"
    assert said == [f"rank {rank} wrote to {run}" for rank in (0, 1)]
    assert told_by_trainobs(errors) == []


def test_each_rank_has_the_steps_of_the_job(job):
    run = RunLog.open(job[0] / "out" / "trainobs" / "run")
    assert list(run.ranks) == [0, 1]
    assert run.info["world_size"] == 2
    for rank in (0, 1):
        assert step_numbers(job[0] / "out" / "trainobs" / "run", rank) == EIGHT


@pytest.mark.needs_bpf
def test_each_rank_counts_what_it_read_itself(job):
    for rank in (0, 1):
        read = read_steps(job[0] / "out" / "trainobs" / "run", rank)["io/data_read_bytes"]
        assert sum(read.to_pylist()) == 2 * 8 * FILE_BYTES


def test_tensorboard_is_written_by_rank_0_alone_beside_the_loss(job):
    (events,) = job[0].rglob("events.out.tfevents.*")
    assert logged_steps(events.parent, "train/loss") == EIGHT
    assert logged_steps(events.parent) == EIGHT


def test_tensorboard_shows_what_both_ranks_took(job):
    (events,) = job[0].rglob("events.out.tfevents.*")
    for what in ("min", "median", "max"):
        assert logged_steps(events.parent, f"{over_ranks(DURATION)}/{what}") == EIGHT


def test_the_report_knows_when_the_ranks_came_to_their_collectives(job):
    found = summarize(RunLog.open(job[0] / "out" / "trainobs" / "run"))["straggler"]
    assert found["by"] == "arrival"
    assert found["steps"] > 0
