"""Which batches were for some steps, also where numbers begin again in each epoch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainobs.core.records import UNKNOWN

_NEVER = 2**62

_AHEAD = 8
"""Steps before its own in which a loop may ask for a batch."""

Longs = npt.NDArray[np.int64]


def are_for(
    rows: slice, steps: Longs, start_ns: Longs, for_step: Longs, asked_ns: Longs
) -> npt.NDArray[np.bool_]:
    """Of each batch, whether the steps of some rows consumed it: by their numbers, and by when.

    Args:
        rows: consecutive rows of the table of steps.
        steps: numbers of all steps, shape (n,).
        start_ns: when each began.
        for_step: of each batch the step that it was for, shape (m,).
        asked_ns: when it was asked for, `UNKNOWN` where nobody knows.
    """
    after = start_ns[rows.stop :]
    in_time = (asked_ns >= start_ns[max(0, rows.start - _AHEAD)]) & (
        asked_ns < (after[0] if len(after) else _NEVER)
    )
    found: npt.NDArray[np.bool_] = np.isin(for_step, steps[rows])
    found &= in_time | (asked_ns == UNKNOWN)
    return found
