"""What the sampler of a loader takes of the training thread."""

import gc
import time
import weakref

import pytest
from torch.utils.data import DataLoader, IterableDataset

from tests.hooks.pair import Pair
from trainobs.hooks.sampler_time import SAMPLER, TIMED

MS = 1e6


class Draws:
    """A sampler of batches that computes, or sleeps, for each; much longer for the first."""

    def __init__(self, batches: int, cpu_ms: float = 0.0, sleep_ms: float = 0.0) -> None:
        self.batches, self.cpu_ms, self.sleep_ms = batches, cpu_ms, sleep_ms

    def __len__(self) -> int:
        return self.batches

    def __iter__(self):
        time.sleep(0.1)
        for number in range(self.batches):
            end = time.thread_time() + self.cpu_ms / 1e3
            while time.thread_time() < end:
                pass
            time.sleep(self.sleep_ms / 1e3)
            yield [number]


def noted(*loaders, passes=1):
    pair = Pair()
    for loader in loaders:
        for _ in range(passes):
            list(loader)
    pair.watch.close()
    return [one[SAMPLER] for one in pair.watch.info.loaders]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("cpu_ms", "sleep_ms"), [(3, 0), (0, 3)])
def test_what_it_computes_and_sleeps_is_known(workers, cpu_ms, sleep_ms):
    draws = Draws(40, cpu_ms, sleep_ms)
    (found,) = noted(DataLoader(range(40), batch_sampler=draws, num_workers=workers))
    ahead = 2 * workers  # drawn as the iterator is made
    assert found["batches"] == 40 - max(1, ahead + 1 if workers else 1)
    ns, cpu_ns = found["ns"] / found["batches"], found["cpu_ns"] / found["batches"]
    assert 3 * MS <= ns < 30 * MS, "without the first draw"
    assert cpu_ns >= 3 * MS if cpu_ms else cpu_ns < 1 * MS


def test_only_the_first_batches_of_a_pass_are_timed():
    loader = DataLoader(range(3 * TIMED), 1)
    pair = Pair()
    iterator = iter(loader)
    for _ in range(TIMED):
        next(iterator)
    assert "_next_index" in vars(iterator)
    next(iterator)
    assert "_next_index" not in vars(iterator)
    assert len(list(iterator)) == 2 * TIMED - 1
    pair.watch.close()
    assert pair.watch.info.loaders[0][SAMPLER]["batches"] == TIMED


def test_passes_of_workers_that_live_on_are_timed_anew():
    loader = DataLoader(range(12), 1, num_workers=1, persistent_workers=True)
    (found,) = noted(loader, passes=3)
    assert found["batches"] == 3 * (12 - 2 - 1)  # two are drawn ahead, and the first is left out


def test_a_stream_is_timed_as_well():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(10))

    (found,) = noted(DataLoader(Stream(), 1))
    assert found["batches"] >= 9
    assert found["ns"] / found["batches"] < 1 * MS


def test_an_iterator_is_freed_as_it_is_without():
    pair = Pair()
    iterator = iter(DataLoader(range(9), 1))
    next(iterator)
    gone = weakref.ref(iterator)
    gc.disable()
    try:
        del iterator
        assert gone() is None
    finally:
        gc.enable()
        pair.watch.close()


def test_who_has_put_something_there_keeps_it():
    from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

    class Own(_SingleProcessDataLoaderIter):
        def __init__(self, loader):
            super().__init__(loader)
            self._next_index = lambda: [3]

    class Loader(DataLoader):
        def _get_iterator(self):
            return Own(self)

    pair = Pair()
    iterator = iter(Loader(range(9), 1))
    assert next(iterator).tolist() == next(iterator).tolist() == [3]
    pair.watch.close()
    assert pair.watch.info.loaders[0][SAMPLER] is None
