"""Where the steps of a loop begin that marks none, by what torch does in the thread that trains."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable

from trainobs.core.abi import Phase
from trainobs.core.records import SETUP
from trainobs.hooks.optimizers import OptimizerHooks
from trainobs.steps.clock import StepClock
from trainobs.steps.states import StepsBy

_OPTIMIZER = Phase.OPTIMIZER.value

ALONE, ALONE_AGAIN = 8, 64
"""Steps of optimizers, without a fetch, after which a loop is one without torch's loaders: where no
pass over one goes on, and where one does, of which a batch may be for many steps."""

PATIENCE_FETCHES, PATIENCE_S = 64, 10.0
"""Fetches, and time, after which a loop without a step of an optimizer has none of torch's."""

BY_OPTIMIZER = "a step begins with the first fetch of a batch after an optimizer has stepped"
BY_FETCH = "each fetch of a batch begins a step: no optimizer of torch's steps"
BY_ONE_OPTIMIZER = "a step begins as an optimizer has stepped: no fetch in it is seen"
BY_MARKS = "the loop marks its steps"


class OptimizerSteps:
    """Ends the steps of a loop that marks none as an optimizer of torch's steps in this thread.

    Args:
        clock: of this thread; its fetches end steps until then.
        found: told what a step is from now on.
        on_fault: called while a fault of ours is handled.

    Attributes:
        takes_all: whether no loader was named: one that is seen may not be the one of the loop.
        count: how often an optimizer has stepped.
        first_ns: when one first has.
        last_ns: when one last has.
    """

    def __init__(
        self, clock: StepClock, found: Callable[[str], None], on_fault: Callable[[], None]
    ) -> None:
        self.count = self.first_ns = self.last_ns = 0
        self.takes_all = True
        self._clock = clock
        self._found = found
        self._rule = ""
        self._without = 0
        self._main: Callable[[], object] = lambda: None
        self._since: Counter[int] = Counter()  # steps of each other since the last one of that
        self._hooks = OptimizerHooks(self._stepped, on_fault)

    def close(self) -> None:
        """Be told of nothing any more."""
        self._hooks.close()

    def _stepped(self, optimizer: object) -> None:
        clock = self._clock
        self.count += 1
        self.last_ns = time.monotonic_ns()
        if not self.first_ns:
            self.first_ns = self.last_ns
        self._since[id(optimizer)] += 1
        main = self._main()
        if main is None or self._since[id(optimizer)] > ALONE:
            self._main, main = weakref.ref(optimizer), optimizer
        if main is optimizer:
            self._since.clear()
        if clock.step == SETUP:  # no batch was fetched
            if self.count <= ALONE:
                return
            clock.supply.lose()
        elif self.takes_all and not clock.supply.is_none:
            self._without = self._without + 1 if clock.is_idle else 0
            most = ALONE if clock.fetches.leader is None else ALONE_AGAIN
            if self._without > most:  # it was a look at the data, or it has another loader
                clock.supply.lose()
                clock.measured.discard(Phase.LOADER.value)
        rule = BY_ONE_OPTIMIZER if clock.supply.is_none else BY_OPTIMIZER
        if rule is not self._rule:
            self._rule = rule
            self._found(rule)
        clock.stepped(main=main is optimizer)


class StepFinder:
    """Tells a clock where steps begin, by the optimizers and the loaders of the main thread.

    Which rule fits is found once, as `attach/rule.py` does it from outside; there, a step is seen
    to begin by the same events.

    Args:
        clock: of this thread.
        found: told what a step is, once that is known.
        on_fault: called while a fault of ours is handled.
    """

    def __init__(
        self, clock: StepClock, found: Callable[[str], None], on_fault: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._found = found
        self._on_fault = on_fault
        self._began_s = time.monotonic()
        self._rule = ""
        self._fetches = self._steps = 0
        self._optimizing = False
        self._one: Callable[[], object] = lambda: None
        self._hooks: OptimizerHooks | None = None
        clock.join()

    def watch_optimizers(self) -> None:
        """Be told of all optimizers of torch's, from now on."""
        self._hooks = OptimizerHooks(self._stepped, self._on_fault, self._stepping)

    def close(self) -> None:
        """Be told of nothing any more."""
        if self._hooks is not None:
            self._hooks.close()
        self.leave()

    def leave(self) -> None:
        """No optimizer steps any more, also where its step has raised."""
        if self._optimizing:
            self._optimizing = False
            self._clock.leave()

    def fetching(self) -> None:
        """The loop asks for a batch."""
        self.leave()
        self._fetches += 1
        if self._rule:
            return
        if self._steps:
            self._settle(BY_OPTIMIZER)
        elif self._fetches > PATIENCE_FETCHES and time.monotonic() - self._began_s > PATIENCE_S:
            self._clock.steps_by = StepsBy.FETCHES
            self._clock.end_step()
            self._settle(BY_FETCH)

    def _stepping(self, _: object) -> None:
        self.leave()
        self._clock.measured.add(_OPTIMIZER)
        self._clock.enter(_OPTIMIZER)
        self._optimizing = True

    def _stepped(self, optimizer: object) -> None:
        self.leave()
        self._steps += 1
        if not self._rule and not self._fetches and self._steps > ALONE:
            self._settle(BY_ONE_OPTIMIZER)
        if self._rule == BY_ONE_OPTIMIZER:
            if self._one() is None:
                self._one = weakref.ref(optimizer)
            if self._one() is optimizer:
                self._clock.end_step()
                self._clock.begin_batch()
        elif self._rule != BY_FETCH:
            self._clock.end_step()

    def _settle(self, rule: str) -> None:
        self._rule = rule
        self._found(rule)
