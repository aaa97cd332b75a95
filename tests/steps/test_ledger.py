"""The ledger: batches of the kernel joined with fetches, none twice, none lost without a count."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trainobs.core.abi import BATCH, BATCHES, MAIN_WORKER, Phase
from trainobs.steps.closed_step import ClosedStep, packed
from trainobs.steps.ledger import (
    BATCH_COUNT,
    MAX_FOLLOWED,
    MAX_KEPT,
    OF_WORKERS,
    REST,
    SPLIT,
    TURNOVER,
    Key,
    Ledger,
)

LOADER = 7
DEVICE, CPU_WAIT, COMPUTE, SLEEP = SPLIT


class Book:
    """A ledger, and the kernel's ring, into which the test writes as the kernel would."""

    def __init__(self, **options: Any) -> None:
        self.kernel = SimpleNamespace(batches=np.zeros(BATCHES, BATCH))
        self.ledger = Ledger(self.kernel, **({"timed": True} | options))
        self.ledger.watched = True
        self.ledger.follow(LOADER)
        self.made = 0

    def make(self, number: int, begin: int, end: int, **fields: Any) -> Key:
        """A batch from `begin` to `end`; its time, unless `fields` say otherwise, is computing."""
        place = self.made % BATCHES
        self.kernel.batches[place] = np.zeros((), BATCH)
        entry = self.kernel.batches[place]
        for name, value in {"loader": LOADER, "worker": 1, **fields}.items():
            entry[name] = value
        entry["number"], entry["begin_ns"], entry["end_ns"] = number, begin, end
        self.made += 1
        entry["ordinal"] = self.made
        return int(entry["loader"]), 0, int(entry["worker"]), number

    def fetch(self, serial: int, key: Key | None, begin: int, end: int, **options: bool) -> None:
        flags = {"waited": True, "delivered": True} | options
        known = key or (-1, -1, -1, -1)
        numbers = serial, *known, begin, end, flags["waited"], flags["delivered"]
        self.ledger.fetched(bytearray(packed(numbers)))

    def close(self, *steps: ClosedStep, last: bool = False) -> tuple[dict[str, list[float]], Any]:
        self.ledger.read()
        columns, rows = self.ledger.close(steps, last=last)
        return {name: column.tolist() for name, column in columns.items()}, rows


@pytest.fixture
def book() -> Book:
    return Book()


def step(serial: int, start: int, end: int, wait: int = 0, unexplained: int = 0) -> ClosedStep:
    """A step whose number is its serial + 100."""
    phases = [0] * len(Phase)
    phases[Phase.LOADER] = wait
    return ClosedStep.from_numbers(
        serial, serial + 100, (start, end), phases, unexplained=unexplained
    )


def test_a_wait_is_divided_as_the_maker_spent_the_time_of_it(book):
    """Made from 0 to 100, waited for from 50 to 120: the second half, and 20 of hand-over."""
    key = book.make(0, 0, 100, device_ns=40, runqueue_ns=20, sleep_ns=10)
    book.fetch(1, key, 50, 120)
    columns, rows = book.close(step(1, 50, 200, wait=75))
    assert columns[DEVICE] == [20]
    assert columns[CPU_WAIT] == [10]
    assert columns[COMPUTE] == [15]
    assert columns[SLEEP] == [5]
    assert columns[REST] == [5 + 20]
    (row,) = rows
    assert (row["step"], row["for_step"], row["worker"]) == (101, 101, 1)
    assert (row["device_ns"], row["cpu_wait_ns"], row["compute_ns"]) == (40, 20, 30)
    assert row["sleep_ns"] == 10


def test_what_was_ready_before_is_hand_over(book):
    book.fetch(1, book.make(3, 0, 40), 50, 60)
    columns, _ = book.close(step(1, 50, 200, wait=10))
    assert (columns[COMPUTE], columns[REST], columns[TURNOVER]) == ([0], [10], [0])


def test_until_a_worker_begins_its_first_batch_it_starts(book):
    book.fetch(1, book.make(0, 70, 90), 50, 100)
    book.ledger.turned(1, 13, 5)
    columns, _ = book.close(step(1, 30, 200, wait=70))
    assert (columns[COMPUTE], columns[REST], columns[TURNOVER]) == ([20], [50], [13 + 20])
    assert columns[OF_WORKERS] == [5 + 20]


def test_the_training_thread_itself_does_not_start(book):
    book.fetch(1, book.make(0, 70, 90, worker=MAIN_WORKER), 50, 100)
    columns, rows = book.close(step(1, 50, 200, wait=50))
    assert (columns[COMPUTE], columns[TURNOVER]) == ([20], [0])
    assert rows["worker"].tolist() == [-1]


def test_parts_never_exceed_the_wait(book):
    for number in range(2):
        book.fetch(1, book.make(number, 0, 100), 0, 100)
    columns, _ = book.close(step(1, 0, 200, wait=101))
    assert columns[COMPUTE] == [101]
    assert columns[REST] == [0]


@pytest.mark.parametrize("reason", ["no such batch", "unexplained", "untimed"])
def test_what_is_not_known_is_not_0(reason):
    book = Book(timed=reason != "untimed")
    key = book.make(0, 0, 100) if reason != "no such batch" else (LOADER, 0, 1, 5)
    book.fetch(2, key, 50, 120)
    steps = [step(1, 0, 40), step(2, 40, 200, 70, unexplained=int(reason == "unexplained"))]
    columns, rows = book.close(*steps)
    if reason == "untimed":
        assert columns.keys() == {TURNOVER, OF_WORKERS, BATCH_COUNT}
        assert columns[BATCH_COUNT] == [0, 1]
        assert [
            rows[0][name] for name in ("device_ns", "cpu_wait_ns", "compute_ns", "sleep_ns")
        ] == [-1] * 4
    else:
        assert [columns[name][0] for name in (*SPLIT, REST)] == [0] * 5
        assert np.isnan([columns[name][1] for name in (*SPLIT, REST)]).all()


def test_a_batch_made_ahead_waits_for_the_step_that_fetches_it(book):
    key = book.make(0, 10, 20)
    _, rows = book.close(step(1, 0, 100))
    assert len(rows) == 0
    book.fetch(2, key, 110, 111)
    _, (row,) = book.close(step(2, 100, 200, wait=1))
    assert (row["step"], row["for_step"]) == (101, 102)
    assert len(book.close(step(3, 200, 300), last=True)[1]) == 0


def test_what_a_fetch_got_for_another_step_names_none(book):
    book.fetch(1, book.make(0, 10, 20), 30, 40, delivered=False)
    columns, (row,) = book.close(step(1, 0, 100, wait=10))
    assert row["for_step"] == -1
    assert columns[REST] == [10]


def test_a_fetch_that_nobody_waited_for_is_in_no_wait(book):
    book.fetch(1, book.make(0, 10, 20), 5, 40, waited=False)
    book.fetch(1, (LOADER, 0, 1, 99), 50, 60, waited=False)
    columns, (row,) = book.close(step(1, 0, 100, wait=10))
    assert (columns[COMPUTE], columns[REST], row["for_step"]) == ([0], [10], 101)


def test_a_step_that_was_none_passes_its_fetches_on(book):
    book.fetch(2, book.make(0, 0, 100), 50, 100)
    book.ledger.turned(2, 5, 0)
    book.ledger.carry(2, 1)
    columns, (row,) = book.close(step(1, 0, 200, wait=60))
    assert (columns[COMPUTE], columns[TURNOVER], row["for_step"]) == ([50], [5 + 0], 101)


def test_a_fetch_that_is_dropped_as_others_are_taken_off_takes_no_newer_one_with_it(book):
    """The training thread fetches while the observer's looks at what waits."""

    class Busy(deque[bytearray]):
        def copy(self) -> Any:
            waiting = deque(self)
            if book.made == 3:
                book.fetch(2, book.make(3, 110, 120), 110, 120)
            return waiting

    book.ledger._fetches = Busy(maxlen=3)
    book.ledger.fetched = book.ledger._fetches.append
    for number in range(3):
        book.fetch(1, book.make(number, 10, 20), 10, 20)
    counts = [book.close(step(serial, 0, 100 * serial))[0][BATCH_COUNT] for serial in (1, 2)]
    assert counts == [[3], [1]]


def test_batches_of_a_loader_that_names_none_are_told_at_once(book):
    book.make(0, 10, 20, loader=99)
    _, rows = book.close(step(1, 0, 100))
    assert rows[["step", "for_step", "loader"]].tolist() == [(101, -1, 99)]


def test_at_the_end_nothing_is_kept(book):
    for number in range(3):
        book.make(number, 10, 20)
    book.make(3, 150, 160)  # after the last step
    _, rows = book.close(step(1, 0, 100), last=True)
    assert rows["number"].tolist() == [0, 1, 2, 3]
    assert set(rows["for_step"].tolist()) == {-1}


def test_memory_is_bounded_when_nobody_fetches(book):
    told = 0
    for serial in range(1, MAX_KEPT // 100 + 5):
        for number in range(100):
            book.make(100 * serial + number, serial, serial)
        told += len(book.close(step(serial, serial, serial + 1))[1])
    assert book.made - told == MAX_KEPT


def test_a_ring_that_came_round_is_counted_as_lost(book):
    for number in range(BATCHES + 30):
        book.make(number, 10, 20)
    _, rows = book.close(step(1, 0, 100), last=True)
    assert rows["number"].tolist() == [*range(30, BATCHES + 30)]
    assert book.ledger.lost_count == 30


def test_an_entry_that_is_being_written_is_read_the_next_time(book):
    for number in range(3):
        book.make(number, 10, 20)
    book.kernel.batches["ordinal"][1] = 0  # another CPU has not finished it
    assert book.close(step(1, 0, 100), last=True)[1]["number"].tolist() == [0]
    book.kernel.batches["ordinal"][1] = 2
    assert book.close(step(2, 100, 200), last=True)[1]["number"].tolist() == [1, 2]
    assert book.ledger.lost_count == 0


def test_an_entry_that_is_overwritten_while_it_is_copied_is_counted_as_lost(book):
    for number in range(3):
        book.make(number, 10, 20)
    ring = book.kernel.batches

    class Copied:
        def __getitem__(self, of):
            found = ring[of].copy() if isinstance(of, slice) else ring[of]
            if isinstance(of, slice):
                ring["ordinal"][1] += BATCHES
            return found

    book.ledger._ring = Copied()
    book.ledger.read()
    book.ledger._ring = ring
    assert book.close(step(1, 0, 100), last=True)[1]["number"].tolist() == [0, 2]
    assert book.ledger.lost_count == 1


def test_where_nobody_watches_nothing_is_said():
    ledger = Ledger()
    assert ledger.close([step(1, 0, 100, wait=5)], last=True) == ({}, None)
    assert not ledger.marks


def test_without_probes_the_start_of_workers_is_known():
    ledger = Ledger()
    ledger.watched = True
    ledger.turned(1, 30, 10)
    columns, rows = ledger.close([step(1, 0, 100, wait=50)], last=True)
    told = {name: column.tolist() for name, column in columns.items()}
    assert told == {TURNOVER: [30], OF_WORKERS: [10]}
    assert rows is None


def test_a_loop_that_begins_a_pass_in_every_step_takes_no_memory_for_each():
    ledger = Ledger()
    for number in range(MAX_FOLLOWED + 10):
        ledger.follow(number)
    assert len(ledger._followed) == MAX_FOLLOWED
    assert MAX_FOLLOWED + 9 in ledger._followed
