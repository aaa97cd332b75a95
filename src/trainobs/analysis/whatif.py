"""What a run would have taken with a change, from its own record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainobs.analysis.unknown_batches import why_unknown
from trainobs.analysis.verdicts import Steps, records, verdicts
from trainobs.core.errors import TrainobsError
from trainobs.replay.changes import KNOWN, Change, example_of, is_possible, parse
from trainobs.replay.predict import Prediction, Replay
from trainobs.replay.trace import FEWEST
from trainobs.runlog.reader import RunLog
from trainobs.verdict.advice import ABOUT, LEAST, MADE_ONCE, workers_in_memory
from trainobs.verdict.record import Record
from trainobs.verdict.rules import FEWEST_STEPS, replay_of, why_no_replay
from trainobs.verdict.verdict import Facts, facts_from

_TRIED = (
    "workers=1",
    "workers=2",
    "workers=4",
    "workers=8",
    "persistent",
    "prefetch=8",
    "cached",
    "device=2x",
    "latency=0.5x",
    "transform=0.5x",
    "compute=0.5x",
    "checkpoint=0.5x",
    "validation=0.5x",
)
"""Changes that are tried where nobody names one."""

_SHOWN = 5

CHANGES = {
    name if kind.is_switch else f"{name}={example_of(name)}": kind.tells
    for name, kind in KNOWN.items()
}
"""An example of each change -> what it means."""


def replayed(run: RunLog) -> Replay:
    """The replay of one rank of a run.

    Raises:
        TrainobsError: it cannot be replayed, and why.
    """
    record = records(run.rank).run
    replay = replay_of(record, facts_from(run.info))
    if replay is None:
        why, unknown = why_no_replay(facts_from(run.info), record), why_unknown(run.info, record)
        raise TrainobsError(
            failed=f"Nothing can be predicted from {run.path}.",
            found=why or unknown.why,
            do="observe one process with one loader, without a GPU" if why else unknown.do,
        )
    if replay.refused:
        raise TrainobsError(
            failed=f"Nothing is predicted from {run.path}.",
            found=replay.refused,
            do="observe a longer run, or one on a quieter machine",
        )
    return replay


def predict(run: Path, changes: Mapping[str, float | bool | str]) -> Prediction:
    """The time of a step of a run after some changes.

    Args:
        run: its directory.
        changes: name -> value, or True for a change without one: see `replay.changes.KNOWN`.

    Raises:
        TrainobsError: a change is not known, or the run cannot be replayed.
    """
    words = [name if value is True else f"{name}={value}" for name, value in changes.items()]
    return replayed(RunLog.open(run)).predict(parse(words))


def whatif(run: RunLog, words: list[str]) -> dict[str, Any]:
    """What `trainobs whatif` tells.

    Args:
        run: the run.
        words: changes, made together; none: some usual ones, each alone.

    Returns:
        `run`; `step_ns` as measured; `fit`, of the replay of the run as it was; `changes`: for each
        its words, the least and most `step_ns`, and the `gain`.

    Raises:
        TrainobsError: a change is not known, or the run cannot be replayed.
    """
    asked, replay = [parse(words)], replayed(run)
    if not words:
        tried = (change for change in parse(_TRIED) if is_possible(change.name, replay.trace))
        asked = [(change,) for change in tried]
    return {
        "run": str(run.path),
        "step_ns": replay.trace.step_ns,
        "fit": replay.fit,
        "changes": [_told(changes, replay.predict(changes)) for changes in asked],
    }


def _told(changes: tuple[Change, ...], prediction: Prediction) -> dict[str, Any]:
    return {
        "change": " ".join(map(str, changes)),
        "step_ns": [prediction.low, prediction.high],
        "gain": list(prediction.gain),
    }


def judged(run: RunLog, steps: Steps) -> dict[str, Any]:
    """What bounds a run, and what would help, by one replay of it.

    Args:
        run: its log.
        steps: of its rank, from `analysis.verdicts.records`.

    Returns:
        `verdict`: see `analysis.verdicts.verdicts`; `would_help`: see there.
    """
    replay = replay_of(steps.run, facts_from(run.info))
    return {
        "verdict": verdicts(run, steps, replay),
        "would_help": would_help(run.info, steps.run, replay),
    }


def would_help(info: Mapping[str, Any], record: Record, replay: Replay | None) -> dict[str, Any]:
    """The changes that are sure to help, the best first.

    Args:
        info: contents of the `run.json`.
        record: its steps.
        replay: of these, where there is one.

    Returns:
        `changes`: as `whatif` has them, those whose least gain is 5 % or more, and of numbers of
        workers the fewest that are about as good as the best; each with what it
        `means`, and `values` as `predict` takes them; `refused`: why there are none, or None;
        `replayed`: whether any were tried.
    """
    facts = facts_from(info)
    if replay is None or replay.refused:
        why = replay.refused if replay else why_no_replay(facts, record) or _too_short(record)
        if why is None and info.get("level") == "ebpf" and len(record) >= FEWEST:
            why = why_unknown(info, record).why
        return {"changes": [], "refused": why, "replayed": False}
    fit = workers_in_memory(facts, record.mean()["memory/worker_rss_bytes"])
    room = min(facts.usable_cpus or 1.0, fit)
    found = [_alone(change, replay, facts) for change in parse(_tried(room, replay))]
    if facts.has_new_loaders is None:  # whether workers can live on is not known
        found = [one for one in found if "persistent" not in one["values"]]
    sure = [one for one in found if one["gain"][0] >= LEAST]
    most = max((one["gain"][0] for one in sure if "workers" in one["values"]), default=0.0)
    enough = [one for one in sure if "workers" in one["values"] and one["gain"][0] >= ABOUT * most]
    best = [one for one in sure if "workers" not in one["values"]] + enough[:1]
    best = sorted(best, key=lambda one: -one["gain"][0])[:_SHOWN]
    return {"changes": best, "refused": None, "replayed": True}


def _too_short(record: Record) -> str | None:
    few = FEWEST_STEPS <= len(record) < FEWEST
    return (
        f"a replay takes {FEWEST} steps after the first, and there are {len(record)}"
        if few
        else None
    )


def _alone(change: Change, replay: Replay, facts: Facts) -> dict[str, Any]:
    kind = KNOWN[change.name]
    values = {change.name: True if kind.is_switch else change.value}
    now = f", now {replay.trace.workers}" if change.name == "workers" else ""
    told = _told((change,), replay.predict([change]))
    means = f"{_amount(change)}{kind.tells}{now}"
    if change.name == "persistent" and facts.has_new_loaders:
        means = MADE_ONCE
    return {**told, "means": means, "values": values}


def _amount(change: Change) -> str:
    """How much of what it scales a change leaves, in words: only these are tried by themselves."""
    kind = KNOWN[change.name]
    if not kind.is_factor:
        return ""
    amount = {0.5: "half", 2.0: "twice"}[change.value]
    return f"{amount} of " if kind.tells.startswith("what") else f"{amount} the "


def _tried(room: float, replay: Replay) -> list[str]:
    """Changes that can be made: more workers where there is room for them; not less of the work."""
    workers = [n for n in (1, 2, 4, 8, 16) if replay.trace.workers < n <= room]
    real = (word for word in _TRIED if not word.startswith(("workers", "compute")))
    possible = (word for word in real if is_possible(word.partition("=")[0], replay.trace))
    return [*(f"workers={n}" for n in workers), *possible]
