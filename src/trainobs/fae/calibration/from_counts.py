"""A profile from access counts that were taken while a model trained."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainobs.access.counts import AccessCounts
from trainobs.access.input_sample import InputSample, joined_samples, may_share
from trainobs.access.input_steps import STEPS_MIN
from trainobs.access.served_shares import STANDS_MAX
from trainobs.access.sketch import Sketch, places
from trainobs.core.errors import FAEError
from trainobs.core.log import logger
from trainobs.core.quotients import Interval
from trainobs.core.text import percent
from trainobs.fae.calibration.choice import Choice, RowCounts, choose
from trainobs.fae.calibration.intervals import ratio
from trainobs.fae.calibration.outcome import profile_of
from trainobs.fae.calibration.predict import HotLookupCounts, predict
from trainobs.fae.kjt.inputs import Inputs
from trainobs.fae.profile.model_tables import ModelTable
from trainobs.fae.profile.predictions import Predictions, with_unread
from trainobs.fae.profile.profile import FAEProfile

_HELD_OUT_RATIO = 0.25
"""Of the inputs that were counted; as much of a loader's is held out for the predictions."""
_STEPS_A_TURN = 4
"""Of so many counted steps one is held out: the same share."""


def profile_of_counts(
    source: AccessCounts | str | os.PathLike[str],
    tables: Sequence[ModelTable],
    budget: int,
    confidence: float,
) -> tuple[FAEProfile, CountedRun]:
    """Choose hot rows from counts of a run; and what the counts tell.

    Counts come with a sample of whole inputs, which were counted too. The lookups of those that
    are to judge are taken off the counts, so that these inputs had no part in the choice. Where
    epochs had the same inputs, or may have had, those of one judge, and are taken off all of them;
    where the sample lacks some, a warning says that they cannot be.

    Args:
        source: counts, a file of them, or a run directory.
        tables: of the model.
        budget: bytes of hot rows.
        confidence: of intervals.

    Raises:
        FAEError: the counts are of another model, there is no sample of inputs with them, or there
            is nothing to gain.
        AccessCountsError: the file cannot be read.
    """
    run = _counted_run(source, tables)
    if not run.is_apart:
        logger.warning(
            "what is predicted from these access counts holds for their own data alone\n"
            "  found: inputs that came again in another epoch, or may have, and a sample of them\n"
            "  do:    calibrate from the loader, or from the counts of one epoch"
        )
    made: dict[str, str | int | float] = {"source": "access counts", "inputs_counted": run.counted}
    judged = by_one_feature(tables)
    widened = partial(_with_room, run, tables, budget)
    profile = profile_of(
        tables, run.counts, run.counted, run.inputs, budget, confidence, made, widened, judged
    )
    return profile, run


def _with_room(
    run: CountedRun,
    tables: Sequence[ModelTable],
    budget: int,
    expected: Predictions,
    chosen: Choice,
) -> Predictions:
    """What is expected, with intervals that hold what steps look up that were not counted."""
    if run.close is None:
        return expected
    if not run.stands:
        wholly_hot = [t.name for t in tables if len(chosen.hot_ids[t.name]) == t.row_count]
        _warn_of_steps("fewer counted steps, or less of them, than tell how they differ")
        return replace(expected.with_unread(1.0, wholly_hot), unread_ratio=0.0)
    choice = choose(tables, run.close, budget)
    confidence = expected.confidence
    most = predict(by_one_feature(tables), choice, run.close, run.counted, run.inputs, confidence)
    lost = most.hot_lookup_ratio.value - expected.hot_lookup_ratio.value
    expected = expected.up_to(most, run.chosen_by)
    low, high = expected.hot_lookup_ratio[1:]
    if lost > STANDS_MAX or high - low > 2 * STANDS_MAX:
        _warn_of_steps(f"{percent(low)} to {percent(high)} of the lookups hot, in all steps")
    return expected


def _warn_of_steps(found: str) -> None:
    logger.warning(
        "the counted steps of this run do not stand for the others: see the intervals\n"
        "  found: %s\n"
        "  do:    calibrate from the loader, or count each step (embedding_every=1)",
        found,
    )


class CountedRun(NamedTuple):
    """What a run's access counts tell.

    Attributes:
        counts: of each table's rows, without the lookups of `inputs`; where some steps were
            counted, without all lookups of their steps.
        counted: inputs that they are of.
        inputs: others of the run, by table.
        is_apart: whether they surely are: no input that came again in another epoch judges rows
            that it helped to choose.
        close: where some steps were counted, counts without the lookups of `inputs` alone.
        stands: whether it is known how much steps differ, where some were counted.
        chosen_by: share of all steps that `counts` are of, at most.
    """

    counts: dict[str, RowCounts]
    counted: int
    inputs: Inputs
    is_apart: bool
    close: dict[str, RowCounts] | None = None
    stands: bool = True
    chosen_by: float = 1.0

    def shares(self, found: HotLookupCounts, confidence: float) -> tuple[Interval, Interval]:
        """Of `inputs`, the share that is all hot, and of their lookups the share that is."""
        ones, begins = np.ones_like(found.all), self.inputs.begins
        shares = (
            ratio(found.is_all_hot, ones, confidence, begins),
            ratio(*found, confidence, begins),
        )
        return shares if self.stands else (with_unread(shares[0], 1), with_unread(shares[1], 1))


def _counted_run(
    source: AccessCounts | str | os.PathLike[str], tables: Sequence[ModelTable]
) -> CountedRun:
    """Read access counts, and part the inputs that are to judge from the others.

    Raises:
        FAEError: the counts are of another model, or there is no sample of inputs with them.
        AccessCountsError: the file cannot be read.
    """
    access = source if isinstance(source, AccessCounts) else AccessCounts.load(source)
    for table in tables:
        _check(access, table)
    samples = [sample for _, sample in sorted(access.inputs().items())]
    every, sampled = _input_count(access, samples), sum(map(len, samples))
    stands = access.is_of_some_steps and _tell_steps(samples)
    part = _held_out_steps if stands else _held_out
    passed, counted_steps = access.steps or (1, 1)
    seen_ratio = counted_steps / max(passed, 1)
    may_have_come_again = any(may_share(*pair, seen_ratio) for pair in combinations(samples, 2))
    if may_have_come_again:
        longest = max(range(len(samples)), key=lambda i: (len(samples[i]), i))
        held_out = [part(samples.pop(longest))]
        others = [_others_of(held_out[0], sample) for sample in samples]
    else:
        held_out, others = [part(sample) for sample in samples], []
    inputs = _inputs(held_out, access, tables)
    if not inputs.size:
        raise FAEError(
            "cannot calibrate from these access counts",
            "no sample of inputs with them",
            "offer inputs by AccessCounts.add_inputs, or calibrate from the loader",
        )
    if stands:
        inputs = _by_steps(inputs, held_out)
    together, again = joined_samples(held_out), replace(joined_samples(others), of_steps=None)
    alone = [replace(together, of_steps=None), again]
    close = _all_without(access, tables, alone)
    counts = _all_without(access, tables, [together, again]) if stands else close
    is_apart = not may_have_come_again or every == sampled
    left = max(1, every - sum(map(len, alone)))
    if stands:
        step_count = sum(sample.step_count for sample in (*held_out, *samples))
        left = max(1, round(every * (1 - together.step_count / max(1, step_count))))
    found = CountedRun(counts, left, inputs, is_apart)
    if not access.is_of_some_steps:
        return found
    return found._replace(close=close, stands=stands, chosen_by=seen_ratio)


def by_one_feature(tables: Sequence[ModelTable]) -> list[ModelTable]:
    """The tables as counts of a run tell their lookups: by one feature each, of its own name.

    Which rows may be hot depends on the features that tables share, so choose by the others.
    """
    return [table._replace(features=(table.name,)) for table in tables]


def _tell_steps(samples: Sequence[InputSample]) -> bool:
    """Whether it is known of enough steps what they looked up."""
    known = all(sample.of_steps is not None for sample in samples)
    return known and sum(sample.step_count for sample in samples) >= STEPS_MIN


def _held_out_steps(sample: InputSample) -> InputSample:
    """One counted step in four, at random of each four that follow each other."""
    assert sample.of_steps is not None
    steps = np.unique(sample.of_steps.steps)
    random = np.random.default_rng(len(steps))
    chosen = np.arange(0, len(steps), _STEPS_A_TURN)
    chosen += random.integers(0, np.minimum(_STEPS_A_TURN, len(steps) - chosen))
    return sample.where(np.isin(sample.of_steps.steps, steps[chosen]))


def _by_steps(inputs: Inputs, samples: Sequence[InputSample]) -> Inputs:
    """The inputs of some samples in the order of their steps, and where each step begins."""
    steps = np.concatenate([s.of_steps.steps for s in samples if s.of_steps is not None])
    order = np.argsort(steps, kind="stable")
    begins = np.flatnonzero(np.diff(steps[order], prepend=-1))
    return inputs.take(order)._replace(begins=begins)


def _all_without(
    access: AccessCounts, tables: Sequence[ModelTable], samples: Sequence[InputSample]
) -> dict[str, RowCounts]:
    """Counts less the lookups of some inputs, and where their steps are known, of those steps."""
    index = {name: at for at, name in enumerate(access.tables)}
    return {
        table.name: RowCounts(
            partial(_without, access, table, [_taken(s, index[table.name]) for s in samples])
        )
        for table in tables
    }


def _taken(sample: InputSample, table: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of a table, and lookups of each that are not to count."""
    at = sample.tables == table
    ids = sample.ids[at]
    if sample.of_steps is None:
        return ids, np.ones(len(ids), np.int64)
    steps = np.repeat(sample.of_steps.steps, sample.sizes)[at]
    # Of each row and step once: `own` has all lookups of the row in that step.
    order = np.lexsort((ids, steps))
    is_new = (np.diff(ids[order], prepend=-1) != 0) | (np.diff(steps[order], prepend=-1) != 0)
    first = order[is_new]
    return ids[first], np.maximum(sample.of_steps.own[at][first].astype(np.int64), 1)


def _held_out(sample: InputSample) -> InputSample:
    """At most a share of what was counted: the sample of a short run is all that was counted."""
    room = max(1, int(sample.seen * _HELD_OUT_RATIO))
    if len(sample) <= room:
        return sample
    return sample.where(sample.draws <= np.partition(sample.draws, room - 1)[room - 1])


def _others_of(held_out: InputSample, sample: InputSample) -> InputSample:
    """The inputs of another epoch that are those held out: as many of each as there."""
    return sample.where(np.isin(_numbered(sample.contents), _numbered(held_out.contents)))


def _numbered(contents: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Contents of inputs, with the second, third, ... of the same made others."""
    order = np.argsort(contents, kind="stable")
    begins = np.flatnonzero(np.append(True, np.diff(contents[order]) != 0))[: len(contents)]
    number = np.arange(len(contents)) - np.repeat(begins, np.diff(np.append(begins, len(contents))))
    numbered = contents.copy()
    numbered[order] += number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray(numbered)


def _input_count(access: AccessCounts, samples: Sequence[InputSample]) -> int:
    """Inputs that were counted. Of many epochs some have no sample any more: told by lookups."""
    seen = sum(sample.seen for sample in samples)
    sampled = sum(sample.seen * len(sample.ids) / max(1, len(sample)) for sample in samples)
    offered = {index for sample in samples for index in np.unique(sample.tables).tolist()}
    lookups = sum(access.total(name) for at, name in enumerate(access.tables) if at in offered)
    return round(seen * max(1.0, lookups / sampled)) if sampled else seen


def _check(access: AccessCounts, table: ModelTable) -> None:
    rows = access.tables.get(table.name)
    if rows != table.row_count:
        raise FAEError(
            "the access counts are of another model",
            f"table {table.name!r} with {table.row_count} rows, in the counts "
            + (f"only {list(access.tables)[:8]}" if rows is None else f"{rows} rows"),
            "give the counts of a run of this model, or calibrate from the loader",
        )


def _inputs(
    samples: Sequence[InputSample], access: AccessCounts, tables: Sequence[ModelTable]
) -> Inputs:
    """Sampled inputs of all epochs, by table; ids that are no rows are left out."""
    sizes = np.concatenate([sample.sizes for sample in samples] or [np.empty(0, dtype=np.int64)])
    ids = np.concatenate([sample.ids for sample in samples] or [np.empty(0, dtype=np.int64)])
    owners = np.concatenate([sample.tables for sample in samples] or [np.empty(0, dtype=np.int32)])
    index = {name: at for at, name in enumerate(access.tables)}
    input_of = np.repeat(np.arange(len(sizes)), sizes)
    columns, lengths = [], []
    for table in tables:
        own = (owners == index[table.name]) & (ids >= 0) & (ids < table.row_count)
        columns.append(ids[own])
        lengths.append(np.bincount(input_of[own], minlength=len(sizes)))
    return Inputs(len(sizes), tuple(columns), tuple(lengths))


def _without(
    access: AccessCounts,
    table: ModelTable,
    taken: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> NDArray[np.uint64] | Sketch:
    """Counts less some lookups; never below zero, since a sketch may have counted too few."""
    counts = access.counts(table.name)
    ids, lookups = (np.concatenate(column) for column in zip(*taken, strict=True))
    inside = (ids >= 0) & (ids < table.row_count)
    rows, place = np.unique(ids[inside], return_inverse=True)
    times = np.bincount(place, lookups[inside], minlength=len(rows)).astype(np.uint64)
    if not isinstance(counts, Sketch):
        counts[rows] -= np.minimum(counts[rows], times)
        return counts
    at, known = places(rows, counts.ids)
    left = counts.counts.copy()
    left[at] -= np.minimum(left[at], times[known])
    return replace(counts, counts=left)
