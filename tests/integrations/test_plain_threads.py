"""A plain loop whose batches another thread gets from the loader, ahead of the loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations.unmarked_loops import Model, batches
from trainobs import observe
from trainobs.integrations.plain import Observation

UNSEEN = "trainobs does not know how long the loop waited for its batches"

Told = Callable[[], list[str]]


def drawn(count: int) -> list[list[torch.Tensor]]:
    return [[torch.rand(4, 3)] for _ in range(count)]


class Ahead:
    """Gets batches in a thread of its own, as prefetchers of many a repository do."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader, self._ready = loader, queue.Queue[Any](2)

    def __iter__(self) -> Iterator[Any]:
        threading.Thread(target=self._fill).start()
        return iter(self._ready.get, None)

    def _fill(self) -> None:
        for batch in self._loader:
            self._ready.put(batch)
        self._ready.put(None)


def train(obs: Observation, loop: Iterable[Any], phase: str | None = None) -> None:
    model, ahead = Model(), iter(loop)
    while True:
        with obs.phase(phase) if phase else nullcontext():
            batch = next(ahead, None)
        if batch is None:
            return
        with obs.step():
            model.train(batch)


@pytest.mark.parametrize(
    "kind", [batches, drawn, lambda n: iter(drawn(n)), lambda n: list(batches(n))]
)
def test_a_thread_that_goes_through_the_named_loader_is_told(
    tmp_path: Path, untold: None, told: Told, kind: Callable[[int], Iterable[Any]]
) -> None:
    with observe(run_dir=tmp_path, probes="off") as obs:
        train(obs, Ahead(obs.loader(kind(5))))
    assert told() == [UNSEEN]


@pytest.mark.parametrize("phase", [None, "loader"])
def test_where_the_wait_is_known_nothing_is_told(
    tmp_path: Path, untold: None, phase: str | None
) -> None:
    with observe(run_dir=tmp_path, probes="off") as obs:
        if phase:
            train(obs, Ahead(obs.loader(batches(5))), phase)
        else:
            train(obs, obs.loader(Ahead(batches(5))))


def test_a_thread_that_validates_beside_the_loop_is_not_told_of(
    tmp_path: Path, untold: None
) -> None:
    with observe(run_dir=tmp_path, probes="off") as obs:
        beside = Ahead(obs.loader(batches(5)))
        train(obs, obs.loader(batches(5)))
        assert len(list(beside)) == 5
