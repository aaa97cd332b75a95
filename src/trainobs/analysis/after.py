"""Two runs: which changes were made between them, what was predicted of these, and what came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainobs.analysis.whatif import replayed
from trainobs.core.errors import TrainobsError
from trainobs.core.records import SETUP
from trainobs.replay.changes import Change
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog
from trainobs.verdict.verdict import facts_from

_OF_A_LOADER = (
    "workers",
    "prefetch_factor",
    "persistent_workers",
    "batch_size",
    "pin_memory",
    "start_method",
)

CACHED = 0.5
"""Difference in the share of data that came from a device, from which the cache has changed."""

_OTHERS = "CPU taken by others"

OTHERS = 0.1
"""Difference in what other processes took of the CPUs that is worth a word."""


def compared(run: RunLog, old: RunLog) -> dict[str, Any]:
    """What changed from an old run to a new one.

    Returns:
        `run`, `old`: directories; `changes`: name -> [old, new] of what differs; `step_ns`: [old,
        new], means of all steps but the first; `gain` that came; `predicted`: least and most gain
        of these changes by a replay of the old run, or None; `why_not`: why nothing was predicted,
        or None; `holds`: whether what came lies in the prediction, or None.

    Raises:
        TrainobsError: one of them has no steps.
    """
    found = {
        name: (before, after)
        for name, (before, after) in _settings(old, run).items()
        if before != after
    }
    before, after = (_step_ns(one) for one in (old, run))
    gain = before / after
    predicted, why_not = _predicted(old, found)
    return {
        "run": str(run.path),
        "old": str(old.path),
        "changes": {name: list(values) for name, values in found.items()},
        "step_ns": [before, after],
        "gain": gain,
        "predicted": predicted,
        "why_not": why_not,
        "holds": None if predicted is None else predicted[0] <= gain <= predicted[1],
    }


def _settings(old: RunLog, new: RunLog) -> dict[str, tuple[Any, Any]]:
    """Name -> what it was and what it is, of all that is compared."""
    pairs = {}
    before, after = (_facts(one) for one in (old, new))
    for name in before.keys() | after.keys():
        pairs[name] = (before.get(name), after.get(name))
    cold = _cold(old), _cold(new)
    if None not in cold and abs(cold[0] - cold[1]) >= CACHED:  # type: ignore[operator]
        pairs["data from a device"] = cold
    others = _taken(old), _taken(new)
    if None not in others and abs(others[0] - others[1]) >= OTHERS:  # type: ignore[operator]
        pairs[_OTHERS] = others
    return pairs


def _facts(run: RunLog) -> dict[str, Any]:
    facts = facts_from(run.info)
    loaders = [one for one in run.info.get("loaders", ()) if one.get("workers") == facts.workers]
    loader: Mapping[str, Any] = loaders[0] if loaders else {"workers": facts.workers}
    return {
        **{name: loader.get(name) for name in _OF_A_LOADER},
        "torch_threads": run.info.get("settings", {}).get("torch_threads"),
        "cpus": facts.usable_cpus,
        "world_size": facts.world_size,
        "host": run.info.get("host", {}).get("hostname"),
    }


def _lowest(run: RunLog) -> RankLog:
    rank = next(iter(run.ranks.values()), None)
    if rank is None or (rank.step() != SETUP).sum() < 2:
        raise TrainobsError(
            failed="The runs cannot be compared.",
            found=f"{run.path} has fewer than two steps",
            do="give runs that trained for a while",
        )
    return rank


def _step_ns(run: RunLog) -> float:
    rank = _lowest(run)
    steps = rank.metric("step/duration_ns")[rank.step() != SETUP][1:]
    return max(1.0, float(np.nanmean(steps)))


def _cold(run: RunLog) -> float | None:
    """Share of the data read that was brought in from a device."""
    rank = _lowest(run)
    read, missed = (
        np.nansum(rank.metric(name)) for name in ("io/data_read_bytes", "cache/miss_bytes")
    )
    return round(float(min(1.0, missed / read)), 2) if read else None


def _taken(run: RunLog) -> float | None:
    values = _lowest(run).metric("sched/others_cpu_ratio")
    values = values[np.isfinite(values)]
    return round(float(values.mean()), 2) if len(values) else None


def _predicted(
    old: RunLog, found: Mapping[str, tuple[Any, Any]]
) -> tuple[list[float] | None, str | None]:
    """What a replay of the old run makes of the changes."""
    changes, unknown = [], []
    for name, (before, value) in found.items():
        if name == "workers" and value is not None:
            changes.append(Change("workers", value))
        elif name == "prefetch_factor":
            changes += [Change("prefetch", value)] if value else []
        elif name == "persistent_workers" and value:
            changes.append(Change("persistent", 0.0))
        elif name == _OTHERS and not facts_from(old.info).quota:
            changes.append(Change("cpus", (facts_from(old.info).usable_cpus or 1.0) * (1 - value)))
        elif name == "data from a device" and value < before:
            changes.append(Change("cached", 0.0))
        elif name != "start_method" or None not in (before, value):  # None: there are no workers
            unknown.append(name)
    if unknown:
        return None, f"a replay does not tell what a change of {', '.join(unknown)} does"
    if not changes:
        return None, "nothing that is known has changed"
    try:
        return list(replayed(old).predict(changes).gain), None
    except TrainobsError as error:
        return None, " ".join(str(error).split("\n")[1].split()[1:])
