"""Data that changes: read day by day, a profile measured on later days, and when to refresh it."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from torch.utils.data import DataLoader

from tests.fae.skewed import (
    BUDGET,
    KEYS,
    ROWS,
    Batches,
    Clicks,
    click_loader,
    collate,
    matrix,
    quiet,
    tables,
)
from tests.fae.test_from_counts import counted
from trainobs.core.errors import FAEError
from trainobs.fae import FAEProfile, calibrate, measure, pack, propose_refresh
from trainobs.fae.calibration.source import InputSource


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
    assert profile.made["source"] == "4 loaders"


def test_rows_of_all_days_are_hot_and_not_those_of_the_first_alone():
    whole, first = quiet(days(0, 1, 2, 3), margin=0), quiet(Batches(day(0)), margin=0)
    later = days(1, 2, 3)
    of_all, of_first = (measure(profile, later) for profile in (whole, first))
    for name in later:
        assert of_all[name].hot_lookups.low > of_first[name].hot_lookups.high


def nights(number, count=60_000):
    """A day whose first quarter looks up other rows than the rest of it."""
    ids = matrix(200 + number, count)
    ids[2, : count // 4] = ROWS[2] - 1 - ids[2, : count // 4]
    return ids


def truly_hot(profile, days_ids):
    parts = [
        [profile.slots(f"t_{key}")[ids] >= 0 for key, ids in zip(KEYS, day_ids, strict=True)]
        for day_ids in days_ids
    ]
    return np.mean(parts)


def test_days_of_single_inputs_are_sampled_at_random_each_over_all_of_it():
    ids = [nights(number) for number in range(3)]
    loaders = {str(number): click_loader(own) for number, own in enumerate(ids)}
    profile = quiet(loaders, margin=0.03, workers=0)
    assert profile.made["order"] == "random"
    assert profile.made["inputs_read"] < 90_000
    share = profile.predictions.hot_lookup_ratio
    assert share.low < truly_hot(profile, ids) < share.high < share.low + 0.06
    found = measure(profile, {"0": loaders["0"]}, inputs=10_000)["0"].hot_lookups
    assert found.low < truly_hot(profile, ids[:1]) < found.high < found.low + 0.06


def test_of_days_of_which_beginnings_were_read_the_rest_is_left_room_for(caplog):
    ids = [nights(number) for number in range(3)]
    loaders = {str(number): Batches(own) for number, own in enumerate(ids)}
    profile = quiet(loaders, margin=0.03)
    predictions = profile.predictions
    read = profile.made["inputs_read"] / 180_000
    assert predictions.unread_ratio == pytest.approx(1 - read, abs=0.01)
    for share in (predictions.hot_lookup_ratio, predictions.tables["t_large"].hot_lookup_ratio):
        assert share.high - share.low > predictions.unread_ratio > 0.25
    true = truly_hot(profile, ids)
    assert predictions.hot_lookup_ratio.low < true < predictions.hot_lookup_ratio.high
    assert "  read               beginnings alone; " in profile.summary()
    assert "chosen by the beginning of the data" in caplog.text
    found = measure(profile, loaders, inputs=10_000)["0"].hot_lookups
    assert found.low < truly_hot(profile, ids[:1]) < found.high


def test_of_loaders_that_tell_no_length_nothing_is_known_before_their_end():
    ids = nights(0)
    profile = quiet({"0": Endless(ids)}, margin=0.03)
    assert profile.predictions.hot_lookup_ratio[1:] == (0, 1)
    by_table = profile.predictions.tables
    assert by_table["t_large"].hot_lookup_ratio[1:] == (0, 1)
    assert profile.table("t_small").is_wholly_hot
    assert by_table["t_small"].hot_lookup_ratio.low > 0.99  # no data can look up another row
    assert measure(profile, {"0": Endless(ids)}, inputs=1000)["0"].all_hot[1:] == (0, 1)
    assert "nobody knows how much was not read" in profile.summary()


def test_a_loader_that_ends_where_reading_does_is_known_whole():
    ids = nights(0, 1024)
    profile = quiet(Batches(day(1)), margin=0)
    found = measure(profile, {"0": Endless(ids)}, inputs=1024)["0"]
    assert found.hot_lookups.high - found.hot_lookups.low < 0.5
    source = InputSource(Endless(ids), KEYS, None, 0, None)
    for _ in itertools.islice(source.read(), 3):
        pass
    source.look_for_end()  # reads the fourth and last, and does not know so
    assert source.unread_ratio == 1


def test_what_is_sampled_or_over_leaves_nothing_unread():
    bare = {"collate_fn": lambda samples: collate(samples)[1]}  # as `Batches`
    sampled = DataLoader(Clicks(day(0, 6000)), 256, **bare)

    def unread(**others):
        source = InputSource({"a": sampled, **others}, KEYS, None, 0, None)
        for _ in itertools.islice(source.read(), 12):
            pass
        return source.unread_ratio

    over = Endless(day(1, 512))
    assert unread(b=over) == 0
    assert 0 < unread(b=over, c=Batches(day(2, 6000))) < 0.5
    assert unread(b=over, c=Endless(day(2, 6000))) == 1


class Endless(Batches):
    """A loader that tells no length."""

    __len__ = None


def test_of_days_of_unequal_length_as_large_a_share_is_read():
    loaders = {"long": click_loader(day(0, 30_000)), "short": click_loader(day(1, 3000))}
    source = InputSource(loaders, KEYS, None, 0, None)
    numbers = np.concatenate([own for own, _ in itertools.islice(source.read(), 66)])
    assert np.sum(numbers >= 30_000) == pytest.approx(len(numbers) / 11, abs=256)
    again = [own for own, _ in source.read(len(numbers))]
    whole = np.concatenate([numbers, *again])
    assert np.array_equal(np.sort(whole), np.arange(33_000))


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


def test_ids_outside_their_table_are_left_out_unless_most_are(caplog):
    ids = day(0)
    profile = quiet(Batches(ids), margin=0)
    ids = ids.copy()
    ids[2, 5] = ROWS[2]
    assert measure(profile, {"broken": Batches(ids)})["broken"].inputs == 12_000
    assert "1 of 12,000 lookups of feature 'large' left out" in caplog.text
    with pytest.raises(FAEError, match="of feature 'small' is outside of table 't_small'"):
        measure(profile, {"broken": Batches(ids + 1000)})


def test_packed_batches_are_refused_since_their_hot_lookups_are_no_ids():
    loader = Batches(matrix(0, 9000))
    profile = quiet(loader, margin=0)
    packed = pack(loader, profile)
    for refused in (lambda: quiet(packed), lambda: measure(profile, {"packed": packed})):
        with pytest.raises(FAEError, match="a batch that was packed, whose hot lookups are no ids"):
            refused()


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


def test_hot_rows_that_no_batch_can_tell_apart_serve_nothing():
    profile = quiet(Batches(day(0)), margin=0)
    shared = dataclasses.replace(profile.tables[2], name="other", hot_ids=np.arange(3))
    merged = FAEProfile((*profile.tables, shared), profile.budget_bytes)
    found = measure(merged, {"day": Batches(day(0))})["day"]
    assert found.all_hot.value == 0
    assert measure(profile, {"day": Batches(day(0))})["day"].all_hot.value > 0.3
