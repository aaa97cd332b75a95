"""A whole training with a user's own programs: not one count is off, and nothing stays behind."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import time
from pathlib import Path

import numpy as np
import pytest

from tests.kernel.jobs.own_probes import BATCH, of_item, of_step
from tests.kernel.lifetime import PATIENCE_S, own_programs, still_loaded
from tests.kernel.own import Marked, source
from tests.kernel.processes import run_job, start_job
from trainobs.core.own_counter import OWN_ROLES, of_role
from trainobs.core.records import SETUP
from trainobs.runlog.reader import RunLog

pytestmark = pytest.mark.needs_bpf

STEPS = 1000
INT3 = 0xCC  # what a uprobe puts in place of an instruction, on x86


def test_over_a_thousand_steps_with_four_workers_not_one_count_is_off(tmp_path: Path) -> None:
    Marked(tmp_path)
    run_dir = tmp_path / "run"
    settings = {"place": str(tmp_path), "source": str(source(tmp_path)), "run_dir": str(run_dir)}
    run_job("own_probes", **settings, steps=STEPS, ends=True)
    run = RunLog.open(run_dir)
    rank = run.ranks[0]
    training = rank.step() != SETUP
    assert training.sum() == STEPS
    assert run.info["capabilities"]["own.c"] == "on"
    told = run.info["summary"]["losses"]["runs"]  # 0 before Linux 7.0
    steps = np.array([of_step(number) for number in range(STEPS)]).T
    items = np.array([of_item(index) for index in range(BATCH * STEPS)]).sum(axis=0)
    for at, (name, worth) in enumerate([("getsid_calls", 0), ("called", 3), ("marked", 5)]):
        sums = [(f"probe/{name}", 1), *([(f"probe/{name}_with", worth)] if worth else [])]
        for metric, factor in sums:
            roles = {role: rank.metric(of_role(metric, role)) for role in OWN_ROLES}
            main, thread, worker, child = roles.values()
            done = [factor * steps[at], np.full(STEPS, factor * (1, 0, 2)[at])]
            short = np.array(done) - (main[training], thread[training])
            missing = short.sum() + factor * items[at] - worker.sum()
            assert (short >= 0).all(), metric
            assert 0 <= missing <= factor * told, metric
            assert not child.any()
            assert (rank.metric(metric) == main + thread + worker).all()


def test_nothing_stays_when_the_training_is_killed(tmp_path: Path) -> None:
    marked = Marked(tmp_path)
    function = ctypes.cast(ctypes.CDLL(str(marked.path)).tobs_called, ctypes.c_void_p).value
    assert function
    settings = {"place": str(tmp_path), "source": str(source(tmp_path))}
    job = start_job("own_probes", **settings, run_dir=str(tmp_path / "r"), steps=50, ends=False)
    try:
        assert job.stdout
        told = next(line for line in job.stdout if line.startswith("["))  # torch warns before
        programs = set(json.loads(told))
        assert len(programs) > len(own_programs()) + 3
        if platform.machine() == "x86_64":
            assert first_byte(function) == INT3
    finally:
        job.kill()
        job.communicate()
    assert still_loaded(programs) == set()
    deadline = time.monotonic() + PATIENCE_S
    while first_byte(function) == INT3:
        assert time.monotonic() < deadline, "the uprobe is still there"
        time.sleep(0.02)


def first_byte(address: int) -> int:
    """The first byte of the code of a function in this process."""
    with open("/proc/self/mem", "rb", 0) as memory:
        return os.pread(memory.fileno(), 1, address)[0]
