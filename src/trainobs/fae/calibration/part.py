"""One part of the data, and the order that it is read in: at random where that can be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.core.errors import FAEError, TrainobsError
from trainobs.fae.kjt.find import KjtFinder
from trainobs.fae.kjt.inputs import keys_of

NumberedKjt = tuple[NDArray[np.int64], KeyedJaggedTensor]
"""Numbers of the inputs of a batch in their part, and their lookups."""

_ROUNDS = 4  # of the network in `Permutation`


def part_of(
    loader: Iterable[Any], finder: KjtFinder, seed: int, workers: int | None
) -> InOrder | Sampled:
    """What reads a loader.

    A DataLoader whose data set is asked for single samples, in order or shuffled by torch's own
    sampler, is sampled: a second loader like it asks for them in a random order of its own, so a
    part of the data stands for all of it. Anything else is read from its beginning, in its own
    order: to skip a batch of it takes as long as to read it.

    Args:
        loader: yields batches.
        finder: of the lookups in a batch.
        seed: of the order.
        workers: processes that read; None for as many as the loader has.
    """
    return (
        Sampled(loader, finder, seed, workers) if _is_sampled(loader) else InOrder(loader, finder)
    )


class InOrder:
    """A loader that is read from its beginning.

    Args:
        loader: yields batches.
        finder: of the lookups in a batch.

    Attributes:
        batch_count: batches that there are, None where the loader does not tell.
        input_count: inputs that there are, about; None where the loader does not tell.
        read_batches: that were read.
        read_count: inputs that were read.
        is_over: whether all were read.
    """

    is_sampled = False

    def __init__(self, loader: Any, finder: KjtFinder) -> None:
        self._loader = loader
        self._finder = finder
        try:
            self.batch_count: int | None = len(loader)
        except (TypeError, NotImplementedError):  # the latter as streams of data raise it
            self.batch_count = None
        size = getattr(loader, "batch_size", None)
        self.input_count = size * self.batch_count if size and self.batch_count else None
        self.begin()

    @property
    def is_as_long_as_told(self) -> bool:
        """Whether its length can be believed, as far as was read."""
        return 0 < self.read_batches <= (self.batch_count or 0)

    @property
    def read_ratio(self) -> float:
        """Share of the batches that were read; 1 also where there are more than it said."""
        if self.is_over or not self.batch_count:
            return float(self.is_over)
        return min(1.0, self.read_batches / self.batch_count)

    def begin(self) -> None:
        """Nothing was read."""
        self.read_batches = self.read_count = 0
        self.is_over = False

    def batches(self) -> Iterator[NumberedKjt]:
        """All that is left."""
        for batch in self._loader:
            kjt = self._finder(batch)
            first = self.read_count
            self.read_batches += 1
            self.read_count += kjt.stride()
            yield np.arange(first, self.read_count), kjt
        self.is_over = True


class Sampled:
    """A loader whose data set is read in a random order without replacement.

    Args:
        loader: that `_is_sampled` said so of.
        finder: of the lookups in a batch.
        seed: of the order.
        workers: processes that read; None for as many as the loader has.

    Attributes:
        batch_count: batches that there are.
        input_count: inputs that there are.
        read_batches: that were read.
        read_count: inputs that were read.
    """

    is_sampled = True
    is_as_long_as_told = True

    def __init__(self, loader: Any, finder: KjtFinder, seed: int, workers: int | None) -> None:
        self._loader = loader
        self._finder = finder
        self._seed = seed
        self._workers = loader.num_workers if workers is None else workers
        self._size = loader.batch_size or 1
        self.input_count: int = len(loader.dataset)
        self.batch_count: int = -(-self.input_count // self._size)
        self.begin()

    @property
    def read_ratio(self) -> float:
        """Share of the batches that were read."""
        return self.read_batches / self.batch_count

    @property
    def is_over(self) -> bool:
        """Whether all were read."""
        return self.read_batches == self.batch_count

    def begin(self) -> None:
        """Nothing was read."""
        self.read_batches = self.read_count = 0

    def skip(self) -> None:
        """Take a batch as read."""
        self.read_batches += 1
        self.read_count = min(self.input_count, self.read_count + self._size)

    def batches(self) -> Iterator[NumberedKjt]:
        """All that is left.

        Raises:
            FAEError: a batch has another number of inputs than it was made of.
        """
        loader = self._loader
        order = _Batches(self.input_count, self._size, self._seed, self.read_count)
        again = DataLoader(
            loader.dataset,
            batch_sampler=order,
            num_workers=self._workers,
            collate_fn=_OnlyKjt(loader.collate_fn, self._finder),
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=torch.Generator().manual_seed(self._seed % 2**63),
        )
        for numbers, kjt in zip(order.numbers(), again, strict=True):
            if isinstance(kjt, TrainobsError):
                raise kjt
            if kjt.stride() != len(numbers):
                raise FAEError(
                    "cannot read this loader at random",
                    f"{kjt.stride()} inputs in a batch of {len(numbers)} samples",
                    "give a loader whose collate_fn makes an input of each sample, or, where the "
                    "data set gives whole batches, a DataLoader with batch_size=None",
                )
            self.skip()
            yield numbers, kjt


def _is_sampled(loader: object) -> bool:
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and isinstance(loader.dataset, Sized)
        and type(loader.batch_sampler) is BatchSampler
        and type(loader.sampler) in (RandomSampler, SequentialSampler)
        and len(loader.dataset) > 0
    )


class _Batches:
    """Numbers of the samples of each batch, in a random order without replacement."""

    def __init__(self, count: int, batch_size: int, seed: int, start: int) -> None:
        self._order = Permutation(count, seed)
        self._count = count
        self._size = batch_size
        self._start = start

    def numbers(self) -> Iterator[NDArray[np.int64]]:
        """As arrays."""
        for first in range(self._start, self._count, self._size):
            yield self._order(np.arange(first, min(first + self._size, self._count)))

    def __iter__(self) -> Iterator[list[int]]:
        return (numbers.tolist() for numbers in self.numbers())


class _OnlyKjt:
    """Collates as the loader does, and keeps only the lookups: less goes through the queue.

    An error of ours goes that way too: raised in a worker, torch would make a RuntimeError of it.
    """

    def __init__(self, collate: Callable[[list[Any]], Any], finder: KjtFinder) -> None:
        self._collate = collate
        self._finder = finder

    def __call__(self, samples: list[Any]) -> KeyedJaggedTensor | TrainobsError:
        batch = self._collate(samples)
        try:
            return self._finder(batch)
        except TrainobsError as error:
            return error


class Permutation:
    """Puts the numbers below `count` into a pseudo-random order, which any part can be asked of.

    A Feistel network over the next even power of two, walked until it ends below `count` (Black and
    Rogaway, Ciphers with arbitrary finite domains, CT-RSA 2002).

    Args:
        count: of numbers; 1 or more.
        seed: another seed, another order.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        self._half = np.uint64(max(1, (int(count - 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        self._seed = seed

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers at some positions of the order."""
        numbers = self._mix(positions.astype(np.uint64))
        while np.any(outside := numbers >= self._count):
            numbers[outside] = self._mix(numbers[outside])
        return numbers.astype(np.int64)

    def _mix(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = numbers >> self._half, numbers & self._mask
        for turn in range(_ROUNDS):
            noise = keys_of(right.astype(np.int64), self._seed + (turn << 32)) & self._mask
            left, right = right, left ^ noise
        return np.asarray((left << self._half) | right)
