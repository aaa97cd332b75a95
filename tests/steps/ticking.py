"""A step clock whose time stands still until a test lets it pass."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable, Sequence
from unittest.mock import patch

from trainobs.core.abi import Phase
from trainobs.core.records import SETUP
from trainobs.steps import clock, fast_path, fast_path_python
from trainobs.steps.clock import StepClock
from trainobs.steps.closed_step import ClosedStep


def _in_python() -> type[StepClock]:
    """The step clock as it is without C."""
    specification = importlib.util.spec_from_file_location("clock_in_python", clock.__file__)
    module = importlib.util.module_from_spec(specification)
    with patch.dict(sys.modules, {"trainobs.steps.fast_path": fast_path_python}):
        specification.loader.exec_module(module)
    return module.StepClock


KINDS = {"Python": _in_python(), **({"C": StepClock} if fast_path.LANGUAGE == "C" else {})}
"""Step clocks that do the same."""


class Word(list[int]):
    """The word that the kernel reads, and all that it ever was, as (serial, phase)."""

    def __init__(self) -> None:
        super().__init__([0])
        self.history: list[tuple[int, Phase]] = []

    def __setitem__(self, index: int, value: int) -> None:
        super().__setitem__(index, value)
        self.history.append(self.mark)

    @property
    def mark(self) -> tuple[int, Phase]:
        phase = self[0] & 0xFF
        return self[0] >> 8, Phase(phase) if phase < len(Phase) else Phase.OTHER


class Ticking:
    """A clock at `ns`, with the word that it marks."""

    def __init__(
        self,
        *,
        sample: Callable[[], object] | None = None,
        on_close: Callable[[], None] | None = None,
        kind: type[StepClock] = StepClock,
    ) -> None:
        self.ns = 1_000
        self.word = Word()
        self.clock = kind(self.word, sample=sample, on_close=on_close, now=lambda: self.ns)

    def after(self, ns: int) -> StepClock:
        """The clock, `ns` later."""
        self.ns += ns
        return self.clock

    def step(self, *, fetch: int = 0, work: int = 0, number: int | None = None) -> None:
        """A whole step: a fetch, and work in no phase."""
        self.clock.begin_fetch()
        self.after(fetch).end_fetch()
        self.clock.begin_batch(number)
        self.after(work).end_step()

    @property
    def all_closed(self) -> list[ClosedStep]:
        """What was closed so far, the set-up first."""
        return list(map(ClosedStep, self.clock.closed))

    def closed(self) -> list[ClosedStep]:
        """The steps after the set-up, once the clock is finished."""
        self.clock.finish()
        return self.all_closed[1:]

    def at_random(
        self, chance: random.Random, actions: Sequence[Callable[[], object]]
    ) -> list[ClosedStep]:
        """All steps of a loop that does things in any order; checks that no time is lost."""
        for _ in range(400):
            self.after(chance.randrange(50))
            chance.choice(actions)()
        self.after(11).finish()
        steps = self.all_closed
        assert [step.step for step in steps] == list(range(SETUP, len(steps) - 1))
        assert [sum(step.phase_ns) for step in steps] == [s.end_ns - s.start_ns for s in steps]
        assert [step.start_ns for step in steps] == [1000, *[step.end_ns for step in steps[:-1]]]
        assert steps[-1].end_ns == self.ns
        return steps


def times(step: ClosedStep) -> dict[Phase, int]:
    """Time in each phase that the step was in."""
    return {phase: step.phase_ns[phase] for phase in Phase if step.phase_ns[phase]}
