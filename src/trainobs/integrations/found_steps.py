"""Where the steps of a loop begin that marks none, by what torch does in the thread that trains."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable

from trainobs.core.abi import Event, Phase
from trainobs.core.records import SETUP
from trainobs.hooks.optimizers import OptimizerHooks
from trainobs.steps.clock import StepClock
from trainobs.steps.rule import (
    ALONE,
    BY_FETCH,
    BY_ONE_OPTIMIZER,
    BY_OPTIMIZER,
    BY_OPTIMIZER_IN_A_PHASE,
    FEWEST,
    Rule,
    are_alone,
    rule_inside,
)
from trainobs.steps.states import StepsBy

_OPTIMIZER = Phase.OPTIMIZER.value


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
        self._rule: Rule | None = None
        self._without = 0  # steps on end without a batch
        self._fed = 0  # steps with one
        self._main: Callable[[], object] = lambda: None
        self._by_main = 0  # its steps, and those of the ones before it
        self._since: Counter[int] = Counter()  # steps of each other since the last one of that
        self._hooks = OptimizerHooks(self._stepped, on_fault)

    def close(self) -> None:
        """Be told of nothing any more."""
        self._hooks.close()

    def _stepped(self, optimizer: object) -> None:
        clock, supply = self._clock, self._clock.supply
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
        self._by_main += main is optimizer
        if clock.step == SETUP:  # no batch was fetched
            if not are_alone(self.count):
                return
            supply.lose()
        elif self.takes_all and not supply.is_none:
            self._without = self._without + 1 if clock.is_idle else 0
            self._fed += not clock.is_idle
            in_a_pass = clock.fetches.leader is not None
            if are_alone(self._without, in_a_pass):
                supply.lose()
                if self._fed < FEWEST:  # it was a look at the data; else the loop keeps batches
                    clock.measured.discard(Phase.LOADER.value)
        rule = self._rule_of(supply.is_none)
        if rule is not self._rule:
            self._rule = rule
            self._found(rule.told)
        # Those that made no step count, as they do in ranks that see their loader.
        clock.stepped(main=main is optimizer, first=self._by_main - 1)

    def _rule_of(self, alone: bool) -> Rule:
        fetches = self._clock.fetches
        if not alone:
            return BY_OPTIMIZER
        in_phases = fetches.in_phases and not fetches.has_led
        return BY_OPTIMIZER_IN_A_PHASE if in_phases else BY_ONE_OPTIMIZER


class StepFinder:
    """Tells a clock where steps begin, by the optimizers and the loaders of the main thread.

    Which rule fits is found once, and taken at an event by which it has a step begin.

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
        self._rule: Rule | None = None
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
        if self._find(Event.FETCH) is BY_FETCH:
            self._clock.steps_by = StepsBy.FETCHES
            self._clock.end_step()

    def _stepping(self, _: object) -> None:
        self.leave()
        self._clock.measured.add(_OPTIMIZER)
        self._clock.enter(_OPTIMIZER)
        self._optimizing = True

    def _stepped(self, optimizer: object) -> None:
        self.leave()
        self._steps += 1
        self._find(Event.OPTIMIZER)
        if self._rule is BY_ONE_OPTIMIZER:
            if self._one() is None:
                self._one = weakref.ref(optimizer)
            if self._one() is optimizer:
                self._clock.end_step()
                self._clock.begin_batch()
        elif self._rule is not BY_FETCH:
            self._clock.end_step()

    def _find(self, event: Event) -> Rule | None:
        """The rule, where an event has just shown which it is."""
        if self._rule is not None:
            return None
        rule = rule_inside(self._fetches, self._steps, time.monotonic() - self._began_s)
        if rule is None or rule.opens is not event:
            return None
        self._rule = rule
        self._found(rule.told)
        return rule
