"""What is read of the machine now and then, in the steps that it belongs to."""

from __future__ import annotations

import subprocess
import time

import pytest

from tests import freezer
from tests.session.test_frozen import frozen_ns_of
from trainobs.host.facts import host_facts
from trainobs.host.group import FROZEN
from trainobs.session.machine import MachineReadings
from trainobs.steps.closed_step import ClosedStep


def step(number: int, begin_ns: int, end_ns: int) -> ClosedStep:
    return ClosedStep.from_numbers(number, number, (begin_ns, end_ns))


def test_what_grew_since_the_last_reading_is_of_the_steps_since():
    """They had none of it, and the first of the next ones had all."""
    with freezer.group() as group:
        if frozen_ns_of(group) is None:
            pytest.skip("Linux tells from 6.18 on for how long a control group was frozen")
        training = subprocess.Popen(["sleep", "60"])
        (group / "cgroup.procs").write_text(str(training.pid))
        readings = MachineReadings(training.pid)
        readings.begin(host_facts(), pressure=True)
        try:
            begin = time.monotonic_ns()
            with freezer.frozen(group):
                time.sleep(0.3)
            middle = time.monotonic_ns()
            frozen_ns = frozen_ns_of(group)
            during = readings.columns([step(0, begin, middle)])[FROZEN][0]
            after = readings.columns([step(1, middle, time.monotonic_ns())])[FROZEN][0]
        finally:
            readings.close()
            training.kill()
            training.wait()
    assert during >= frozen_ns * 0.8
    assert during + after == pytest.approx(frozen_ns, abs=1e3)
