"""What user space knows of steps that are over: each packed, and many as columns."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from struct import Struct
from typing import overload

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def packed(numbers: Iterable[int]) -> bytes:
    """Numbers as int64 in the machine's order: one object to keep, and to read at once."""
    return array("q", numbers).tobytes()


_PHASES = 7
"""Numbers before those of the phases: how many there are."""

_HEAD = 8

_SIZE = 8
"""Bytes of a number."""

_read = Struct("=q").unpack_from


def number_at(step: bytes, place: int = 0) -> int:
    """One of the numbers of a closed step, by default its serial."""
    number: int = _read(step, _SIZE * place)[0]
    return number


def with_more(step: bytes, totals: Iterable[int] | None, merged: Sequence[int]) -> bytes:
    """A closed step, with what few of them have: see `ClosedStep`."""
    if totals is None and not merged:
        return step
    return step + packed((len(merged), *merged, *(totals if totals is not None else ())))


class ClosedStep(bytes):
    """What user space knows of a step that is over; times in ns of CLOCK_MONOTONIC.

    It is its numbers, packed: `serial`, `step`, `epoch`, `start_ns`, `end_ns`, `switches`,
    `unexplained`, how many phases there are, and `phase_ns`. So a loop makes one object for each
    step. Few have more behind them: how many `merged` there are, these, and `totals`.
    """

    __slots__ = ()

    @classmethod
    def from_numbers(
        cls,
        serial: int,
        step: int,
        times_ns: tuple[int, int],
        phase_ns: Sequence[int] = (),
        *,
        epoch: int = 0,
        unexplained: int = 0,
        merged: Sequence[int] = (),
    ) -> ClosedStep:
        """From its numbers; `times_ns` are when it began and when it ended."""
        head = (serial, step, epoch, *times_ns, 0, unexplained, len(phase_ns))
        return cls(with_more(packed((*head, *phase_ns)), None, merged))

    @property
    def serial(self) -> int:
        """Its own; of a step with several the last one."""
        return number_at(self, 0)

    @property
    def step(self) -> int:
        """Its number, as the loop counts."""
        return number_at(self, 1)

    @property
    def epoch(self) -> int:
        """Its epoch."""
        return number_at(self, 2)

    @property
    def start_ns(self) -> int:
        """When it began."""
        return number_at(self, 3)

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return number_at(self, 4)

    @property
    def switches(self) -> int:
        """Switches of phase."""
        return number_at(self, 5)

    @property
    def unexplained(self) -> int:
        """Waits for a loader of which nobody knows what was waited for."""
        return number_at(self, 6)

    @property
    def phase_ns(self) -> list[int]:
        """Of `Phase`, and of those with a name of the user's that had one by then."""
        return self._numbers()[_HEAD : self._end()]

    @property
    def merged(self) -> tuple[int, ...]:
        """Serials of what was first taken for steps of their own, and belongs to this one."""
        count, *more = self._numbers()[self._end() :] or (0,)
        return tuple(more[:count])

    @property
    def totals(self) -> list[int]:
        """What `sample` returned when the step closed."""
        count, *more = self._numbers()[self._end() :] or (0,)
        return more[count:]

    @property
    def serials(self) -> tuple[int, ...]:
        """All serials that the step had, ascending."""
        return (*self.merged, self.serial)

    def _numbers(self) -> list[int]:
        return array("q", self).tolist()

    def _end(self) -> int:
        return _HEAD + number_at(self, _PHASES)


class ClosedSteps(Sequence[ClosedStep]):
    """Consecutive closed steps, with an array (n,) int64 for each number of them.

    Args:
        packed: each as a `ClosedStep`, or its bytes; at least one where columns are asked for.
    """

    def __init__(self, packed: Iterable[bytes]) -> None:
        self._packed = list(packed)

    @classmethod
    def from_steps(cls, steps: Iterable[ClosedStep]) -> ClosedSteps:
        """The same steps; no copy where they have columns already."""
        return steps if isinstance(steps, cls) else cls(steps)

    @classmethod
    def joined(cls, parts: Iterable[ClosedSteps]) -> ClosedSteps:
        """The steps of several, one after another."""
        return cls(chain.from_iterable(part._packed for part in parts))

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, place: int) -> ClosedStep: ...

    @overload
    def __getitem__(self, place: slice) -> ClosedSteps: ...

    def __getitem__(self, place: int | slice) -> ClosedStep | ClosedSteps:
        found = self._packed[place]
        return ClosedSteps(found) if isinstance(found, list) else ClosedStep(found)

    def __iter__(self) -> Iterator[ClosedStep]:
        return map(ClosedStep, self._packed)

    @cached_property
    def _joined(self) -> Ints | None:
        """All that they are, shape (n, numbers); None if some have more than others."""
        if len(set(map(len, self._packed))) > 1:
            return None
        numbers = np.frombuffer(b"".join(self._packed), np.int64).reshape(len(self), -1)
        return numbers if (numbers[:, _PHASES] == numbers.shape[1] - _HEAD).all() else None

    @cached_property
    def _numbers(self) -> Ints:
        """The numbers of each up to its last phase, shape (numbers, n)."""
        numbers = self._joined
        if numbers is None:
            ends = [_SIZE * step._end() for step in self]
            size = max(ends)
            parts = (step[:end].ljust(size, b"\0") for step, end in zip(self, ends, strict=True))
            numbers = np.frombuffer(b"".join(parts), np.int64).reshape(len(self), -1)
        return np.array(numbers.T, np.int64, order="C")

    def _column(self, place: int) -> Ints:
        column: Ints = self._numbers[place]
        return column

    @property
    def serial(self) -> Ints:
        """Serials; of a step with several the last one."""
        return self._column(0)

    @property
    def step(self) -> Ints:
        """Numbers, as the loop counts."""
        return self._column(1)

    @property
    def epoch(self) -> Ints:
        """Epochs."""
        return self._column(2)

    @property
    def start_ns(self) -> Ints:
        """When they began."""
        return self._column(3)

    @property
    def end_ns(self) -> Ints:
        """When they ended."""
        return self._column(4)

    @property
    def switches(self) -> Ints:
        """Switches of phase."""
        return self._column(5)

    @property
    def unexplained(self) -> Ints:
        """Waits for a loader of which nobody knows what was waited for."""
        return self._column(6)

    @property
    def phase_ns(self) -> Ints:
        """Time in each phase that had a name by then, shape (n, phases)."""
        phases: Ints = self._numbers[_HEAD:].T
        return phases

    @property
    def totals(self) -> npt.NDArray[np.float64]:
        """What `sample` returned as each of them closed, shape (n, totals)."""
        return np.array([step.totals for step in self], np.float64)

    @cached_property
    def merges(self) -> list[tuple[int, tuple[int, ...]]]:
        """Places of those with several serials, and these serials but the last one."""
        if self._joined is not None:
            return []
        return [(at, merged) for at, step in enumerate(self) if (merged := step.merged)]

    def places(self, serials: Ints) -> Ints:
        """Of each serial, the place of its step; -1 for that of another one. Shape (m,)."""
        own, place = self.serial, np.arange(len(self))
        for at, merged in self.merges:
            own = np.concatenate([own, np.array(merged, np.int64)])
            place = np.concatenate([place, np.full(len(merged), at)])
        order = np.argsort(own)
        found = np.minimum(np.searchsorted(own, serials, sorter=order), len(own) - 1)
        return np.where(own[order][found] == serials, place[order][found], -1)
