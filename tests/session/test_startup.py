"""A run that Ctrl-C ends while it begins leaves no descriptor, thread or callback behind."""

from __future__ import annotations

import gc
import signal
import time
from pathlib import Path

import pytest

from tests.session.jobs import Job
from trainobs import observe
from trainobs.session.observer import Observer

pytestmark = pytest.mark.needs_bpf

JOB = Path(__file__).with_name("startup_job.py")
TIMES = 32
NOTHING = "left [] [] 0"


def ended(job: Job) -> list[str]:
    """End a run with Ctrl-C; what it printed from then on."""
    job.process.send_signal(signal.SIGINT)
    lines = [job.line()]
    while not lines[-1].startswith("left"):
        lines.append(job.line())
        assert lines[-1], job.process.communicate()
    return lines


def test_ctrl_c_at_any_moment_of_the_start_leaves_nothing(tmp_path):
    job = Job(JOB, tmp_path, TIMES + 1)
    assert job.line() == "begin"
    began = time.monotonic()
    assert job.line() == "open"
    took_s = time.monotonic() - began
    assert ended(job) == [NOTHING]
    early = 0
    for number in range(TIMES):
        assert job.line() == "begin", job.process.communicate()
        time.sleep(took_s * number / TIMES)
        *opened, left = ended(job)
        assert left == NOTHING, f"after {number} of {TIMES} parts of {took_s:.3f} s"
        early += not opened
    assert job.end()[0] == 0
    assert early >= TIMES // 4  # or nothing was tested


def test_a_thread_that_runs_after_its_start_was_broken_off_does_nothing(tmp_path, monkeypatch):
    begun = []

    def broken_off(observer: Observer) -> None:
        begun.append(observer._thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(Observer, "start", broken_off)
    callbacks = len(gc.callbacks)
    with pytest.raises(KeyboardInterrupt):
        observe(run_dir=tmp_path / "run", quiet=True)
    begun[0].start()
    begun[0].join(30)
    assert len(gc.callbacks) == callbacks
    assert not list(tmp_path.rglob("run*.json"))
