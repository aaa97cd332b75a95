"""Steps of a plain loop that marks none: an optimizer of torch's ends them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
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
    each,
    observed,
    validates_before,
)
from trainobs import load_run, observe
from trainobs.cli import main
from trainobs.integrations import steps_told
from trainobs.integrations.plain import Observation
from trainobs.steps.clock import StepClock


@pytest.mark.parametrize(("loop", "count"), LOOPS, ids=[loop.__name__ for loop, _ in LOOPS])
def test_a_step_is_one_of_the_optimizer(
    tmp_path: Path, loop: Loop, count: int, untold: None, caplog: pytest.LogCaptureFixture
) -> None:
    steps = observed(tmp_path / "run", loop)
    assert [number for number, _ in steps] == list(range(count))
    epochs = [epoch for _, epoch in steps]
    assert set(epochs) == set(range(EPOCHS))
    assert sorted(epochs) == epochs
    assert caplog.text == ""


def test_a_short_validation_before_the_first_step_belongs_to_it(tmp_path: Path) -> None:
    steps = observed(tmp_path / "run", validates_before)
    assert [epoch for _, epoch in steps] == [n // BATCHES for n in range(ALL)]


def test_gradients_of_more_than_an_epoch_leave_its_number(tmp_path: Path) -> None:
    def loop(obs: Observation, model: Model) -> None:
        loader, number = obs.loader(batches(6)), 0
        for _ in range(4):
            for batch in loader:
                number += 1
                model.train(batch, steps=number % 8 == 0)

    assert observed(tmp_path / "run", loop) == [(0, 0), (1, 2), (2, 3)]


def test_batches_that_are_kept_make_steps_once_the_loader_is_exhausted(tmp_path: Path) -> None:
    def loop(obs: Observation, model: Model) -> None:
        loader = obs.loader(batches())
        for _ in range(EPOCHS):
            for batch in list(loader):
                model.train(batch)

    assert [epoch for _, epoch in observed(tmp_path / "run", loop)] == [
        n // BATCHES for n in range(ALL)
    ]


def test_of_many_optimizers_without_a_loader_one_ends_steps(tmp_path: Path) -> None:
    def loop(obs: Observation, model: Model) -> None:
        parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(30)]
        optimizers = [torch.optim.SGD([one], lr=0.1) for one in parameters]
        for _ in range(100):
            torch.cat(parameters).sum().backward()  # type: ignore[no-untyped-call]
            for optimizer in optimizers:
                optimizer.step()

    assert len(observed(tmp_path / "run", loop)) == 98  # from the second time that the first steps


def test_another_optimizer_takes_over_where_there_is_no_loader(tmp_path: Path) -> None:
    def loop(obs: Observation, model: Model) -> None:
        kept = []
        for _ in range(3):
            model = Model()
            kept.append(model)
            for _ in range(50):
                model.train([torch.rand(4, 3)])

    assert len(observed(tmp_path / "run", loop)) == 150 - 9 - 2 * 8


def test_lookups_of_a_validation_stay_in_the_step_before_it(tmp_path: Path) -> None:
    """As where the loop marks its steps."""
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(10, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = DataLoader(TensorDataset(torch.arange(20).reshape(20, 1) % 10), batch_size=4)

    def counts(run_dir: Path, marks: bool) -> list[float]:
        with observe(
            run_dir=run_dir, probes="off", quiet=True, model=model, embedding_every=1
        ) as obs:
            loader = obs.loader(ids)
            for _ in range(EPOCHS):
                for (batch,) in loader:
                    with obs.step() if marks else nullcontext():
                        model(batch).sum().backward()
                        optimizer.step()
                with torch.no_grad():
                    model(torch.zeros(21, 1, dtype=torch.int64))
        return [row["lookup_count"] for row in load_run(run_dir).embeddings.to_pylist()]

    marked = counts(tmp_path / "marked", True)
    assert marked == ([4.0] * 4 + [25.0]) * EPOCHS
    assert counts(tmp_path / "unmarked", False) == marked


@pytest.mark.parametrize("how", ["close", "step", "fault"])
def test_a_run_that_ends_within_an_optimizers_step_leaves_it_alone(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch, told: Callable[[], list[str]]
) -> None:
    """torch goes through all hooks meanwhile, and they may not change."""
    obs = observe(run_dir=tmp_path / "run", probes="off", quiet=True)

    def ends(*_: object) -> None:
        if how == "fault":
            monkeypatch.setattr(StepClock, "stepped", None)
        else:
            getattr(obs, how)()

    model, later = Model(), []
    hooks = [register_optimizer_step_pre_hook(ends)]
    hooks.append(register_optimizer_step_post_hook(lambda *_: ends() if how != "fault" else None))
    hooks.append(register_optimizer_step_post_hook(lambda *_: later.append(1)))
    try:
        for batch in obs.loader(batches(3)):
            model.train(batch)
    finally:
        for hook in hooks:
            hook.remove()
        obs.close()
    assert len(later) == 3
    assert len(told()) == (how == "fault")


def test_a_rank_that_was_taken_for_a_job_of_its_own_is_told(
    tmp_path: Path, untold: None, told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with observe(run_dir=tmp_path / "run", probes="off") as obs:
        monkeypatch.setenv("RANK", "1")  # as a process group that is made here
        monkeypatch.setenv("WORLD_SIZE", "2")
        each(obs, Model())
    assert told() == ["trainobs took rank 1 of 2 for a job of its own"]


def test_a_long_one_is_told(
    tmp_path: Path, untold: None, told: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    def loop(obs: Observation, model: Model) -> None:
        for batch in obs.loader(batches(100)):
            model.look(batch)
        each(obs, model)

    assert len(observed(tmp_path / "run", loop)) == 100 + ALL
    assert told() == ["trainobs took batches for steps"]
    assert "100 batches before the first step of an optimizer" in caplog.text


def test_without_a_loader_the_optimizer_alone_makes_steps(tmp_path: Path, untold: None) -> None:
    def loop(obs: Observation, model: Model) -> None:
        for _ in range(100):
            model.train([torch.rand(4, 3)])
            model.other.step()

    # The first nine show that there is no loader; the second optimizer ends none.
    first, *others = (number for number, _ in observed(tmp_path / "run", loop))
    assert first in (5, 4)
    # The numbers are those of ranks that see a loader, as another stage of a pipeline may.
    assert others == [*range(first + 1, 100)]


@pytest.mark.parametrize("broken_off", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
def test_without_one_a_validation_ends_nothing(
    tmp_path: Path, gradients: bool, broken_off: bool
) -> None:
    def loop(obs: Observation, model: Model) -> None:
        others = obs.loader(batches(7))
        for number in range(100):
            model.train([torch.rand(4, 3)])
            if number % 10 == 9:
                with torch.set_grad_enabled(gradients):
                    for batch in others:
                        model.look(batch)
                        if broken_off:
                            break

    with_first = len(observed(tmp_path / "run", loop))
    assert with_first == 100 - 9


def test_a_loader_that_comes_later_makes_them(tmp_path: Path) -> None:
    def loop(obs: Observation, model: Model) -> None:
        for _ in range(30):
            model.train([torch.rand(4, 3)])
        accumulated(obs, model)

    assert len(observed(tmp_path / "run", loop)) == 30 - 9 + ALL // 4


def test_a_run_without_a_step_is_told(
    tmp_path: Path, untold: None, told: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    def loop(obs: Observation, model: Model) -> None:
        for _ in range(5):
            model.train([torch.rand(4, 3)])

    assert observed(tmp_path / "run", loop) == []
    assert told() == ["trainobs found no step in this run"]
    assert "5 steps of optimizers" in caplog.text


def test_a_short_run_without_a_step_says_so_and_where_it_is(
    tmp_path: Path, untold: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with observe(run_dir=run):
        pass
    assert capsys.readouterr().err == f"trainobs: no step was found; the run is in {run}\n"
    with observe(run_dir=run, quiet=True):
        pass
    assert capsys.readouterr().err == ""


def test_what_was_given_and_never_asked_is_not_to_be_given_again(
    tmp_path: Path, untold: None, told: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """As a Keras `PyDataset`, which is indexed."""

    def loop(obs: Observation, model: Model) -> None:
        batches = obs.loader([torch.rand(4, 3)] * 5)
        for index in range(len(batches)):
            model.train([batches[index]])

    assert observed(tmp_path / "run", loop) == []
    assert told() == ["trainobs found no step in this run"]
    assert "no batch was fetched from what was given to `obs.loader`" in caplog.text
    assert "do:    iterate over what `obs.loader` returns, or put each step into" in caplog.text
    assert "give the loop's loader" not in caplog.text


@pytest.mark.parametrize("since", [0, 3, 40])
@pytest.mark.parametrize("around", [True, False])
def test_marks_say_it_from_their_first_use_on(
    tmp_path: Path, since: int, around: bool, told: Callable[[], list[str]], untold: None
) -> None:
    def loop(obs: Observation, model: Model) -> None:
        loader, number = obs.loader(batches()), 0
        for _ in range(EPOCHS):
            for batch in loader:
                number += 1
                if number <= since:
                    model.train(batch)
                elif around:
                    with obs.step():
                        model.train(batch)
                        model.one.step()
                else:
                    model.train(batch)
                    with obs.step():
                        pass

    assert [number for number, _ in observed(tmp_path / "run", loop)] == list(range(ALL))
    assert told() == [f"trainobs took the first {since} steps of an optimizer for steps"] * (
        since > 0
    )


def marked(obs: Observation, model: Model) -> None:
    for batch in obs.loader(batches()):
        with obs.step():
            model.train(batch)


def fetched(obs: Observation, model: Model) -> None:
    for _ in obs.loader(batches()):
        pass


def without_loader(obs: Observation, model: Model) -> None:
    for _ in range(20):
        model.train([torch.rand(4, 3)])


@pytest.mark.parametrize(
    ("loop", "rule"),
    [
        (marked, "the loop marks its steps"),
        (fetched, "each fetch of a batch begins a step"),
        (accumulated, "the first fetch of a batch after an optimizer has stepped"),
        (without_loader, "a step begins as an optimizer has stepped"),
    ],
)
def test_the_report_says_what_a_step_is(
    tmp_path: Path, loop: Loop, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert observed(tmp_path / "run", loop)
    assert main(["report", "--full", str(tmp_path / "run")]) == 0
    head = capsys.readouterr().out.split("\n\n")[0]
    assert rule in " ".join(head.split())


def test_an_optimizer_in_another_thread_ends_none(tmp_path: Path) -> None:
    def loop(obs: Observation, model: Model) -> None:
        for batch in obs.loader(batches()):
            thread = threading.Thread(target=model.train, args=[batch])
            thread.start()
            thread.join()

    assert len(observed(tmp_path / "run", loop)) == BATCHES  # each fetch


def test_after_the_run_no_optimizer_tells_anything(tmp_path: Path) -> None:
    from torch.optim import optimizer

    before = len(optimizer._global_optimizer_post_hooks)
    observed(tmp_path / "run", each)
    assert len(optimizer._global_optimizer_post_hooks) == before


def test_what_goes_on_after_the_last_step_of_an_optimizer_is_told(
    tmp_path, untold, told, caplog, monkeypatch
):
    monkeypatch.setattr(steps_told, "_LONG_NS", 500_000_000)

    def loop(obs: Observation, model: Model) -> None:
        each(obs, model)
        time.sleep(1.0)

    assert len(observed(tmp_path / "run", loop)) == ALL
    (line,) = told()
    assert re.fullmatch(r"the last step includes 1\.\d\d s after the last optimizer step", line)
    assert re.search(
        r"found: \S+ % of the time since the first optimizer step came after", caplog.text
    )


def test_one_long_step_has_nothing_after_it(
    tmp_path: Path, untold: None, told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_told, "_LONG_NS", 100_000_000)

    def loop(obs: Observation, model: Model) -> None:
        for batch in obs.loader(batches(1)):
            time.sleep(0.3)
            model.train(batch)

    assert len(observed(tmp_path / "run", loop)) == 1
    assert told() == []
