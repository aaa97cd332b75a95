"""What the collector hands to the sinks."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from trainobs.core.catalogue import STEP_METRICS
from trainobs.core.catalogue.named import named_phase
from trainobs.core.catalogue.own_counters import is_own_counter
from trainobs.core.cells import StepCells
from trainobs.core.embedding_table import EmbeddingTable
from trainobs.core.own_counter import OwnCounter

SETUP = -1
"""Step number of what happened before the first step; stored as null."""

DATA_IS_NAMED = "data_is_named"
"""Among `RunInfo.settings`: the user has said which files are training data."""


UNKNOWN = -1
"""In a row of `BATCH_ROW`; stored as null."""

BATCH_ROW = np.dtype(
    [
        ("step", "<i8"),
        ("for_step", "<i8"),
        ("epoch", "<i4"),
        ("loader", "<i4"),
        ("worker", "<i4"),
        ("number", "<i8"),
        ("begin_ns", "<i8"),
        ("end_ns", "<i8"),
        ("fetch_begin_ns", "<i8"),
        ("fetch_end_ns", "<i8"),
        ("read_bytes", "<i8"),
        ("read_count", "<i8"),
        ("read_ns", "<i8"),
        ("device_ns", "<i8"),
        ("cpu_wait_ns", "<i8"),
        ("compute_ns", "<i8"),
        ("sleep_ns", "<i8"),
        ("received_bytes", "<i8"),
        ("handed_bytes", "<i8"),
        ("slowest_ns", "<i8"),
        ("slowest_file", "S48"),
    ]
)
"""One batch that a loader made; -1 where a number is unknown.

`step` and `epoch` are those in which it was finished, `for_step` is the step that consumed it;
`worker` is -1 for a batch that the training thread made itself. `device_ns`, `cpu_wait_ns`,
`compute_ns` and `sleep_ns` add up to the time from `begin_ns` to `end_ns`. The training thread got
it from `fetch_begin_ns` to `fetch_end_ns`. `handed_bytes` is the size of its tensors, and
`received_bytes` what its maker received on internet sockets.
"""


@dataclass(frozen=True)
class StepTable:
    """Records of consecutive closed steps, one array per fact, all of length n.

    Columns, not one object a step, because they are made, stored and averaged by column.

    Attributes:
        step: step numbers as the training loop counts them, int64; `SETUP` before the first.
        epoch: epoch numbers, int32.
        start_ns: CLOCK_MONOTONIC at the beginning of the step, int64.
        columns: catalogue name -> float64 values; NaN where one is undefined. A metric without a
            source on this machine has no column at all.
        cells: what the kernel counted, of n steps; None below the eBPF level.
        latency: block-read latency buckets of each step, shape (n, BUCKETS) uint64, or None.
        batches: batches of loaders that became known with these steps, of `BATCH_ROW`; None where
            nobody tells of them.
        lookups: embedding lookups in these steps, of `LOOKUP_ROW`, in the order of the steps; None
            where nobody tells of them.
    """

    step: npt.NDArray[np.int64]
    epoch: npt.NDArray[np.int32]
    start_ns: npt.NDArray[np.int64]
    columns: dict[str, npt.NDArray[np.float64]]
    cells: StepCells | None = None
    latency: npt.NDArray[np.uint64] | None = None
    batches: npt.NDArray[np.void] | None = None
    lookups: npt.NDArray[np.void] | None = None

    def __len__(self) -> int:
        return len(self.step)

    @property
    def step_count(self) -> int:
        """Rows that are steps of the loop: all but that of the time before the first."""
        return int(np.count_nonzero(self.step != SETUP))

    def select(self, rows: slice | npt.NDArray[np.bool_]) -> StepTable:
        """Some of the steps, without `batches`, which are not of one step each."""
        lookups = self.lookups
        if lookups is not None:
            lookups = lookups[np.isin(lookups["step"], self.step[rows])]
        return StepTable(
            step=self.step[rows],
            epoch=self.epoch[rows],
            start_ns=self.start_ns[rows],
            columns={name: column[rows] for name, column in self.columns.items()},
            cells=None if self.cells is None else self.cells[rows],
            latency=None if self.latency is None else self.latency[rows],
            lookups=lookups,
        )

    @property
    def end_ns(self) -> int:
        """When the last of them ended, at least one, of CLOCK_MONOTONIC."""
        durations = self.columns.get("step/duration_ns")
        last = 0.0 if durations is None else float(np.nan_to_num(durations[-1]))
        return int(self.start_ns[-1]) + int(last)

    def brought(self) -> dict[str, npt.NDArray[np.float64]]:
        """The columns that this run brings along, which are none of `metric_rows`.

        These are phases with a name of the user's, and what the user's own programs count.
        """
        return {
            name: column
            for name, column in self.columns.items()
            if named_phase(name) or is_own_counter(name)
        }

    @cached_property
    def metric_rows(self) -> npt.NDArray[np.float64]:
        """Values of every metric with a value for each step, in the order of `STEP_METRICS`.

        A copy of shape (len(STEP_METRICS), n), made once; NaN where a metric is missing or
        undefined.
        """
        rows = np.full((len(STEP_METRICS), len(self)), np.nan)
        for index, metric in enumerate(STEP_METRICS):
            column = self.columns.get(metric.name)
            if column is not None:
                rows[index] = column
        return rows


@dataclass
class RunInfo:
    """What is true for a whole run; stored in `run.json`.

    Attributes:
        level: "ebpf", "procfs" or "timing"; "attached" where the process is observed from outside.
        rank: rank of this process in the job.
        capabilities: probe name -> "on", or why not.
        gpu: device in use, as soon as it is known: "uuid", "name", "driver", and "gpm": "on" or
            why not.
        loaders: how each loader of torch works: "serial", "workers", "prefetch_factor" and so on;
            "objects", how many there were that work so, and "passes", how many iterators.
        tables: embedding tables of the model whose lookups are counted.
        phases: those with a name of the user's, as far as they were in use.
        counters: of the user's own programs.
        clock: "monotonic_ns" (CLOCK_MONOTONIC), "boot_ns" (CLOCK_BOOTTIME) and "wall_ns" (since
            1970) of the same instant.
    """

    level: str
    rank: int = 0
    world_size: int = 1
    host: dict[str, object] = field(default_factory=dict)
    clock: dict[str, int] = field(default_factory=dict)
    capabilities: dict[str, str] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)
    gpu: dict[str, str] = field(default_factory=dict)
    loaders: list[dict[str, object]] = field(default_factory=list)
    tables: tuple[EmbeddingTable, ...] = ()
    phases: list[str] = field(default_factory=list)
    counters: list[OwnCounter] = field(default_factory=list)
