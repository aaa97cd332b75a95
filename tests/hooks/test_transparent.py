"""`observe` of a watch changes nothing that a loop or a library can see of a loader."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle
import threading
import types
import weakref
from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from tests.hooks.pair import Pair
from trainobs.hooks.marks import bytes_of
from trainobs.steps.states import StepsBy


class Numbers(Dataset[int]):
    """Eight numbers, of which one cannot be read."""

    def __init__(self, bad: int | None = None) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == self.bad:
            raise ValueError("a bad item")
        return index


class Stubborn(DataLoader[int]):
    """Lets nobody set anything once it is made; is equal to every other one, and has no hash."""

    __hash__ = None  # type: ignore[assignment]

    def __setattr__(self, name: str, value: object) -> None:
        if "_iterator" in vars(self) and name != "_iterator":
            raise AttributeError(f"cannot set {name}")
        super().__setattr__(name, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stubborn)


class Own:
    """A loader that is not torch's, with a state of its own."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(range(3))

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return (0, 1, 2)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __hash__(self) -> int:
        return 5


class Prepared(Own):
    """Tells that it is a loader of torch's, as what Accelerate prepares does."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return Stubborn


class Restarting:
    """Its own iterator, like DALI's."""

    def __iter__(self) -> Restarting:
        self.left = [0, 1, 2]
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        return self.left.pop(0)


class Filtering(DataLoader[int]):
    """Its iterators are not torch's, like those of PyTorch Geometric."""

    def _get_iterator(self) -> Any:
        return (batch for batch in super()._get_iterator() if batch % 2)


def tries(loader: Iterable[Any]) -> list[Any]:
    """What each `next` gives, or the kind of the exception, until the loader ends."""
    found: list[Any] = []
    iterator = iter(loader)
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            return found
        except Exception as error:
            found.append(type(error).__name__)


def test_a_loader_of_torch_is_given_back_itself_and_so_are_its_iterators(pair):
    loader = DataLoader(Numbers(), collate_fn=list)
    assert pair.watch.observe(loader) is loader
    assert pair.watch.observe(pair.watch.observe(loader)) is loader
    iterator = iter(loader)
    assert type(iterator) is _SingleProcessDataLoaderIter
    assert len(iterator) == 8
    loader.collate_fn = sum
    assert list(loader) == list(range(8))
    with pytest.raises(ValueError, match="batch_size"):
        loader.batch_size = 4


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_batch_does_not_end_the_epoch(pair, workers):
    loader = DataLoader(Numbers(bad=2), batch_size=None, num_workers=workers)
    assert tries(pair.watch.observe(loader)) == [0, 1, "ValueError", 3, 4, 5, 6, 7]
    assert [step.step for step in pair.ticking.closed()] == [0]
    assert not pair.ticking.clock.in_phase


def test_two_shuffled_loaders_in_zip_give_what_they_give_unobserved(pair):
    def drawn(observe: Any) -> list[Any]:
        torch.manual_seed(0)
        both = [observe(DataLoader(Numbers(), shuffle=True, batch_size=None)) for _ in range(2)]
        return list(zip(*both, strict=True))

    assert drawn(pair.watch.observe) == drawn(lambda loader: loader)


def test_workers_start_as_the_iterator_is_made(pair):
    iterator = iter(pair.watch.observe(DataLoader(Numbers(), num_workers=1)))
    assert len(multiprocessing.active_children()) == 1
    del iterator
    gc.collect()
    assert multiprocessing.active_children() == []


def test_a_loader_that_lets_nobody_set_anything_is_observed_all_the_same(pair):
    loader = pair.watch.observe(Stubborn(Numbers(), num_workers=1, batch_size=None))
    before = dict(vars(loader))
    assert pair.train(loader) == list(range(8))
    assert vars(loader) == before
    assert pair.ear.batches() == [(0, 0, number) for number in range(8)]
    assert pair.train(Stubborn(Numbers())) == [[n] for n in range(8)]
    assert len(pair.ticking.closed()) == 16


def test_a_loader_is_let_go_of(pair):
    loader = pair.watch.observe(DataLoader(Numbers(), batch_size=None))
    stand_in = pair.watch.observe(Own())
    next(iter(loader))
    gone = [weakref.ref(loader), weakref.ref(stand_in.trainobs_inner)]
    del loader, stand_in
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_an_iterator_that_nobody_has_any_more_leaves_the_lead_to_another(pair):
    pair.ticking.clock.steps_by = StepsBy.FETCHES
    kept = iter(pair.watch.observe(DataLoader(Numbers(), batch_size=None)))
    next(kept)
    other = pair.watch.observe(DataLoader(Numbers(), batch_size=None))
    list(islice(other, 3))  # of the step that goes on
    del kept
    list(islice(other, 3))
    assert [step.step for step in pair.ticking.closed()] == [0, 1, 2, 3]


def test_one_loader_in_two_loops_and_in_another_thread(pair):
    loader = pair.watch.observe(DataLoader(Numbers(), batch_size=None))
    got: list[Any] = []
    for outer in loader:
        got.append((outer, len(list(loader))))
    thread = threading.Thread(target=lambda: got.extend(loader))
    thread.start()
    thread.join()
    assert got == [*((outer, 8) for outer in range(8)), *range(8)]
    assert pair.train(pair.watch.observe(Own())) == [0, 1, 2]


@pytest.mark.parametrize("kind", [Own, Prepared, Restarting, lambda: [4, 5], lambda: iter([4, 5])])
def test_others_have_the_batches_attributes_and_operators_of_their_own(pair, kind):
    loader, observed = kind(), pair.watch.observe(kind())
    for trait in (Iterable, Iterator, Sized, Own, DataLoader, Stubborn, type(loader)):
        assert isinstance(observed, trait) is isinstance(loader, trait)
    for name in ("__len__", "__next__", "__getitem__", "__contains__", "__add__", "send"):
        assert hasattr(observed, name) is hasattr(loader, name)
    assert pair.train(observed) == list(loader)
    assert pair.train(pair.watch.observe(observed)) == list(loader)


def test_what_stands_for_a_loader_is_written_copied_and_compared_as_it(pair):
    loader = Own()
    observed = pair.watch.observe(loader)
    observed.epoch = 7
    assert loader.epoch == observed.epoch == 7
    observed.more = 1
    del observed.more
    assert vars(loader) == vars(observed) == {"epoch": 7}
    assert observed == loader == observed == pair.watch.observe(loader)
    assert hash(observed) == hash(loader)
    assert (len(observed), observed[1], 2 in observed, bool(observed)) == (3, 1, True, True)
    for made in (
        copy.copy(observed),
        copy.deepcopy(observed),
        pickle.loads(pickle.dumps(observed)),
    ):
        assert type(made) is Own
        assert made is not loader
        assert made.epoch == loader.epoch
    assert pair.watch.observe([1, 2]) == [1, 2]
    with pytest.raises(TypeError, match="unhashable"):
        hash(pair.watch.observe([]))


def test_a_generator_is_asked_by_next_and_by_a_loop(pair):
    def generate() -> Iterator[int]:
        got = yield 1
        yield got

    observed = pair.watch.observe(generate())
    assert isinstance(observed, types.GeneratorType)
    assert next(observed) == 1
    assert observed.send(5) == 5
    assert list(observed) == []
    assert [step.step for step in pair.ticking.closed()] == [0]


def test_iterators_that_are_not_torchs_are_observed(pair):
    loader = Filtering(Numbers(), batch_size=None)
    assert pair.train(loader) == [1, 3, 5, 7]
    assert len(pair.ticking.closed()) == 4


def test_steps_and_epochs_of_a_loader_that_is_its_own_iterator(pair):
    loader = pair.watch.observe(Restarting())
    assert [pair.train(loader) for _ in range(2)] == [[0, 1, 2]] * 2
    steps = [(step.step, step.epoch) for step in pair.ticking.closed()]
    assert steps == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1)]


def test_after_the_watch_loaders_are_as_they_were_given():
    pair = Pair()
    loader, observed = DataLoader(Numbers()), pair.watch.observe(Own())
    pair.watch.observe(loader)
    pair.watch.close()
    assert len(list(loader)) == 8
    assert type(iter(observed)) is type(iter(range(0)))
    assert list(pair.ticking.closed()) == []


class Understated(IterableDataset[int]):
    """More numbers than it says."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def test_no_stream_is_asked_for_its_length(pair):
    """Torch would warn, which is an error here, of every batch beyond it."""
    loader = pair.watch.observe(DataLoader(Understated(), batch_size=None))
    assert [number for number in loader] == list(range(5))  # noqa: C416 `list` asks, too
    assert loader._IterableDataset_len_called is None


class Odd:
    """A batch that does not tell its size."""

    @property
    def nbytes(self) -> int:
        raise RuntimeError("nobody may ask for this")


@pytest.mark.filterwarnings("ignore:Sparse invariant")
@pytest.mark.parametrize("batch", [Odd(), torch.eye(3).to_sparse()], ids=["property", "sparse"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_whose_size_cannot_be_asked_for_arrives(pair, batch, workers):
    loader = DataLoader([batch] * 2, batch_size=None, num_workers=workers)
    got = [type(one) for one in pair.watch.observe(loader)]
    assert got == [type(batch)] * 2
    assert bytes_of([torch.zeros(2), batch]) == -1
