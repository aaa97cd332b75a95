"""Under which conditions two sides ran: the page cache, the load of the machine, the GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

import numpy as np

from trainobs.analysis.io.unnamed_reads import unnamed_bytes
from trainobs.analysis.summary import cells_of
from trainobs.core.catalogue import METRICS
from trainobs.core.labels import label_among
from trainobs.core.metrics import evaluate
from trainobs.core.records import SETUP
from trainobs.runlog.reader import RunLog
from trainobs.verdict.metric_names import STEP


class Condition(TypedDict):
    """A metric, and of each side the mean over the runs that know it; None where none does."""

    name: str
    label: str
    unit: str
    values: list[float | None]


def conditions(old: Sequence[RunLog], new: Sequence[RunLog]) -> list[Condition]:
    """What is known of either side."""
    rows: list[Condition] = []
    for name, (value, unit) in _CONDITIONS.items():
        values = [_mean([value(run, name) for run in side]) for side in (old, new)]
        if values != [None, None]:
            label = label_among(name, ())
            rows.append({"name": name, "label": label, "unit": unit, "values": values})
    return rows


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def per_step(run: RunLog, name: str) -> float | None:
    """The mean over the steps that know it, of one rank; the first step is left out."""
    rank = run.rank
    values = rank.metric(name)[rank.step() != SETUP][1:]
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else None


def _over_time(run: RunLog, name: str) -> float | None:
    """The mean over the time of the steps that know it, likewise."""
    rank = run.rank
    columns = rank.metrics((name, STEP))
    values, took = (columns[one][rank.step() != SETUP][1:] for one in (name, STEP))
    known = np.isfinite(values) & (took > 0)
    return float(np.average(values[known], weights=took[known])) if known.any() else None


def _of_sums(run: RunLog, name: str) -> float | None:
    """A ratio over the same steps, which kernel cells are summed for."""
    rank = run.rank
    numbers = rank.step()
    cells = cells_of(rank, [SETUP, *numbers[numbers != SETUP][:1].tolist()])
    if cells is None or _of_data(run, name) is None:
        return None
    value = float(evaluate(METRICS[name], cells)[0])
    return None if np.isnan(value) else value


def _of_data(run: RunLog, name: str) -> float | None:
    """The same of training data; None where nobody knows what that is."""
    return per_step(run, name) if unnamed_bytes(run, run.rank) is None else None


def _share_of_step(run: RunLog, name: str) -> float | None:
    value, step = per_step(run, name), per_step(run, STEP)
    return None if value is None or not step else value / step


_CONDITIONS: Mapping[str, tuple[Callable[[RunLog, str], float | None], str]] = {
    "cache/hit_ratio": (_of_sums, "ratio"),
    "cache/miss_bytes": (_of_data, "bytes"),
    "cache/hint_bytes": (_of_data, "bytes"),
    "block/read_bytes": (per_step, "bytes"),
    "sched/others_cpu_ratio": (_over_time, "ratio"),
    "pressure/cpu_ns": (_share_of_step, "ratio"),
    "pressure/io_ns": (_share_of_step, "ratio"),
    "pressure/memory_ns": (_share_of_step, "ratio"),
    "ranks/wait_ns": (per_step, "ns"),
    "gpu/sm_active_ratio": (_over_time, "ratio"),
    "gpu/sm_clock_mhz": (_over_time, "MHz"),
    "gpu/throttle_power_ratio": (_over_time, "ratio"),
    "gpu/throttle_thermal_ratio": (_over_time, "ratio"),
}
"""What is told of either side, in this order: metric -> what it was in a run, None where unknown;
and the unit of that."""
