"""The step clock of a process that is observed from outside: the kernel moves it, we read it.

It stands in for `trainobs.steps.clock.StepClock`, as far as the collector asks for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import RING, Event, Phase
from trainobs.core.records import SETUP
from trainobs.steps.clock import MAX_NAMED
from trainobs.steps.closed_step import ClosedStep
from trainobs.steps.rule import EventCounts, Rule, doubt_of

_LOADER, _OTHER = Phase.LOADER.value, Phase.OTHER.value


class OverrunError(Exception):
    """Steps came so fast, or were read so late, that the kernel's ring has come round."""


class KernelStepClock:
    """Reads what the kernel writes of the steps of a process.

    Steps are numbered from 0, from the first that was seen to begin. What came before it is the
    set-up; the one that goes on at the end is never closed, since nobody knows when it ends.

    Args:
        word: the step word, at index 0.
        seen: `struct tobs_seen`, shape (1,), writable.
        now: CLOCK_MONOTONIC in ns.

    Attributes:
        closed: steps that are over, oldest first, for the collector to take.
        measured: phases that are timed: none, or the wait for the loader and the rest.
        named: no phase has a name of the user's.
        over: whether no step will follow.
        on_cancel: never called, since no step is taken back.
        counts: of each `Event` in the steps that were closed, the set-up left out.
    """

    def __init__(
        self,
        word: memoryview,
        seen: npt.NDArray[np.void],
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.closed: deque[bytes] = deque()
        self.measured: set[int] = set()
        self.named: Sequence[str] = ()
        self.over = False
        self.on_cancel: Callable[[int, int], None] | None = None
        self.counts = np.zeros(len(Event), np.int64)
        self._word = word
        self._seen = seen
        self._start_ns = self._begin_ns = now()
        self._now = now
        self._taken: tuple[Rule, EventCounts] | None = None  # and what was seen before
        self._next = 0

    @property
    def serial(self) -> int:
        """Serial of the step that the kernel counts for: 0 is the set-up."""
        return int(self._word[0]) >> 8

    @property
    def step_count(self) -> int:
        """Steps that were closed."""
        return max(0, self._next - 1)

    def look(self) -> EventCounts:
        """What the process was seen to do so far."""
        row = self._seen[0]
        seconds = (self._now() - self._start_ns) / 1e9
        scopes, ends = int(row["scopes"]), int(row["ends"])
        counts, tids, elsewhere = (row[name].tolist() for name in ("counts", "tids", "elsewhere"))
        return EventCounts(
            counts, tids, seconds, scopes, ends, elsewhere, int(row["half_turns"]) // 2
        )

    def doubt(self) -> str:
        """What speaks against the rule by what was seen since; "" if nothing does."""
        if self._taken is None:
            return ""
        (rule, before), seen = self._taken, self.look()
        counts = np.subtract(seen.counts, before.counts).tolist()
        return doubt_of(rule, replace(seen, counts=counts, turns=seen.turns - before.turns))

    def start(self, rule: Rule, *, times_fetches: bool) -> None:
        """Have steps begin by a rule from now on.

        Args:
            rule: the rule.
            times_fetches: whether the end of a fetch is seen, too.
        """
        self.measured = {_OTHER, _LOADER} if times_fetches else set()
        seen = self.look()
        self._taken = rule, seen
        self._seen["timed"] = times_fetches
        self._seen["needs"] = 0 if rule.needs is None else 1 << rule.needs
        self._seen["opens"] = 1 << rule.opens  # from here on there are steps, ...
        self._seen["nests"] = seen.ends_are_seen  # ... and no scopes of other threads

    def read(self) -> None:
        """Close the steps that are over.

        Raises:
            OverrunError: some were overwritten before they were read.
        """
        serial = self.serial
        if serial - self._next >= RING - 1:
            raise OverrunError(f"{serial - self._next} steps since they were read last")
        for number in range(self._next, serial):
            self._close(number, int(self._of(number + 1)["begin_ns"]))
        if self.serial - self._next >= RING - 1:
            raise OverrunError("steps were overwritten while they were read")
        self._next = serial

    def finish(self) -> None:
        """Have no step follow, and close those that are over.

        To be called while all of our programs run: without the one that sees fetches end, the last
        steps would be all wait.
        """
        self._seen["opens"] = self._seen["timed"] = 0
        with suppress(OverrunError):
            self.read()
        self.over = True

    def _of(self, serial: int) -> npt.NDArray[np.void]:
        of: npt.NDArray[np.void] = self._seen[0]["steps"][serial % RING]
        return of

    def _close(self, serial: int, end_ns: int) -> None:
        step = self._of(serial)
        phase_ns = [0] * (len(Phase) + MAX_NAMED)
        phase_ns[_LOADER] = int(step["loader_ns"])
        phase_ns[_OTHER] = end_ns - self._begin_ns - phase_ns[_LOADER]
        number = SETUP if serial == 0 else serial - 1
        begin_ns, self._begin_ns = self._begin_ns, end_ns
        self.closed.append(ClosedStep.from_numbers(serial, number, (begin_ns, end_ns), phase_ns))
        if serial:
            self.counts += step["counts"].astype(np.int64)
