"""What hot rows serve of data that came later, and what other hot rows would serve of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainobs.access.counts import AccessCounts
from trainobs.core.arguments import check_whole
from trainobs.core.errors import FAEError, SettingError, a_type, shown
from trainobs.core.quotients import Interval
from trainobs.core.text import percent
from trainobs.fae.calibration.from_counts import by_one_feature, profile_of_counts
from trainobs.fae.calibration.intervals import mean_upper, ratio
from trainobs.fae.calibration.outside import OutsideIds, limits_of
from trainobs.fae.calibration.predict import HotLookupCounts, nothing, served
from trainobs.fae.calibration.source import InputSource, untouched_randomness
from trainobs.fae.profile.arguments import check_confidence, check_profile, is_within
from trainobs.fae.profile.model_tables import ModelTable, features_of, tables_of
from trainobs.fae.profile.predictions import with_unread
from trainobs.fae.profile.profile import FAEProfile

LEAST_GAIN = 0.01
"""Share of the lookups that a refresh must surely bring: less is not worth a flush and a pull."""

_WIDEST = 0.2
"""An interval of a share that one number stands for."""

_SEED = 0x6D656173757265  # no calibration's: it would find the inputs that were counted first


class Served(NamedTuple):
    """What hot rows serve of some inputs.

    Attributes:
        inputs: that were read.
        all_hot: share of them whose lookups are all hot.
        hot_lookups: share of their lookups that hot rows serve.
    """

    inputs: int
    all_hot: Interval
    hot_lookups: Interval


def measure(
    profile: FAEProfile,
    loaders: Mapping[str, Iterable[Any]],
    *,
    kjt: Any = None,
    inputs: int = 100_000,
    confidence: float = 0.99,
) -> dict[str, Served]:
    """What a profile's hot rows serve of other data, such as of the days after it.

    Args:
        profile: of hot rows.
        loaders: by name; each is read at random where it can be, else from its beginning, and
            then intervals leave room for what was not read.
        kjt: see `calibrate`.
        inputs: to read of each, at least, if there are so many. To have all of one that is read
            from its beginning, ask for as many as it has.
        confidence: of intervals.

    Raises:
        SettingError: the loaders have no names, or an argument has a bad value.
        FAEError: a batch does not fit the profile's tables.
    """
    check_profile(profile)
    confidence, inputs = check_confidence(confidence), check_whole(inputs, "inputs", 1)
    if not isinstance(loaders, Mapping):
        raise SettingError(
            "cannot tell which data is meant",
            f"{a_type(loaders)} in the place of loaders",
            'give them by name, such as {"monday": loader}',
        )
    found = {}
    with untouched_randomness():
        for name, loader in loaders.items():
            found[name] = _measured(profile, loader, kjt, inputs, confidence)
    return found


def _measured(
    profile: FAEProfile, loader: Iterable[Any], kjt: Any, most: int, confidence: float
) -> Served:
    tables = profile.tables
    hot_ids = _overlaid_ids(profile)
    parts: list[HotLookupCounts] = []
    outside = OutsideIds(limits_of(tables, features_of(tables)))
    count = 0
    reader = InputSource(loader, features_of(tables), kjt, _SEED, None)
    for _, batches in reader.read_lots(0, lambda: most):
        lot = outside.without(batches)
        parts.append(served(tables, hot_ids, lot))
        count += lot.size
        if count >= most:
            reader.look_for_end()
            break
    hot, every = (
        (np.concatenate([np.empty(0), *column]) for column in zip(*parts, strict=True))
        if parts
        else (np.empty(0), np.empty(0))
    )
    outside.tell()
    found = _shares(HotLookupCounts(hot, every), confidence)
    return found._replace(
        all_hot=with_unread(found.all_hot, reader.unread_ratio),
        hot_lookups=with_unread(found.hot_lookups, reader.unread_ratio),
    )


def _overlaid_ids(profile: FAEProfile) -> dict[str, NDArray[np.int64]]:
    """Hot rows of each table, as far as they are used: none of what `overlaid` leaves out."""
    none = np.empty(0, dtype=np.int64)
    return {t.name: t.hot_ids if t.name in profile.overlaid else none for t in profile.tables}


def _shares(found: HotLookupCounts, confidence: float) -> Served:
    all_hot = ratio(found.is_all_hot, np.ones_like(found.all), confidence)
    return Served(len(found.all), all_hot, ratio(*found, confidence))


def _check_same(profile: FAEProfile, tables: Sequence[ModelTable]) -> None:
    for table in tables:
        if (rows := profile.table(table.name).row_count) != table.row_count:
            raise FAEError(
                "the FAE profile was not made for this model",
                f"table {table.name!r} with {table.row_count} rows, calibrated with {rows}",
                "calibrate again with the tables of this model",
            )


class Refresh(NamedTuple):
    """What other hot rows would bring.

    Attributes:
        profile: of the rows that a run looked up most.
        now: what the hot rows that are in use served of the run's held-out inputs.
        then: what those of `profile` serve of them.
        gain: share of the lookups that would be served in addition.
        is_worth_it: whether the gain is surely `least_gain` or more.
    """

    profile: FAEProfile
    now: Served
    then: Served
    gain: float
    is_worth_it: bool

    def summary(self) -> str:
        """In a line."""
        word = "worth it" if self.is_worth_it else "not surely worth it"
        return (
            f"hot lookups {_told(self.now.hot_lookups)} now, "
            f"{_told(self.then.hot_lookups)} after a refresh: {word}"
        )


def _told(share: Interval) -> str:
    """A share, or between which ones it is, where that is not known well."""
    if share.high - share.low <= _WIDEST:
        return percent(share.value)
    return f"{percent(share.low)} to {percent(share.high)}"


def propose_refresh(
    profile: FAEProfile,
    counts: AccessCounts | str | os.PathLike[str],
    tables: Any,
    *,
    optimizer: Any = None,
    least_gain: float = LEAST_GAIN,
    confidence: float = 0.99,
) -> Refresh:
    """Whether to give hot rows up for others, by the lookups of a run.

    Both sets of hot rows are tried on inputs of the run that had no part in choosing the new ones,
    of steps that had none where some steps were counted;
    where those cannot be told from others (`calibrate` warns of that) it is never worth it. A
    refresh is worth it if it surely gains `least_gain`: so hot rows that are as good as others, but
    for chance, stay (hysteresis).

    Args:
        profile: in use.
        counts: of the run, see `calibrate`.
        tables: see `calibrate`.
        optimizer: see `calibrate`.
        least_gain: share of the lookups; negative: more may be lost, too.
        confidence: of the intervals, and of the gain.

    Raises:
        SettingError: an argument has a bad value.
        FAEError: the counts are of another model, or there is no sample of inputs with them.
        AccessCountsError: the file cannot be read.
    """
    check_profile(profile)
    confidence = check_confidence(confidence)
    if not is_within(least_gain, -1, 1):
        raise SettingError(
            "least_gain is no share of the lookups",
            shown(least_gain),
            "give a number from -1 to below 1; the default is 0.01",
        )
    found = tables_of(tables, optimizer)
    _check_same(profile, found)
    found = tuple(t._replace(is_positional=profile.table(t.name).is_positional) for t in found)
    other, run = profile_of_counts(counts, found, profile.budget_bytes, confidence)
    old, new = (
        served(by_one_feature(found), _overlaid_ids(each), run.inputs) for each in (profile, other)
    )
    scale = float(new.all.mean())
    gains = (new.hot - old.hot) / scale if scale else nothing(run.inputs).hot
    surely = -mean_upper(-gains, confidence, run.inputs.begins)
    return Refresh(
        other,
        Served(run.inputs.size, *run.shares(old, confidence)),
        Served(run.inputs.size, *run.shares(new, confidence)),
        float(gains.mean()),
        run.is_apart and run.stands and surely >= least_gain,
    )
