"""Where less is allowed than usual, less is observed, and the session says what."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys

import pytest

from trainobs.probes import choice
from trainobs.session.runs import open_session
from trainobs.session.settings import Settings

JOB = """
import logging, sys
from pathlib import Path
from trainobs.session.runs import open_session
from trainobs.session.settings import Settings
logging.basicConfig(format="%(message)s")
session, _ = open_session(Settings.parse(), Path(sys.argv[1]), log_every_n_steps=1)
for _ in range(3):
    session.clock.begin_batch()
    session.clock.end_step()
session.stop()
print(session.level)
"""


def test_few_descriptors_are_left_to_the_training(tmp_path, caplog):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (63, before[1]))
    try:
        opened = set(os.listdir("/proc/self/fd"))
        session, _ = open_session(Settings.parse(), tmp_path / "run", log_every_n_steps=1)
        assert set(os.listdir("/proc/self/fd")) <= opened
        session.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert session.level == "timing"
    assert "the probes need" in caplog.text


def test_without_proc_steps_are_timed(tmp_path):
    if os.geteuid():
        pytest.skip("mounting needs root")
    hide = 'mount -t tmpfs none /proc; exec "$@"'
    job = subprocess.run(
        ["unshare", "-m", "sh", "-c", hide, "sh", sys.executable, "-c", JOB, tmp_path / "run"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert (job.returncode, job.stdout) == (0, "timing\n"), job.stderr
    assert "found: no /proc/self\n  do:    mount /proc where the training runs" in job.stderr
    assert "report it" not in job.stderr


def test_without_proc_probes_that_were_asked_for_are_an_error(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(choice, "_PROC", str(tmp_path / "missing"))
    caplog.set_level(logging.WARNING)
    with pytest.raises(Exception, match="no .*missing"):
        open_session(Settings.parse(["sched"]), tmp_path / "run", log_every_n_steps=1)
