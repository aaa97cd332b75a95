"""A run may be long: its memory does not grow, and its log is small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.integrations.models import read_steps
from tests.session.jobs import Job, loop
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import rank_dir

pytestmark = pytest.mark.needs_bpf

JOB = Path(__file__).with_name("long_job.py")
STEPS = 200_000
IN_USE_BYTES = 5_000_000  # growth: 36 bytes a step would be found
RESIDENT_BYTES = 16_000_000
STEP_BYTES = 300


def test_memory_does_not_grow_with_the_number_of_steps(tmp_path, monkeypatch):
    # Everybody gets memory from the C library, so that it knows what is in use.
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    monkeypatch.setenv("PYTHONMALLOC", "malloc")
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", "system")
    status, (level, *lines), errors = Job(JOB, tmp_path / "run", STEPS).end()
    assert (status, level, errors) == (0, "level ebpf", "")
    samples = np.array([line.split() for line in lines], int)
    early = samples[(samples[:, 0] >= 20_000) & (samples[:, 0] < 60_000)]
    late = samples[samples[:, 0] >= 160_000]
    # Least of many: the records of the last moments come and go.
    _, in_use, resident = late.min(axis=0) - early.min(axis=0)
    assert in_use < IN_USE_BYTES
    assert resident < RESIDENT_BYTES
    log = RunLog.open(tmp_path / "run")
    summary = log.info["summary"]
    stored = read_steps(tmp_path / "run").num_rows
    assert stored + summary["dropped_steps"] + summary["lost_steps"]["runlog"] == STEPS + 1
    assert sum(log.ranks[0].metric("obs/lost_count")) >= summary["dropped_steps"]


def test_a_step_of_a_loop_with_workers_takes_few_bytes_of_the_log(tmp_path):
    steps = 2000
    with loop(tmp_path, steps) as job:
        assert job.end()[0] == 0
    read = read_steps(tmp_path / "run")["io/data_read_bytes"].to_pylist()
    assert sum(bytes_ > 0 for bytes_ in read) > steps / 2  # there was something to record
    files = rank_dir(tmp_path / "run", 0).iterdir()
    assert sum(path.stat().st_size for path in files) <= STEP_BYTES * steps
