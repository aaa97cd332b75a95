"""Hot rows over all tables: which they are for a byte budget, and what they serve."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainobs.access.counts import AccessCounts
from trainobs.access.input_sample import InputSample, may_share
from trainobs.access.interval import normal_quantile, wilson
from trainobs.access.ranking import HotLimit, Ranking, by_score
from trainobs.access.sketch import Blocks, counts_of, places
from trainobs.access.spectrum import Spectrum
from trainobs.core.quotients import UNKNOWN, Interval

HotRows = Mapping[str, NDArray[np.int64]]
"""Table -> its hot rows, ascending; a table that is not in it has none."""

HALVES = 32
"""Random halves of a sample that are tried, to see how much a number depends on the sample."""
DRIFT_INPUTS_MIN = 16
ALIKE = 0.9
"""Of rows with about some count, the share within one of it from which on that is no chance."""
OTHERS_MIN = 0.5
"""Of an epoch's inputs, the share that must have other lookups than those they are tried on."""


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


@dataclass(frozen=True)
class ServedShares:
    """What hot rows serve of inputs that had no part in choosing them.

    Attributes:
        lookup_ratio: share of lookups; NaN without any.
        all_hot: share of inputs all of whose lookups are of hot rows.
        input_count: sampled inputs that tell it.
    """

    lookup_ratio: float
    all_hot: Interval
    input_count: int


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

    Args:
        counts: of lookups; those of the sampled inputs must be among them.
        row_bytes: bytes of a row; lookups of other tables are not hot.
        budget_bytes: for all tables together.
        confidence: of the interval.
    """
    spectra, limits, score = _fill(counts, row_bytes, budget_bytes)
    samples = counts.inputs()
    sample = samples[max(samples)] if samples else InputSample.empty()
    hot = np.zeros(len(sample.ids), np.bool_)
    inputs = np.repeat(np.arange(len(sample)), sample.sizes)
    sampled = {name: lookups for lookups, name in _by_table(sample, counts.tables)}
    total = served = 0
    for (name, width), spectrum in zip(row_bytes.items(), spectra, strict=True):
        rows = _HotRows(spectrum, counts.blocks(name), limits[name], width, score)
        total, served = total + spectrum.total, served + rows.served
        if (lookups := sampled.get(name)) is not None:
            hot[lookups] = rows.serve(inputs[lookups], sample.ids[lookups])
    whole = _whole(sample, hot)
    # Whoever looks up a row judges others that do: the estimate varies up to twice as much as that
    # of a share of fixed rows (Good's variance, where rows seen twice are half of those seen once).
    all_hot = wilson(whole / 2, len(sample) / 2, confidence)
    return ServedShares(served / total if total else math.nan, all_hot, len(sample))


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


class _HotRows:
    """What the hot rows of a table serve of other inputs.

    Args:
        spectrum: of the table.
        blocks: its rows, and how often each was looked up.
        limit: which of its rows are hot.
        width: bytes of a row.
        score: lookups for each byte at the threshold, 0 where all rows that were looked up are hot.
    """

    def __init__(
        self, spectrum: Spectrum, blocks: Blocks, limit: HotLimit, width: int, score: float
    ) -> None:
        self._partly, self._width, self._score = limit.partly, width, score
        ids, counts = limit._replace(more=limit.more + 1).hot(blocks)
        # Of the rows of which a part is hot, the first that is not: it would be, were they fewer.
        self._next = int(ids[counts == np.uint64(limit.partly)].max(initial=-1))
        self._ids, self._counts = ids[ids != self._next], counts[ids != self._next]
        self._by_all = score > 0 and _alike(spectrum, int(self._counts.min(initial=limit.least)))

    @property
    def served(self) -> int:
        """Lookups of the table that they serve, of those that were counted."""
        counts = self._counts.astype(np.int64)
        if not self._by_all:
            counts = counts[self._stay(self._ids, counts - 1)]
        return int(counts.sum())

    def serve(self, inputs: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether they serve each lookup: of an input, of a row."""
        seen = counts_of(ids, self._ids, self._counts)
        return self._stay(ids, seen - _same(inputs, ids)) if not self._by_all else seen > 0

    def _stay(self, ids: NDArray[np.int64], left: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether rows are hot by the lookups that are left; without any none is."""
        hot: NDArray[np.bool_] = (left > 0) & (left / self._width >= self._score)
        return np.asarray(hot & ((left != self._partly) | (ids < self._next)))


def _alike(spectrum: Spectrum, count: int) -> bool:
    """Whether rows with about some count have it by no chance, which spreads by its square root.

    A count of one may always be chance.
    """
    counts, rows = spectrum.counts, spectrum.rows
    far = np.abs(counts.astype(np.float64) - count)
    same = rows[(far <= 1) & (counts > 1)].sum()
    return bool(count > 1 and same >= ALIKE * rows[far <= 2 * math.sqrt(count)].sum())


def _same(inputs: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often the input of each lookup looks up the same row."""
    _, rows = np.unique(ids, return_inverse=True)
    _, pair, count = np.unique(
        inputs * (rows.max(initial=0) + 1) + rows, return_inverse=True, return_counts=True
    )
    return count[pair].astype(np.int64)


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
    return wilson(_whole(sample, are_hot(sample, tables, hot)), len(sample), confidence)


def _whole(sample: InputSample, hot: NDArray[np.bool_]) -> int:
    """Inputs all of whose lookups are hot."""
    inputs = np.repeat(np.arange(len(sample)), sample.sizes)
    cold = np.bincount(inputs[~hot], minlength=len(sample))
    return int(np.count_nonzero(cold == 0))


def drift(
    before: InputSample,
    after: InputSample,
    tables: Mapping[str, int],
    row_bytes: Mapping[str, int],
    budget_bytes: int,
    confidence: float = 0.95,
) -> Interval:
    """What an epoch loses when its hot rows are those of an epoch before.

    Half of the later epoch's inputs are set aside. Of their lookups two sets of hot rows serve a
    share: rows that are hot in the other half, and rows that are hot in as many inputs of the
    earlier epoch. The first share less the second is the drift. Both sets come from equally
    many inputs and neither from those they are tried on, nor, where these may have come again, from
    inputs with the same lookups: without drift it is 0 on average.

    Args:
        before: sampled inputs of the earlier epoch.
        after: sampled inputs of the later one.
        tables: name -> rows, in the order of the `AccessCounts`.
        row_bytes: bytes of a row of each table.
        budget_bytes: for the hot rows of all tables. If the rows in the samples do not fill it, all
            of them are hot.
        confidence: of the interval, at least. It comes from the spread over random halves of the
            inputs, which is somewhat too wide: half as many inputs choose worse.

    Returns:
        NaN with fewer than `DRIFT_INPUTS_MIN` inputs on a side, and where so many have the same
        lookups (`OTHERS_MIN`) that nobody can tell which came again.
    """
    chosen = _three_parts(before, after)
    size = len(chosen[0])
    if size < max(DRIFT_INPUTS_MIN, OTHERS_MIN * len(chosen[2])):
        return UNKNOWN
    rows = np.array(list(tables.values()), np.int64)
    widths = np.array([row_bytes[name] for name in tables], np.int64)
    earlier, own, tried = (
        _Keyed.from_sample(sample, inputs, rows, widths)
        for sample, inputs in zip((before, after, after), chosen, strict=True)
    )

    def loss(old: _Keyed, new: _Keyed, tried: _Keyed) -> float:
        served = [places(tried.keys, side.hottest(budget_bytes))[1] for side in (new, old)]
        gained = np.count_nonzero(served[0]) - np.count_nonzero(served[1])
        return float(gained / max(len(tried.keys), 1))

    random = np.random.default_rng(size)
    halves = [loss(*(side.half(random) for side in (earlier, own, tried))) for _ in range(HALVES)]
    value = loss(earlier, own, tried)
    half = normal_quantile(confidence) * float(np.std(halves, ddof=1))
    return Interval(value, value - half, value + half)


def _three_parts(before: InputSample, after: InputSample) -> list[NDArray[np.intp]]:
    """Inputs of the earlier epoch, as many of the later one, and those to try their rows on."""
    earlier, own = np.argsort(before.draws), np.argsort(after.draws)
    half = min(len(earlier), len(own) // 2)
    own, tried = own[:half], own[half : 2 * half]
    if may_share(before, after):
        contents = after.contents[tried[after.sizes[tried] > 0]]
        earlier = earlier[~np.isin(before.contents[earlier], contents)]
        own = own[~np.isin(after.contents[own], contents)]
    size = min(len(earlier), len(own))
    return [earlier[:size], own[:size], tried]


@dataclass(frozen=True)
class _Keyed:
    """Lookups of some inputs, as keys that are unique over all tables."""

    keys: NDArray[np.int64]
    widths: NDArray[np.int64]
    inputs: NDArray[np.int64]
    size: int

    @classmethod
    def from_sample(
        cls,
        sample: InputSample,
        inputs: NDArray[np.intp],
        rows: NDArray[np.int64],
        widths: NDArray[np.int64],
    ) -> _Keyed:
        number = np.full(len(sample), -1)
        number[inputs] = np.arange(len(inputs))
        numbers = np.repeat(number, sample.sizes)
        chosen = (numbers >= 0) & (sample.ids >= 0) & (sample.ids < rows[sample.tables])
        tables = sample.tables[chosen]
        keys = sample.ids[chosen] + (np.cumsum(rows) - rows)[tables]
        return cls(keys, widths[tables], numbers[chosen], len(inputs))

    def half(self, random: np.random.Generator) -> _Keyed:
        """The lookups of half of the inputs."""
        kept = (random.permutation(self.size) < self.size // 2)[self.inputs]
        return _Keyed(self.keys[kept], self.widths[kept], self.inputs[kept], self.size // 2)

    def hottest(self, budget_bytes: int) -> NDArray[np.int64]:
        """Keys with most lookups for their bytes until the budget is full, ascending."""
        keys, first, counts = np.unique(self.keys, return_index=True, return_counts=True)
        widths = self.widths[first]
        order = by_score(counts / widths)
        fits = int(np.searchsorted(np.cumsum(widths[order]), budget_bytes, "right"))
        return np.sort(keys[order[:fits]])
