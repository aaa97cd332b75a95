"""Which rule is taken for what a process is seen to do."""

from __future__ import annotations

from collections import Counter
from itertools import count, product

import pytest

from trainobs.core.abi import Event
from trainobs.steps.rule import (
    BY_FETCH,
    BY_ONE_OPTIMIZER,
    BY_OPTIMIZER,
    MANY,
    PARTS,
    SEVERAL,
    EventCounts,
    Rule,
    doubt_of,
    rule_for,
    rule_inside,
)

TRAINER, OTHER = 7, 8


def seen(
    backward: int,
    optimizer: int,
    fetch: int,
    seconds: float,
    fetcher: int = TRAINER,
    turns: int | None = None,
) -> EventCounts:
    counts, tids = (backward, optimizer, fetch), (TRAINER, TRAINER, fetcher)
    return EventCounts(
        counts, tids, seconds, turns=min(optimizer, fetch) if turns is None else turns
    )


def events(rule: Rule | None) -> tuple[Event, Event | None] | None:
    return (rule.opens, rule.needs) if rule else None


FETCH, OPTIMIZER, BACKWARD = Event.FETCH, Event.OPTIMIZER, Event.BACKWARD


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (seen(0, 0, 0, 100), None),
        (seen(1, 1, 1, 1), None),  # a step alone is none
        (seen(2, 2, 2, 0.1), (FETCH, OPTIMIZER)),
        (seen(8, 2, 8, 0.1), (FETCH, OPTIMIZER)),  # accumulation
        (seen(2, 2, 1, 30, turns=0), None),  # a GAN's first batch after a pause
        (seen(9, 9, 1, 30, turns=0), (OPTIMIZER, BACKWARD)),  # a batch for many steps
        (seen(40, 1, 40, 5), None),  # an optimizer that steps seldom: wait
        (seen(40, 0, 40, 11), None),
        (seen(64, 0, 64, 9), None),
        (seen(64, 0, 64, 11), (FETCH, BACKWARD)),
        (seen(9, 0, 9, 61), (FETCH, BACKWARD)),
        (seen(3, 3, 0, 1), None),  # a fetch may come
        (seen(9, 9, 0, 1), (OPTIMIZER, BACKWARD)),
        (seen(3, 3, 1, 10), (OPTIMIZER, BACKWARD)),
        (seen(64, 0, 0, 10), (BACKWARD, None)),
        (seen(900, 1, 900, 59), None),  # it will step again
        (seen(32, 32, 2, 0.1), (OPTIMIZER, BACKWARD)),  # many steps with a batch
        (seen(2, 32, 2, 0.1), (FETCH, OPTIMIZER)),  # an optimizer for each parameter
        (seen(2, 2, 2, 0.1, turns=1), None),  # the last two steps with a batch, and two fetches
        (seen(2, 2, 2, 11, turns=1), None),  # nor are these, of slow steps: wait for a second turn
        (seen(2, 2, 3, 18, turns=2), (FETCH, OPTIMIZER)),
        (seen(17, 17, 2, 11, turns=1), (OPTIMIZER, BACKWARD)),
        (seen(0, 9, 0, 100), None),  # no gradients: no training
        (seen(0, 0, 900, 100), None),  # inference
    ],
)
def test_rules(what: EventCounts, expected: tuple[Event, Event | None] | None) -> None:
    assert events(rule_for(what)) == expected


@pytest.mark.parametrize("batches", [1, 2, 12])
@pytest.mark.parametrize("each", range(1, 16))
def test_the_rule_is_the_same_whenever_one_looks(each: int, batches: int) -> None:
    """So many steps in each turn, seen from any of them on, and looked at after each event.

    A turn may begin with several fetches, as where an epoch is one batch.
    """
    turn = [(FETCH,)] * batches + [(BACKWARD, OPTIMIZER)] * each
    for first, every in product(range(len(turn)), (1, 3, 50)):
        counts, rule, turns, stepped = Counter[Event](), None, 0, False
        for number in count(first):
            events_now = turn[number % len(turn)]
            counts.update(events_now)
            turns += stepped and FETCH in events_now
            stepped = OPTIMIZER in events_now
            rule = rule_for(seen(*(counts[event] for event in Event), 1.0, turns=turns))
            if rule and number % every == 0:
                break
        assert events(rule) == ((FETCH, OPTIMIZER) if each < 9 else (OPTIMIZER, BACKWARD)), first


@pytest.mark.parametrize("fetches", [0, 64])
def test_where_no_optimizer_is_seen_steps_may_be_parts_or_none(fetches: int) -> None:
    rule = rule_for(seen(64, 0, fetches, 11))
    assert rule is not None
    assert "several backward passes" in rule.told
    assert "where nothing is trained, no steps" in rule.told


def test_several_threads_have_no_rule() -> None:
    both = EventCounts((8, 8, 8), (TRAINER,) * 3, 100, elsewhere=(0, 1, 0))
    assert rule_for(both) is None


def test_backward_passes_in_other_threads_are_no_steps() -> None:
    passes = EventCounts((90, 30, 0), (OTHER, TRAINER, 0), 10.0, elsewhere=(45, 0, 0))
    assert events(rule_for(passes)) == (OPTIMIZER, None)
    without_optimizer = EventCounts((90, 0, 0), (OTHER, 0, 0), 100.0, elsewhere=(45, 0, 0))
    assert rule_for(without_optimizer) is None


def test_what_speaks_against_a_rule() -> None:
    by_optimizer = Rule(FETCH, OPTIMIZER, "", TRAINER)
    by_passes = Rule(BACKWARD, None, "", TRAINER)

    def since(*counts: int, elsewhere: tuple[int, ...] = (0, 0, 0), turns: int = 9) -> EventCounts:
        return EventCounts(counts, (TRAINER,) * 3, 1.0, elsewhere=elsewhere, turns=turns)

    assert doubt_of(by_optimizer, since(9, 9, 9, elsewhere=(5, 0, 5))) == ""
    assert doubt_of(by_optimizer, since(9, 9, 9, elsewhere=(0, 1, 0))).startswith(SEVERAL)
    assert doubt_of(by_optimizer, since(80, 80, 18)) == ""  # eight in each, of the one that goes on
    assert doubt_of(by_optimizer, since(90, 90, 18)) == MANY
    assert doubt_of(by_optimizer, since(10, 900, 10)) == ""  # an optimizer for each parameter
    assert doubt_of(by_passes, since(9, 0, 9)) == ""
    assert doubt_of(by_passes, since(9, 1, 9)) == PARTS


def test_fetches_of_another_thread_begin_no_step() -> None:
    assert events(rule_for(seen(9, 9, 9, 1, fetcher=OTHER))) == (OPTIMIZER, BACKWARD)


def test_the_thread_is_the_one_that_trains() -> None:
    rule = rule_for(seen(2, 2, 2, 1))
    assert rule is not None
    assert rule.tid == TRAINER


@pytest.mark.parametrize(
    ("scopes", "ends", "expected"),
    [(0, 0, False), (30, 30, True), (30, 28, True), (30, 0, False), (30, 60, False), (3, 3, False)],
)
def test_fetches_are_timed_only_where_scopes_are_seen_to_end(
    scopes: int, ends: int, expected: bool
) -> None:
    assert EventCounts((2, 2, 2), (7, 7, 7), 1.0, scopes, ends).ends_are_seen is expected


@pytest.mark.parametrize(
    ("fetches", "steps", "seconds", "expected"),
    [
        (0, 8, 99.0, None),  # there may be a loader
        (0, 9, 0.1, BY_ONE_OPTIMIZER),
        (1, 1, 0.1, BY_OPTIMIZER),
        (9, 99, 0.1, BY_OPTIMIZER),
        (64, 0, 99.0, None),  # an optimizer may step
        (65, 0, 10.0, None),
        (65, 0, 10.1, BY_FETCH),
    ],
)
def test_rules_of_one_thread_that_is_seen_from_inside(
    fetches: int, steps: int, seconds: float, expected: Rule | None
) -> None:
    assert rule_inside(fetches, steps, seconds) is expected
