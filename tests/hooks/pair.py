"""A clock and a ledger that only listen, and a watch that tells both of loaders."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

from tests.steps.ticking import Ticking
from trainobs.core.records import RunInfo
from trainobs.hooks.watch import LoaderWatch
from trainobs.steps.ledger import Fetch


class Got(NamedTuple):
    """The numbers of a `Fetch`, by name."""

    serial: int
    loader: int
    pass_number: int
    worker: int
    number: int
    begin_ns: int
    end_ns: int
    waited: bool
    delivered: bool


class Ear:
    """A ledger that only listens."""

    def __init__(self) -> None:
        self.marks = True
        self.watched = False
        self.followed: list[int] = []
        self.later: list[int] = []
        self.givens: list[list[int]] = []
        self.fetches: list[Got] = []
        self.turns: list[tuple[int, int, int]] = []

    def follow(self, loader: int) -> None:
        self.followed.append(loader)

    def gives_later(self, loader: int) -> None:
        self.later.append(loader)

    def given(self, given: list[int]) -> None:
        self.givens.append(given)

    def fetched(self, fetch: Fetch) -> None:
        self.fetches.append(Got(*array("q", bytes(fetch))))

    def turned(self, serial: int, duration_ns: int, workers_ns: int) -> None:
        self.turns.append((serial, duration_ns, workers_ns))

    def batches(self) -> list[tuple[int, int, int]]:
        """Pass, worker and number of each batch of which these are known."""
        known = [got for got in self.fetches if got.worker >= 0]
        return [(got.pass_number, got.worker, got.number) for got in known]


class Pair:
    """A clock and an ear, with a watch that tells both."""

    def __init__(self, **options: Any) -> None:
        self.ticking = Ticking()
        self.ear = Ear()
        self.watch = LoaderWatch(self.ticking.clock, self.ear, RunInfo("timing"), **options)

    def train(self, loader: Any) -> list[Any]:
        got = []
        for batch in self.watch.observe(loader):
            got.append(batch.tolist() if hasattr(batch, "tolist") else batch)
            self.ticking.after(1).end_step()
        return got
