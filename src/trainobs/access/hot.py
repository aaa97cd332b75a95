"""Hot rows over all tables: which they are for a byte budget, and what they serve."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from trainobs.access.counts import AccessCounts
from trainobs.access.drift import drift as drift
from trainobs.access.input_sample import InputSample, joined_samples
from trainobs.access.interval import wilson
from trainobs.access.judged import JudgedRows, repeats
from trainobs.access.ranking import HotLimit, Ranking
from trainobs.access.served_shares import Judged, Known, ServedShares, of_all_steps, whole
from trainobs.access.sketch import places
from trainobs.access.spectrum import Spectrum
from trainobs.core.quotients import Interval

HotRows = Mapping[str, NDArray[np.int64]]
"""Table -> its hot rows, ascending; a table that is not in it has none."""


def hot_rows(
    counts: AccessCounts, row_bytes: Mapping[str, int], budget_bytes: int
) -> dict[str, NDArray[np.int64]]:
    """The rows that serve most lookups for their bytes, over all tables, until a budget is full.

    Rows that were never looked up are not among them, even where they would fit. Of equals those of
    the earlier table, then the lower ones, come first.

    Args:
        counts: how often rows were looked up.
        row_bytes: bytes of a row; only these tables take part.
        budget_bytes: for all tables together.
    """
    _, limits, _ = _fill(counts, row_bytes, budget_bytes)
    return {name: limit.hot(counts.blocks(name))[0] for name, limit in limits.items()}


def served_by_hot_rows(
    counts: AccessCounts,
    row_bytes: Mapping[str, int],
    budget_bytes: int,
    confidence: float = 0.95,
) -> ServedShares:
    """What `hot_rows` would serve of other inputs of the same kind.

    A row that was looked up once is hot in the counts, where the budget allows it, but was unknown
    before that lookup. So each lookup, and each input of the latest epoch's sample, is judged by
    what the others make hot: leave-one-out cross-validation (M. Stone, JRSS B 36, 1974). Of rows
    that are all hot that leaves the estimate of Good and Turing for those never seen (I. J. Good,
    Biometrika 40, 1953). An input that came again in another epoch is one of its others: of epochs
    over the same data it is what hot rows serve of that data.

    Of rows with equal counts a budget may take a part. Where that they are equal is no chance, as
    of positions, which each input looks up once, a lookup less makes a row colder than all others
    of its kind, though it is as hot as they are. There lookups are judged by all counts.

    Where some steps of a run were counted, it is what their hot rows serve of all of its steps.
    Inputs of a step may be alike, so each is judged without the whole of its step: not less is
    served of the steps between, as they are nearer to those that were counted than these are to
    each other. Where a step's own lookups make much of it hot, nobody knows.

    Args:
        counts: of lookups; those of the sampled inputs must be among them.
        row_bytes: bytes of a row; lookups of other tables are not hot.
        budget_bytes: for all tables together.
        confidence: of the intervals.
    """
    samples = list(counts.inputs().values())
    if not counts.is_of_some_steps:
        samples = samples[-1:]
    sample = joined_samples(samples)
    hot, known = _judged(counts, row_bytes, budget_bytes, sample)
    if counts.is_of_some_steps:
        assert counts.steps is not None
        weights = np.repeat(
            [one.seen / max(len(one), 1) for one in samples], list(map(len, samples))
        )
        counted_ratio = counts.steps.counted / counts.steps.passed
        return of_all_steps(sample, weights, hot, known, counted_ratio, confidence)
    # Whoever looks up a row judges others that do: the estimate varies up to twice as much as that
    # of a share of fixed rows (Good's variance, where rows seen twice are half of those seen once).
    all_hot = wilson(
        float(np.count_nonzero(whole(sample, hot.close))) / 2, len(sample) / 2, confidence
    )
    return ServedShares(Interval(known.close, math.nan, math.nan), all_hot, len(sample))


def _judged(
    counts: AccessCounts, row_bytes: Mapping[str, int], budget_bytes: int, sample: InputSample
) -> tuple[Judged, Known]:
    """Whether lookups of a sample are hot to others, and what is served of all lookups."""
    spectra, limits, score = _fill(counts, row_bytes, budget_bytes)
    inputs = np.repeat(np.arange(len(sample)), sample.sizes)
    hot = Judged(*(np.zeros(len(sample.ids), np.bool_) for _ in Judged._fields))
    sampled = {name: lookups for lookups, name in _by_table(sample, counts.tables)}
    left_ratio = 1 - 1 / max(counts.steps.counted if counts.steps else 1, 1)
    total = served = counted = 0
    for (name, width), spectrum in zip(row_bytes.items(), spectra, strict=True):
        rows = JudgedRows(spectrum, counts.blocks(name), limits[name], width, score)
        total, served = total + spectrum.total, served + rows.served
        counted += rows.counted
        if (lookups := sampled.get(name)) is not None:
            ids, own = sample.ids[lookups], repeats(inputs[lookups], sample.ids[lookups])
            hot.close[lookups] = rows.serve(ids, own)
            if counts.is_of_some_steps and sample.of_steps is not None:
                hot.all[lookups] = rows.serve(ids, np.zeros_like(own))
                own = np.maximum(own, sample.of_steps.own[lookups])
                hot.apart[lookups] = rows.serve(ids, own, left_ratio)
    return hot, Known(counted / total, served / total) if total else Known(math.nan, math.nan)


def most_served(counts: AccessCounts, row_bytes: Mapping[str, int], budget_bytes: int) -> float:
    """What no rows within a budget served more of: a share of the lookups that were counted.

    The bound of G. B. Dantzig (Operations Research 5, 1957): the row that does not fit any more
    counts for the part that would. A sketch's error is added.

    Args:
        counts: of lookups.
        row_bytes: bytes of a row; only these tables take part.
        budget_bytes: for all tables together.

    Returns:
        NaN without lookups.
    """
    spectra = [counts.spectrum(name) for name in row_bytes]
    widths = list(row_bytes.values())
    ranking = Ranking.from_spectra(spectra, widths)
    served = np.cumsum(ranking.scores * ranking.bytes)
    most = np.interp(budget_bytes, [0, *np.cumsum(ranking.bytes)], [0.0, *served])
    error = max((one.error / width for one, width in zip(spectra, widths, strict=True)), default=0)
    total = sum(spectrum.total for spectrum in spectra)
    return min(1.0, float(most + error * budget_bytes) / total) if total else math.nan


def _fill(
    counts: AccessCounts, row_bytes: Mapping[str, int], budget_bytes: int
) -> tuple[list[Spectrum], dict[str, HotLimit], float]:
    """Spectra of the tables, what is hot of each, and lookups for a byte at the threshold."""
    spectra = [counts.spectrum(name) for name in row_bytes]
    filled = Ranking.from_spectra(spectra, list(row_bytes.values())).fill(budget_bytes)
    return spectra, dict(zip(row_bytes, filled.limits, strict=True)), filled.threshold.score


def are_hot(sample: InputSample, tables: Iterable[str], hot: HotRows) -> NDArray[np.bool_]:
    """Whether each lookup of a sample is one of a hot row.

    Args:
        sample: inputs of an `AccessCounts`.
        tables: its tables, in their order.
        hot: the hot rows.
    """
    result = np.zeros(len(sample.ids), np.bool_)
    for lookups, name in _by_table(sample, tables):
        if name in hot:
            _, result[lookups] = places(sample.ids[lookups], hot[name])
    return result


def _by_table(sample: InputSample, tables: Iterable[str]) -> Iterator[tuple[NDArray[np.intp], str]]:
    """Places of the lookups of each table that has any."""
    order = np.argsort(sample.tables, kind="stable")
    names = list(tables)
    ends = np.searchsorted(sample.tables[order], np.arange(len(names) + 1))
    for at, name in enumerate(names):
        if ends[at] < ends[at + 1]:
            yield order[ends[at] : ends[at + 1]], name


def all_hot_share(
    sample: InputSample, tables: Iterable[str], hot: HotRows, confidence: float = 0.95
) -> Interval:
    """The share of inputs all of whose lookups are of hot rows, with Wilson's interval.

    Arguments as for `are_hot`. An input without lookups is all hot. Hot rows that were chosen by
    counts of the same inputs do better on them than on others: see `served_by_hot_rows`.
    """
    hits = float(np.count_nonzero(whole(sample, are_hot(sample, tables, hot))))
    return wilson(hits, len(sample), confidence)
