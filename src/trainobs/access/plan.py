"""How a budget of memory is shared: which tables get a counter a row, and what the rest gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainobs.access.dense import BYTES_PER_ROW
from trainobs.access.pool import BYTES_PER_ENTRY
from trainobs.core.errors import SettingError

BYTES_PER_TABLE = 1024
"""Objects of Python and numpy for a table, beside its counters."""
INPUTS_SHARE = 4
"""One part in so many is for the sample of inputs."""
PENDING_SHARE = 64
"""One part in so many is for lookups that wait to be counted."""
SETTLING_COPIES = 8
"""Copies of these that sorting them in takes for a moment, themselves included."""


@dataclass(frozen=True)
class Plan:
    """The shares.

    Attributes:
        dense: tables with a counter a row, smallest first.
        inputs_bytes: memory for the sample of inputs.
        entry_count: rows in the pool of all other tables; 0 without such.
        pending_count: lookups that wait for it.
    """

    dense: tuple[str, ...]
    inputs_bytes: int
    entry_count: int
    pending_count: int


def plan(tables: Mapping[str, int], budget_bytes: int) -> Plan:
    """Share `budget_bytes`.

    A quarter is for the sample of inputs. If a counter a row fits the rest for every table, that is
    all. Otherwise the smallest tables have it, up to half of the rest, and the others share a pool
    of rows that are in use.

    Raises:
        SettingError: the budget does not hold the bare minimum for so many tables.
    """
    inputs_bytes = budget_bytes // INPUTS_SHARE
    rest = budget_bytes - inputs_bytes - BYTES_PER_TABLE * len(tables)
    if sum(tables.values()) * BYTES_PER_ROW <= rest:
        return Plan(tuple(tables), inputs_bytes, 0, 0)
    pending_count = budget_bytes // PENDING_SHARE // 8
    rest -= 8 * pending_count * SETTLING_COPIES
    dense, dense_bytes = [], 0
    for name in sorted(tables, key=lambda name: tables[name]):
        dense_bytes += tables[name] * BYTES_PER_ROW
        if dense_bytes > rest // 2:
            dense_bytes -= tables[name] * BYTES_PER_ROW
            break
        dense.append(name)
    entry_count = (rest - dense_bytes) // BYTES_PER_ENTRY
    if pending_count < 1 or entry_count - pending_count < len(tables) - len(dense):
        raise SettingError(
            f"cannot count accesses to {len(tables)} tables in {budget_bytes:,} bytes",
            f"{BYTES_PER_TABLE} bytes a table are needed before anything is counted",
            "give a larger budget_bytes, or a larger memory to calibrate()",
        )
    return Plan(tuple(dense), inputs_bytes, entry_count, pending_count)
