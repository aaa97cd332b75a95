"""The part of the data that a calibration has read: counts of rows, and inputs held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainobs.access.counts import AccessCounts
from trainobs.access.sketch import Sketch
from trainobs.fae.calibration.choice import RowCounts
from trainobs.fae.calibration.held_out import HeldOut, KeyedLot
from trainobs.fae.calibration.input_selection import selected_inputs
from trainobs.fae.calibration.outside import OutsideCounts, OutsideIds, limits_of
from trainobs.fae.kjt.inputs import Inputs, InputUse, blocks_of, keys_of, parts_of
from trainobs.fae.profile.model_tables import ModelTable, features_of

_HELD_OUT_RATIO = 1 / 16
_LOOKUP_BYTES = 8
_INPUT_BYTES = 16  # its number and its key


class InputsByUse(NamedTuple):
    """Inputs by what they serve for.

    Attributes:
        input_count: all of them.
        counted: those to be counted.
        held_out: those to be kept, for each use.
        outside: what was left out of them, and of all before.
    """

    input_count: int
    counted: Inputs
    held_out: Sequence[KeyedLot]
    outside: OutsideCounts


class DataSample:
    """Counts half of the inputs it is given and keeps some of the others.

    What it holds in the end depends on which inputs were added, not on their order or on which
    process added them, as long as memory holds a counter for each row.

    Args:
        tables: of the model.
        seed: tells which inputs are counted and which held out.
        memory_bytes: for counters and held-out inputs.
        decides: whether inputs are kept to decide by, as `Stopping` does.
        in_blocks: whether neighbours in the data serve for the same. In data that come in an order
            of theirs neighbours may be of one session: held out beside those that were counted,
            they would look as if hot rows served any data so well.
        is_fatal: whether an id outside of its table is an error; else its lookup is left out.

    Attributes:
        input_count: inputs that were added.
        counted_inputs: those of them that were counted.
        outside: lookups that were left out.
        is_whole: whether no batch is half added, because adding it was interrupted.
    """

    def __init__(
        self,
        tables: Sequence[ModelTable],
        seed: int,
        memory_bytes: int,
        *,
        decides: bool,
        in_blocks: bool,
        is_fatal: bool = False,
    ) -> None:
        self.tables = tuple(tables)
        self.features = features_of(tables)
        self.input_count = 0
        self.counted_inputs = 0
        self.is_whole = True
        limit = int(memory_bytes * _HELD_OUT_RATIO) // _LOOKUP_BYTES
        uses = (InputUse.DECIDING, InputUse.REPORTING) if decides else (InputUse.REPORTING,)
        self._held_out = {use: HeldOut(len(self.features), limit) for use in uses}
        rows = {table.name: table.row_count for table in self.tables}
        self.access = AccessCounts(rows, budget_bytes=memory_bytes)
        self._seed = seed
        self._in_blocks = in_blocks
        self._looked_up = [
            (table, [self.features.index(feature) for feature in table.features])
            for table in self.tables
        ]
        self.outside = OutsideIds(limits_of(self.tables, self.features), is_fatal)
        self._outside_of_taken = self.outside.counts  # others have been read, and are on their way

    @property
    def held_out_bytes(self) -> int:
        """What inputs that are held out take at most, where each looks each feature up."""
        lookups = sum(kept.limit for kept in self._held_out.values())
        each = _LOOKUP_BYTES + _INPUT_BYTES / max(1, len(self.features))
        return int(lookups * each)

    def add(self, numbers: NDArray[np.int64], inputs: Inputs) -> None:
        """Count inputs, or hold them out; see `part`."""
        self.take_in(self.part(numbers, [inputs]))

    def part(self, numbers: NDArray[np.int64], batches: Sequence[Inputs]) -> InputsByUse:
        """What is to be counted of some inputs, and what held out. It adds nothing yet.

        Args:
            numbers: of the inputs in the data, each given once.
            batches: as many inputs together, with the features of `features`.

        Raises:
            FAEError: ids are outside of their table, see `OutsideIds`.
        """
        keys = keys_of(numbers, self._seed)
        uses = parts_of(keys_of(blocks_of(numbers), self._seed) if self._in_blocks else keys)
        counted = np.flatnonzero(uses < InputUse.DECIDING)
        held_out = [np.flatnonzero(uses == use) for use in self._held_out]
        inputs, *others = selected_inputs(batches, self.outside, [counted, *held_out])
        lots = [(numbers[at], keys[at], own) for at, own in zip(held_out, others, strict=True)]
        return InputsByUse(len(numbers), inputs, lots, self.outside.counts)

    def take_in(self, parts: InputsByUse) -> None:
        """Add what `part` returned."""
        self.is_whole = False
        for table, features in self._looked_up:
            for feature in features:
                self.access.add(table.name, parts.counted.ids[feature])
        for kept, lot in zip(self._held_out.values(), parts.held_out, strict=True):
            kept.add(*lot)
        self.input_count += parts.input_count
        self.counted_inputs += parts.counted.size
        self._outside_of_taken = parts.outside
        self.is_whole = True

    def merge(self, other: DataSample) -> None:
        """Take over what another process read of the same data; no input twice."""
        self.access.merge(other.access)
        self.outside.merge(other.outside)
        self._outside_of_taken = self.outside.counts
        for use, kept in self._held_out.items():
            kept.merge(other._held_out[use])
        self.input_count += other.input_count
        self.counted_inputs += other.counted_inputs

    def held_out(self, use: InputUse) -> Inputs:
        """The inputs that are kept for a use."""
        kept = self._held_out[use]
        return kept.inputs_by_blocks() if self._in_blocks else kept.inputs()

    def counts(self) -> Mapping[str, RowCounts]:
        """Lookups of each row as they are now; several threads may ask."""
        lock = Lock()

        def load(table: str) -> NDArray[np.unsignedinteger[Any]] | Sketch:
            with lock:  # to read a sketch is to settle it first
                return self.access.counters(table)

        return {table.name: RowCounts(partial(load, table.name)) for table in self.tables}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All but the counts, for `restore`."""
        arrays: dict[str, NDArray[Any]] = {
            "input-counts": np.array([self.input_count, self.counted_inputs]),
            **self._outside_of_taken.arrays(),
        }
        for use, kept in self._held_out.items():
            own = kept.arrays()
            arrays.update({f"{use.name.lower()}-{key}": array for key, array in own.items()})
        return arrays

    def restore(self, arrays: Mapping[str, NDArray[Any]], access: AccessCounts) -> None:
        """Hold what `arrays` told, and counts that were saved with it, and nothing else."""
        self.input_count, self.counted_inputs = (int(count) for count in arrays["input-counts"])
        self.outside.restore(arrays)
        self._outside_of_taken = self.outside.counts
        for use, kept in self._held_out.items():
            start = f"{use.name.lower()}-"
            kept.restore({k.removeprefix(start): arrays[k] for k in arrays if k.startswith(start)})
        self.access = access
