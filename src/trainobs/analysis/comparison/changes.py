"""Which settings differ between two sides, each of one run or several, and what was predicted."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainobs.analysis.batches.other_loaders import others
from trainobs.analysis.comparison.conditions import per_step
from trainobs.analysis.comparison.step_kinds import events_of
from trainobs.analysis.comparison.step_work import work_of
from trainobs.analysis.io.unnamed_reads import unnamed_bytes
from trainobs.analysis.whatif import replayed
from trainobs.core.errors import TrainobsError
from trainobs.core.text import percent
from trainobs.replay.parsing import parse
from trainobs.runlog.reader import RunLog
from trainobs.verdict.facts import facts_from

TENSORS = "tensors_per_batch"
"""None where no batch tells it."""

_SHUFFLE = "shuffle"
"""None where the sampler is none of torch's."""

_OF_A_LOADER = (
    "workers",
    "prefetch_factor",
    "persistent_workers",
    "batch_size",
    "pin_memory",
    "start_method",
    _SHUFFLE,
    TENSORS,
)

_OF_ANOTHER = re.compile(
    r"(workers|prefetch_factor|persistent_workers|start_method) of (loader \d+)"
)
"""Settings of another loader that change what is waited for, and not what is made."""

_LEVEL, _TRAINOBS = "level of observation", "trainobs"

_EVENTS = {"optimizer": "optimizer steps a step", "backward": "backward passes a step"}

_BATCHES = "batches a step"

_ANEW = "a new loader for each epoch"
"""Told of loaders with workers: without, it costs nothing."""

_UNKNOWN_IF_NONE = (
    *(_BATCHES, _ANEW),
    *("workers", "loaders", "torch_threads", "cpus", "host", "kernel", "python", "torch", _LEVEL),
    *_EVENTS.values(),
)
"""Facts that every run has: one that does not tell may have had the same."""

CACHED = 0.5
"""Difference in the share of data that came from a device, from which the cache has changed."""

_LIVES = "persistent_workers", _ANEW
"""Settings of which neither alone has workers live on."""

_COLD = "data from a device"
OTHERS = "CPU taken by others"

UNSET = (_COLD, OTHERS)
"""What runs are seen to differ in, and nobody set."""

NOTABLE = 0.1
"""Difference in what other processes took of the CPUs that is worth a word."""


def changes(old: Sequence[RunLog], new: Sequence[RunLog]) -> dict[str, list[Any]]:
    """Name -> [old, new] of all settings that differ.

    Where the runs of a side differ, its value is a text that lists theirs.
    """
    sides = [[facts(run) for run in side] for side in (old, new)]
    names = _in_all([run for side in sides for run in side])
    found = {name: [_common([run[name] for run in side]) for side in sides] for name in names}
    found = {name: pair for name, pair in found.items() if pair[0] != pair[1]}
    for name in [name for name, pair in found.items() if None in pair]:
        if name in _UNKNOWN_IF_NONE or name.startswith((_SHUFFLE, TENSORS)):
            del found[name]
    for name, share, least in ((_COLD, _cold, CACHED), (OTHERS, others_share, NOTABLE)):
        pair = [_mean(share, side) for side in (old, new)]
        if None not in pair and abs(pair[0] - pair[1]) >= least:  # type: ignore[operator]
            found[name] = list(pair)
    return found


def mixed(side: Sequence[RunLog]) -> list[str]:
    """Settings in which the runs of a side differ."""
    runs = [facts(run) for run in side]
    return [name for name in _in_all(runs) if len({str(run[name]) for run in runs}) > 1]


def facts(run: RunLog) -> dict[str, Any]:
    """What a run was set to, by name; None, or no such name, where it does not say."""
    known = facts_from(run.info)
    loaders = [dict(one) for one in run.info.get("loaders", ())]
    count, own = len(loaders), _own(run)
    if own is None:
        own, loaders = {"workers": known.workers}, []  # nobody knows which is which
    else:
        loaders.remove(own)
    host, settings = run.info.get("host", {}), run.info.get("settings", {})
    events, work = events_of(run), work_of(run)
    return {
        **{name: own[name] for name in _OF_A_LOADER if name in own},
        **{
            f"{name} of loader {number}": one[name]
            for number, one in enumerate(loaders, 2)
            for name in _OF_A_LOADER
            if name in one
        },
        "loaders": count or None,
        _BATCHES: work.usual,
        _ANEW: known.has_new_loaders if known.workers else None,
        "torch_threads": settings.get("torch_threads"),
        "cpus": None if known.usable_cpus is None else round(known.usable_cpus, 2),
        "world_size": known.world_size,
        "gpu": run.info.get("gpu", {}).get("name"),
        "host": host.get("hostname"),
        "kernel": host.get("kernel"),
        "python": host.get("python"),
        "torch": settings.get("torch"),
        _TRAINOBS: run.info.get("trainobs"),
        _LEVEL: run.info.get("level"),
        **{
            name: round(events[event], 1) if event in events else None
            for event, name in _EVENTS.items()
        },
    }


def _own(run: RunLog) -> dict[str, Any] | None:
    """The loader that is taken for the training one."""
    workers = facts_from(run.info).workers
    loaders = (dict(one) for one in run.info.get("loaders", ()))
    return next((one for one in loaders if one.get("workers") == workers), None)


def _in_all(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names that all have; what is unknown somewhere has not changed as far as is known.

    A loader that is missing somewhere shows in the number of loaders.
    """
    return [name for name in runs[0] if all(name in run for run in runs)]


def _common(values: Sequence[Any]) -> Any:
    different = list(dict.fromkeys(map(str, values)))
    return values[0] if len(different) == 1 else " or ".join(different)


def _mean(share: Callable[[RunLog], float | None], side: Sequence[RunLog]) -> float | None:
    values = [value for run in side if (value := share(run)) is not None]
    return round(sum(values) / len(values), 2) if values else None


def _cold(run: RunLog) -> float | None:
    """Share of the data read that was brought in from a device.

    None: read-ahead hints hide it, or nobody knows what the data is.
    """
    read, missed, hinted = (
        np.nansum(run.rank.metric(name))
        for name in ("io/data_read_bytes", "cache/miss_bytes", "cache/hint_bytes")
    )
    if not read or hinted or unnamed_bytes(run, run.rank) is not None:
        return None
    return float(min(1.0, missed / read))


def others_share(run: RunLog) -> float | None:
    """Share of the CPUs of a run that went to other processes."""
    return per_step(run, "sched/others_cpu_ratio")


class Predicted(NamedTuple):
    """What a replay makes of some changes.

    Attributes:
        gain: least and most, or None.
        why_not: why nothing is predicted, or None.
        left_out: what the replay knows nothing of and `gain` leaves room for, in words, or None.
    """

    gain: list[float] | None
    why_not: str | None = None
    left_out: str | None = None


def predicted(old: RunLog, found: Mapping[str, Sequence[Any]]) -> Predicted:
    """What a replay of the old run makes of the changes."""
    made: list[str] = []
    unknown = []
    for name, (before, value) in found.items():
        change = _of_lives(old, found) if name in _LIVES else _change(old, name, before, value)
        if change is None:
            unknown.append(name)
        else:
            made += change
    of_others = [match for name in unknown if (match := _OF_ANOTHER.fullmatch(name))]
    beside = others(old, _own(old)) if made and of_others else None
    if unknown and (beside is None or len(of_others) < len(unknown)):
        told = ", ".join(unknown)
        return Predicted(None, f"a replay does not tell what a change of {told} does")
    if not made:
        return Predicted(None, "nothing that is known has changed")
    try:
        gain = replayed(old).predict(parse(list(dict.fromkeys(made)))).gain
    except TrainobsError as error:
        return Predicted(None, error.found)
    if beside is None:
        return Predicted(list(gain))
    whose = " and ".join(dict.fromkeys(match[2] for match in of_others))
    left_out = f"{whose} left out, waited for in {percent(beside.waited)} of the time"
    return Predicted(list(beside.widen(*gain)), left_out=left_out)


def _of_lives(old: RunLog, found: Mapping[str, Sequence[Any]]) -> list[str] | None:
    """The same of the settings that tell how long workers live, for both together."""
    known = facts_from(old.info)
    live_on = found.get(_LIVES[0], [None, known.has_persistent_workers])[1]
    anew = found.get(_LIVES[1], [None, known.has_new_loaders])[1]
    if known.has_persistent_workers and known.has_new_loaders is not True:
        return None  # they lived on
    if live_on is True and anew is False:
        return ["persistent"]
    return [] if live_on is False or anew is True else None


def _change(old: RunLog, name: str, before: Any, value: Any) -> list[str] | None:
    """What a replay is to change for a setting, in words; None where it cannot tell."""
    if name == _TRAINOBS or (name == "start_method" and None in (before, value)):
        return []  # without workers nothing is started
    if isinstance(value, str) or isinstance(before, str):
        return None
    if name == "workers" and value is not None:
        return [f"workers={value}"]
    if name == "torch_threads" and value:
        return [f"threads={value}"]
    if name == "prefetch_factor":
        return [f"prefetch={value}"] if value else []
    if name == "cpus" and _has_its_cpus(old):
        return [f"cpus={value}"]
    if name == OTHERS and not facts_from(old.info).quota:
        return [f"others={min(value, 0.99)}"]
    if name == _COLD and value < before:
        return ["cached"]
    return None


def _has_its_cpus(run: RunLog) -> bool:
    """Whether little was taken of its CPUs, as a replay has it of others."""
    taken = others_share(run)
    return taken is not None and taken < NOTABLE
