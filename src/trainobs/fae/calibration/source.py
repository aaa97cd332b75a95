"""Reads inputs from a loader, or from several: a random sample of the data where that can be."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainobs.core.errors import SettingError, a_type
from trainobs.core.log import logger
from trainobs.core.now import now_s
from trainobs.fae.calibration.part import NumberedKjt, Sampled, part_of
from trainobs.fae.kjt.find import KjtFinder, inputs_of
from trainobs.fae.kjt.inputs import Inputs

NumberedInputs = tuple[NDArray[np.int64], Inputs]
Lot = tuple[NDArray[np.int64], list[Inputs]]
"""Numbers of the inputs of several batches, and these."""

LOT_LOOKUPS = 1 << 20
"""Lookups that are handled at once: with a batch at a time most of the time would go to calls."""
LOT_SECONDS = 1.0
"""A lot of a slow loader ends before it is full."""


class InputSource:
    """Inputs of a loader, or of several that are parts of the data, with their numbers in it.

    Of parts whose length is known as large a share is read of each, whenever reading ends; of
    others a batch of each in turn. See `trainobs.fae.calibration.part` for what is read of one.

    Args:
        source: a loader, or several by name, such as one for each day; all are open at once.
        features: that the tables look up.
        kjt: where the KeyedJaggedTensor is in a batch, see `KjtFinder`.
        seed: of the order.
        workers: processes that read each part; None for as many as its loader has.

    Attributes:
        is_sampled: whether inputs come in a random order that this source has made.

    Raises:
        SettingError: `workers` for a loader that has none to set.
    """

    def __init__(
        self,
        source: Iterable[Any] | Mapping[str, Iterable[Any]],
        features: Sequence[str],
        kjt: Any,
        seed: int,
        workers: int | None,
    ) -> None:
        loaders = list(source.values()) if isinstance(source, Mapping) else [source]
        self._features = features
        finder = KjtFinder(features, kjt)
        self._parts = [part_of(own, finder, seed + i, workers) for i, own in enumerate(loaders)]
        self._batches: list[Iterator[NumberedKjt]] = []
        self.is_sampled = all(part.is_sampled for part in self._parts)
        once = [a_type(loader) for loader in loaders if isinstance(loader, Iterator)]
        if once:
            logger.warning(
                "batches that are read here may not come again\n  found: %s, its own iterator, "
                "which a training would take up where reading ends\n  do:    give what makes it, "
                "such as the DataLoader or a list, or another iterator over the same data",
                once[0],
            )
        for part, loader in zip(self._parts, loaders, strict=True):
            if workers is not None and not part.is_sampled:
                raise SettingError(
                    "cannot set the number of workers that calibrate",
                    f"{type(loader).__name__} with an order of its own",
                    "leave workers= out, and give the loader its workers",
                )

    @property
    def input_count(self) -> int | None:
        """Inputs that there are, None where a loader does not tell."""
        counts = [part.input_count for part in self._parts]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def unread_ratio(self) -> float:
        """Share of the data that what was read does not stand for, 1 where nobody knows it.

        None of a part that is sampled. Of one that is read in its own order, all behind what was
        read: it may look up other rows.
        """
        behind = [part for part in self._parts if not (part.is_over or part.is_sampled)]
        if not behind:
            return 0.0
        if not all(part.is_as_long_as_told for part in behind):
            return 1.0
        read = [part for part in self._parts if part.read_count]
        sizes = [part.read_count / part.read_ratio for part in read]
        unread = (
            size * (1 - part.read_ratio)
            for size, part in zip(sizes, read, strict=True)
            if not part.is_sampled
        )
        return sum(unread) / sum(sizes)

    def look_for_end(self) -> None:
        """Find out whether loaders that tell no length end where reading ended.

        It costs a batch of each that does not. What is wrong with that one is no concern of what
        was read.
        """
        for part, batches in zip(self._parts, self._batches, strict=True):
            if not part.is_over and part.batch_count is None:
                with suppress(Exception):
                    next(batches, None)

    def read(self, start: int = 0) -> Iterator[NumberedInputs]:
        """The inputs, batch by batch.

        Args:
            start: inputs that were read before, whole batches; they are not read again where the
                order is ours, and read but not handed out where it is not.

        Raises:
            FAEError: a batch cannot be used.
        """
        for part in self._parts:
            part.begin()
        self._skip(start)
        read = sum(part.read_count for part in self._parts)
        firsts = np.cumsum([0, *(part.input_count or 0 for part in self._parts)])
        self._batches = [part.batches() for part in self._parts]
        while (at := self._next_part()) is not None:
            found = next(self._batches[at], None)
            if found is None:
                continue
            places, kjt = found
            numbers = (
                places + firsts[at] if self.is_sampled else np.arange(read, read + len(places))
            )
            read += len(places)
            if read > start:
                yield numbers, inputs_of(kjt, self._features)

    def _next_part(self) -> int | None:
        """The part to read a batch of: that of which the least was read; None at the end."""
        are_counted = all(part.batch_count is not None for part in self._parts)
        left = [
            (part.read_ratio if are_counted else part.read_batches, at)
            for at, part in enumerate(self._parts)
            if not part.is_over
        ]
        return min(left)[1] if left else None

    def _skip(self, start: int) -> None:
        """Go on behind so many inputs, whole batches, without reading them, where that can be."""
        sampled = [part for part in self._parts if isinstance(part, Sampled)]
        if len(sampled) < len(self._parts):
            return
        while sum(part.read_count for part in sampled) < start:
            if (at := self._next_part()) is None:
                return
            sampled[at].skip()

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


def _together(batches: Sequence[NumberedInputs]) -> Lot:
    return np.concatenate([numbers for numbers, _ in batches]), [inputs for _, inputs in batches]


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
