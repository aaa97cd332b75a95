"""What a data set opens in each new worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.replay.constructed import MS, STEPS, replay, run, step_ms
from trainobs.replay.changes import with_changes
from trainobs.replay.opening import surely_opened
from trainobs.replay.parsing import parse
from trainobs.replay.trace import Trace

PLACE = np.arange(STEPS) % 8
"""Of a batch in its pass."""


def opening(*, slept_ms: float, workers: int, **more: object) -> Trace:
    """Passes of 8 batches of 16 ms, of which the first of each worker sleeps as long."""
    is_first = PLACE == 0
    is_first[0] = False
    parts = {
        "cpu": np.zeros(STEPS) + 17 * MS,
        "make_cpu": np.zeros(STEPS) + 16 * MS,
        "make_sleep": np.where(workers > PLACE, slept_ms * MS, 0.0),
        "is_first": is_first,
    }
    return run(**parts, workers=workers, **more)


def gain(trace: Trace, words: str) -> tuple[float, float]:
    measured = replace(trace, step=np.zeros(STEPS) + step_ms(trace, shared=False) * MS)
    return replay(measured).predict(parse(words.split())).gain


def test_what_new_workers_open_may_be_gone_where_they_live_on_or_there_are_none():
    # A pass of 8 steps takes 600 ms and about 150; without what they open about 150.
    low, high = gain(opening(slept_ms=600, workers=2), "persistent")
    assert low < 1.05 < 4.5 < high, "it may be what a stream does in each pass, too"
    low, high = gain(opening(slept_ms=600, workers=2), "workers=0")
    assert low < 0.9 < 2.5 < high
    low, high = gain(opening(slept_ms=0, workers=2), "persistent")
    assert high < 1.7, "nothing is opened"


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("of", ["make_cpu", "make_sleep"])
def test_what_a_data_set_opens_is_surely_gone_where_it_is_not_told_of_a_pass(workers, of):
    trace = opening(slept_ms=600, workers=workers, tells_opening=True)
    if of == "make_cpu":
        trace = replace(trace, make_cpu=16 * MS + trace.make_sleep, make_sleep=0 * trace.make_cpu)
    low, high = gain(trace, "persistent")
    assert 3.0 < low < 4.5 < high
    low, high = gain(trace, "workers=0")
    assert 1.5 < low < 2.2 < high, "a pass of 8 steps takes 264 ms then, or 304"


def beyond_others(at: int, make_ms: np.ndarray[Any, Any]) -> float:
    """What of passes of 8 batches, two workers, is surely for these being new; ms a step."""
    trace = opening(slept_ms=0, workers=2, tells_opening=True)
    return float(surely_opened(replace(trace, make_cpu=make_ms * MS))[at].mean() / MS)


@pytest.mark.parametrize(
    ("least", "most", "make_ms"),
    [
        (10, 15, np.where(PLACE < 2, 66.0, 6.0)),
        (0, 0, np.where(PLACE < 1, 66.0, 6.0)),  # in one of two workers
        (0, 0, np.where(PLACE % 4 < 2, 66.0, 6.0)),  # others take as long
        (0, 0, np.where(np.arange(STEPS) // 8 == 5, np.where(PLACE < 2, 66.0, 6.0), 6.0)),
        (0, 0, np.random.default_rng(1).exponential(20, STEPS)),
    ],
)
def test_a_first_batch_that_takes_long_is_not_always_for_a_new_worker(least, most, make_ms):
    assert least <= beyond_others(0, make_ms) <= most
    assert beyond_others(1, make_ms) == 0.0


def test_one_pass_does_not_tell_what_new_workers_open():
    trace = opening(slept_ms=600, workers=2, tells_opening=True)
    once = np.arange(STEPS) == 8
    assert not surely_opened(replace(trace, is_first=once))[1].any()


def test_more_new_workers_each_open_what_they_need():
    # All at the same time, or one after another: of four the first four batches take long.
    slept = opening(slept_ms=600, workers=2)
    *_, opened = with_changes(slept, parse(["workers=4"]))
    assert opened.make_sleep[16:24].tolist() == [600 * MS] * 4 + [0] * 4
    *_, fewer = with_changes(slept, parse(["workers=1"]))
    assert fewer.make_sleep[16:24].tolist() == [600 * MS] + [0] * 7


def test_a_first_batch_that_took_long_may_take_as_long_in_each_new_worker():
    alone = opening(slept_ms=0, workers=0, has_new_workers=False)
    assert gain(alone, "workers=2")[0] > 0.7
    # The loop made it once, in 600 ms; each pass of 8 steps with new workers would take that.
    assert gain(replace(alone, opening=(0.0, 600 * MS)), "workers=2")[0] < 0.4
    one_pass = replace(alone, is_first=np.zeros(STEPS, np.bool_), opening=(0.0, 600 * MS))
    assert gain(one_pass, "workers=2")[0] > 1.05, "once is soon forgotten"


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_workers_that_live_on_are_predicted_whatever_the_order_of_the_changes(workers, count):
    trace = opening(slept_ms=60 if workers else 0, workers=workers, has_new_workers=workers > 0)
    trace = replace(trace, start=50.0 * MS * workers, other_start=(0.0, 5.0 * MS))
    in_order, other = f"workers={count} persistent", f"persistent workers={count}"
    assert gain(trace, in_order) == gain(trace, other)


def test_new_workers_that_live_on_start_once():
    alone = opening(slept_ms=0, workers=0, has_new_workers=False)
    low, _ = gain(alone, "persistent workers=2")
    assert low > 1.2 > 1.0 > gain(alone, "workers=2")[0]
