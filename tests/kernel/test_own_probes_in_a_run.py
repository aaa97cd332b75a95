"""A whole training with a user's own programs: not one count is off, and nothing stays behind."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from tests.kernel.jobs.own_probes import BATCH, of_item, of_step
from tests.kernel.lifetime import PATIENCE_S, own_programs, still_loaded
from tests.kernel.observed import ObservedKernel
from tests.kernel.own import Marked, source
from tests.kernel.processes import run_job, start_job
from trainobs.core.own_counter import OWN_ROLES, of_role
from trainobs.core.records import SETUP
from trainobs.probes.own_probe import Probe
from trainobs.runlog.reader import RunLog

pytestmark = pytest.mark.needs_bpf

PAGE = Path(__file__).parents[2] / "docs" / "own-probes.md"
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


READS = """#include "trainobs_probe.h"
TRAINOBS_COUNTER(0, "reads", "calls");
TRAINOBS_VALUE(1, "asked", "bytes");
"""


def test_arguments_are_read_as_the_page_has_it(tmp_path: Path) -> None:
    _, text = PAGE.read_text().split("* Arguments have names")
    program = textwrap.dedent(text.split("  ```c\n")[1].split("  ```\n")[0])
    read = "0" if platform.machine() == "x86_64" else "63"
    program = program.replace("number == 0", f"number == {read}")
    observed = ObservedKernel(own=[Probe(source(tmp_path, READS + program))])
    try:
        with open("/dev/zero", "rb", buffering=0) as zeros:
            counted = observed.during_own(lambda: [zeros.read(100) for _ in range(7)])
    finally:
        observed.stop()
    assert (counted["probe/reads"], counted["probe/asked"]) == (7, 700)


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
