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
from trainobs.access.input_sample import InputSample, may_share
from trainobs.access.sketch import Sketch, places
from trainobs.core.errors import FAEError
from trainobs.core.log import logger
from trainobs.fae.calibration.choice import RowCounts
from trainobs.fae.calibration.outcome import profile_of
from trainobs.fae.kjt.inputs import Inputs
from trainobs.fae.profile.model_tables import ModelTable
from trainobs.fae.profile.profile import FAEProfile

_HELD_OUT_RATIO = 0.25
"""Of the inputs that were counted; as much of a loader's is held out for the predictions."""


def profile_of_counts(
    source: AccessCounts | str | os.PathLike[str],
    tables: Sequence[ModelTable],
    budget: int,
    confidence: float,
) -> FAEProfile:
    """Choose hot rows from counts of a run.

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
    run = counted_run(source, tables)
    if not run.is_apart:
        logger.warning(
            "what is predicted from these access counts holds for their own data alone\n"
            "  found: inputs that came again in another epoch, or may have, and a sample of them\n"
            "  do:    calibrate from the loader, or from the counts of one epoch"
        )
    # Counts are by table: each is looked up as if by one feature of its own.
    by_table = by_one_feature(tables)
    made: dict[str, str | int | float] = {"source": "access counts", "inputs_counted": run.counted}
    profile = profile_of(by_table, run.counts, run.counted, run.inputs, budget, confidence, made)
    named = tuple(
        replace(chosen, features=table.features)
        for chosen, table in zip(profile.tables, tables, strict=True)
    )
    return replace(profile, tables=named)


class CountedRun(NamedTuple):
    """What a run's access counts tell.

    Attributes:
        counts: of each table's rows, without the lookups of `inputs`.
        counted: inputs that they are of.
        inputs: others of the run, by table.
        is_apart: whether they surely are: no input that came again in another epoch judges rows
            that it helped to choose.
    """

    counts: dict[str, RowCounts]
    counted: int
    inputs: Inputs
    is_apart: bool


def counted_run(
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
    may_have_come_again = any(may_share(*pair) for pair in combinations(samples, 2))
    if may_have_come_again:
        longest = max(range(len(samples)), key=lambda i: (len(samples[i]), i))
        held_out = [_held_out(samples.pop(longest))]
        others = [_others_of(held_out[0], sample) for sample in samples]
    else:
        held_out, others = [_held_out(sample) for sample in samples], []
    inputs = _inputs(held_out, access, tables)
    if not inputs.size:
        raise FAEError(
            "cannot calibrate from these access counts",
            "no sample of inputs with them",
            "offer inputs by AccessCounts.add_inputs, or calibrate from the loader",
        )
    taken = _inputs([*held_out, *others], access, tables)
    counts = {
        table.name: RowCounts(partial(_without, access, table.name, ids))
        for table, ids in zip(tables, taken.ids, strict=True)
    }
    is_apart = not may_have_come_again or every == sampled
    return CountedRun(counts, max(1, every - taken.size), inputs, is_apart)


def by_one_feature(tables: Sequence[ModelTable]) -> list[ModelTable]:
    """Tables that are each looked up by one feature, of their own name."""
    return [table._replace(features=(table.name,)) for table in tables]


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
            + ("it is missing" if rows is None else f"{rows} rows"),
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
    access: AccessCounts, table: str, ids: NDArray[np.int64]
) -> NDArray[np.uint64] | Sketch:
    """Counts less some lookups; never below zero, since a sketch may have counted too few."""
    counts = access.counts(table)
    rows, times = np.unique(ids, return_counts=True)
    taken = times.astype(np.uint64)
    if not isinstance(counts, Sketch):
        counts[rows] -= np.minimum(counts[rows], taken)
        return counts
    at, known = places(rows, counts.ids)
    left = counts.counts.copy()
    left[at] -= np.minimum(left[at], taken[known])
    return replace(counts, counts=left)
