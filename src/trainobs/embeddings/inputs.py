"""Whole inputs of a step, for the sample that says which of them look up hot rows only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainobs.access import AccessCounts
from trainobs.access.input_steps import StepTotals
from trainobs.core.embedding_table import EmbeddingTable
from trainobs.embeddings.buffer import CallIds, LookupCall, host
from trainobs.embeddings.step_lookups import rows_of_slots


class _Column(NamedTuple):
    """What all inputs of a batch look up by one feature in one table."""

    table: int
    ids: NDArray[np.integer]
    lengths: NDArray[np.int64]
    """Lookups of each input."""


def offer(
    calls: Sequence[LookupCall],
    tables: Sequence[EmbeddingTable],
    counts: AccessCounts,
    epoch: int,
    step_totals: StepTotals,
) -> None:
    """Offer the inputs of a step to the sample.

    What is asked for between two backward passes is of the same inputs: a module may be asked for
    targets and histories, or for positive and negative items. All of it must be for as many bags,
    or nobody knows which belong to one input; such batches are left out. So are those of which it
    is not known whether a module was asked again for the same inputs or for others.

    Args:
        calls: what was asked for in the step.
        tables: the tables of the run.
        counts: what has the sample.
        epoch: the epoch of the step.
        step_totals: what the step looked up.
    """
    for batch in _batches(calls):
        slots = [slot for call in batch for slot in _slots(call)]
        sizes = {len(slot.lengths) for slot in slots}
        if len(sizes) == 1 and sizes != {0}:
            counts.add_inputs(
                [tables[slot.table].name for slot in slots],
                np.concatenate([slot.ids for slot in slots]),
                np.stack([slot.lengths for slot in slots]),
                epoch=epoch,
                step_totals=step_totals,
            )


def _batches(calls: Iterable[LookupCall]) -> list[list[LookupCall]]:
    """Calls that were sampled, with those for the same inputs together."""
    batches: list[list[LookupCall]] = [[]]
    latest: dict[int, LookupCall] = {}
    unknown: set[int] = set()
    for call in calls:
        before = latest.get(id(call.site))
        if before is not None and (before.capture, before.trained) != (call.capture, call.trained):
            batches.append([])
            latest.clear()
        elif before is not None and call.trained is None:
            unknown.add(len(batches) - 1)
        latest[id(call.site)] = call
        batches[-1].append(call)
    return [
        batch
        for number, batch in enumerate(batches)
        if batch and number not in unknown and all(call.ids is not None for call in batch)
    ]


def _slots(call: LookupCall) -> Iterator[_Column]:
    assert call.ids is not None
    assert call.bags is not None
    values = host(call.ids.values)
    bags = [call.bags] * len(call.keys) if isinstance(call.bags, int) else call.bags
    begin = first = 0
    all_lengths = _lengths(call.ids, len(values), sum(bags))
    for key, count in zip(call.keys, bags, strict=True):
        lengths = all_lengths[first : first + count]
        end = begin + int(lengths.sum())
        tables, rows, _ = call.site.served(key)
        ids = values[begin:end] if rows is None else rows_of_slots(rows, values[begin:end])
        for table in tables:
            yield _passed_over(call, _Column(table, ids, lengths))
        first, begin = first + count, end


def _lengths(ids: CallIds, id_count: int, bag_count: int) -> NDArray[np.int64]:
    """Lookups of each bag."""
    if isinstance(ids.lengths, int):
        return np.full(bag_count, ids.lengths, dtype=np.int64)
    lengths = host(ids.lengths).astype(np.int64, copy=False)
    if not ids.ends:
        return lengths
    ends = lengths if len(lengths) > bag_count else np.append(lengths, id_count)
    return np.diff(ends)


def _passed_over(call: LookupCall, slot: _Column) -> _Column:
    """Without the ids that a bag's `padding_idx` leaves out."""
    padding = call.site.passed_over
    if padding is None:
        return slot
    looked_up = slot.ids != padding
    before = np.concatenate([[0], np.cumsum(looked_up)])
    ends = before[np.concatenate([[0], np.cumsum(slot.lengths)])]
    return _Column(slot.table, slot.ids[looked_up], np.diff(ends))
