"""Access counts are saved now and then, and at the end."""

from __future__ import annotations

import numpy as np
import pytest

from tests.samples import batch
from trainobs.access import AccessCounts
from trainobs.runlog.counts import SAVE_S, CountsSink, SavedCounts

FILE = "access-counts/rank=3.npz"


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def counts():
    return AccessCounts({"user": 10})


def lookup(counts, *rows):
    counts.add("user", np.array(rows))


def saved(tmp_path) -> int:
    return AccessCounts.load(tmp_path / FILE).total("user")


def test_what_a_killed_run_loses_is_what_came_after_the_last_save(tmp_path, clock, counts):
    sink = CountsSink(tmp_path, 3, lambda: counts, now=clock)
    lookup(counts, 1, 2, 2)
    sink.write(batch([0]))
    sink.flush()
    assert not (tmp_path / FILE).exists(), "not due"
    clock.s += SAVE_S
    sink.flush()
    lookup(counts, 3)
    sink.flush()
    assert saved(tmp_path) == 3
    clock.s += SAVE_S
    sink.flush()
    assert saved(tmp_path) == 4


def test_the_end_saves_everything(tmp_path, clock, counts):
    sink = CountsSink(tmp_path, 3, lambda: counts, now=clock)
    lookup(counts, 1)
    sink.end({})
    assert saved(tmp_path) == 1


def test_a_directory_of_ranks_is_read_as_one(tmp_path, clock):
    for rank in (0, 1):
        of_rank = AccessCounts({"user": 10})
        lookup(of_rank, rank, 7)
        CountsSink(tmp_path, rank, lambda of_rank=of_rank: of_rank, now=clock).end({})
    merged = AccessCounts.load(tmp_path / "access-counts")
    assert merged.counts("user").tolist() == [1, 1, 0, 0, 0, 0, 0, 2, 0, 0]


def test_a_save_that_takes_long_is_done_more_rarely(tmp_path, clock):
    class Slow(AccessCounts):
        saves = 0

        def save(self, path):
            self.saves += 1
            clock.s += 2.0
            super().save(path)

    counts = Slow({"user": 10})
    sink = CountsSink(tmp_path, 3, lambda: counts, now=clock)
    for _ in range(1000):
        clock.s += 5.0
        sink.flush()
    assert counts.saves == 13  # 2 s of every 400
    sink.end({})


def test_a_disk_that_refuses_is_tried_again_and_the_old_file_stays(tmp_path, clock, counts):
    sink = CountsSink(tmp_path, 3, lambda: counts, now=clock)
    lookup(counts, 1)
    sink.end({})
    (tmp_path / "access-counts").rename(tmp_path / "away")
    (tmp_path / "access-counts").write_bytes(b"")
    lookup(counts, 2)
    clock.s += SAVE_S
    with pytest.raises(OSError, match="access-counts"):
        sink.flush()
    (tmp_path / "access-counts").unlink()
    (tmp_path / "away").rename(tmp_path / "access-counts")
    assert saved(tmp_path) == 1
    sink.flush()
    assert saved(tmp_path) == 2


def test_without_counts_there_is_no_file(tmp_path, clock):
    sink = CountsSink(tmp_path, 3, lambda: None, now=clock)
    clock.s += SAVE_S
    sink.flush()
    sink.end({})
    assert list(tmp_path.iterdir()) == []


def test_what_was_saved_last_can_be_had_by_whom_the_counts_are_out_of_reach(tmp_path, counts):
    sink, known = CountsSink(tmp_path, 3, lambda: counts), SavedCounts(tmp_path, 3)
    assert known() is None
    lookup(counts, 1, 1)
    sink.end({})
    lookup(counts, 1)
    assert known().total("user") == 2
    (tmp_path / FILE).write_bytes(b"damaged")
    assert known() is None
