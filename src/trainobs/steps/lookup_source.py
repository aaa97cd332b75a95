"""What is asked of whoever counts the lookups of embedding rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainobs.steps.closed_step import ClosedStep


class LookupSource(Protocol):
    """Tells the lookups of closed steps; asked by the observer's thread."""

    def ready(self, step: ClosedStep) -> bool:
        """Whether nothing more is to come for a closed step."""

    def rows(self, steps: Sequence[ClosedStep]) -> npt.NDArray[np.void] | None:
        """Rows of `LOOKUP_ROW` for consecutive closed steps, each asked for once; None for none."""


class NoLookups:
    """Nobody counts."""

    def ready(self, step: ClosedStep) -> bool:
        """Nothing is to come."""
        return True

    def rows(self, steps: Sequence[ClosedStep]) -> None:
        """There are none."""
        return None
