"""Which steps sampled inputs are of, and how often these and others looked up the same rows.

Where some steps of a run are counted, what a step looks up is one draw, not many: inputs of a batch
may be alike. So each sampled lookup remembers how often its whole step looked up its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainobs.access.sketch import counts_of

STEP_BYTES = 8
"""An input takes more than one without a step."""
ALIKE_BYTES = 8
"""A lookup takes more."""

STEPS_MIN = 8
"""Counted steps: fewer do not tell how much steps differ."""
TOO_FEW_STEPS = f"fewer than {STEPS_MIN} steps were counted"

_RANKS = 1 << 20

RowCounts = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Rows, ascending, and lookups of each."""


def step_number(step: int, rank: int) -> int:
    """A number for a step of a rank, which grows with time."""
    return (step + 1) * _RANKS + rank


class CountedSteps(NamedTuple):
    """Steps that looked rows up.

    Attributes:
        passed: all of them.
        counted: those whose lookups were counted.
    """

    passed: int
    counted: int


class InputSteps(NamedTuple):
    """Of sampled inputs.

    Attributes:
        steps: number of the step of each input, which grows with time.
        own: of each lookup, how often its step looked up the same row.
        near: how often the step that was counted before it did, if that had had as many lookups of
            the table; NaN where there was none.
    """

    steps: NDArray[np.int64]
    own: NDArray[np.uint32]
    near: NDArray[np.float32]

    @classmethod
    def empty(cls) -> InputSteps:
        """Of no inputs."""
        return cls(np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0, np.float32))

    def where(self, keep: NDArray[np.bool_], lookups: NDArray[np.bool_]) -> InputSteps:
        """Of some inputs and their lookups."""
        return InputSteps(self.steps[keep], self.own[lookups], self.near[lookups])


def joined(parts: Sequence[InputSteps | None]) -> InputSteps | None:
    """Of inputs of all parts; None where the steps of some are not known."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return InputSteps(*(np.concatenate(column) for column in zip(*known, strict=True)))


@dataclass(frozen=True)
class StepTotals:
    """What a step looked up.

    Attributes:
        number: see `step_number`.
        own: table -> its rows; of tables of which all lookups of the step are known.
        before: the same of the step that was counted before.
    """

    number: int
    own: Mapping[str, RowCounts]
    before: Mapping[str, RowCounts]

    def of(
        self, names: Sequence[str], tables: NDArray[np.int32], ids: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
        """`own` and `near` of lookups: of a table, by its place in `names`, and a row."""
        own, near = np.zeros(len(ids), np.uint32), np.full(len(ids), np.nan, np.float32)
        for table in np.unique(tables).tolist():
            at, name = tables == table, names[table]
            if (counts := self.own.get(name)) is None:
                continue
            own[at] = counts_of(ids[at], *_unsigned(counts))
            if (other := self.before.get(name)) is not None and (size := other[1].sum()) > 0:
                near[at] = counts_of(ids[at], *_unsigned(other)) * (counts[1].sum() / size)
        return own, near


def _unsigned(counts: RowCounts) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    return counts[0], counts[1].view(np.uint64)
