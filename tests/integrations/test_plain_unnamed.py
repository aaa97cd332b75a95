"""A plain loop that names no loader, as where a library makes it: torch's own are found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.integrations.unmarked_loops import (
    ALL,
    BATCHES,
    EPOCHS,
    LOOPS,
    Loop,
    Model,
    accumulated,
    batches,
    by_hand,
    each,
)
from trainobs import load_run, observe
from trainobs.core.once import Once
from trainobs.integrations import user_warnings
from trainobs.integrations.plain import Observation
from trainobs.report.notebook import ShownRun


class Unnamed:
    """An observation that is told of no loader."""

    def __init__(self, obs: Observation) -> None:
        self._obs = obs

    def loader(self, loader: Any) -> Any:
        return loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._obs, name)


def observed(run_dir: Path, loop: Callable[[Any, Model], None], **options: Any) -> ShownRun:
    """A loop's run; it has `Unnamed`, and the observation itself as `named`."""
    with observe(run_dir=run_dir, probes="off", quiet=True, **options) as obs:
        unnamed = Unnamed(obs)
        unnamed.named = obs  # type: ignore[attr-defined]
        loop(unnamed, Model())
    return load_run(run_dir)


def steps_of(run: ShownRun) -> list[int]:
    return [int(step) for step in run.steps.to_pandas().query("step >= 0")["epoch"]]


FOUND = [(loop, count) for loop, count in LOOPS if loop is not by_hand]


@pytest.mark.parametrize(("loop", "count"), FOUND, ids=[loop.__name__ for loop, _ in FOUND])
def test_steps_are_those_of_a_loop_that_names_its_loader(
    tmp_path: Path, loop: Loop, count: int
) -> None:
    run = observed(tmp_path / "run", loop)
    epochs = steps_of(run)
    assert len(epochs) == count
    assert sorted(set(epochs)) == list(range(EPOCHS))
    waits = run.steps.to_pandas().query("step >= 0")["loader/wait_ns"]
    assert (waits > 0).sum() >= count // 4


class Slow(TensorDataset):
    """Each item takes 2 ms."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return super().__getitem__(index)  # type: ignore[no-untyped-call]


def fit(model: Model) -> None:
    """What a library does."""
    for batch in DataLoader(Slow(torch.rand(100, 3)), batch_size=4):
        model.train(batch)


def test_the_wait_for_the_loader_of_a_library_is_a_wait(tmp_path: Path) -> None:
    run = observed(tmp_path / "run", lambda obs, model: fit(model))
    assert run.verdict.startswith("loader-bound: ")
    assert run.summary["metrics"]["loader/wait_ns"]["mean"] > 8e6


def test_a_look_at_all_data_before_is_in_the_first_step(tmp_path: Path) -> None:
    def loop(obs: Any, model: Model) -> None:
        for _ in batches(100):
            pass
        each(obs, model)

    assert len(steps_of(observed(tmp_path / "run", loop))) == ALL


def test_a_loader_that_is_named_later_is_the_only_one(tmp_path: Path) -> None:
    def loop(obs: Any, model: Model) -> None:
        for _ in batches(100):  # taken for the loop's, until it is known better
            pass
        each(obs.named, model)
        for batch in batches():  # as of a validation with gradients
            model.look(batch)

    run = observed(tmp_path / "run", loop)
    assert steps_of(run) == [n // BATCHES for n in range(ALL)]
    setup = run.steps.to_pandas().query("step.isnull()")
    assert len(setup) == 1
    assert setup["step/duration_ns"].iloc[0] > 0


def test_a_loader_that_is_named_after_steps_goes_on_with_them(tmp_path: Path) -> None:
    def loop(obs: Any, model: Model) -> None:
        each(obs, model)
        each(obs.named, model)

    assert len(steps_of(observed(tmp_path / "run", loop))) == 2 * ALL


def test_without_gradients_no_loader_is_the_loops(tmp_path: Path) -> None:
    def loop(obs: Any, model: Model) -> None:
        for _ in range(20):
            model.train([torch.rand(4, 3)])
            with torch.no_grad():
                for batch in batches(3):
                    model.look(batch)

    run = observed(tmp_path / "run", loop)
    assert len(steps_of(run)) == 20 - 9
    assert run.summary["metrics"]["loader/wait_ns"]["max"] is None


@pytest.mark.parametrize("kept", [False, True])
def test_a_look_at_the_data_of_another_loop_is_no_step_of_it(tmp_path: Path, kept: bool) -> None:
    def loop(obs: Any, model: Model) -> None:
        looked = iter(batches())
        model.look(next(looked))
        if not kept:
            del looked
        for _ in range(200):
            model.train([torch.rand(4, 3)])

    run = observed(tmp_path / "run", loop)
    assert len(steps_of(run)) == 200 - (64 if kept else 8) - 1
    assert run.summary["steps_are"].startswith("a step begins as an optimizer has stepped")


def test_batches_that_an_older_iterator_gives_without_gradients_are_none(tmp_path: Path) -> None:
    def loop(obs: Any, model: Model) -> None:
        others = iter(batches(50))
        for number, batch in enumerate(batches()):
            model.train(batch)
            with torch.no_grad():
                model.look(next(others))
            if number == 7:
                break

    assert len(steps_of(observed(tmp_path / "run", loop))) == 8


def test_gradients_may_begin_after_the_iterator_was_made(tmp_path: Path) -> None:
    def loop(obs: Any, model: Model) -> None:
        with torch.no_grad():
            source = iter(batches())
        for batch in source:
            model.train(batch)

    assert len(steps_of(observed(tmp_path / "run", loop))) == BATCHES


def test_a_pass_with_gradients_after_marked_steps_is_no_step(tmp_path: Path) -> None:
    def loop(obs: Any, model: Model) -> None:
        for _ in range(2):
            for batch in batches():
                with obs.step():
                    model.train(batch)
            for batch in batches():
                model.look(batch)

    assert len(steps_of(observed(tmp_path / "run", loop))) == 2 * BATCHES


@pytest.mark.parametrize("name", ["named", "unnamed"])
def test_workers_are_those_of_the_loader_that_trains(tmp_path: Path, name: str) -> None:
    def loop(obs: Any, model: Model) -> None:
        next(iter(batches(num_workers=1)))
        each(obs.named if name == "named" else obs, model)

    run = observed(tmp_path / "run", loop)
    assert json.loads((run.run_dir / "run.json").read_text())["settings"]["loader_workers"] == 0


@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("of_torch", [False, True])
def test_workers_are_not_those_of_a_validation_that_was_named_first(
    tmp_path: Path, of_torch: bool, marks: bool
) -> None:
    def loop(obs: Any, model: Model) -> None:
        validation = obs.named.loader(batches(num_workers=1))
        training = obs.named.loader(batches() if of_torch else list(batches()))
        with torch.no_grad():
            for batch in validation:
                model.look(batch)
        next(iter(validation))
        for batch in validation:  # with gradients that nobody uses
            model.look(batch)
        for batch in training:
            if marks:
                with obs.step():
                    model.train(batch)
            else:
                model.train(batch)

    run = observed(tmp_path / "run", loop)
    told = json.loads((run.run_dir / "run.json").read_text())["settings"]["loader_workers"]
    assert told == (0 if of_torch else None)


def test_marked_steps_know_what_they_waited_for_a_loader_that_nobody_named(tmp_path: Path) -> None:
    def loop(obs: Any, model: Model) -> None:
        for batch in DataLoader(Slow(torch.rand(40, 3)), batch_size=4):
            with obs.step():
                model.train(batch)

    run = observed(tmp_path / "run", loop)
    assert len(steps_of(run)) == 10
    assert run.summary["metrics"]["loader/wait_ns"]["mean"] > 8e6


@pytest.mark.parametrize("loop", [by_hand, lambda obs, model: time.sleep(1.2)])
def test_without_an_optimizer_there_is_no_step_and_that_is_told(
    tmp_path: Path,
    loop: Loop,
    monkeypatch: pytest.MonkeyPatch,
    told: Callable[[], list[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(user_warnings, "_once", Once())

    def slow(obs: Any, model: Model) -> None:
        loop(obs, model)
        time.sleep(1.1)

    run = observed(tmp_path / "run", slow)
    assert steps_of(run) == []
    assert told() == ["trainobs found no step in this run"]
    assert "no step of an optimizer" in caplog.text


def test_of_a_loader_that_fetches_ahead_no_batch_has_a_step(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")

    def loop(obs: Any, model: Model) -> None:
        accelerated = accelerate.Accelerator(cpu=True)
        loader = accelerated.prepare_data_loader(batches())
        for _ in range(EPOCHS):
            for batch in loader:
                model.train(batch)

    with observe(run_dir=tmp_path / "run", quiet=True) as obs:
        loop(obs, Model())
    run = load_run(tmp_path / "run")
    assert len(steps_of(run)) == ALL
    assert run.batches.to_pandas()["for_step"].isnull().all()


def test_accumulated_gradients_of_a_library_are_a_step(tmp_path: Path) -> None:
    run = observed(tmp_path / "run", accumulated)
    assert run.summary["steps_are"].startswith("a step begins with the first fetch of a batch")


class Endless(DataLoader[Any]):
    """Makes its iterator past torch's `__iter__`, as Ultralytics' `InfiniteDataLoader` does."""

    def __iter__(self) -> Any:
        iterator = self._get_iterator()
        for _ in range(len(self)):
            yield next(iterator)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_that_a_loader_makes_past_torchs_iter_is_seen(
    tmp_path: Path, workers: int
) -> None:
    data = TensorDataset(torch.ones(2 * BATCHES, 1))

    def loop(_: Any, model: Model) -> None:
        optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters())
        for _ in range(EPOCHS):
            for _ in Endless(data, 2, num_workers=workers):
                optimizer.step()

    run = observed(tmp_path / "run", loop)
    assert steps_of(run) == [epoch for epoch in range(EPOCHS) for _ in range(BATCHES)]
    assert (run.steps.to_pandas().query("step >= 0")["loader/wait_ns"] > 0).all()
    rank = json.loads((tmp_path / "run" / "run.json").read_text())
    assert rank["settings"]["loader_workers"] == workers


def _adds_up(run: ShownRun) -> bool:
    steps = run.steps.to_pandas().query("step >= 0")
    phases = steps["loader/wait_ns"].fillna(0) + steps["phase/other_ns"]
    return bool((phases == steps["step/duration_ns"]).all())


def test_what_a_loop_waited_for_batches_that_it_keeps_is_known(tmp_path: Path) -> None:
    def loop(_: Any, model: Model) -> None:
        for batch in islice(cycle(batches()), ALL):
            model.train(batch)

    run = observed(tmp_path / "run", loop)
    wait = run.steps.to_pandas().query("step >= 0")["loader/wait_ns"]
    assert len(wait) == ALL
    assert (wait[:BATCHES] > 0).all()
    assert _adds_up(run)


class FetchedByAThread(DataLoader[Any]):
    """Makes its iterator where the loop is, and goes through it in a thread, as `DataLoaderX`."""

    def __iter__(self) -> Any:
        iterator, ready = super().__iter__(), Queue[Any](1)
        Thread(target=lambda: [ready.put(batch) for batch in (*iterator, None)]).start()
        return iter(ready.get, None)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_that_another_thread_goes_through_is_no_wait(
    tmp_path: Path, workers: int
) -> None:
    def loop(_: Any, model: Model) -> None:
        for _ in range(EPOCHS):
            for batch in FetchedByAThread(batches().dataset, 4, num_workers=workers):
                model.train(batch)

    run = observed(tmp_path / "run", loop)
    assert run.steps.to_pandas()["loader/wait_ns"].isnull().all()
    assert _adds_up(run)
