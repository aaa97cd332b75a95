"""A fault of ours, wherever it is, never reaches a loop: it goes on unobserved, told once."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from tests.hooks.faults import Place, places
from tests.hooks.pair import Pair
from tests.hooks.test_watch import fault_of
from trainobs.core.abi import MAIN_WORKER
from trainobs.hooks import marks
from trainobs.hooks.marks import Marks


class Own:
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def loop(pair: Pair, spoil: Any) -> list[Any]:
    """Loaders of torch and others, in and out of validation, with a bad batch, over two epochs."""

    class Bad:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            return [0, 1, 2][index] if index < 3 else 6 // (index - 3)

    torchs = pair.watch.observe(DataLoader(Bad(), batch_size=None))
    own = pair.watch.observe(Own())
    got: list[Any] = []
    for epoch in range(2):
        iterator = iter(torchs)
        while True:
            try:
                got.append(next(iterator))
            except ZeroDivisionError:
                got.append("bad")
            except StopIteration:
                break
            if (epoch, len(got)) == (0, 2):
                spoil()
            got += own
            got += DataLoader(range(2), batch_size=None)
    return got


@pytest.mark.parametrize("place", list(places()), ids=str)
@pytest.mark.parametrize("framework", [False, True], ids=["loop", "framework"])
def test_a_loop_gets_the_same_batches(place, framework, monkeypatch):
    faults: list[str] = []
    failed: list[str] = []
    pair = Pair(opens_steps=framework, on_fault=lambda: faults.append("told"))
    try:
        plain = loop(pair, lambda: None)
        assert faults == []
        assert loop(pair, lambda: place.spoil(monkeypatch, failed)) == plain
    finally:
        monkeypatch.undo()
        pair.watch.close()
    assert faults == ["told"] * bool(failed)


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Path]:
    """What is logged, by workers too."""
    handler = logging.FileHandler(tmp_path / "log")
    logging.getLogger("trainobs").addHandler(handler)
    yield tmp_path / "log"
    logging.getLogger("trainobs").removeHandler(handler)
    handler.close()


@pytest.mark.parametrize("place", [Place(Marks, "begin"), Place(Marks, "end")], ids=str)
def test_a_worker_makes_the_same_batches_and_says_so_once(pair, place, monkeypatch, told):
    place.spoil(monkeypatch, [])
    assert pair.train(DataLoader(range(4), batch_size=None, num_workers=1)) == [0, 1, 2, 3]
    assert told.read_text().count("marks no more batches of this worker") == 1


def test_a_worker_that_cannot_begin_to_mark_makes_its_batches(pair, monkeypatch, told):
    Place(marks, "mark_fetchers").spoil(monkeypatch, [])
    assert pair.train(DataLoader(range(4), batch_size=None, num_workers=1)) == [0, 1, 2, 3]
    assert told.read_text().count("marks no more batches of this worker") == 1


def test_what_a_signals_handler_raises_in_a_worker_reaches_the_loop(pair, monkeypatch, told):
    def ring(*_: object) -> None:
        raise TimeoutError("a signal came")

    monkeypatch.setattr(Marks, "begin", lambda *_: signal.raise_signal(signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, ring)
    loader = DataLoader(range(4), batch_size=None, num_workers=1)
    try:
        assert "a signal came" in fault_of(lambda: pair.train(loader))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert told.read_text() == ""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError])
def test_so_does_what_one_raises_in_a_mode_that_is_asked_for_the_size_of_a_batch(kind):
    """`torch.set_default_device` is such a mode."""

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if came:
                signal.raise_signal(came.pop())
            return function(*args, **(kwargs or {}))

    def ring(*_: object) -> None:
        raise kind("a signal came")

    came, batch = [signal.SIGUSR1], [torch.zeros(1)]
    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with pytest.raises(kind, match="a signal came"), Mode():
            Marks(MAIN_WORKER, 1).end(batch)
    finally:
        signal.signal(signal.SIGUSR1, before)
