"""Watching torch's loaders: what the ledger is told, and that nothing of torch's is changed."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter

from tests import needs
from tests.hooks.pair import Pair
from trainobs.core.abi import MAIN_WORKER, Phase
from trainobs.hooks.marks import MarkingInit
from trainobs.session.forks import others_here, register_fork_cleanup, unregister_fork_cleanup


def methods() -> tuple[Callable[..., Any], ...]:
    return DataLoader.__iter__, _BaseDataLoaderIter.__next__, BaseProcess.start


METHODS = methods()


class Numbers(Dataset[int]):
    def __init__(self, bad: int | None = None) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index == self.bad:
            raise ValueError("a bad item")
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(40))


def keep(items: Any) -> Any:
    return items


def fault_of(action: Callable[[], object]) -> str:
    """What an action that must fail says; what holds its workers is let go of."""
    try:
        action()
    except Exception as error:
        fault = str(error)
    else:
        raise AssertionError("it did not fail")
    gc.collect()  # torch's `reraise` is a frame that holds its own exception
    return fault


def refuse(worker: int) -> None:
    raise RuntimeError(f"worker {worker} will not")


@pytest.mark.parametrize("persistent", [False, True])
def test_batch_i_is_that_of_worker_i_modulo_workers(pair, persistent):
    plain = [batch.tolist() for batch in DataLoader(Numbers(), 2)]
    pair.ear.fetches.clear()
    loader = DataLoader(Numbers(), 2, num_workers=2, persistent_workers=persistent)
    assert pair.train(loader) == plain == pair.train(loader)
    places = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]
    passes = (0, 1) if persistent else (0, 0)
    assert pair.ear.batches() == [(number, *place) for number in passes for place in places]
    assert all(fetch.waited and fetch.delivered for fetch in pair.ear.fetches)
    assert [fetch.serial for fetch in pair.ear.fetches] == [*range(1, 11)]
    assert len(pair.ear.followed) == (2 if persistent else 3)


def test_without_workers_the_training_thread_makes_the_batches(pair):
    pair.train(DataLoader(Numbers(), 5))
    assert pair.ear.batches() == [(0, MAIN_WORKER, 0), (0, MAIN_WORKER, 1)]


def test_a_stream_is_known_until_one_of_its_workers_has_no_data_any_more(pair):
    pair.train(DataLoader(Stream(), 2, num_workers=2))
    known = pair.ear.batches()
    assert known == [(0, number % 2, number // 2) for number in range(len(known))]
    ahead = 2 * 2  # an end may arrive as early as that
    assert 40 - 2 * ahead <= len(known) <= 40
    assert all(step.unexplained == 0 for step in pair.ticking.closed()[: len(known)])


@needs.any_order
def test_of_a_loader_in_any_order_no_batch_is_known_and_the_wait_is_doubtful(pair):
    assert pair.train(DataLoader(Numbers(), 2, num_workers=2, in_order=False))
    assert pair.ear.batches() == pair.ear.followed == []
    assert [fetch.serial for fetch in pair.ear.fetches] == [*range(1, 6)]  # so they are counted
    steps = pair.ticking.closed()
    assert all(step.unexplained > 0 for step in steps)


def test_known_waits_are_explained_and_those_of_strangers_are_not(pair):
    pair.train(DataLoader(Numbers(), 5, num_workers=1))
    pair.train([torch.zeros(1)])
    known, also_known, unknown = pair.ticking.closed()
    assert (known.unexplained, also_known.unexplained) == (0, 0)
    assert unknown.unexplained > 0


def test_an_exception_arrives_and_after_it_no_batch_is_known(pair):
    loader = DataLoader(Numbers(bad=3), 2, num_workers=1)
    assert fault_of(lambda: pair.train(loader)).startswith("Caught ValueError in DataLoader worker")
    assert pair.ear.batches() == [(0, 0, 0)]


def test_after_an_exception_the_iterator_names_no_more_batches(pair):
    iterator = iter(DataLoader(Numbers(bad=3), 2, num_workers=1))
    next(iterator)
    assert "a bad item" in fault_of(lambda: next(iterator))
    assert [batch.tolist() for batch in iterator] == [[4, 5], [6, 7], [8, 9]]
    assert pair.ear.batches() == [(0, 0, 0)]
    assert len(pair.ear.fetches) == 4


def test_a_loader_around_a_loader_gets_batches_for_another_step(pair):
    def one_ahead(loader: Any) -> Iterator[Any]:
        batches = iter(loader)
        batch = next(batches)
        for following in batches:
            yield batch
            batch = following
        yield batch

    class Ahead:
        def __iter__(self) -> Iterator[Any]:
            return one_ahead(DataLoader(Numbers(), 5, num_workers=1))

    assert pair.train(Ahead()) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert pair.ear.batches() == [(0, 0, 0), (0, 0, 1)]
    assert not any(fetch.delivered for fetch in pair.ear.fetches)
    assert [number for *_, number in pair.ear.givens] == [0, 1]


def test_loaders_in_another_thread_are_passed_over(pair):
    thread = threading.Thread(target=lambda: list(DataLoader(Numbers(), 5)))
    thread.start()
    thread.join()
    assert pair.ear.fetches == pair.ear.turns == []


def test_the_loader_is_as_it_was_and_its_own_init_ran(pair):
    loader = DataLoader(
        Numbers(), 2, num_workers=1, worker_init_fn=refuse, collate_fn=keep, pin_memory=False
    )
    before = dict(vars(loader))
    assert "worker 0 will not" in fault_of(lambda: list(loader))
    assert vars(loader) == before


def test_starts_and_ends_are_told_where_they_are_waited_for(pair):
    loader = DataLoader(Numbers(), 5)
    pair.train(loader)
    assert [serial for serial, *_ in pair.ear.turns] == [1, 3]
    assert [workers_ns for *_, workers_ns in pair.ear.turns] == [0, 0]
    list(DataLoader(Numbers(), 5))  # outside every phase
    assert len(pair.ear.turns) == 2


class Ordering:
    """A sampler that takes its time for the order."""

    def __iter__(self):
        time.sleep(0.2)
        return iter(range(10))

    def __len__(self):
        return 10


@pytest.mark.parametrize("persistent", [False, True])
def test_of_a_start_the_order_of_a_sampler_is_not_the_workers(pair, persistent):
    options = {"num_workers": 1, "persistent_workers": persistent}
    loader = DataLoader(Numbers(), 5, sampler=Ordering(), **options)
    pair.train(loader)
    pair.train(loader)
    (_, first_ns, of_first_ns), (_, ended_ns, of_end_ns), (_, again_ns, of_again_ns), _ = (
        pair.ear.turns
    )
    assert 0 < of_first_ns <= first_ns - 200e6
    assert of_end_ns == ended_ns
    assert again_ns >= 200e6
    assert (of_again_ns == 0) == persistent


def test_loaders_that_work_alike_are_counted(pair):
    loader = DataLoader(Numbers(), 5)
    for _ in range(3):
        pair.train(loader)
    pair.train(DataLoader(Numbers(), 5))
    pair.train(DataLoader(Numbers(), 2))
    counted = [(one["objects"], one["passes"]) for one in pair.watch.info.loaders]
    assert counted == [(2, 4), (1, 1)]


def test_it_opens_steps_where_nobody_else_does():
    pair = Pair(opens_steps=True)
    pair.ticking.clock.other_loaders = False
    clock = pair.ticking.clock
    for _ in DataLoader(Numbers(), 5):
        clock.begin_batch()
        clock.end_step()
    pair.watch.close()
    assert [step.unexplained for step in pair.ticking.closed()] == [0, 0]
    assert [fetch.waited for fetch in pair.ear.fetches] == [True, True]
    assert len(pair.ear.turns) == 2


def test_in_validation_it_opens_none():
    pair = Pair(opens_steps=True)
    pair.ticking.step(work=1)
    pair.ticking.clock.enter(Phase.VALIDATION)
    list(DataLoader(Numbers(), 5))
    pair.ticking.clock.leave()
    pair.watch.close()
    assert len(pair.ticking.closed()) == 1
    assert [fetch.waited for fetch in pair.ear.fetches] == [False, False]


def test_torch_is_as_it_was_after_the_last_watch():
    first, second = Pair(), Pair()
    assert methods() != METHODS
    first.watch.close()
    first.watch.close()
    assert methods() != METHODS
    second.train(DataLoader(Numbers(), 5))
    second.watch.close()
    assert methods() == METHODS
    assert first.ear.fetches == []
    assert len(second.ear.fetches) == 2


def test_what_another_has_wrapped_meanwhile_stays(monkeypatch):
    pair = Pair()
    ours = DataLoader.__iter__
    theirs = lambda loader: ours(loader)  # noqa: E731
    monkeypatch.setattr(DataLoader, "__iter__", theirs)
    pair.watch.close()
    assert DataLoader.__iter__ is theirs
    assert len(list(DataLoader(Numbers(), 5))) == 2
    monkeypatch.setattr(DataLoader, "__iter__", METHODS[0])


def test_persistent_workers_that_were_there_before_name_batches_that_nobody_made(pair):
    """Their marks, if any, carry another serial: what is asked for is found nowhere."""
    pair.watch.close()
    loader = DataLoader(Numbers(), 5, num_workers=1, persistent_workers=True)
    list(loader)
    late = Pair()
    late.train(loader)
    late.watch.close()
    marks = loader._iterator._worker_init_fn
    assert marks is None
    assert len(late.ear.followed) == 1


def test_a_watch_is_no_other_session(pair):
    """A rank leaves its ancestor's session a second time only if it has no other session."""

    class Session:
        def abandon(self) -> None:
            pass

    one, other = Session(), Session()
    assert not others_here(one)
    register_fork_cleanup(other)
    assert others_here(one)
    unregister_fork_cleanup(other)
    assert others_here(pair.watch) is False


def test_the_init_of_workers_can_be_sent_to_them():
    init = pickle.loads(pickle.dumps(MarkingInit(refuse, 5)))
    assert (init.inner, init.loader) == (refuse, 5)
    assert copy.copy(init).loader == 5


class Nested(Dataset[Any]):
    """Each item is what a loader of its own gives; where it runs is told with it."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        return sum(len(batch) for batch in DataLoader(Numbers(), 5))


def test_a_loader_inside_a_worker_does_not_disturb(pair):
    assert pair.train(DataLoader(Nested(), 1, num_workers=1)) == [[10], [10]]
    assert pair.ear.batches() == [(0, 0, 0), (0, 0, 1)]


def worker_of(_: Any) -> int:
    info = get_worker_info()
    assert info is not None
    return info.id


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's
@pytest.mark.parametrize("snapshot", [1, 4])  # 4: it goes through what was there, batch by batch
def test_of_a_pass_that_is_taken_up_in_the_middle_no_batch_is_known(pair, snapshot):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    options = {"num_workers": 2, "collate_fn": worker_of, "snapshot_every_n_steps": snapshot}
    loader = stateful(Numbers(), 2, **options)
    next(iter(loader))
    state = loader.state_dict()
    resumed = stateful(Numbers(), 2, **options)
    resumed.load_state_dict(state)
    pair.ear.fetches.clear()
    assert pair.train(resumed) == [1, 0, 1, 0]  # so that the first is none of worker 0
    assert pair.ear.batches() == []
    assert pair.train(resumed) == [0, 1, 0, 1, 0]
    assert [worker for _, worker, _ in pair.ear.batches()] == [0, 1, 0, 1, 0]
