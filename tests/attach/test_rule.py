"""Which rule is taken for what a process is seen to do."""

from __future__ import annotations

import pytest

from trainobs.attach.rule import Rule, Seen, rule_for
from trainobs.core.abi import Event

TRAINER, OTHER = 7, 8


def seen(backward: int, optimizer: int, fetch: int, seconds: float, fetcher: int = TRAINER) -> Seen:
    return Seen((backward, optimizer, fetch), (TRAINER, TRAINER, fetcher), seconds)


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
        (seen(40, 1, 40, 5), None),  # an optimizer that steps seldom: wait
        (seen(40, 0, 40, 11), None),
        (seen(64, 0, 64, 9), None),
        (seen(64, 0, 64, 11), (FETCH, BACKWARD)),
        (seen(9, 0, 9, 61), (FETCH, BACKWARD)),
        (seen(3, 3, 0, 1), None),  # a fetch may come
        (seen(8, 8, 0, 1), (OPTIMIZER, BACKWARD)),
        (seen(3, 3, 1, 10), (OPTIMIZER, BACKWARD)),
        (seen(64, 0, 0, 10), (BACKWARD, None)),
        (seen(0, 9, 0, 100), None),  # no gradients: no training
        (seen(0, 0, 900, 100), None),  # inference
    ],
)
def test_rules(what: Seen, expected: tuple[Event, Event | None] | None) -> None:
    assert events(rule_for(what)) == expected


def test_fetches_of_another_thread_begin_no_step() -> None:
    assert events(rule_for(seen(8, 8, 8, 1, fetcher=OTHER))) == (OPTIMIZER, BACKWARD)


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
    assert Seen((2, 2, 2), (7, 7, 7), 1.0, scopes, ends).ends_are_seen is expected
