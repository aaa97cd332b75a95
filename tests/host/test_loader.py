"""Totals of real DataLoader trees against what was really read."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import warm
from tests.host.helpers import SELF_COST

FILES = 24
JOB = Path(__file__).with_name("loader_job.py")
SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module", autouse=True)
def _no_server_stays() -> Iterator[None]:
    """Tests of this folder count what this process has of children."""
    yield
    warm.stop()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """File size -> folder of `FILES` files of that size."""
    made = {}
    for size in (100_000, 400_000):
        made[size] = tmp_path_factory.mktemp(f"files{size}")
        for i in range(FILES):
            (made[size] / f"{i:03}").write_bytes(os.urandom(size))
    return made


def run(folder: Path, method: str, persistent: bool = False, kill: bool = False) -> dict:
    arguments = [method, str(int(persistent)), str(int(kill)), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = warm.run([sys.executable, str(JOB), *arguments], env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def column(job: dict, name: str) -> list[int]:
    at = job["names"].index(name)
    return [row[at] for row in job["totals"]]


def check(job: dict, size: int) -> None:
    assert job["read"] == 2 * FILES * size
    assert column(job, "io/read_bytes")[-1] >= job["read"]
    assert job["workers"] == 3
    for name in job["names"]:
        assert column(job, name) == sorted(column(job, name)), name
    assert column(job, "sched/worker_offcpu_ns")[-1] > 0
    assert column(job, "sched/worker_runqueue_ns")[-1] > 0


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_all_that_three_workers_read_is_counted(folders: dict[int, Path], method: str) -> None:
    check(run(folders[100_000], method), 100_000)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_more_bytes_in_the_files_are_as_many_more_in_the_total(
    folders: dict[int, Path], method: str
) -> None:
    jobs = {size: run(folder, method, persistent=True) for size, folder in folders.items()}
    for size, job in jobs.items():
        check(job, size)
    totals = {size: column(job, "io/read_bytes")[-1] for size, job in jobs.items()}
    # Not to the byte: the sampler's own reads and start-up differ a little from run to run.
    more = 2 * FILES * 300_000
    assert totals[400_000] - totals[100_000] == pytest.approx(more, rel=0.02)


@pytest.mark.parametrize("kill", [False, True])
def test_when_all_are_reaped_the_total_is_what_the_kernel_charged_to_us(
    folders: dict[int, Path], kill: bool
) -> None:
    job = run(folders[400_000], "fork", kill=kill)
    total = column(job, "io/read_bytes")[-1]
    assert job["left"] <= 3
    # `own` also holds what was read before `open` and after the last sample: a few hundred bytes.
    assert 0 <= job["own"] - total < SELF_COST
    assert (job["read"] < 2 * FILES * 400_000) == kill
