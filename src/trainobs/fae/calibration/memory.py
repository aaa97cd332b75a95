"""What a calibration takes of memory at most, told before the first batch is read."""

from __future__ import annotations

from collections.abc import Sequence

from trainobs.access.counts import AccessCounts
from trainobs.access.dense import BYTES_PER_ROW
from trainobs.core.text import counted, quantity, size
from trainobs.fae.calibration.sample import DataSample
from trainobs.fae.calibration.source import LOT_LOOKUPS
from trainobs.fae.profile.model_tables import ModelTable

_ID = 8
_HELD_OUT_COPIES = 2
"""Inputs held out are copied where they are put in the order of the data."""
_LOT_COPIES = 8
"""Ids and lengths of a lot, what is selected of it, and the lot before it, which is counted."""
_SKETCH_COPIES = 2
"""Rows and counts of a sketch, beside its counters, where hot ones are looked for."""


def memory_of(sample: DataSample, budget: int, *, decides: bool) -> str:
    """A line of what it takes and for what; without what the loader takes.

    Args:
        sample: before anything was added.
        budget: bytes of hot rows.
        decides: whether hot rows of before are kept, to compare with.
    """
    access = sample.access
    counters = access.counter_bytes
    counters += _SKETCH_COPIES * (counters - _dense_bytes(access))
    held_out = _HELD_OUT_COPIES * sample.held_out_bytes
    lots = _LOT_COPIES * _ID * LOT_LOOKUPS
    hot = (2 if decides else 1) * _ID * most_hot(sample.tables, budget)
    rows = sum(table.row_count for table in sample.tables)
    of_some = counted(len(access.sketched), "table")
    most = f", in {of_some} the hottest alone" if access.sketched else ""
    return (
        f"up to {size(counters + held_out + lots + hot)} of memory: {size(counters)} to count the "
        f"lookups of {quantity(rows)} rows{most}, {size(held_out)} for inputs held out, "
        f"{size(lots)} for batches on their way, {size(hot)} for the numbers of hot rows"
    )


def _dense_bytes(access: AccessCounts) -> int:
    """What tables with a counter for each row have."""
    rows = (count for name, count in access.tables.items() if name not in access.sketched)
    return BYTES_PER_ROW * sum(rows)


def most_hot(tables: Sequence[ModelTable], budget: int) -> int:
    """Rows that a budget holds at most: those of the narrowest tables."""
    count = 0
    for table in sorted(tables, key=lambda table: table.row_bytes):
        fitting = min(table.row_count, max(0, budget) // table.row_bytes)
        count += fitting
        budget -= fitting * table.row_bytes
    return count
