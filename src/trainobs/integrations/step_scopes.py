"""Contexts of the steps of a plain loop, which may be called at a step's end instead."""

from __future__ import annotations

from collections.abc import Callable

from trainobs.core.abi import Phase
from trainobs.core.records import SETUP
from trainobs.integrations.scope import NOTHING, FirstUse, Scope, step_number
from trainobs.steps.clock import StepClock
from trainobs.steps.fast_path import CallbackContext

_FED = 2
"""Steps on end with batches, after which each begins with a fetch."""

_OPEN = 2
"""Steps that may be open as a run ends inside of them."""

_PART = 5
"""One call in so many has to be ignored to be told: an interrupt may keep some from ending."""


class StepScopes:
    """One for all steps. What the first use was, all are: a context, or a call.

    Until the first one is entered, or the second call comes, nobody knows. So the first call ends
    a step that has had a batch, and that step goes on if it is entered.

    Args:
        clock: of the loop.
        on_fault: called while a fault of ours is handled.
        uses_with: called once a step is entered.
    """

    def __init__(
        self, clock: StepClock, on_fault: Callable[[], object], uses_with: Callable[[], object]
    ) -> None:
        self._clock = clock
        self._on_fault = on_fault
        self._uses_with = uses_with
        self._each: Scope = CallbackContext(clock.begin_step, None, clock.end_step, on_fault)
        self._is_called: bool | None = None
        self._first: FirstUse | None = None
        self._ended_one = self._is_open = False
        self._fed = _FED
        self._given = self._ends_before = 0

    @property
    def ignored(self) -> int:
        """At least so many calls ended no step, since the first use was a context."""
        ended = self._clock.ends - self._ends_before
        ignored = self._given - ended - _OPEN
        return ignored if self._is_called is False and ignored * _PART > self._given else 0

    def scope(self, number: int | None) -> Scope:
        """That of a step, with a number of its own or the next one; or mark the end of one."""
        self._given += 1
        if number is None and self._is_called is False:  # as nearly always
            return self._each
        if number is not None:
            number = step_number(number)
        if self._is_called:
            return self._mark(number)
        scope, clock = self._each, self._clock
        if number is not None:
            scope = CallbackContext(clock.begin_step, number, clock.end_step, self._on_fault)
        return scope if self._is_called is False else self._use_first(scope, number)

    def _use_first(self, scope: Scope, number: int | None) -> Scope:
        clock = self._clock
        if self._first is not None and not self._first.was_entered:
            self._is_called, self._first = True, None
            return self._mark(number)
        self._ended_one = not clock.is_idle
        if self._ended_one:
            self._mark(number)
        self._first = FirstUse(scope, self._entered)
        return self._first

    def _entered(self) -> None:
        if self._is_called is None:
            self._is_called = False
            if self._ended_one:
                self._clock.unmark()
            self._given, self._ends_before = 1, self._clock.ends
            self._uses_with()

    def _mark(self, number: int | None) -> Scope:
        """What has had no batch begins at the end of the step before, or is part of the set-up."""
        clock = self._clock
        try:
            if not clock.is_idle:
                self._fed += 1
            elif not clock.supply.is_out:  # else it was fetched ahead
                self._fed = 0
            if not self._fed and clock.fetches.leader is None:  # at most a look at the data
                clock.measured.discard(Phase.LOADER.value)
            if not self._fed and clock.step == SETUP and not self._is_open:
                self._is_open = True
                clock.open_step()
                return NOTHING
            if number is None and self._is_open and clock.step == SETUP:
                number = 2  # as many calls came before this one
            clock.mark(number, opens=self._fed < _FED)
        except Exception:
            self._on_fault()
        return NOTHING
