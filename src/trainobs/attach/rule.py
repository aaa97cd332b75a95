"""What is a step of a process that marks none: a rule found from what it is seen to do.

The fewest assumptions that fit come first. A loop that fetches batches and has an optimizer step
has steps as trainobs has them elsewhere: a step begins with the first fetch after an optimizer has
stepped. So gradient accumulation, several optimizers in a step and validation make none too many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainobs.core.abi import Event

_OPEN = 3
"""Scopes that may go on as they are counted, or before."""

FEWEST = 2
"""Times that both events of a rule must have been seen."""

PATIENCE_S = 10.0
"""How long an optimizer may take to step before a rule without one is taken: gradients may be
summed up over many backward passes, ..."""

PATIENCE_PASSES = 64
"""... at least so many, or for six times that long."""

STEPS_WITHOUT_FETCH = 8
"""Steps of an optimizer before a rule without fetches is taken: some loops take several steps with
one batch."""


@dataclass(frozen=True)
class Rule:
    """When a step begins.

    Attributes:
        opens: the event that it begins with, ...
        needs: ... if this one came in the step before; None: each time.
        tid: the thread that trains, as it sees itself.
        told: what a step is, in words.
    """

    opens: Event
    needs: Event | None
    tid: int
    told: str


@dataclass(frozen=True)
class Seen:
    """What a process was seen to do so far.

    Attributes:
        counts: of each `Event`.
        tids: who did it last.
        seconds: how long it was looked at.
        scopes: how many scopes with a name began, of which a fetch is one.
        ends: how many of them were seen to end.
    """

    counts: Sequence[int]
    tids: Sequence[int]
    seconds: float
    scopes: int = 0
    ends: int = 0

    @property
    def ends_are_seen(self) -> bool:
        """Whether scopes end as often as they begin, but for those that go on."""
        return 0 < self.scopes - _OPEN <= self.ends <= self.scopes + _OPEN

    def has(self, *events: Event) -> bool:
        """Whether one thread does these again and again."""
        often = all(self.counts[event] >= FEWEST for event in events)
        return often and len({self.tids[event] for event in events}) == 1


_FETCHED = "a step begins with the first fetch of a batch after {}"
_BY_OPTIMIZER = _FETCHED.format("an optimizer has stepped")
_BY_BACKWARD = _FETCHED.format("a backward pass")
_OPTIMIZERS = "a step begins with the first step of an optimizer after a backward pass"
_PASSES = "steps are backward passes: each backward pass begins a step"


def rule_for(seen: Seen, patience_s: float = PATIENCE_S) -> Rule | None:
    """The rule that fits; None as long as it is too early to say.

    Args:
        seen: what the process does.
        patience_s: see `PATIENCE_S`.
    """
    if seen.has(Event.FETCH, Event.OPTIMIZER):
        return Rule(Event.FETCH, Event.OPTIMIZER, seen.tids[Event.OPTIMIZER], _BY_OPTIMIZER)
    is_late = seen.seconds >= patience_s
    waited = is_late or seen.counts[Event.OPTIMIZER] >= STEPS_WITHOUT_FETCH
    if seen.has(Event.OPTIMIZER, Event.BACKWARD) and waited:
        return Rule(Event.OPTIMIZER, Event.BACKWARD, seen.tids[Event.OPTIMIZER], _OPTIMIZERS)
    many = seen.counts[Event.BACKWARD] >= PATIENCE_PASSES or seen.seconds >= 6 * patience_s
    if not (is_late and many):
        return None
    if seen.has(Event.FETCH, Event.BACKWARD):
        return Rule(Event.FETCH, Event.BACKWARD, seen.tids[Event.BACKWARD], _BY_BACKWARD)
    if seen.has(Event.BACKWARD):
        return Rule(Event.BACKWARD, None, seen.tids[Event.BACKWARD], _PASSES)
    return None
