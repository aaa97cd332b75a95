"""Batches that a loader between the loop and torch's fetches ahead, until a step gets them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from trainobs.core.records import BATCH_ROW
from trainobs.steps.closed_step import ClosedSteps, Ints

Rows = npt.NDArray[np.void]
Keys = npt.NDArray[Any]

KEY_BYTES = np.dtype((np.bytes_, 4 * 8))


class FetchedAhead:
    """Keeps such batches, and tells which step got each.

    Args:
        loaders: how many are remembered.
        batches: how many may be given to steps that are not closed.

    Attributes:
        loaders: serials of the loaders, for the training thread to add to.
        given: takes the serial of a step, and the key of a batch that it got. No method, since each
            step calls it.
    """

    def __init__(self, loaders: int, batches: int) -> None:
        self.loaders: deque[int] = deque(maxlen=loaders)
        self._given: deque[list[int]] = deque(maxlen=batches)
        self.given = self._given.append
        self._keys = np.empty((0, 4), np.int64)
        self._rows = np.empty(0, BATCH_ROW)

    def carry(self, cancelled: int, serial: int) -> None:
        """What was opened as a step of its own belongs to the step before."""
        for given in list(self._given):
            if given[0] == cancelled:
                given[0] = serial

    def close(self, steps: ClosedSteps, rows: Rows, keys: Ints, *, room: int) -> Rows:
        """Of batches that were fetched, and those kept before, what goes to the record now.

        Args:
            steps: that are closed.
            rows: of what was fetched in them, of `BATCH_ROW`, shape (n,).
            keys: of these, shape (n, 4).
            room: as many may be kept; of more, nobody will know the step of the oldest.
        """
        if not self.loaders:
            return rows
        later = np.isin(keys[:, 0], list(self.loaders))
        kept = np.concatenate([self._rows, rows[later]])
        kept_keys = np.concatenate([self._keys, keys[later]])
        given = np.array(list(until(self._given, steps[-1].serial)), np.int64).reshape(-1, 5)
        places = found(keys_of(kept_keys), keys_of(given[:, 1:]))
        step = steps.places(given[:, 0])
        is_known = (places >= 0) & (step >= 0)
        places, step = places[is_known], step[is_known]
        kept["for_step"][places] = steps.step[step]
        goes = np.zeros(len(kept), np.bool_)
        goes[places] = True
        stay = np.flatnonzero(~goes)
        goes[stay[: max(0, len(stay) - room)]] = True
        self._rows, self._keys = kept[~goes], kept_keys[~goes]
        return np.concatenate([rows[~later], kept[goes]])


def until(entries: deque[list[int]], serial: int) -> Iterator[list[int]]:
    """Take the entries of steps up to a serial off."""
    while entries and entries[0][0] <= serial:
        yield entries.popleft()


def keys_of(numbers: Ints) -> Keys:
    """Keys of four numbers, shape (n, 4), each as one thing; shape (n,)."""
    return np.ascontiguousarray(numbers).view(KEY_BYTES)[:, 0]


def found(kept: Keys, wanted: Keys) -> npt.NDArray[np.intp]:
    """Of each wanted key its place among those kept, each of which is found once; -1 for none.

    Of two that are equal the last one counts.
    """
    places = dict(zip(kept.tolist(), range(len(kept)), strict=True))
    return np.array([places.pop(key, -1) for key in wanted.tolist()], np.intp)
