"""Reads a loader window by window, in its workers where it has some."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeGuard

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe

from trainobs.core.errors import TrainobsError
from trainobs.fae.packing.window import PackedWindow
from trainobs.fae.packing.window_reader import (
    IndexedWindows,
    Progress,
    SkippedWindow,
    StreamWindows,
    WindowSampler,
    WindowSettings,
    as_it_is,
    seeded,
)


class WindowSource:
    """A loader, read in windows.

    A `DataLoader` is read by one like it, whose workers pack windows; anything else (a subclass
    that may iterate in a way of its own, a list, a data pipe) by the process that trains.

    Args:
        loader: yields batches of inputs.
        settings: how windows are made.
    """

    def __init__(self, loader: Iterable[Any], settings: WindowSettings) -> None:
        self._loader = loader
        self._settings = settings
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._sampler: WindowSampler | None = None
        self._stream: StreamWindows | None = None
        self.worker_count = 0
        if _is_plain(loader):
            self._inner = self._like(loader, settings)
        else:
            self._stream = StreamWindows(loader, None, False, as_it_is, settings, self._epoch)
            self._inner = DataLoader(
                self._stream,
                batch_size=None,
                collate_fn=as_it_is,
                pin_memory=getattr(loader, "pin_memory", None) is True,  # what is packed is a copy
            )

    @property
    def is_indexed(self) -> bool:
        """Whether any window can be read without those before it."""
        return self._sampler is not None

    @property
    def generator(self) -> torch.Generator | None:
        """What the loader draws its order from, if it has one of its own."""
        for owner in (self._loader, getattr(self._loader, "sampler", None)):
            generator = getattr(owner, "generator", None)
            if isinstance(generator, torch.Generator):
                return generator
        return None

    def read(self, progress: Progress) -> Iterator[PackedWindow]:
        """The windows of an epoch from those on that were not read to their end.

        Raises:
            TrainobsError: a window cannot be packed.
        """
        self._epoch[0] = progress.epoch
        _set_epoch(self._loader, progress.epoch)
        if self._sampler is not None:
            self._sampler.begin(progress.epoch, progress.windows)
        if self._stream is not None:
            self._stream.progress = progress
        for item in self._begun(progress.epoch):
            if isinstance(item, TrainobsError):
                raise item
            if not isinstance(item, SkippedWindow):
                yield item

    def _begun(self, epoch: int) -> Iterator[Any]:
        """Begin to read. A loader draws a seed for its workers: not from the training's numbers."""
        with seeded("workers", self._settings.seed, self._settings.rank, epoch):
            return iter(self._inner)

    def _like(self, loader: DataLoader[Any], settings: WindowSettings) -> DataLoader[Any]:
        """A loader whose workers do what those of `loader` do, and pack."""
        self.worker_count = loader.num_workers
        together = loader.batch_sampler is not None
        windows: StreamWindows | IndexedWindows
        if isinstance(loader.dataset, IterableDataset):
            size = loader.batch_size if together else None
            windows = self._stream = StreamWindows(
                loader.dataset, size, loader.drop_last, loader.collate_fn, settings, self._epoch
            )
        else:
            windows = IndexedWindows(loader.dataset, together, loader.collate_fn, settings)
            samples = loader.batch_sampler if together else loader.sampler
            self._sampler = WindowSampler(samples, settings)  # type: ignore[arg-type]
        return DataLoader(
            windows,
            batch_size=None,
            sampler=self._sampler,
            collate_fn=as_it_is,
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout * settings.window,
            worker_init_fn=_WorkerInit(loader.worker_init_fn),
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            persistent_workers=loader.persistent_workers,
            prefetch_factor=1 if loader.num_workers else None,
        )


class _WorkerInit:
    """Begins a worker as the loader's own would: its `get_worker_info()` has the loader's data set.

    Who gives each worker its share of a data set does it there.

    Args:
        init: the loader's `worker_init_fn`.
    """

    def __init__(self, init: Callable[[int], object] | None) -> None:
        self._init = init

    def __call__(self, worker: int) -> None:
        """Runs in the worker, as it begins."""
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)  # it refuses any other way
        if self._init is not None:
            self._init(worker)


def _is_plain(loader: object) -> TypeGuard[DataLoader[Any]]:
    """Whether another DataLoader can stand in for it."""
    if type(loader) is not DataLoader:
        return False
    return not isinstance(loader.dataset, (IterDataPipe, MapDataPipe))


def _set_epoch(loader: object, epoch: int) -> None:
    """As DistributedSampler asks for, or every epoch would have the same order."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batch_sampler)
    for owner in {id(o): o for o in (*owners, getattr(batch_sampler, "sampler", None))}.values():
        if callable(set_epoch := getattr(owner, "set_epoch", None)):
            set_epoch(epoch)
