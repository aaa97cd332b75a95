"""Reads inputs from a loader: a random sample of the data where it lets itself be sampled."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
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

from trainobs.core.errors import SettingError, TrainobsError
from trainobs.core.now import now_s
from trainobs.fae.kjt.find import KjtFinder, inputs_of
from trainobs.fae.kjt.inputs import Inputs, keys_of

NumberedInputs = tuple[NDArray[np.int64], Inputs]
Lot = tuple[NDArray[np.int64], list[Inputs]]
"""Numbers of the inputs of several batches, and these."""

LOT_LOOKUPS = 1 << 20
"""Lookups that are handled at once: with a batch at a time most of the time would go to calls."""
LOT_SECONDS = 1.0
"""A lot of a slow loader ends before it is full."""

_ROUNDS = 4  # of the network in `Permutation`


class InputSource:
    """Inputs of a loader, with their numbers in the data.

    A DataLoader whose data set is asked for single samples, in order or shuffled by torch's own
    sampler, is sampled: a second loader like it asks for them in a random order of its own, so a
    part of the data stands for all of it. Anything else is read from its beginning, in its own
    order.

    Args:
        loader: yields batches.
        features: that the tables look up.
        kjt: where the KeyedJaggedTensor is in a batch, see `KjtFinder`.
        seed: of the order.
        workers: processes that read; None for as many as the loader has.

    Attributes:
        is_sampled: whether inputs come in a random order that this source has made.

    Raises:
        SettingError: `workers` for a loader that has none to set.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        features: Sequence[str],
        kjt: Any,
        seed: int,
        workers: int | None,
    ) -> None:
        self._features = features
        self._finder = KjtFinder(features, kjt)
        self.is_sampled = _is_sampled(loader)
        self._loader: Any = loader
        self._workers = workers
        self._seed = seed
        if workers is not None and not self.is_sampled:
            raise SettingError(
                "cannot set the number of workers that calibrate",
                f"{type(loader).__name__} with an order of its own",
                "leave workers= out, and give the loader its workers",
            )

    @property
    def input_count(self) -> int | None:
        """Inputs that there are, None where the loader does not tell."""
        if self.is_sampled:
            return len(self._loader.dataset)
        try:
            batches = len(self._loader)
        except TypeError:
            return None
        size = getattr(self._loader, "batch_size", None)
        return None if size is None else batches * size

    def read(self, start: int = 0) -> Iterator[NumberedInputs]:
        """The inputs, batch by batch.

        Args:
            start: inputs that were read before, whole batches; they are not read again where the
                order is ours, and read but not handed out where it is not.

        Raises:
            FAEError: a batch cannot be used.
        """
        batches = self._read_sampled(start) if self.is_sampled else self._read_in_order(start)
        for numbers, kjt in batches:
            yield numbers, inputs_of(kjt, self._features)

    def read_lots(self, start: int, look_at: Callable[[], int]) -> Iterator[Lot]:
        """The same, several batches at a time.

        Args:
            start: see `read`.
            look_at: number of inputs after which a lot has to end.
        """
        batches: list[NumberedInputs] = []
        read, lookups, begin = start, 0, now_s()
        try:
            for numbers, inputs in self.read(start):
                batches.append((numbers, inputs))
                read += inputs.size
                lookups += inputs.lookup_count
                is_full = lookups >= LOT_LOOKUPS or now_s() - begin >= LOT_SECONDS
                if is_full or 0 < look_at() <= read:
                    yield _together(batches)
                    batches, lookups, begin = [], 0, now_s()
        except (Exception, KeyboardInterrupt):
            if batches:  # what was read before is not lost for it
                yield _together(batches)
            raise
        if batches:
            yield _together(batches)

    def _read_in_order(self, start: int) -> Iterator[tuple[NDArray[np.int64], KeyedJaggedTensor]]:
        number = 0
        for batch in self._loader:
            kjt = self._finder(batch)
            number += kjt.stride()
            if number > start:
                yield np.arange(number - kjt.stride(), number), kjt

    def _read_sampled(self, start: int) -> Iterator[tuple[NDArray[np.int64], KeyedJaggedTensor]]:
        loader = self._loader
        batches = _Batches(len(loader.dataset), loader.batch_size or 1, self._seed, start)
        again = DataLoader(
            loader.dataset,
            batch_sampler=batches,
            num_workers=loader.num_workers if self._workers is None else self._workers,
            collate_fn=_OnlyKjt(loader.collate_fn, self._finder),
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=torch.Generator().manual_seed(self._seed % 2**63),
        )
        for numbers, kjt in zip(batches.numbers(), again, strict=True):
            if isinstance(kjt, TrainobsError):
                raise kjt
            yield numbers, kjt


def _together(batches: Sequence[NumberedInputs]) -> Lot:
    return np.concatenate([numbers for numbers, _ in batches]), [inputs for _, inputs in batches]


class RoundRobinLoader:
    """Batches of several loaders, one of each in turn, so that any beginning stands for all.

    Args:
        loaders: of the parts of the data, such as days; all are open at once.
    """

    def __init__(self, loaders: Mapping[str, Iterable[Any]]) -> None:
        self._loaders = loaders

    def __iter__(self) -> Iterator[Any]:
        """As long as any of them lasts."""
        left = [iter(loader) for loader in self._loaders.values()]
        while left:
            for batches in list(left):
                try:
                    yield next(batches)
                except StopIteration:
                    left.remove(batches)


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """Gives the process's random generators back as they were: training must not notice."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])


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
