"""Somebody sets the wall clock while a job trains: no time that is recorded is one of it."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.session import clock_job
from tests.session.clock_job import HOUR_S
from tests.session.jobs import TWO_RANKS, Job
from trainobs.core.catalogue import METRICS
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import ARRIVALS, STEPS

JOB = Path(__file__).with_name("clock_job.py")


class Done(NamedTuple):
    """The job's run, and the limits of all its times by both clocks."""

    run_dir: Path
    monotonic_ns: tuple[int, int]
    wall_s: tuple[float, float]

    @property
    def took_ns(self) -> int:
        """From before its first step to after its last one."""
        begin, end = self.monotonic_ns
        return end - begin

    def during(self, at_ns: object) -> bool:
        """Whether these times of CLOCK_MONOTONIC are all of the job."""
        begin, end = self.monotonic_ns
        return bool(((begin < at_ns) & (at_ns < end)).all())


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, cc")
    folder = tmp_path_factory.mktemp("clock")
    library, file = folder / "wall_clock.so", folder / "ahead"
    source = JOB.with_name("wall_clock.c")
    flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, "-o", library, source], check=True)
    file.write_bytes(bytes(8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("WALL_CLOCK_AHEAD", str(file))
        begin_ns, begin_s = time.monotonic_ns(), time.time()
        job = Job(*TWO_RANKS, JOB, folder, file)
    status, lines, errors = job.end()
    ends = time.monotonic_ns(), time.time()
    assert status == 0, errors
    assert [line for line in lines if line.startswith("set")] == [
        f"set by {HOUR_S}",
        f"set by {-2 * HOUR_S}",
    ]
    return Done(folder / "run", (begin_ns, ends[0]), (begin_s, ends[1]))


def test_no_duration_is_longer_than_the_job(done: Done) -> None:
    durations = [metric.name for metric in METRICS.values() if metric.unit == "ns"]
    for rank in RunLog.open(done.run_dir).ranks.values():
        assert len(rank.step()) == clock_job.STEPS + 1  # and what was before the first one
        assert done.during(rank.start_ns())
        found = rank.columns(STEPS, durations)
        assert (found["step/duration_ns"] > 0).all()
        assert [name for name, ns in found.items() if (ns > done.took_ns).any()] == []


def test_batches_and_collectives_came_while_the_job_ran(done: Done) -> None:
    """Torch stamps collectives with the wall clock: those around a step of it are left out."""
    for rank in RunLog.open(done.run_dir).ranks.values():
        assert len(rank.batches("end_ns")) == clock_job.STEPS
        assert done.during(rank.batches("end_ns"))
        arrivals = rank.columns(ARRIVALS, ["at_ns"])["at_ns"]
        assert 0 < len(arrivals) < clock_job.STEPS
        assert done.during(arrivals)


def test_points_are_in_the_order_of_their_steps(done: Done) -> None:
    events = EventAccumulator(str(done.run_dir / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    begin, end = done.wall_s
    for tag in events.Tags()["scalars"]:
        points = events.Scalars(tag)
        assert [point.step for point in points] == sorted({point.step for point in points})
        times = [point.wall_time for point in points]
        assert times == sorted(times)
        assert begin < times[0] <= times[-1] < end
    assert len(events.Scalars("trainobs/step/duration_ms")) > 1
