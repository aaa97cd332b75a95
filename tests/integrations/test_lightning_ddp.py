"""Several ranks: each has its own record, and nobody waits for anybody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.integrations.models import (
    FILE_BYTES,
    NAMESPACES,
    read_steps,
    step_numbers,
    told_by_trainobs,
)
from trainobs.runlog.reader import RunLog

JOB = Path(__file__).with_name("ddp_job.py")


@pytest.fixture(scope="module", params=NAMESPACES)
def job(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A directory, and what two ranks that trained there said."""
    directory = tmp_path_factory.mktemp("ddp")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, JOB, request.param, directory]
    done = warm.run(command, env=environment)
    return directory, done


def test_both_ranks_come_to_their_end_and_write_to_one_run(job):
    directory, done = job
    assert done.returncode == 0, done.stderr
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert said == [f"rank {rank} wrote to {directory / 'trainobs' / 'run'}" for rank in (0, 1)]
    assert told_by_trainobs(done.stderr) == []


def test_each_rank_has_the_steps_of_the_job(job):
    run = RunLog.open(job[0] / "trainobs" / "run")
    assert list(run.ranks) == [0, 1]
    assert run.info["world_size"] == 2
    for rank in (0, 1):
        assert step_numbers(job[0] / "trainobs" / "run", rank) == list(range(8))


@pytest.mark.needs_bpf
def test_each_rank_counts_what_it_read_itself(job):
    for rank in (0, 1):
        read = read_steps(job[0] / "trainobs" / "run", rank)["io/data_read_bytes"].to_pylist()
        assert sum(read) == 2 * 8 * FILE_BYTES


def test_tensorboard_is_written_by_rank_0_alone(job):
    (events,) = job[0].rglob("events.out.tfevents.*")
    assert events.parent.parent.name == "lightning_logs"
