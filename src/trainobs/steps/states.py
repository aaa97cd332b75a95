"""The states of a step clock, and what leads from each to which.

Those of `StepsBy` and `StepState` are numbers, which `native/fast_path.h` has too.
"""

from __future__ import annotations

from enum import IntEnum


class StepsBy(IntEnum):
    """What ends the steps of a loop.

    A framework's loop has marks from the beginning on. One that may mark none goes from each of
    these to another as it shows what it does::

        OPTIMIZER -> FETCHES    its loader is named, and no optimizer has stepped
        FETCHES -> OPTIMIZER    one has
        either -> MARKS         it marks a step
        MARKS -> FETCHES        seen from inside a process, it has no optimizer of torch's
    """

    MARKS = 0
    FETCHES = 1
    OPTIMIZER = 2


class StepState(IntEnum):
    """How far the current step is.

    ::

        ENDED -> OPENED         a fetch opens the next one
        OPENED -> ENDED         it gets no batch: what it took goes back to the step before
        OPENED -> RUNNING       it gets one, and the step before is published
        OPENED -> UNPROVEN      likewise, where a step is what an optimizer steps in: it may be none
        UNPROVEN -> RUNNING     an optimizer steps, and the step before is published; or the two
                                are one step
        RUNNING -> ENDED        it ends
        ENDED -> RUNNING        the first mark of a step, where none was known yet
        UNPROVEN -> ENDED       nothing steps before the end: it goes back to the set-up

    The set-up begins as `ENDED`: there is a step as soon as something opens one.
    """

    RUNNING = 0
    UNPROVEN = 1
    ENDED = 2  # from here on no batch is there
    OPENED = 3


class Supply:
    """Whether a loop gets batches, where its steps are those of an optimizer.

    A loader is out of batches from the end of a pass to the beginning of the next. A loop that
    trains on no loader which is seen may go through one all the same, for a validation.

    Attributes:
        is_out: whether no batch is to come, so that each step of the optimizer ends one. Until
            then a fetch has to open the next: a loop that fetches ahead has batches left.
        is_none: whether the loop trains on no loader that is seen. It is out of batches as well,
            but while it goes through one all the same.
    """

    def __init__(self) -> None:
        self.is_out = self.is_none = False
        self._fed = 0

    def ask(self) -> None:
        """A pass begins."""
        self.is_out = False

    def run_dry(self) -> None:
        """A pass has no batch any more."""
        self.is_out = True

    def lose(self) -> None:
        """The loop trains on no loader that is seen."""
        self.is_out, self.is_none, self._fed = True, True, 0

    def step(self, *, had_batch: bool) -> None:
        """A step ends where there is none: there is, after all, if two on end had batches."""
        self._fed = self._fed + 1 if had_batch else 0
        self.is_out = self.is_none = self._fed < 2
