"""The words of a plain loop as calls, without `with`: `obs.step()` as torch's profiler has it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.integrations.models import loader, read_steps, step_numbers
from trainobs import observe

WORK_S, LONG_S = 0.004, 0.012

Trains = Callable[[Any], None]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def training() -> Trains:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train(batch: torch.Tensor) -> None:
        model(batch).mean().backward()
        time.sleep(WORK_S)
        optimizer.step()

    return train


def milliseconds(run_dir: Path, name: str = "step/duration_ns") -> list[float]:
    return [ns / 1e6 for ns in read_steps(run_dir)[name].to_pylist()[1:]]


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("optimizer", [True, False], ids=["optimizer", "no-optimizer"])
def test_a_call_at_the_end_of_each_step_ends_it(run_dir, named, optimizer):
    train = training() if optimizer else lambda _: time.sleep(WORK_S)
    with observe(run_dir=run_dir, probes="off") as obs:
        batches = obs.loader(loader()) if named else loader()
        for _ in range(2):
            for batch in batches:
                train(batch)
                obs.step()
            with obs.phase("validation"):
                time.sleep(LONG_S)
    count = 2 * len(loader())
    assert step_numbers(run_dir) == list(range(count))
    assert min(milliseconds(run_dir)) >= WORK_S * 1e3
    validation = read_steps(run_dir)["phase/validation_ns"].to_pylist()[1:]
    assert [step for step, ns in enumerate(validation) if ns] == [count // 2 - 1, count - 1]
    assert min(milliseconds(run_dir, "loader/wait_ns")) > 0


@pytest.mark.parametrize("called", ["first", "last"])
def test_a_call_ends_several_accumulated_batches(run_dir, called):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with observe(run_dir=run_dir, probes="off") as obs:
        for at, batch in enumerate(islice(obs.loader(loader()), 4)):
            is_second = at % 2 == 1
            if called == "first" and is_second:
                obs.step()
            model(batch).mean().backward()
            time.sleep(WORK_S)
            if is_second:
                optimizer.step()
            if called == "last" and is_second:
                obs.step()
    assert step_numbers(run_dir) == [0, 1]
    assert min(milliseconds(run_dir)) >= 2 * WORK_S * 1e3


def test_numbers_of_their_own(run_dir):
    with observe(run_dir=run_dir, probes="off") as obs:
        for number, batch in zip((5, 7, 8), obs.loader(loader()), strict=False):
            training()(batch)
            obs.step(number)
    assert step_numbers(run_dir) == [5, 7, 8]


def test_without_a_loader_a_step_reaches_from_call_to_call(run_dir):
    with observe(run_dir=run_dir, probes="off") as obs:
        for index in range(6):
            with obs.phase("forward"):
                time.sleep(LONG_S if index == 3 else WORK_S)
            obs.step()
    assert step_numbers(run_dir) == list(range(2, 6))  # what came before is set-up
    forward = milliseconds(run_dir, "phase/forward_ns")
    assert [ms >= LONG_S * 1e3 for ms in forward] == [False, True, False, False]
    assert min(forward) >= WORK_S * 1e3


def test_after_a_look_at_the_data_nobody_knows_of_waits_for_it(run_dir):
    with observe(run_dir=run_dir, probes="off") as obs:
        next(iter(loader()))
        for _ in range(4):
            time.sleep(WORK_S)
            obs.step()
    assert step_numbers(run_dir) == list(range(4))
    assert read_steps(run_dir)["loader/wait_ns"].to_pylist()[2:] == [None] * 3


def test_two_steps_for_each_batch(run_dir):
    with observe(run_dir=run_dir, probes="off") as obs:
        for batch in islice(obs.loader(loader()), 3):
            for _ in range(2):
                training()(batch)
                obs.step()
    assert step_numbers(run_dir) == list(range(6))
    assert [ms >= WORK_S * 1e3 for ms in milliseconds(run_dir)][2:] == [True] * 4


def test_a_validation_between_the_calls_takes_no_step_from_them(run_dir):
    with observe(run_dir=run_dir, probes="off") as obs:
        for _ in range(4):
            time.sleep(WORK_S)
            obs.step()
            with obs.phase("validation"), torch.no_grad():
                list(loader())
    assert step_numbers(run_dir) == list(range(2, 4))


def test_with_after_calls_makes_no_second_step(run_dir):
    with observe(run_dir=run_dir, probes="off") as obs:
        batches = iter(obs.loader(loader()))
        for _ in range(2):
            next(batches)
            obs.step()
        for _ in range(2):
            next(batches)
            with obs.step():
                time.sleep(WORK_S)
    assert step_numbers(run_dir) == [0, 1, 2, 3]


def test_a_phase_that_is_called_is_unknown_and_told(run_dir, told, untold):
    with observe(run_dir=run_dir, probes="off") as obs:
        for batch in obs.loader(loader(48)):
            obs.phase("forward")
            training()(batch)
            obs.step()
    assert set(read_steps(run_dir)["phase/forward_ns"].to_pylist()) == {None}
    assert told() == ["a phase that is not entered takes no time"]


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("ahead", [1, 2])
def test_a_call_ends_the_last_steps_of_a_loop_that_fetches_ahead(run_dir, named, ahead):
    train = training()
    with observe(run_dir=run_dir, probes="off") as obs:
        batches = obs.loader(loader()) if named else loader()
        for _ in range(2):
            iterator = iter(batches)
            held = list(islice(iterator, ahead))
            while held:
                held.extend(islice(iterator, 1))
                train(held.pop(0))
                obs.step()
            time.sleep(LONG_S)
    count = 2 * len(loader())
    took = milliseconds(run_dir)
    assert step_numbers(run_dir) == list(range(count))
    assert min(took) >= WORK_S * 1e3
    last = [count // 2 - 1, count - 1]
    assert min(took[at] for at in last) >= (WORK_S + LONG_S) * 1e3
    assert None not in read_steps(run_dir)["loader/wait_ns"].to_pylist()


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_what_follows_the_last_call_is_no_step(run_dir, named):
    train = training()
    with observe(run_dir=run_dir, probes="off") as obs:
        for at, batch in enumerate(obs.loader(loader()) if named else loader()):
            train(batch)
            if at == 2:  # as batches that are too few to accumulate
                break
            obs.step()
    assert step_numbers(run_dir) == [0, 1]
    assert milliseconds(run_dir)[-1] >= 2 * WORK_S * 1e3


def test_a_first_call_after_many_batches_says_that_these_were_taken_for_steps(
    run_dir, caplog, told, untold
):
    with observe(run_dir=run_dir, probes="off") as obs:
        for at, _ in enumerate(obs.loader(range(60))):
            if at >= 40:
                obs.step()
    assert "`obs.step()` was first used after them" in caplog.text
    assert "optimizer" not in caplog.text


def steps_are(run_dir: Path) -> str:
    return json.loads((run_dir / "run.json").read_text())["settings"]["steps"]


def test_calls_after_a_first_with_are_told(run_dir, caplog, told, untold):
    with observe(run_dir=run_dir, probes="off") as obs:
        for at, _ in enumerate(obs.loader(loader())):
            if at:
                obs.step()
            else:
                with obs.step():
                    pass
    ignored = f"at least {len(loader()) - 3} calls without"
    assert told() == ["trainobs took no notice of calls of `obs.step()`"]
    assert ignored in caplog.text
    assert ignored in steps_are(run_dir)


@pytest.mark.parametrize("number", [None, 3], ids=["", "numbered"])
def test_a_step_that_is_left_by_an_exception_or_the_end_is_no_call(run_dir, number):
    obs = observe(run_dir=run_dir, probes="off")
    for at, _ in enumerate(obs.loader(loader())):
        with suppress(ValueError), obs.step(number), obs.step():
            if at == 3:
                obs.close()
                break
            raise ValueError
    assert steps_are(run_dir) == "the loop marks its steps"


@pytest.mark.parametrize("with_it", [True, False], ids=["with", "called"])
def test_steps_of_an_optimizer_before_the_first_mark_are_told(
    run_dir, with_it, caplog, told, untold
):
    train = training()
    with observe(run_dir=run_dir, probes="off") as obs:
        for at, batch in enumerate(obs.loader(loader())):
            train(batch)
            if at % 4 == 3:  # as where one optimizer steps four times as often as the other
                with obs.step() if with_it else nullcontext(obs.step()):
                    pass
    marked = len(loader()) // 4
    assert step_numbers(run_dir) == list(range(3 + marked))
    assert told() == ["trainobs took the first 3 steps of an optimizer for steps"]
    assert "`obs.step()` was first used after them" in caplog.text
    assert steps_are(run_dir).endswith("but not the first 3: these are an optimizer's")


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's
@pytest.mark.parametrize("optimizer", [True, False], ids=["optimizer", "no-optimizer"])
def test_a_loader_that_takes_up_another_goes_on_with_the_steps(run_dir, optimizer):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    train = training() if optimizer else lambda _: None
    with observe(run_dir=run_dir, probes="off") as obs:
        left, taken_up = (stateful(torch.ones(8, 4)) for _ in range(2))
        for batch in islice(obs.loader(left), 3):
            train(batch)
        taken_up.load_state_dict(left.state_dict())
        for _ in range(2):
            for batch in obs.loader(taken_up):
                train(batch)
    assert step_numbers(run_dir) == list(range(3 + 5 + 8))
    assert read_steps(run_dir)["epoch"].to_pylist()[1:] == [0] * 3 + [1] * 5 + [2] * 8
