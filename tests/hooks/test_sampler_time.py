"""What the sampler of a loader takes of the training thread."""

import gc
import os
import random
import subprocess
import sys
import time
import weakref

import pytest
from torch.utils.data import DataLoader, IterableDataset

from tests.hooks.pair import Pair
from trainobs.hooks.sampler_time import GAP, SAMPLER, TURN
from trainobs.replay.handover import Draw
from trainobs.verdict.facts import facts_from

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
    (found,) = noted(DataLoader(range(40), batch_sampler=draws, num_workers=workers), passes=2)
    # With workers, draws are made ahead as the iterator is made, before it can be timed.
    assert 2 * TURN <= found["batches"] <= 2 * (TURN + 2)
    ns, cpu_ns = found["ns"] / found["batches"], found["cpu_ns"] / found["batches"]
    assert 3 * MS <= ns < 30 * MS, "without the first draw"
    assert cpu_ns >= 3 * MS if cpu_ms else cpu_ns < 1 * MS


class Busy(Draws):
    """Computes for each batch, and never sleeps."""

    def __iter__(self):
        for number in range(self.batches):
            end = time.thread_time() + self.cpu_ms / 1e3
            while time.thread_time() < end:
                pass
            yield [number]


def test_time_without_a_cpu_is_not_the_sampler_s():
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cpus)})  # which the other process inherits
    try:
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        begin, cpu = time.monotonic(), time.thread_time()
        (found,) = noted(DataLoader(range(40), batch_sampler=Busy(40, 10)), passes=3)
        shared = (time.monotonic() - begin) / (time.thread_time() - cpu)
    finally:
        os.sched_setaffinity(0, cpus)
        other.kill()
        other.wait()
    assert shared > 1.5, "the CPU was shared"
    assert found["cpu_ns"] <= found["ns"] < 1.2 * found["cpu_ns"]


def is_timed(iterator) -> bool:
    return "_next_index" in vars(iterator)


def test_turns_are_timed_all_along_a_pass():
    pair = Pair()
    iterator = iter(DataLoader(range(3000), 1))
    timed = [is_timed(iterator)]
    for _ in iterator:
        timed.append(is_timed(iterator))
    pair.watch.close()
    begins = [i for i in range(1, len(timed)) if timed[i] and not timed[i - 1]]
    ends = [i for i in range(1, len(timed)) if timed[i - 1] and not timed[i]]
    assert timed[0]
    assert ends[0] == TURN + 1, "the first draw is left out"
    assert {end - begin for begin, end in zip(begins, ends[1:], strict=False)} == {TURN}
    gaps = {after - before for before, after in zip(begins, begins[1:], strict=False)}
    assert GAP[0] <= min(gaps) < max(gaps) <= GAP[1]
    assert len(gaps) > 10, "at random"
    found = pair.watch.info.loaders[0][SAMPLER]
    assert found["batches"] in range(len(begins) * TURN, (len(begins) + 1) * TURN + 1)


def test_the_random_numbers_of_the_training_stay_what_they_are():
    random.seed(3)
    before = random.getstate()
    noted(DataLoader(range(500), 1))
    assert random.getstate() == before


def loader_with(sampler):
    return {
        "settings": {"loader_workers": 0},
        "loaders": [{"workers": 0, "objects": 1, "passes": 1, SAMPLER: sampler}],
    }


class Bursts(Draws):
    """Draws for 50 batches at once."""

    def __iter__(self):
        for number in range(self.batches):
            time.sleep(0.02 if number % 50 == 5 else 0)
            yield [number]


@pytest.mark.parametrize("kind", [Draws, Bursts])
def test_what_an_uneven_sampler_takes_is_not_known(kind):
    (found,) = noted(DataLoader(range(60), batch_sampler=kind(60, sleep_ms=2)))
    facts = facts_from(loader_with(found))
    if kind is Bursts:
        assert facts.draw is None
        assert facts.uneven_draw_ns > 0.5 * MS
    else:
        assert 2 * MS < facts.draw.away < 10 * MS
        assert not facts.uneven_draw_ns


@pytest.mark.parametrize(
    ("batches", "ns2", "is_known"), [(7, 7, False), (8, 8, True), (8, 16, True), (8, 17, False)]
)
def test_a_few_uneven_draws_tell_nothing(batches, ns2, is_known):
    noted = {"batches": batches, "ns": batches * MS, "ns2": ns2 * MS * MS, "cpu_ns": 0}
    info = loader_with(noted)
    assert facts_from(info).draw == (Draw(0.0, MS) if is_known else None)
    del noted["ns2"]  # an older log
    assert (facts_from(info).draw is not None) == (batches >= 8)


def test_passes_of_workers_that_live_on_are_timed_anew():
    loader = DataLoader(range(12), 1, num_workers=1, persistent_workers=True)
    (found,) = noted(loader, passes=3)
    assert found["batches"] == 3 * TURN


def test_a_stream_is_timed_as_well():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(10))

    (found,) = noted(DataLoader(Stream(), 1))
    assert found["batches"] == TURN
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
