"""What a run says on standard error as it ends."""

from __future__ import annotations

import re
import time

import torch
from torch.utils.data import DataLoader

from trainobs import observe


def train(run_dir, steps: int = 12, **options: object) -> None:
    with observe(run_dir=run_dir, probes="off", **options) as obs:
        for _ in obs.loader(DataLoader(torch.zeros(steps, 1), 1)):
            with obs.step(), obs.phase("forward"):
                time.sleep(0.01)


def test_a_run_ends_with_its_verdict_its_place_and_where_to_look(tmp_path, capfd):
    train(tmp_path / "run")
    verdict, place, commands = capfd.readouterr().err.splitlines()[-3:]
    told = re.match(r"trainobs: compute-bound: ([0-9.]+) ms a step", verdict)
    assert told
    assert float(told[1]) >= 10
    assert place == f"trainobs: the run is in {tmp_path / 'run'}"
    assert f"`trainobs report {tmp_path / 'run'}`" in commands
    assert f"`tensorboard --logdir {tmp_path / 'run'}`" in commands


def test_a_run_of_few_steps_says_so_and_one_without_steps_nothing(tmp_path, capfd):
    train(tmp_path / "few", steps=3)
    assert "trainobs: no verdict: fewer than 6 steps" in capfd.readouterr().err
    with observe(run_dir=tmp_path / "none", probes="off"):
        pass
    assert "trainobs:" not in capfd.readouterr().err


def test_a_quiet_run_says_nothing(tmp_path, capfd):
    train(tmp_path / "run", quiet=True)
    assert capfd.readouterr().err == ""
