"""Every event counts in the step in which it happened."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.kernel.ground_truth import write_file
from tests.kernel.observed import ObservedKernel
from tests.kernel.processes import fork, join, run_job
from tests.kernel.runlog import RunTables
from trainobs.core.abi import RING, FileClass, Op, Phase
from trainobs.core.records import RunInfo
from trainobs.hooks.watch import LoaderWatch
from trainobs.steps.ledger import Ledger

pytestmark = pytest.mark.needs_bpf


class Reader:
    """Reads one byte of a data file at a time."""

    def __init__(self, observed: ObservedKernel, path: Path) -> None:
        self.clock = observed.clock
        self._observed = observed
        self._watch = LoaderWatch(observed.clock, Ledger(), RunInfo("ebpf"))
        self.observe = self._watch.observe
        self._fd = os.open(path, os.O_RDONLY)

    def read(self, times: int) -> None:
        for _ in range(times):
            os.pread(self._fd, 1, 0)

    def fetch(self, *times: int) -> Iterator[int]:
        """A loader whose n-th fetch reads so many times; the last finds no batch."""
        for number in times[:-1]:
            self.read(number)
            yield number
        self.read(times[-1])

    def by_step(self) -> list[int]:
        """Reads of each step so far, the set-up first; ends the clock."""
        self.clock.finish()
        return [step.count(Op.READ, FileClass.DATA) for step in self._observed.closed()]

    def close(self) -> None:
        os.close(self._fd)
        self._watch.close()


@pytest.fixture
def reader(observed: ObservedKernel, place: Path) -> Iterator[Reader]:
    path = write_file(place / "data", 4096)
    observed.data(path)
    found = Reader(observed, path)
    yield found
    found.close()
    vars(found).clear()  # it holds the clock, and so a descriptor


def test_reads_count_in_their_step(reader: Reader) -> None:
    reader.read(3)
    for times in (10, 20, 30):
        reader.clock.begin_batch()
        reader.read(times)
        reader.clock.end_step()
    assert reader.by_step() == [3, 10, 20, 30]


def test_one_read_more_is_noticed(reader: Reader) -> None:
    for times in (10, 21, 30):
        reader.clock.begin_batch()
        reader.read(times)
        reader.clock.end_step()
    assert reader.by_step() != [0, 10, 20, 30]


def test_the_batches_of_an_accumulated_step_count_in_one(reader: Reader) -> None:
    for times in (10, 20, 30):
        for _ in range(4):
            reader.clock.begin_batch()
            reader.read(times)
        reader.clock.end_step()
    assert reader.by_step() == [0, 40, 80, 120]


def test_a_fetch_counts_in_the_step_that_consumes_it(reader: Reader) -> None:
    for times in reader.observe(reader.fetch(1, 2, 3, 0)):
        reader.read(10 * times)
        reader.clock.end_step()
    assert reader.by_step() == [0, 11, 22, 33]


def test_validation_counts_in_the_step_before_it(reader: Reader) -> None:
    for times in reader.observe(reader.fetch(1, 2, 3, 0)):
        reader.read(10 * times)
        reader.clock.end_step()
        if times == 2:
            reader.clock.enter(Phase.VALIDATION)
            for more in reader.observe(reader.fetch(100, 200, 0)):
                reader.read(more)
            reader.clock.leave()
    assert reader.by_step() == [0, 11, 22 + 600, 33]


def test_the_fetch_that_ends_an_epoch_counts_in_the_step_before_it(reader: Reader) -> None:
    """Such as the rest that `drop_last` drops."""
    for _ in range(2):
        for times in reader.observe(reader.fetch(1, 2, 5)):
            reader.read(10 * times)
            reader.clock.end_step()
    assert reader.by_step() == [0, 11, 22 + 5, 11, 22 + 5]


def test_no_step_of_a_thousand_fast_ones_is_lost_or_blurred(
    observed: ObservedKernel, reader: Reader
) -> None:
    times = [1 + number % 7 for number in range(1500)]
    found = []
    for number in times:
        reader.clock.begin_batch()
        reader.read(number)
        reader.clock.end_step()
        if number == 7:  # so the ring comes round many times between
            found += observed.closed()
    reads = [step.count(Op.READ, FileClass.DATA) for step in found] + reader.by_step()
    assert reads == [0, *times]
    assert len(times) > 10 * RING
    assert observed.collector.late_count == observed.collector.dropped_steps == 0


def test_a_slow_collector_makes_the_loop_wait_before_the_ring_comes_round(
    observed: ObservedKernel, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = observed.collector._ring
    assert ring is not None
    take, copying = ring.take, threading.Event()

    def slow_take(*of: Sequence[int]) -> object:
        copying.set()
        time.sleep(0.1)
        return take(*of)

    def run(steps: Iterable[int]) -> None:
        for number in steps:
            reader.clock.begin_batch()
            reader.read(1 + number % 7)
            reader.clock.end_step()

    run(range(RING // 2))
    monkeypatch.setattr(ring, "take", slow_take)
    thread = threading.Thread(target=observed.collector.collect)
    thread.start()
    copying.wait()
    run(range(RING // 2, 4 * RING))
    thread.join()
    assert reader.by_step() == [0, *(1 + number % 7 for number in range(4 * RING))]


def test_a_thousand_fast_steps_reach_the_run_log(place: Path) -> None:
    path = write_file(place / "data", 4096)
    # Ten times, since the observer's thread races with the loop for the ring.
    run_job("loop", data=str(path), runs=str(place), steps=1000, times=10)
    for number in range(10):
        run = RunTables(place / str(number))
        reads = run.by_step("count", "read", "data")
        assert reads == {step: 1 + step % 7 for step in range(1000)}
        assert [row["step"] for row in run.steps] == [None, *range(1000)]
        assert run.info["summary"]["late_count"] == run.info["summary"]["dropped_steps"] == 0


def test_a_child_counts_in_the_step_that_is_on_when_it_reads(reader: Reader) -> None:
    ready, go = os.pipe()

    def read_when_told() -> None:
        os.read(ready, 1)
        reader.read(7)

    reader.clock.begin_batch()
    child = fork(read_when_told)
    reader.clock.end_step()
    reader.clock.begin_batch()
    os.write(go, b"x")
    join(child)
    os.close(ready)
    os.close(go)
    reader.clock.end_step()
    assert reader.by_step() == [0, 0, 7]
