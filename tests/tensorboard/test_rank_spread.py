"""Least, median and greatest of all ranks, logged once every rank has shown its window."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tests.samples import batch, info
from trainobs.core.catalogue.ranks import COMPARED
from trainobs.core.records import SETUP
from trainobs.tensorboard.rank_spread import KEPT_WINDOWS, RanksSink

NAN = float("nan")
MS = 1e6


class Table:
    """What the ranks of a job show each other."""

    def __init__(self) -> None:
        self.shown: dict[int, bytes] = {}

    def seat(self, rank: int) -> Seat:
        return Seat(self, rank)


class Seat:
    def __init__(self, table: Table, rank: int) -> None:
        self.table, self.rank = table, rank

    def start(self) -> None:
        pass

    def stop(self, is_complete: Callable[[], bool]) -> None:
        self.is_complete = is_complete()

    def show(self, value: bytes) -> None:
        self.table.shown[self.rank] = value

    def seen(self) -> dict[int, bytes]:
        return {rank: value for rank, value in self.table.shown.items() if rank != self.rank}


class Events(Sequence):
    """Step and tags of each point that a sink made."""

    def __init__(self, sink: RanksSink) -> None:
        self.sink = sink
        self.found: list[tuple[int, dict[str, float]]] = []

    def look(self) -> list[tuple[int, dict[str, float]]]:
        self.found += [(made.step, dict(made.values)) for made in self.sink.made()]
        return self.found

    def __len__(self) -> int:
        return len(self.look())

    def __getitem__(self, index: int) -> tuple[int, dict[str, float]]:
        return self.look()[index]

    def __eq__(self, other: object) -> bool:
        return self.look() == other

    __hash__ = None


def ranks(count: int, every: int = 2, **options) -> tuple[list[RanksSink], Events]:
    table = Table()
    sinks = [
        RanksSink(table.seat(rank), world_size=count, every=every, logs=rank == 0, **options)
        for rank in range(count)
    ]
    for sink in sinks:
        sink.begin(info(world_size=count))
    return sinks, Events(sinks[0])


def test_a_window_is_logged_at_its_last_step_once_every_rank_has_shown_it():
    sinks, events = ranks(3)
    for sink, offset in ((sinks[1], 10), (sinks[0], 0)):
        durations = MS * np.array([99, offset + 1, offset + 3, 50])
        sink.write(batch([SETUP, 0, 1, 2], step__duration_ns=durations))
        assert events == []
    sinks[2].write(batch([SETUP, 0, 1, 2], step__duration_ns=MS * np.array([99, 4, 6, 50])))
    sinks[0].flush()
    sinks[0].flush()
    tag = "trainobs/ranks/step/duration_ms"
    assert events == [(1, {f"{tag}/min": 2, f"{tag}/median": 5, f"{tag}/max": 12})]
    for sink in sinks:
        sink.write(batch([3], step__duration_ns=[70 * MS]))
        sink.end({})
    assert [sink._board.is_complete for sink in sinks] == [False, False, True]
    sinks[0].flush()
    assert [step for step, _ in events] == [1, 3]
    assert events[1][1][f"{tag}/min"] == 60


def test_what_one_rank_does_not_know_is_not_compared():
    sinks, events = ranks(2, every_tag=True)
    sinks[1].write(batch([0, 1], step__duration_ns=[1, 1], loader__wait_ns=[NAN, 4]))
    sinks[0].write(batch([0, 1], step__duration_ns=[1, 1], phase__forward_ns=[2, 2]))
    ((_, tags),) = events
    assert {tag.rpartition("/")[0] for tag in tags} == {"trainobs/ranks/step/duration_ms"}
    sinks[1].write(batch([2, 3], loader__wait_ns=[NAN, 4 * MS], ranks__wait_ns=[MS, MS]))
    sinks[0].write(batch([2, 3], loader__wait_ns=[8 * MS, NAN], ranks__wait_ns=[MS, MS]))
    (step, tags) = events[1]
    spread = {"min": 4, "median": 6, "max": 8}
    expected = {f"trainobs/ranks/loader/wait_ms/{what}": v for what, v in spread.items()}
    expected |= {f"trainobs/ranks/wait_ms/{what}": 1 for what in spread}
    assert (step, tags) == (3, expected)


def test_by_default_the_time_of_a_step_is_shown_and_all_that_is_compared_on_request():
    for every_tag, shown in ((False, COMPARED[:1]), (True, COMPARED)):
        sinks, events = ranks(2, every_tag=every_tag)
        for sink in sinks:
            sink.write(batch([0, 1], **{n.replace("/", "__"): [1, 1] for n in COMPARED}))
        sinks[0].flush()
        ((_, tags),) = events
        assert len(tags) == 3 * len(shown)


def test_a_rank_that_is_ahead_or_behind_is_waited_for_as_long_as_windows_are_kept():
    sinks, events = ranks(2, every=1)
    sinks[0].write(batch(range(KEPT_WINDOWS + 5), step__duration_ns=[1] * (KEPT_WINDOWS + 5)))
    sinks[1].write(batch(range(7), step__duration_ns=[2] * 7))
    sinks[0].flush()
    assert [step for step, _ in events] == [5, 6]
    assert len(sinks[0]._times) <= KEPT_WINDOWS


def test_a_rank_of_another_version_is_not_understood():
    sinks, events = ranks(2)
    sinks[1]._board.show(b"of another length")
    sinks[0].write(batch([0, 1], step__duration_ns=[1, 1]))
    assert events == []
