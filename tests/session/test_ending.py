"""What a run says on standard error as it ends."""

from __future__ import annotations

import io
import logging
import re
import sys
import time

import pytest
import torch
from torch.utils.data import DataLoader

from tests.integrations.models import step_numbers
from trainobs import observe
from trainobs.core.once import Once
from trainobs.integrations import user_warnings
from trainobs.runlog.reader import RunLog


def train(run_dir, steps: int = 12, **options: object) -> None:
    with observe(run_dir=run_dir, probes="off", **options) as obs:
        for _ in obs.loader(DataLoader(torch.zeros(steps, 1), 1)):
            with obs.step(), obs.phase("forward"):
                time.sleep(0.01)


def test_a_run_ends_with_its_verdict_its_place_and_where_to_look(tmp_path, capfd):
    train(tmp_path / "run")
    verdict, place, commands = capfd.readouterr().err.splitlines()[-3:]
    told = r"trainobs: no verdict: (9\d|100) % of the step is no wait for data; how much of it is "
    assert re.match(told, verdict)
    assert place == f"trainobs: the run is in {tmp_path / 'run'}"
    assert f"`trainobs report {tmp_path / 'run'}`" in commands
    assert f"`tensorboard --logdir {tmp_path / 'run'}`" in commands


def test_a_run_of_few_steps_says_so_and_one_without_steps_where_it_is(tmp_path, capfd):
    train(tmp_path / "few", steps=3)
    assert "trainobs: no verdict: fewer than 6 steps" in capfd.readouterr().err
    train(tmp_path / "one", steps=1)
    told = capfd.readouterr().err.splitlines()
    assert told[0] == "trainobs: no verdict: fewer than 6 steps after the first"
    assert told[1] == f"trainobs: the run is in {tmp_path / 'one'}"
    with observe(run_dir=tmp_path / "none", probes="off"):
        pass
    place = tmp_path / "none"
    assert capfd.readouterr().err == f"trainobs: no step was found; the run is in {place}\n"


def test_a_quiet_run_says_nothing(tmp_path, capfd):
    train(tmp_path / "run", quiet=True)
    assert capfd.readouterr().err == ""


class FullDisk(io.StringIO):
    """Where standard error goes to a file that takes no more."""

    def write(self, text: str) -> int:
        raise OSError("No space left on device")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [closed(), FullDisk(), None], ids=["closed", "full", "none"])
def test_a_standard_error_that_takes_nothing_costs_no_run(tmp_path, capfd, monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    for _ in range(2):  # of the second, it is told where it goes
        train(tmp_path / "run")
    monkeypatch.undo()
    assert capfd.readouterr().out == ""
    for name in ("run", "run-2"):
        assert step_numbers(tmp_path / name) == list(range(12))
        assert RunLog.open(tmp_path / name).info["summary"]["outcome"] == "ok"


class Failing(logging.Handler):
    """A handler of the user's, for what goes into a log, that fails."""

    def emit(self, record: logging.LogRecord) -> None:
        raise LookupError("the log is gone")


def test_a_log_that_fails_as_the_run_ends_costs_neither_the_run_nor_the_training(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(user_warnings, "_once", Once())
    with observe(run_dir=tmp_path, probes="off") as obs:
        batches = iter(obs.loader(range(3)))
        for _ in range(3):  # which makes no steps, and is told
            with obs.phase("loader"):
                next(batches)
        logging.getLogger("trainobs").addHandler(failing := Failing())
    logging.getLogger("trainobs").removeHandler(failing)
    assert RunLog.open(tmp_path).info["summary"]["outcome"] == "ok"
