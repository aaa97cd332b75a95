"""What a plain loop is told in which no step begins."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.integrations.unmarked_loops import Model, batches, observed
from trainobs.cli import main
from trainobs.integrations import steps_told
from trainobs.integrations.plain import Observation
from trainobs.steps.rule import ALONE


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_batches_without_gradients_are_said_to_make_no_steps(
    tmp_path, untold, told, caplog, capsys, without
):
    def loop(obs: Observation, model: Model) -> None:
        with without():
            for batch in obs.loader(batches(5)):
                model.look(batch)

    assert observed(tmp_path / "run", loop) == []
    assert told() == ["trainobs found no step in this run"]
    why = "5 batches were fetched without gradients (no_grad, inference_mode); no step begins there"
    assert f"found: {why}\n  do:    put each step into `with obs.step():`" in caplog.text
    assert main(["report", str(tmp_path / "run")]) == 0
    report = " ".join(capsys.readouterr().out.split())
    assert f"{why}: put each step into `with obs.step():`." in report


def test_a_loop_inside_of_a_phase_is_said_to_make_no_steps(
    tmp_path: Path, untold: None, told: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    def loop(obs: Observation, model: Model) -> None:
        with obs.phase("forward"):
            for batch in obs.loader(batches(5)):
                model.look(batch)

    assert observed(tmp_path / "run", loop) == []
    assert told() == ["trainobs found no step in this run"]
    assert "was gone through inside of `obs.phase`; no step begins there" in caplog.text


@pytest.mark.parametrize("without", [torch.enable_grad, torch.no_grad])
def test_an_evaluation_alone_is_not_told_to_mark_steps(
    tmp_path: Path,
    untold: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    without: type[torch.no_grad],
) -> None:
    monkeypatch.setattr(steps_told, "_LONG_NS", 0)

    def loop(obs: Observation, model: Model) -> None:
        with without(), obs.phase("validation"):
            for batch in obs.loader(batches(5)):
                model.look(batch)

    assert observed(tmp_path / "run", loop) == []
    assert main(["report", str(tmp_path / "run")]) == 0
    report = " ".join(capsys.readouterr().out.split())
    assert re.search(r"Validation ran for \S+ \S+, and no training: of Lightning", report)


def test_an_iterator_that_is_made_inside_of_a_phase_is_not_gone_through(
    tmp_path: Path, untold: None, told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_told, "_LONG_NS", 10**12)

    def loop(obs: Observation, model: Model) -> None:
        with obs.phase("forward"):
            iter(obs.loader(batches(5)))

    assert observed(tmp_path / "run", loop) == []
    assert told() == []


def test_optimizers_beside_an_evaluation_had_no_batch_of_training(
    tmp_path: Path, untold: None, told: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    def loop(obs: Observation, model: Model) -> None:
        with obs.phase("validation"):
            for batch in obs.loader(batches(5)):
                model.look(batch)
        model.train([torch.rand(4, 3)])

    assert observed(tmp_path / "run", loop) == []
    assert told() == ["trainobs found no step in this run"]
    assert "found: no batch of training was fetched from what was given to" in caplog.text


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_a_loop_inside_of_a_phase_is_told_what_is_not_known(
    tmp_path: Path,
    untold: None,
    told: Callable[[], list[str]],
    capsys: pytest.CaptureFixture[str],
    named: bool,
) -> None:
    def loop(obs: Observation, model: Model) -> None:
        data = batches(40)
        with obs.phase("train"):
            for batch in obs.loader(data) if named else data:
                model.train(batch)

    run_dir = tmp_path / "run"
    assert len(observed(run_dir, loop)) == 40 - (ALONE + 1)
    assert told() == [
        "trainobs does not know which step waited for which batch, nor what is an epoch"
    ]
    assert main(["report", str(run_dir), "--full"]) == 0
    report = " ".join(capsys.readouterr().out.split())
    assert "an optimizer has stepped: a fetch inside of a phase begins none" in report


def test_a_loader_in_a_phase_of_a_step_is_not_told(tmp_path: Path) -> None:
    def loop(obs: Observation, model: Model) -> None:
        other = obs.loader(batches(2))
        for batch in obs.loader(batches(12)):
            with obs.phase("augment"):
                next(iter(other))
            model.train(batch)

    assert len(observed(tmp_path / "run", loop)) == 12


def test_a_loop_inside_of_a_phase_with_marks_is_told(
    tmp_path: Path, untold: None, told: Callable[[], list[str]]
) -> None:
    def loop(obs: Observation, model: Model) -> None:
        with obs.phase("train"):
            for batch in obs.loader(batches(12)):
                with obs.step():
                    model.train(batch)

    assert len(observed(tmp_path / "run", loop)) == 12
    assert len(told()) == 1
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert settings["steps"].endswith("before one counts for the step before it")


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_a_fetch_in_a_phase_of_a_marked_step_is_not_told(tmp_path: Path, named: bool) -> None:
    def loop(obs: Observation, model: Model) -> None:
        data = batches(12)
        iterator = iter(obs.loader(data) if named else data)
        for _ in range(12):
            with obs.step():
                with obs.phase("fetch"):
                    batch = next(iterator)
                model.train(batch)

    assert len(observed(tmp_path / "run", loop)) == 12
