"""What user space knows of steps that are over: each as a tuple, and many as columns."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def packed(numbers: Iterable[int]) -> bytes:
    """Numbers as int64 in the machine's order: one object to keep, and to read at once."""
    return array("q", numbers).tobytes()


class ClosedStep(NamedTuple):
    """What user space knows of a step that is over; times in ns of CLOCK_MONOTONIC."""

    serial: int
    step: int
    epoch: int
    start_ns: int
    end_ns: int
    packed_phase_ns: bytes
    """`phase_ns`, packed."""
    switches: int
    totals: object
    """What `sample` returned when the step closed."""
    unexplained: int = 0
    """Waits for a loader of which nobody knows what was waited for."""
    merged: tuple[int, ...] = ()
    """Serials of what was first taken for steps of their own, and belongs to this one."""

    @property
    def phase_ns(self) -> list[int]:
        """Of `Phase`, and of those with a name of the user's that had one by then."""
        return array("q", self.packed_phase_ns).tolist()

    @property
    def serials(self) -> tuple[int, ...]:
        """All serials that the step had, ascending."""
        return (*self.merged, self.serial)


class ClosedSteps(tuple[ClosedStep, ...]):
    """Consecutive closed steps, at least one, with an array (n,) int64 for each number of them."""

    @classmethod
    def from_steps(cls, steps: Iterable[ClosedStep]) -> ClosedSteps:
        """The same steps; no copy where they have columns already."""
        return steps if isinstance(steps, cls) else cls(steps)

    @cached_property
    def _columns(self) -> list[tuple[object, ...]]:
        return list(zip(*self, strict=True))

    def _column(self, at: int) -> Ints:
        return np.array(self._columns[at], np.int64)

    @cached_property
    def serial(self) -> Ints:
        """Serials; of a step with several the last one."""
        return self._column(0)

    @cached_property
    def step(self) -> Ints:
        """Numbers, as the loop counts."""
        return self._column(1)

    @cached_property
    def epoch(self) -> Ints:
        """Epochs."""
        return self._column(2)

    @cached_property
    def start_ns(self) -> Ints:
        """When they began."""
        return self._column(3)

    @cached_property
    def end_ns(self) -> Ints:
        """When they ended."""
        return self._column(4)

    @cached_property
    def phase_ns(self) -> Ints:
        """Time in each phase that had a name by then, shape (n, phases)."""
        phases: list[bytes] = list(self._columns[5])  # type: ignore[arg-type]
        size = max(map(len, phases))
        if min(map(len, phases)) < size:
            phases = [each.ljust(size, b"\0") for each in phases]
        return np.frombuffer(b"".join(phases), np.int64).reshape(len(self), -1)

    @cached_property
    def switches(self) -> Ints:
        """Switches of phase."""
        return self._column(6)

    @cached_property
    def totals(self) -> npt.NDArray[np.float64]:
        """What `sample` returned as each of them closed, shape (n, totals)."""
        return np.array(self._columns[7], np.float64)

    @cached_property
    def unexplained(self) -> Ints:
        """Waits for a loader of which nobody knows what was waited for."""
        return self._column(8)

    def places(self, serials: Ints) -> Ints:
        """Of each serial, the place of its step; -1 for that of another one. Shape (m,)."""
        own, place = self.serial, np.arange(len(self))
        merges = self._columns[9]
        for at, merged in enumerate(merges if any(merges) else ()):
            if merged:
                assert isinstance(merged, tuple)
                own = np.concatenate([own, np.array(merged, np.int64)])
                place = np.concatenate([place, np.full(len(merged), at)])
        order = np.argsort(own)
        found = np.minimum(np.searchsorted(own, serials, sorter=order), len(own) - 1)
        return np.where(own[order][found] == serials, place[order][found], -1)
