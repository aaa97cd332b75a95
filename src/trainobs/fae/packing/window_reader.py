"""What reads and packs windows, in a loader's workers or in the process that trains."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from trainobs.core.errors import TrainobsError
from trainobs.fae.packing.window import PackedWindow, Packer


@dataclass(frozen=True)
class WindowSettings:
    """How windows are made.

    Attributes:
        packer: of a window.
        window: batches of the loader in a window.
        seed: of the order, where the loader has no generator of its own, and of the random
            numbers that the data set draws.
        rank: of this process. Random numbers depend on it, the order does not.
    """

    packer: Packer
    window: int
    seed: int
    rank: int


@dataclass(frozen=True)
class Progress:
    """How far into an epoch a loader was read.

    Attributes:
        epoch: counted from 0.
        windows: read to their end.
        by_worker: the same, by the worker that made them.
        states: of the data set after these, by worker, if it tells.
    """

    epoch: int
    windows: int = 0
    by_worker: dict[int, int] = field(default_factory=dict)
    states: dict[int, dict[str, Any]] = field(default_factory=dict)

    def behind(self, window: PackedWindow) -> Progress:
        """One window more was read to its end."""
        worker, state = window.worker, window.source_state
        by_worker = {**self.by_worker, worker: self.by_worker.get(worker, 0) + 1}
        states = self.states if state is None else {**self.states, worker: state}
        return Progress(self.epoch, self.windows + 1, by_worker, states)


class SkippedWindow:
    """Stands for a window that was trained on before an interruption."""


Item = PackedWindow | TrainobsError | SkippedWindow
"""Errors are handed over: of one that a worker raises, torch would make a RuntimeError."""


class Request(NamedTuple):
    """A window to be read by index.

    Attributes:
        epoch: counted from 0.
        number: of the window in the epoch.
        batches: what the loader's sampler gave for each batch.
    """

    epoch: int
    number: int
    batches: list[Any]


class WindowSampler(Sampler[Request]):
    """Groups what a loader's sampler gives into windows.

    Args:
        samples: the loader's batch sampler, or its sampler if it makes no batches.
        settings: how windows are made.
    """

    def __init__(self, samples: Iterable[Any], settings: WindowSettings) -> None:
        self._samples = samples
        self._settings = settings
        self._epoch = self._passed = 0

    def begin(self, epoch: int, passed: int) -> None:
        """Say which epoch comes, and how many of its windows to pass over."""
        self._epoch, self._passed = epoch, passed

    def __iter__(self) -> Iterator[Request]:
        """One request a window."""
        epoch, passed = self._epoch, self._passed
        samples: Iterator[Any] | None = None
        number = 0
        while True:
            with seeded("order", self._settings.seed, epoch, number):
                samples = iter(self._samples) if samples is None else samples
                batches = list(islice(samples, self._settings.window))
            if not batches:
                return
            if number >= passed:
                yield Request(epoch, number, batches)
            number += 1


class IndexedWindows(Dataset[Item]):
    """Windows of a data set with indices.

    Args:
        dataset: the loader's.
        together: whether the loader makes batches of several inputs; else the data set does.
        collate: makes a batch, as the loader's `collate_fn`.
        settings: how windows are made.

    Attributes:
        dataset: the loader's.
    """

    def __init__(
        self, dataset: Any, together: bool, collate: Callable[[Any], Any], settings: WindowSettings
    ) -> None:
        self.dataset = dataset
        self._together = together
        self._collate = collate
        self._settings = settings

    def __getitem__(self, request: Request) -> Item:
        """Read and pack a window."""
        settings = self._settings
        with seeded("data", settings.seed, settings.rank, request.epoch, request.number):
            batches = [self._collate(self._fetch(indices)) for indices in request.batches]
        return _packed(settings, batches, request.epoch, request.number)

    def _fetch(self, indices: Any) -> Any:
        """As torch's fetcher does."""
        if not self._together:
            return self.dataset[indices]
        fetch = getattr(self.dataset, "__getitems__", None)
        return fetch(indices) if fetch else [self.dataset[index] for index in indices]


class StreamWindows(IterableDataset[Item]):
    """Windows of a data set, or of a loader, that can only be read from its beginning.

    Where it has `state_dict` and `load_state_dict`, an interrupted epoch goes on there; else what
    was trained on is read again, and passed over.

    Args:
        stream: yields inputs or batches.
        size: inputs that the loader puts into a batch; None where batches are yielded.
        drop_last: whether the loader leaves out a batch that is not full.
        collate: makes a batch, as the loader's `collate_fn`.
        settings: how windows are made.
        epoch: int64[1] in shared memory, so that workers that persist see it change.

    Attributes:
        dataset: the stream.
    """

    def __init__(
        self,
        stream: Iterable[Any],
        size: int | None,
        drop_last: bool,
        collate: Callable[[Any], Any],
        settings: WindowSettings,
        epoch: Tensor,
    ) -> None:
        self.dataset = stream
        self._size = size
        self._drop_last = drop_last
        self._collate = collate
        self._settings = settings
        self._epoch = epoch
        self.progress = Progress(0)

    def __iter__(self) -> Iterator[Item]:
        """Read and pack the windows of this worker."""
        settings, epoch = self._settings, int(self._epoch)
        info = get_worker_info()
        worker = info.id if info else 0
        progress = self.progress if self.progress.epoch == epoch else Progress(epoch)
        passed, state = progress.by_worker.get(worker, 0), progress.states.get(worker)
        number = 0 if state is None else passed
        if state is not None:
            yield from (SkippedWindow() for _ in range(passed))
            if state["ended"]:
                return
            self.dataset.load_state_dict(state["state"])  # type: ignore[attr-defined]
        batches: Iterator[Any] | None = None
        while True:
            with seeded("data", settings.seed, settings.rank, epoch, worker, number):
                batches = self._batches() if batches is None else batches
                read = list(islice(batches, settings.window))
            if not read:
                return
            if number < passed:
                yield self._pass(read)
            else:
                of = info.id if info else None
                yield self._mark(_packed(settings, read, epoch, number, of), worker, len(read))
            number += 1

    def _batches(self) -> Iterator[Any]:
        """As torch's fetcher makes them."""
        inputs = iter(self.dataset)
        if self._size is None:
            yield from map(self._collate, inputs)
            return
        while together := list(islice(inputs, self._size)):
            if len(together) == self._size or not self._drop_last:
                yield self._collate(together)

    def _pass(self, batches: list[Any]) -> Item:
        """The size of a batch comes from the first one, though it is passed over."""
        self._settings.packer.learn_batch_size(batches)
        return SkippedWindow()

    def _mark(self, item: Item, worker: int, batch_count: int) -> Item:
        """Say who made a window, and where its stream stands behind it."""
        if not isinstance(item, PackedWindow):
            return item
        state = None
        if hasattr(self.dataset, "state_dict") and hasattr(self.dataset, "load_state_dict"):
            is_ended = batch_count < self._settings.window  # its state may be that of a new begin
            state = {"ended": is_ended, "state": None if is_ended else self.dataset.state_dict()}
        return replace(item, worker=worker, source_state=state)


def as_it_is(item: Any) -> Any:
    """Collates nothing."""
    return item


@contextmanager
def seeded(*parts: object) -> Iterator[None]:
    """For a while random numbers of torch on the host, numpy and Python depend on `parts` alone."""
    digest = blake2b(repr(parts).encode(), digest_size=4).digest()
    seed = int.from_bytes(digest, "little")
    kept = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed devices too
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(kept[0])
        np.random.set_state(kept[1])
        random.setstate(kept[2])


def _packed(
    settings: WindowSettings, batches: list[Any], epoch: int, number: int, worker: int | None = None
) -> PackedWindow | TrainobsError:
    try:
        return settings.packer.pack(batches)
    except TrainobsError as error:
        first = number * settings.window
        where = f"batches {first} to {first + len(batches) - 1} of epoch {epoch}"
        of = "" if worker is None else f" of worker {worker}"
        return type(error)(error.failed, f"{error.found}; in {where}{of}", error.do)
