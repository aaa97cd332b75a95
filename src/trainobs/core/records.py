"""What the assembler hands to the sinks."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

SETUP = -1
"""Step number of what happened before the first step; stored as null."""


@dataclass(frozen=True)
class StepBatch:
    """Records of consecutive closed steps, one array per fact, all of length n.

    Columns, not one object a step, because they are made, stored and averaged by column.

    Attributes:
        step: step numbers as the training loop counts them, int64; `SETUP` before the first.
        epoch: epoch numbers, int32.
        start_ns: CLOCK_MONOTONIC at the beginning of the step, int64.
        columns: catalogue name -> float64 values; NaN where one is undefined. A metric without a
            source on this machine has no column at all.
        cells: kernel rows, shape (n, op, class, role) of `CELL`; None below the eBPF level.
        latency: block-read latency buckets of each step, shape (n, BUCKETS) uint64, or None.
    """

    step: npt.NDArray[np.int64]
    epoch: npt.NDArray[np.int32]
    start_ns: npt.NDArray[np.int64]
    columns: dict[str, npt.NDArray[np.float64]]
    cells: npt.NDArray[np.void] | None = None
    latency: npt.NDArray[np.uint64] | None = None

    def __len__(self) -> int:
        return len(self.step)


@dataclass
class RunInfo:
    """What is true for a whole run; stored in `run.json`.

    Attributes:
        level: "ebpf", "procfs" or "timing".
        rank: rank of this process in the job.
        capabilities: probe name -> "on", or why not.
        clock: "monotonic_ns" (CLOCK_MONOTONIC) and "wall_ns" (since 1970) of the same instant.
    """

    level: str
    rank: int = 0
    world_size: int = 1
    host: dict[str, object] = field(default_factory=dict)
    clock: dict[str, int] = field(default_factory=dict)
    capabilities: dict[str, str] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)
