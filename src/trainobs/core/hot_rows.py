"""What a sharded module tells of the hot rows that it keeps on the device.

A module that keeps hot rows (`trainobs.fae`) and the observer of lookups know only this of each
other: the module has an attribute of the name `ATTRIBUTE`, which answers as `ServesHotRows` does,
and one of the name `COLLECTION`, the sharded collection of TorchRec that has the tables. The
observer finds the module among those of the model. In a batch the lookups of hot rows stand under
keys of their own: the feature, `HOT_SUFFIX`, and more.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

ATTRIBUTE = "served_by_hot_rows"
COLLECTION = "sharded_collection"
HOT_SUFFIX = "#hot:"


class ServedBy(Enum):
    """Where the lookups of a key of slots are read."""

    DEVICE = "device"
    """A copy of the rows on the device of the rank that asks."""
    OWNER = "owner"
    """A copy on the device of the rank that has the row in its table."""
    TABLE = "table"
    """The table, as all others."""


class HotTotals(NamedTuple):
    """What hot rows did since the module was sharded, in batches that were trained on.

    All are numbers of the host; to add them up asked no device.

    Attributes:
        batch_count: batches.
        pure_batch_count: of these, batches that left the tables alone.
        input_count: inputs.
        pure_input_count: of these, inputs in such batches.
        lookup_count: lookups in the tables that have hot rows.
        hot_lookup_count: of these, lookups that hot rows served.
        expected_hot_count: lookups that hot rows would have served as often as calibration said.
        saved_bytes: weights that were read from hot rows, and so not from the tables.
        sync_ns: time of the host in which hot rows were kept equal on all ranks, and the tables
            equal to them.
        hot_bytes: that hot rows take on the device now, optimizer state included.
        all_hot_bytes: that they take on all ranks together, each row once.
    """

    batch_count: int = 0
    pure_batch_count: int = 0
    input_count: int = 0
    pure_input_count: int = 0
    lookup_count: int = 0
    hot_lookup_count: int = 0
    expected_hot_count: float = 0.0
    saved_bytes: int = 0
    sync_ns: int = 0
    hot_bytes: int = 0
    all_hot_bytes: int = 0


class ServesHotRows(Protocol):
    """What a module says of its hot rows; for the thread that trains."""

    def totals(self) -> HotTotals:
        """What they did up to now."""
