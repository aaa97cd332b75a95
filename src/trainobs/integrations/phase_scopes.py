"""Contexts of the phases of a step, by name: of a plain loop, and of `trainobs.phase`."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from trainobs.core.abi import Phase
from trainobs.core.catalogue.named import may_name_a_phase
from trainobs.core.errors import shown
from trainobs.integrations.scope import NOTHING, FirstUse, Scope
from trainobs.integrations.user_warnings import warn_once
from trainobs.session.forks import register_fork_cleanup, unregister_fork_cleanup
from trainobs.steps.clock import MAX_NAMED, StepClock
from trainobs.steps.fast_path import CallbackContext

_NAMES_KEPT = 100
"""Names of phases, good and bad, that are looked at once: a loop may make them up as it goes."""

_CALLS = 20
"""Calls of a name that nobody has entered, until that is told: interrupts may keep some from it."""

_PHASES = {phase.name.lower(): phase.value for phase in Phase}


class PhaseScopes:
    """One for each name: a scope holds nothing but how its phase begins and ends.

    `phase` finds them in the thread that made them, until they are closed.

    Args:
        clock: of the loop.
        on_fault: called while a fault of ours is handled.
    """

    def __init__(self, clock: StepClock, on_fault: Callable[[], object]) -> None:
        self._clock = clock
        self._on_fault = on_fault
        self._entered: dict[str, Scope] = {}
        self._calls: Counter[str] = Counter()  # until it is entered
        self._thread = threading.get_ident()
        _open.append(self)
        register_fork_cleanup(self)

    def close(self) -> None:
        """The run has ended. May be called twice."""
        unregister_fork_cleanup(self)
        self.abandon()

    def abandon(self) -> None:
        """In a forked child: the run is the parent's."""
        if self in _open:
            _open.remove(self)

    @property
    def is_here(self) -> bool:
        """Whether this thread trains."""
        return threading.get_ident() == self._thread

    def scope(self, name: object) -> Scope:
        """That of a phase; what is no name of one counts as `other`."""
        scope = self._entered.get(name) if isinstance(name, str) else None
        return self._new(name) if scope is None else scope

    def _new(self, name: object) -> Scope:
        clock = self._clock
        known = _PHASES.get(name) if isinstance(name, str) else None
        phase = self._number(name) if known is None else known
        scope = CallbackContext(clock.enter, phase, clock.leave, self._on_fault)

        def entered() -> None:
            clock.measured.add(phase)
            if isinstance(name, str) and len(self._entered) < _NAMES_KEPT:
                self._entered[name] = scope

        if isinstance(name, str):
            self._calls[name] += 1
            if self._calls[name] == _CALLS and name not in self._entered:
                do = "write `with` before it, and what belongs to the phase below it"
                what = f"calls of {shown(name)}"
                warn_once("a phase that is not entered takes no time", what, do)
        return FirstUse(scope, entered)

    def _number(self, name: object) -> int:
        """A name that cannot be one counts as `other`: a misspelt word must not end a training."""
        if not isinstance(name, str) or not may_name_a_phase(name):
            found = "a name that no phase can have"
            do = f"use letters, digits, _, . and -, or one of {', '.join(map(repr, _PHASES))}"
        elif (phase := self._clock.name_phase(name)) is None:
            found = f"{MAX_NAMED} names of your own before it, and a run has at most so many"
            do = "have several parts of the step share a name"
        else:
            return phase
        warn_once(f"phase {shown(name)} is counted as other", found, do, kind=found)
        return Phase.OTHER.value


_open: list[PhaseScopes] = []
"""Of the runs of this process that have not ended."""


def phase(name: str) -> Scope:
    """Context of a phase of the step that goes on, whatever observes this thread: a callback, too.

    For code that a Trainer calls, such as a training step or a callback. Where nobody observes the
    thread (without a run, in a loader's worker), it does nothing. Of two runs, it is of the newer.

    Args:
        name: as of `Observation.phase`.
    """
    for scopes in reversed(_open):
        if scopes.is_here:
            return scopes.scope(name)
    return NOTHING
