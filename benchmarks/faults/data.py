"""Data sets and loaders of a training."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from faults.sources import source_of
from faults.training import Training

CLASSES = 10

Item = tuple[torch.Tensor, int]


def loader_of(training: Training, folder: Path) -> DataLoader[Any]:
    """The loader of the training set."""
    items = Items(training, folder)
    if training.iterable:
        return _loader(training, Stream(items), training.workers)
    if training.ballast_mb:
        return _loader(replace(training, batch=0), WholeBatches(items), training.workers)
    return _loader(training, items, training.workers)


def validation_loader_of(training: Training, folder: Path) -> DataLoader[Any]:
    """The loader of the validation set; it has no workers."""
    validation = Training(
        steps=training.validation_batches,
        side=training.side,
        batch=training.batch,
        item_cpu_ms=training.validation_cpu_ms,
        source="files" if training.validation_cold else "memory",
        cold=training.validation_cold,
    )
    folder.mkdir()
    return _loader(validation, Items(validation, folder), 0)


def _loader(training: Training, data: Dataset[Any], workers: int) -> DataLoader[Any]:
    chosen = {"batch_sampler": Choice(training)} if training.sampler_ms else {}
    return DataLoader(
        data,
        **(chosen or {"batch_size": training.batch or None, "shuffle": training.shuffle}),
        num_workers=workers,
        prefetch_factor=training.prefetch if workers else None,
        persistent_workers=training.persistent and workers > 0,
    )


class Items(Dataset[Item]):
    """Images of noise, and what making one takes."""

    def __init__(self, training: Training, folder: Path) -> None:
        self.training = training
        self._count = training.steps * training.batch
        self._source = source_of(training, folder, self._count)
        self._name = str(folder)
        self._image = torch.rand(3, training.side, training.side)
        self._lock = multiprocessing.Lock() if training.locked else nullcontext()
        self._opened_by = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Item:
        if self._opened_by != os.getpid():
            self._opened_by = os.getpid()
            busy(self.training.open_cpu_ms)
            sleep(self.training.open_sleep_ms)
        if self._source:
            self._source(index)
        for _ in range(self.training.stats):
            os.stat(self._name)
        if index >= self.training.from_share * self._count:
            with self._lock:
                self._work(index)
        return self._image, index % CLASSES

    def _work(self, index: int) -> None:
        training = self.training
        slow = training.slow_every and index % (training.slow_every * training.batch) == 0
        busy(training.item_cpu_ms + (training.slow_cpu_ms if slow else 0))
        sleep(training.item_sleep_ms + (training.slow_sleep_ms if slow else 0))
        if index % training.batch == 0:
            program(training.program_ms)
            if training.garbage:
                waste(training.garbage)


class Choice:
    """The items of each batch, in order; to choose them takes CPU time."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def __len__(self) -> int:
        return self._training.steps

    def __iter__(self) -> Iterator[list[int]]:
        batch = self._training.batch
        for number in range(self._training.steps):
            busy(self._training.sampler_ms)
            yield list(range(number * batch, (number + 1) * batch))


class Stream(IterableDataset[Item]):
    """The same items in the same batches, as a stream that workers divide among them."""

    def __init__(self, items: Items) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Item]:
        mine = get_worker_info()
        first, every = (mine.id, mine.num_workers) if mine else (0, 1)
        batch = self._items.training.batch
        for number in range(first, self._items.training.steps, every):
            for index in range(number * batch, (number + 1) * batch):
                yield self._items[index]


class WholeBatches(Dataset[tuple[torch.Tensor, ...]]):
    """The same as batches that are made at once, with a tensor that nobody looks at."""

    def __init__(self, items: Items) -> None:
        self._items = items

    def __len__(self) -> int:
        return self._items.training.steps

    def __getitem__(self, number: int) -> tuple[torch.Tensor, ...]:
        training = self._items.training
        made = [self._items[number * training.batch + index] for index in range(training.batch)]
        images, labels = zip(*made, strict=True)
        ballast = torch.empty(training.ballast_mb << 20, dtype=torch.uint8)
        return torch.stack(images), torch.tensor(labels), ballast


def busy(milliseconds: float) -> None:
    """Compute for so long, counted in CPU time: a busy machine gives no discount."""
    end = time.thread_time() + milliseconds / 1e3
    while time.thread_time() < end:
        pass


def sleep(milliseconds: float) -> None:
    """Sleep for so long; not at all for nothing, which would give the CPU away."""
    if milliseconds:
        time.sleep(milliseconds / 1e3)


_PROGRAM = """import sys, time
while time.process_time() < float(sys.argv[1]) / 1e3:
    pass
"""


def program(milliseconds: float) -> None:
    """Run a program that computes for so long, its start included."""
    if milliseconds:
        command = [sys.executable, "-S", "-c", _PROGRAM, str(milliseconds)]
        subprocess.run(command, check=True)


def waste(count: int) -> None:
    """Leave so many objects to the collector, and have it look."""
    for _ in range(count):
        circle: list[Any] = []
        circle.append(circle)
    gc.collect()
