"""The part of the data that a calibration has read: counts of rows, and inputs held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainobs.access.counts import AccessCounts
from trainobs.core.text import quantity, size
from trainobs.fae.calibration.choice import RowCounts
from trainobs.fae.calibration.held_out import HeldOut
from trainobs.fae.kjt.inputs import Inputs, InputUse, check_ids, keys_of, parts_of
from trainobs.fae.profile.model_tables import ModelTable, features_of

_HELD_OUT_RATIO = 1 / 16
_LOOKUP_BYTES = 8


class DataSample:
    """Counts half of the inputs it is given and keeps some of the others.

    What it holds in the end depends on which inputs were added, not on their order or on which
    process added them, as long as memory holds a counter for each row.

    Args:
        tables: of the model.
        seed: tells which inputs are counted and which held out.
        memory_bytes: for counters and held-out inputs.

    Attributes:
        input_count: inputs that were added.
        counted_inputs: those of them that were counted.
        is_whole: whether no batch is half added, because adding it was interrupted.
    """

    def __init__(self, tables: Sequence[ModelTable], seed: int, memory_bytes: int) -> None:
        self.tables = tuple(tables)
        self.features = features_of(tables)
        self.input_count = 0
        self.counted_inputs = 0
        self.is_whole = True
        held_out_lookups = int(memory_bytes * _HELD_OUT_RATIO) // _LOOKUP_BYTES
        self.deciding = HeldOut(len(self.features), held_out_lookups)
        self.reporting = HeldOut(len(self.features), held_out_lookups)
        rows = {table.name: table.row_count for table in self.tables}
        self.access = AccessCounts(rows, budget_bytes=memory_bytes)
        self._seed = seed
        self._looked_up = [
            (table, [self.features.index(feature) for feature in table.features])
            for table in self.tables
        ]

    def memory(self) -> str:
        """What counters and held-out inputs take at most, in a line."""
        rows = sum(table.row_count for table in self.tables)
        held_out = (self.deciding.limit + self.reporting.limit) * _LOOKUP_BYTES
        found = f"{size(self.access.counter_bytes)} to count the lookups of {quantity(rows)} rows"
        if self.access.sketched:
            found += f" ({len(self.access.sketched)} tables by their hottest rows alone)"
        return f"{found}, up to {size(held_out)} for inputs held out"

    def add(self, numbers: NDArray[np.int64], inputs: Inputs) -> None:
        """Count inputs, or hold them out.

        Args:
            numbers: of the inputs in the data, each added once.
            inputs: as many, with the features of `features`.

        Raises:
            FAEError: an id is outside of its table; nothing was added.
        """
        for table, features in self._looked_up:
            for feature in features:
                check_ids(inputs.ids[feature], table.name, table.row_count)
        self.is_whole = False
        keys = keys_of(numbers, self._seed)
        parts = parts_of(keys)
        counted = inputs.take(np.flatnonzero(parts < InputUse.DECIDING))
        for table, features in self._looked_up:
            for feature in features:
                self.access.add(table.name, counted.ids[feature])
        for part, held_out in (
            (InputUse.DECIDING, self.deciding),
            (InputUse.REPORTING, self.reporting),
        ):
            chosen = np.flatnonzero(parts == part)
            held_out.add(numbers[chosen], keys[chosen], inputs.take(chosen))
        self.input_count += inputs.size
        self.counted_inputs += counted.size
        self.is_whole = True

    def merge(self, other: DataSample) -> None:
        """Take over what another process read of the same data; no input twice."""
        self.access.merge(other.access)
        self.deciding.merge(other.deciding)
        self.reporting.merge(other.reporting)
        self.input_count += other.input_count
        self.counted_inputs += other.counted_inputs

    def counts(self) -> Mapping[str, RowCounts]:
        """Lookups of each row as they are now."""
        return {
            table.name: RowCounts(partial(self.access.counters, table.name))
            for table in self.tables
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All but the counts, for `restore`."""
        arrays: dict[str, NDArray[Any]] = {
            "input-counts": np.array([self.input_count, self.counted_inputs])
        }
        for name, held_out in (("deciding", self.deciding), ("reporting", self.reporting)):
            arrays.update({f"{name}-{key}": array for key, array in held_out.arrays().items()})
        return arrays

    def restore(self, arrays: Mapping[str, NDArray[Any]], access: AccessCounts) -> None:
        """Hold what `arrays` told, and counts that were saved with it, and nothing else."""
        self.input_count, self.counted_inputs = (int(count) for count in arrays["input-counts"])
        for name, held_out in (("deciding", self.deciding), ("reporting", self.reporting)):
            start = f"{name}-"
            own = {key[len(start) :]: arrays[key] for key in arrays if key.startswith(start)}
            held_out.restore(own)
        self.access = access
