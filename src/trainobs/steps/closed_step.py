"""What user space knows of a step that is over."""

from __future__ import annotations

from typing import NamedTuple


class ClosedStep(NamedTuple):
    """What user space knows of a step that is over; times in ns of CLOCK_MONOTONIC."""

    serial: int
    step: int
    epoch: int
    start_ns: int
    end_ns: int
    phase_ns: list[int]
    switches: int
    totals: object
    """What `sample` returned when the step closed."""
    unexplained: int = 0
    """Waits for a loader of which nobody knows what was waited for."""
    merged: tuple[int, ...] = ()
    """Serials of what was first taken for steps of their own, and belongs to this one."""

    @property
    def serials(self) -> tuple[int, ...]:
        """All serials that the step had, ascending."""
        return (*self.merged, self.serial)
