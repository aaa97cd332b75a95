"""What is a step of a loop that marks none: a rule found from what it is seen to do.

The fewest assumptions that fit come first. A loop that fetches batches and has an optimizer step
has steps as trainobs has them elsewhere: a step begins with the first fetch after an optimizer has
stepped. So gradient accumulation, several optimizers in a step and validation make none too many.

What is seen differs. From outside, a process's events are counted, of whatever thread, and looked
at now and then: `rule_for`, `doubt_of`. From inside, one thread's fetches and steps of optimizers
are known as they come: `rule_inside`, `are_alone`. What the two have in common is here as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainobs.core.abi import Event

_OPEN = 3
"""Scopes that may go on as they are counted, or before."""

FEWEST = 2
"""Times that both events of a rule must have been seen."""

PATIENCE_S = 10.0
"""How long an optimizer may take to step before a rule without one is taken: gradients may be
summed up over many backward passes, ..."""

PATIENCE = 64
"""... at least so many, or for six times that long; or over more batches than that."""

ALONE, ALONE_IN_A_PASS = 8, 64
"""Steps of optimizers on end, without a fetch, that one batch may be for: where no pass over a
loader goes on, and where one does. With more of them they are steps by themselves."""

STEPS_IN_A_TURN = ALONE + 0.5
"""Likewise, each after a backward pass, where they are counted: no loop takes just so many."""


SEVERAL = "several threads step an optimizer"
PARTS = "these are parts of an optimizer's steps"
MANY = "each of these is many steps of an optimizer"


@dataclass(frozen=True)
class Rule:
    """When a step begins.

    Attributes:
        opens: the event that it begins with, ...
        needs: ... if this one came in the step before; None: each time.
        told: what a step is, in words.
        tid: the thread that trains, as it sees itself; 0: the one that is observed from inside.
    """

    opens: Event
    needs: Event | None
    told: str
    tid: int = 0


@dataclass(frozen=True)
class EventCounts:
    """What a process was seen to do so far.

    Attributes:
        counts: of each `Event`.
        tids: who did it last.
        seconds: how long it was looked at.
        scopes: how many scopes with a name began, of which a fetch is one.
        ends: how many of them were seen to end.
        elsewhere: how often it was another thread that did it than the time before.
        turns: how often a fetch came after an optimizer had stepped, however often either did.
    """

    counts: Sequence[int]
    tids: Sequence[int]
    seconds: float
    scopes: int = 0
    ends: int = 0
    elsewhere: Sequence[int] = (0,) * len(Event)
    turns: int = 0

    @property
    def ends_are_seen(self) -> bool:
        """Whether scopes end as often as they begin, but for those that go on."""
        return 0 < self.scopes - _OPEN <= self.ends <= self.scopes + _OPEN

    def has(self, *events: Event) -> bool:
        """Whether one thread, and no other, does these again and again."""
        often = all(self.counts[event] >= FEWEST for event in events)
        tids = {self.tids[event] for event in events}
        return often and len(tids) == 1 and not any(self.elsewhere[event] for event in events)

    @property
    def steps(self) -> int:
        """Steps of optimizers with a backward pass before each, at least."""
        return min(self.counts[Event.OPTIMIZER], self.counts[Event.BACKWARD])

    @property
    def own_turns(self) -> int:
        """With fetches by the thread that steps the optimizer."""
        return self.turns if self.tids[Event.FETCH] == self.tids[Event.OPTIMIZER] else 0


_FETCHED = "a step begins with the first fetch of a batch after {}"
_BY_BACKWARD = _FETCHED.format("a backward pass")
_OPTIMIZERS = "a step begins with the first step of an optimizer after a backward pass"
_STEPS = "a step begins with each step of an optimizer"
_PASSES = "each backward pass is taken for a step"
_UNSEEN = (
    "; no optimizer was seen to step: where a step has several backward passes, as for sums or "
    "penalties of gradients, these are parts of it; where nothing is trained, no steps"
)


BY_OPTIMIZER = Rule(Event.FETCH, Event.OPTIMIZER, _FETCHED.format("an optimizer has stepped"))
BY_FETCH = Rule(
    Event.FETCH, None, "each fetch of a batch begins a step: no optimizer of torch's steps"
)
BY_ONE_OPTIMIZER = Rule(
    Event.OPTIMIZER, None, "a step begins as an optimizer has stepped: no fetch in it is seen"
)
BY_OPTIMIZER_IN_A_PHASE = replace(
    BY_ONE_OPTIMIZER,
    told="a step begins as an optimizer has stepped: a fetch inside of a phase begins none",
)


def are_alone(steps: int, in_a_pass: bool = False) -> bool:
    """Whether optimizers that step so often on end, without a fetch, do so without a loader.

    Args:
        steps: of all of them.
        in_a_pass: whether a pass over a loader goes on.
    """
    return steps > (ALONE_IN_A_PASS if in_a_pass else ALONE)


def rule_inside(fetches: int, steps: int, seconds: float) -> Rule | None:
    """The rule that fits one thread; None as long as it is too early to say.

    Args:
        fetches: how often it fetched a batch to train on.
        steps: how often an optimizer stepped.
        seconds: how long it was looked at.
    """
    if not fetches:
        return BY_ONE_OPTIMIZER if are_alone(steps) else None
    if steps:
        return BY_OPTIMIZER
    return BY_FETCH if fetches > PATIENCE and seconds > PATIENCE_S else None


def rule_for(seen: EventCounts) -> Rule | None:
    """The rule that fits what a process does; None as long as it is too early to say."""
    if seen.elsewhere[Event.OPTIMIZER]:
        return None
    is_late = seen.seconds >= PATIENCE_S
    # Turns that may be seen in part, at either end.
    cut = 0 if is_late and seen.own_turns >= FEWEST else 1
    few = seen.steps < STEPS_IN_A_TURN * (seen.own_turns - cut)
    many = seen.steps >= STEPS_IN_A_TURN * (seen.own_turns + cut)
    if seen.has(Event.FETCH, Event.OPTIMIZER) and not many:
        return replace(BY_OPTIMIZER, tid=seen.tids[Event.OPTIMIZER]) if few else None
    if seen.counts[Event.OPTIMIZER] and seen.counts[Event.FETCH] == 1 and not (seen.turns or many):
        return None  # the first batch after a pause, however long: maybe several optimizers take it
    if seen.has(Event.OPTIMIZER, Event.BACKWARD) and (is_late or many):
        return Rule(Event.OPTIMIZER, Event.BACKWARD, _OPTIMIZERS, seen.tids[Event.OPTIMIZER])
    return _late_rule_for(seen) if is_late else None


def _late_rule_for(seen: EventCounts) -> Rule | None:
    """Where no thread is seen to do both a backward pass and a step of an optimizer."""
    steps, passes = seen.counts[Event.OPTIMIZER], seen.counts[Event.BACKWARD]
    if seen.has(Event.OPTIMIZER) and FEWEST <= steps <= passes:
        return Rule(Event.OPTIMIZER, None, _STEPS, seen.tids[Event.OPTIMIZER])
    waits_for_second = 0 < steps < FEWEST
    many = passes >= PATIENCE or seen.seconds >= 6 * PATIENCE_S
    if waits_for_second or not many:
        return None
    unseen = "" if steps else _UNSEEN
    tid = seen.tids[Event.BACKWARD]
    if seen.has(Event.FETCH, Event.BACKWARD):
        return Rule(Event.FETCH, Event.BACKWARD, _BY_BACKWARD + unseen, tid)
    if seen.has(Event.BACKWARD):
        return Rule(Event.BACKWARD, None, _PASSES + unseen, tid)
    return None


def doubt_of(rule: Rule, since: EventCounts) -> str:
    """What speaks against a rule that was taken; "" if nothing does.

    Args:
        rule: the rule.
        since: what was seen since then; `elsewhere` of other threads than the one that trains.
    """
    if Event.OPTIMIZER not in (rule.opens, rule.needs):
        return PARTS if since.counts[Event.OPTIMIZER] else ""
    if since.elsewhere[Event.OPTIMIZER]:
        return f"{SEVERAL}, and these are the steps of one"
    is_many = since.steps >= STEPS_IN_A_TURN * (since.turns + 1)  # one began before
    return MANY if rule.opens is Event.FETCH and is_many else ""
