"""Data that changes: read day by day, a profile measured on later days, and when to refresh it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fae.skewed import BUDGET, KEYS, ROWS, Batches, matrix, quiet, tables
from tests.fae.test_from_counts import counted
from trainobs.core.errors import FAEError
from trainobs.fae import calibrate, measure, propose_refresh


def day(number, count=12_000):
    """Inputs whose rows moved on by 300 a day in the large table; day 0 is as `matrix`."""
    ids = matrix(100 + number, count)
    ids[2] = (ids[2] + 300 * number) % ROWS[2]
    return ids


def days(*numbers, count=12_000):
    return {f"day {number}": Batches(day(number, count)) for number in numbers}


def test_of_several_loaders_a_batch_is_read_of_each_in_turn():
    loaders = days(0, 1, 2, 3)
    profile = quiet(loaders, margin=0.05)
    given = [loader.given for loader in loaders.values()]
    assert max(given) - min(given) <= 1
    assert sum(given) < 4 * 47  # the sample was large enough before the end
    assert profile.made["source"] == "4 loaders in turn"


def test_rows_of_all_days_are_hot_and_not_those_of_the_first_alone():
    whole, first = quiet(days(0, 1, 2, 3), margin=0), quiet(Batches(day(0)), margin=0)
    later = days(1, 2, 3)
    of_all, of_first = (measure(profile, later) for profile in (whole, first))
    for name in later:
        assert of_all[name].hot_lookups.low > of_first[name].hot_lookups.high


def test_loaders_of_unequal_length_are_read_to_their_ends():
    loaders = {"long": Batches(day(0, 4000)), "short": Batches(day(1, 700))}
    profile = quiet(loaders, margin=0)
    assert profile.made["inputs_read"] == 4700


def test_what_a_profile_serves_of_later_days_is_what_it_serves():
    profile = quiet(Batches(day(0)), margin=0)
    found = measure(profile, days(0, 1, 5), confidence=0.99)
    for number in (0, 1, 5):
        hot = [
            profile.slots(f"t_{key}")[ids] >= 0 for key, ids in zip(KEYS, day(number), strict=True)
        ]
        one = found[f"day {number}"]
        assert one.inputs == 12_000
        assert one.hot_lookups.value == pytest.approx(np.mean(hot))
        assert one.all_hot.value == pytest.approx(np.all(hot, axis=0).mean())
    assert found["day 5"].hot_lookups.high < found["day 0"].hot_lookups.low


def test_as_much_is_measured_as_asked_for():
    loaders = days(0)
    assert measure(quiet(Batches(day(1)), margin=0), loaders, inputs=1000)["day 0"].inputs == 1024


def test_ids_outside_their_table_are_refused():
    ids = day(0)
    profile = quiet(Batches(ids), margin=0)
    ids = ids.copy()
    ids[2, 5] = ROWS[2]
    with pytest.raises(FAEError, match="an id is outside of table 't_large'"):
        measure(profile, {"broken": Batches(ids)})


def proposed(profile, ids, **more):
    return propose_refresh(profile, counted(ids), tables(), **more)


def test_a_refresh_is_proposed_where_rows_have_moved_and_tells_what_it_brings():
    profile = calibrate(counted(day(0, 30_000)), tables(), BUDGET)
    refresh = proposed(profile, day(3, 30_000))
    assert refresh.is_worth_it
    fresh = measure(refresh.profile, {"day": Batches(matrix_of_day(3))})["day"].hot_lookups.value
    assert refresh.then.hot_lookups.low <= fresh <= refresh.then.hot_lookups.high
    gain = refresh.then.hot_lookups.value - refresh.now.hot_lookups.value
    assert refresh.gain == pytest.approx(gain)
    assert refresh.summary().endswith("after a refresh: worth it")


def matrix_of_day(number):
    ids = matrix(999, 60_000)
    ids[2] = (ids[2] + 300 * number) % ROWS[2]
    return ids


def test_no_refresh_is_proposed_where_nothing_moved_in_any_of_many_runs():
    profile = calibrate(counted(day(0, 30_000)), tables(), BUDGET)
    for seed in range(10):
        assert not proposed(profile, matrix(seed, 8000)).is_worth_it


def test_a_refresh_for_less_than_was_asked_is_not_worth_it():
    profile = calibrate(counted(day(0, 30_000)), tables(), BUDGET)
    assert not proposed(profile, day(3, 30_000), least_gain=0.9).is_worth_it


def test_a_profile_of_another_model_is_refused():
    profile = calibrate(counted(day(0)), tables(), BUDGET)
    other = counted(day(0), rows=(*ROWS[:2], ROWS[2] + 1))
    with pytest.raises(FAEError, match="not made for this model"):
        propose_refresh(profile, other, tables((*ROWS[:2], ROWS[2] + 1)))
