"""The checkpoints of a run: what each blocked, wrote, and left to be written back afterwards."""

from __future__ import annotations

from typing import Any, TypedDict, cast

import numpy as np
import numpy.typing as npt

from trainobs.core.records import SETUP
from trainobs.runlog.rank import RankLog

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]

_STEP, _BLOCK = "step/duration_ns", "block/checkpoint_write_bytes"

_ANY = "io/write_bytes"

_SUMMED = {
    "blocking_ns": "phase/checkpoint_ns",
    "written_bytes": "io/checkpoint_write_bytes",
    "write_ns": "io/checkpoint_write_ns",
    "fsync_ns": "io/checkpoint_fsync_ns",
}

_ENTERED_NS, _ENTERED = 1e6, 0.01
"""Time in the phase, also as a share of the longest, in which nothing is saved."""

CHECKPOINTS = (_STEP, _BLOCK, _ANY, *_SUMMED.values())
"""Metrics that are looked at."""


class Checkpoint(TypedDict):
    """One checkpoint; None where unknown.

    Attributes:
        step: that saved it; None before the first.
        blocking_ns, written_bytes, write_ns, fsync_ns: of that step, up to the next checkpoint.
        block_bytes: written to devices in that step.
        later_block_bytes: the same after it.
        until_step: the last step in which any of these were.
        later_ns: how long after the checkpoint's own step that ended.
    """

    step: int | None
    blocking_ns: int | None
    written_bytes: int | None
    write_ns: int | None
    fsync_ns: int | None
    block_bytes: int | None
    later_block_bytes: int | None
    until_step: int | None
    later_ns: int | None


def checkpoints(rank: RankLog) -> list[Checkpoint]:
    """Every checkpoint that a rank saved, in order.

    A checkpoint is a step with time in the phase of that name, or, where nobody marks that phase, a
    step that wrote to a checkpoint. It reaches to the next one, whatever was written meanwhile.

    Notes:
        Write-back that has not ended when the next checkpoint begins counts as the next one's. Of a
        checkpoint of which no write was seen, while there were others, a thread or a process in the
        background may have written it: nothing is known but what it blocked.
    """
    step = rank.step()
    read = rank.metrics(CHECKPOINTS)
    end_ns = rank.start_ns() + np.nan_to_num(read[_STEP]).astype(np.int64)
    values = {name: read[metric] for name, metric in _SUMMED.items()}
    first = _begins(values["blocking_ns"], values["written_bytes"])
    if not len(first):
        return []
    columns = {
        "step": _numbers(step[first]),
        **{name: _sums(column, first) for name, column in values.items()},
        # Of a phase that a loop begins to mark: before, it was in none.
        "blocking_ns": _sums(values["blocking_ns"], first, enough=np.logical_or),
        **_write_back(step, end_ns, read[_BLOCK], first),
    }
    rows = zip(*columns.values(), strict=True)
    found = [dict(zip(columns, row, strict=True)) for row in rows]
    for one, written in zip(found, _sums(read[_ANY], first), strict=True):
        if written and one["written_bytes"] == 0:
            one |= dict.fromkeys(columns.keys() - {"step", "blocking_ns"})
    return cast("list[Checkpoint]", found)


def _begins(blocking: Floats, written: Floats) -> Rows:
    """Rows in which a checkpoint begins.

    A loop may enter the phase in each step, and save in few: where writes were seen, a step that
    wrote nothing and hardly took any time saved nothing.
    """
    marked = np.isfinite(blocking).any()
    if not marked or not (written[blocking > 0] > 0).any():
        return np.flatnonzero((blocking if marked else written) > 0)
    enough = min(_ENTERED_NS, _ENTERED * float(np.nanmax(blocking)))
    return np.flatnonzero((blocking > 0) & ((written > 0) | (blocking > enough)))


def _write_back(step: Longs, end_ns: Longs, block: Floats, first: Rows) -> dict[str, list[Any]]:
    """What devices wrote in the step of each checkpoint, and later, up to the next one."""
    later = block.copy()
    later[first] = np.where(np.isfinite(block[first]), 0.0, np.nan)
    sums = _sums(later, first)
    writes = np.flatnonzero(later > 0)
    place = np.searchsorted(writes, [*first[1:], len(block)]) - 1
    last = writes[place] if len(writes) else np.zeros(len(first), np.intp)
    wrote = [bool(one) for one in sums]
    until, took = _numbers(step[last]), (end_ns[last] - end_ns[first]).tolist()
    return {
        "block_bytes": _known(block[first]),
        "later_block_bytes": sums,
        "until_step": [one if has else None for one, has in zip(until, wrote, strict=True)],
        "later_ns": [one if has else None for one, has in zip(took, wrote, strict=True)],
    }


def _numbers(steps: Longs) -> list[int | None]:
    return [None if step == SETUP else step for step in steps.tolist()]


def _sums(values: Floats, first: Rows, enough: np.ufunc = np.logical_and) -> list[int | None]:
    """From each of `first` to the next; None where not `enough` (all, or any) is known."""
    is_known = enough.reduceat(np.isfinite(values), first)
    return _known(np.where(is_known, np.add.reduceat(np.nan_to_num(values), first), np.nan))


def _known(values: Floats) -> list[int | None]:
    return [None if value != value else int(value) for value in values.tolist()]
