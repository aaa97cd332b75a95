"""What a sink is: somewhere the record goes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainobs.core.records import RunInfo, StepTable


class Sink:
    """Takes the record of one run on the observer thread, in order.

    A sink raises `OSError` for a fault that may pass (disk full, directory removed): it keeps what
    it could not store, within bounds, and is called again. Any other exception disarms it.
    """

    name: str
    lost_steps = 0
    """Step records that this sink had to drop."""

    def begin(self, info: RunInfo) -> None:
        """Open the run."""

    def write(self, batch: StepTable) -> None:
        """Take the next closed steps."""

    def latency(self, buckets: npt.NDArray[np.uint64]) -> None:
        """Take the latency histograms since the run began, shape (op, class, role, BUCKETS)."""

    def flush(self) -> None:
        """Make what was taken so far safe; called every few seconds."""

    def end(self, summary: dict[str, object]) -> None:
        """Flush and close; `summary` holds how the run ended, what was lost and what it cost."""
