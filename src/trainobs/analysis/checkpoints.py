"""The checkpoints of a run: what each blocked, wrote, and left to be written back afterwards."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from trainobs.core.records import SETUP
from trainobs.runlog.rank import RankLog

Floats = npt.NDArray[np.float64]

_STEP, _BLOCK = "step/duration_ns", "block/checkpoint_write_bytes"

_SUMMED = {
    "blocking_ns": "phase/checkpoint_ns",
    "written_bytes": "io/checkpoint_write_bytes",
    "write_ns": "io/checkpoint_write_ns",
    "fsync_ns": "io/checkpoint_fsync_ns",
}


def checkpoints(rank: RankLog) -> list[dict[str, Any]]:
    """Every checkpoint that a rank saved, in order.

    A checkpoint is a step with time in the phase of that name, or, where nobody marks that phase, a
    step that wrote to a checkpoint. It reaches to the next one, whatever was written meanwhile.

    Returns:
        For each, None where unknown: `step` (None before the first), `blocking_ns`,
        `written_bytes`, `write_ns`, `fsync_ns`; `block_bytes` written to devices in that step,
        `later_block_bytes` after it, of these the last in step `until_step`, which ended
        `later_ns` after the checkpoint's.

    Notes:
        Write-back that has not ended when the next checkpoint begins counts as the next one's.
    """
    step = rank.step()
    read = rank.metrics((_STEP, _BLOCK, *_SUMMED.values()))
    end_ns = rank.start_ns() + np.nan_to_num(read[_STEP]).astype(np.int64)
    values = {name: read[metric] for name, metric in _SUMMED.items()}
    block = read[_BLOCK]
    begins = _begins(values["blocking_ns"], values["written_bytes"])
    found = []
    for first, end in pairwise([*begins, len(step)]):
        one = {name: _sum(column[first:end]) for name, column in values.items()}
        one["blocking_ns"] = _sum_of_known(values["blocking_ns"][first:end])
        one |= _write_back(step, end_ns, block, first, end)
        found.append({"step": _number(step[first]), **one})
    return found


def _begins(blocking: Floats, written: Floats) -> list[int]:
    """Rows in which a checkpoint begins."""
    marked = np.isfinite(blocking).any()
    return [int(row) for row in np.flatnonzero((blocking if marked else written) > 0)]


def _write_back(
    step: npt.NDArray[np.int64],
    end_ns: npt.NDArray[np.int64],
    block: Floats,
    first: int,
    end: int,
) -> dict[str, Any]:
    later = block[first + 1 : end]
    known = np.isfinite(block[first:end]).all()
    rows = np.flatnonzero(later > 0) + first + 1 if known else np.empty(0, np.intp)
    last = int(rows[-1]) if rows.size else None
    return {
        "block_bytes": _sum(block[first : first + 1]),
        "later_block_bytes": int(later.sum()) if known else None,
        "until_step": None if last is None else _number(step[last]),
        "later_ns": None if last is None else int(end_ns[last] - end_ns[first]),
    }


def _number(step: np.int64) -> int | None:
    return None if step == SETUP else int(step)


def _sum(values: Floats) -> int | None:
    """None where a part is unknown."""
    return int(values.sum()) if np.isfinite(values).all() else None


def _sum_of_known(values: Floats) -> int | None:
    """Of a phase that a loop begins to mark: before, it was in none."""
    known = values[np.isfinite(values)]
    return int(known.sum()) if known.size else None
