"""What a data set opens in each new worker."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.replay.constructed import MS, STEPS, replay, run, step_ms
from trainobs.replay.changes import with_changes
from trainobs.replay.parsing import parse
from trainobs.replay.trace import Trace


def opening(*, slept_ms: float, workers: int, **more: object) -> Trace:
    """Passes of 8 batches of 16 ms, of which the first of each worker sleeps as long."""
    place = np.arange(STEPS) % 8
    is_first = place == 0
    is_first[0] = False
    parts = {
        "cpu": np.zeros(STEPS) + 17 * MS,
        "make_cpu": np.zeros(STEPS) + 16 * MS,
        "make_sleep": np.where(place < workers, slept_ms * MS, 0.0),
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


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_workers_that_live_on_are_predicted_whatever_the_order_of_the_changes(workers, count):
    trace = opening(slept_ms=60 if workers else 0, workers=workers, has_new_workers=workers > 0)
    trace = replace(trace, start=50.0 * MS * workers, other_start=(0.0, 5.0 * MS))
    in_order, other = f"workers={count} persistent", f"persistent workers={count}"
    assert gain(trace, in_order) == gain(trace, other)
    if not count:
        assert gain(trace, in_order) == gain(trace, f"workers={count}"), "there is none"


def test_new_workers_that_live_on_start_once():
    alone = opening(slept_ms=0, workers=0, has_new_workers=False)
    low, _ = gain(alone, "persistent workers=2")
    assert low > 1.2 > 1.0 > gain(alone, "workers=2")[0]
