"""The observed loader: the same batches as the loader's own, and what the clock hears of them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from tests.hooks.pair import Pair
from tests.steps.ticking import Ticking, times
from trainobs.core.abi import Phase
from trainobs.steps.states import StepsBy


class Slow(Dataset[int]):
    """Ten numbers; each takes 7 ns of the clock."""

    def __init__(self, ticking: Ticking, bad: int | None = None) -> None:
        self.ticking = ticking
        self.bad = bad

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        self.ticking.after(7)
        if index == self.bad:
            raise OSError("cannot read it")
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


@pytest.fixture
def ticking(pair: Pair) -> Ticking:
    return pair.ticking


def train(ticking: Ticking, loader: Any, work: int = 100) -> list[object]:
    batches = []
    for batch in loader:
        batches.append(batch.tolist())
        ticking.after(work).end_step()
    return batches


def test_batches_are_the_loaders_own_and_each_fetch_begins_a_step(pair, ticking):
    loader = DataLoader(Slow(ticking), batch_size=4)
    own = [batch.tolist() for batch in loader]
    assert train(ticking, pair.watch.observe(loader)) == own
    steps = ticking.closed()
    assert [(step.step, step.epoch) for step in steps] == [(0, 0), (1, 0), (2, 0)]
    assert [step.phase_ns[Phase.LOADER] for step in steps] == [28, 28, 14]
    assert [step.phase_ns[Phase.OTHER] for step in steps[:2]] == [100, 100]


def test_epochs_are_counted_and_what_lies_between_them_belongs_to_the_step_before(pair, ticking):
    observed = pair.watch.observe(DataLoader(Slow(ticking), batch_size=5))
    for _ in range(3):
        assert len(train(ticking, observed)) == 2
        ticking.after(1000)
    steps = ticking.closed()
    assert [(step.step, step.epoch, step.end_ns - step.start_ns) for step in steps] == [
        (0, 0, 135), (1, 0, 1135), (2, 1, 135), (3, 1, 1135), (4, 2, 135), (5, 2, 1135),
    ]  # fmt: skip


def test_it_has_the_length_and_every_attribute_of_its_loader(pair, ticking):
    loader = DataLoader(Slow(ticking), batch_size=4)
    observed = pair.watch.observe(loader)
    assert len(observed) == 3
    assert observed.dataset is loader.dataset
    assert observed.sampler is loader.sampler
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = observed.no_such_thing


def test_a_loader_without_a_length_has_none_here_either(pair, ticking):
    observed = pair.watch.observe(DataLoader(Stream(), batch_size=2))
    with pytest.raises(TypeError):
        len(observed)
    assert train(ticking, observed) == [[0, 1], [2, 3], [4]]
    assert len(ticking.closed()) == 3


def test_worker_processes_deliver_through_it(pair, ticking):
    loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=2, num_workers=2)
    observed = pair.watch.observe(loader)
    assert [batch[0].tolist() for batch in observed] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_an_exception_in_the_loader_arrives_and_leaves_no_phase_open(pair, ticking):
    observed = pair.watch.observe(DataLoader(Slow(ticking, bad=5), batch_size=4))
    with pytest.raises(OSError, match="cannot read it"):
        train(ticking, observed)
    assert not ticking.clock.in_phase
    ticking.after(1000)
    (step,) = ticking.closed()  # the fetch that failed belongs to the step before
    assert times(step) == {Phase.LOADER: 28 + 14, Phase.OTHER: 1100}


def test_an_exception_in_iter_leaves_no_phase_open(pair, ticking):
    class Broken:
        def __iter__(self) -> Iterator[int]:
            raise RuntimeError("no workers")

    with pytest.raises(RuntimeError, match="no workers"):
        list(pair.watch.observe(Broken()))
    assert not ticking.clock.in_phase


def test_a_loop_that_breaks_off_goes_on_with_the_next_step(pair, ticking):
    observed = pair.watch.observe(DataLoader(Slow(ticking), batch_size=2))
    for _ in range(2):
        for index, _ in enumerate(observed):
            ticking.after(100).end_step()
            if index == 1:
                break
    steps = ticking.closed()
    assert [(step.step, step.epoch) for step in steps] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert [times(step) for step in steps] == [{Phase.LOADER: 14, Phase.OTHER: 100}] * 4


@pytest.mark.parametrize(
    ("phase", "spent"),
    [
        (Phase.FORWARD, {Phase.LOADER: 70, Phase.FORWARD: 30}),
        (Phase.VALIDATION, {Phase.VALIDATION: 100}),
    ],
)
def test_inside_a_phase_its_fetches_begin_no_step_and_a_validation_has_its_own(
    pair, ticking, phase, spent
):
    observed = pair.watch.observe(DataLoader(Slow(ticking), batch_size=4))
    ticking.step(work=1)
    ticking.clock.enter(phase)
    for _ in observed:
        ticking.after(10)
    ticking.clock.leave()
    assert train(ticking, observed) != []
    steps = ticking.closed()
    assert [(step.step, step.epoch) for step in steps] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert times(steps[0]) == {**spent, Phase.OTHER: 1}


def test_without_gradients_after_a_training_its_fetches_are_no_waiting(pair, ticking):
    observed = pair.watch.observe(DataLoader(Slow(ticking), batch_size=4))
    ticking.clock.steps_by = StepsBy.MARKS
    with torch.no_grad():
        assert train(ticking, observed) != []  # nobody trained yet: it may be all that there is
    assert train(ticking, observed) != []
    ticking.step(work=1)
    with torch.no_grad():
        for _ in observed:
            ticking.after(10)
    ticking.step(work=1)
    *steps, validated, _ = ticking.closed()
    assert [times(step)[Phase.LOADER] for step in steps] == [28, 28, 14] * 2
    assert times(validated) == {Phase.OTHER: 101}


def test_starting_workers_counts_as_waiting_for_the_step_that_needs_them(pair, ticking):
    class Starting:
        def __iter__(self) -> Iterator[int]:
            ticking.after(500)
            return iter([1])

    for _ in pair.watch.observe(Starting()):
        ticking.after(3).end_step()
    (step,) = ticking.closed()
    assert times(step) == {Phase.LOADER: 500, Phase.OTHER: 3}


def test_two_iterations_at_once_do_not_disturb_each_other(pair, ticking):
    observed = pair.watch.observe(DataLoader(Slow(ticking), batch_size=5))
    pairs = [(a.tolist(), b.tolist()) for a, b in zip(observed, observed, strict=True)]
    assert pairs == [([0, 1, 2, 3, 4],) * 2, ([5, 6, 7, 8, 9],) * 2]
    assert not ticking.clock.in_phase


@pytest.mark.parametrize(
    "way", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))]
)
def test_a_copy_delivers_the_same_batches(pair, way):
    observed = pair.watch.observe(DataLoader(TensorDataset(torch.arange(8))))
    made = way(observed)
    assert type(made) is DataLoader
    assert made is not observed
    assert [batch for (batch,) in made] == list(range(8))


def test_it_shows_the_class_of_its_loader(pair, ticking):
    loader = DataLoader(Slow(ticking), batch_size=5)
    observed = pair.watch.observe(loader)
    assert isinstance(observed, DataLoader)
    assert not isinstance(pair.watch.observe([1]), DataLoader)


def test_a_loader_that_nobody_iterates_over_measures_nothing(pair, ticking):
    observed = pair.watch.observe(DataLoader(Slow(ticking), batch_size=5))
    assert Phase.LOADER not in ticking.clock.measured
    list(observed)
    assert Phase.LOADER in ticking.clock.measured
