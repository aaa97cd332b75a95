"""What would help a run, tried by a replay of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from trainobs.analysis.batches.unknown import NOTHING, unreadable_of, why_unknown
from trainobs.analysis.verdicts import Steps, ToldVerdicts, verdicts
from trainobs.replay.changes import KNOWN, Change
from trainobs.replay.parsing import parse
from trainobs.replay.predict import Prediction, Replay
from trainobs.replay.trace import FEWEST
from trainobs.runlog.reader import RunLog
from trainobs.verdict.advice import ABOUT, MADE_ONCE, in_order, is_worth, workers_in_memory
from trainobs.verdict.facts import Facts, facts_from
from trainobs.verdict.replayable import FEWEST_STEPS, replay_of, why_no_replay
from trainobs.verdict.summed_steps import SummedSteps

TRIED = (
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
    "sampler=0.5x",
    "compute=0.5x",
    "checkpoint=0.5x",
    "validation=0.5x",
)
"""Changes that are tried where nobody names one."""

_SHOWN = 5


class ToldChange(TypedDict):
    """A change as `whatif` has it: its words, and the least and the most that it is to bring."""

    change: str
    step_ns: list[float]
    gain: list[float]


class HelpfulChange(ToldChange):
    """The same with what it means, and with its values as `predict` takes them."""

    means: str
    values: dict[str, float | bool]


class WouldHelp(TypedDict):
    """The changes that are predicted to help.

    Attributes:
        changes: the best first.
        unknown: changes of which nothing is predicted -> why.
        refused: why there are none, or None.
        replayed: whether any were tried.
    """

    changes: list[HelpfulChange]
    unknown: dict[str, str]
    refused: str | None
    replayed: bool


class JudgedRun(TypedDict):
    """What bounds a run, and what would help."""

    verdict: ToldVerdicts
    would_help: WouldHelp


def judged(run: RunLog, steps: Steps) -> JudgedRun:
    """What bounds a run, and what would help, by one replay of it.

    Args:
        run: its log.
        steps: of its rank, from `analysis.verdicts.summed_steps`.
    """
    replay = replay_of(steps.run, facts_from(run.info))
    unreadable = {} if replay else unreadable_of(run)
    return {
        "verdict": verdicts(run, steps, replay),
        "would_help": would_help(run.info, steps.run, replay, unreadable),
    }


def would_help(
    info: Mapping[str, Any],
    summed: SummedSteps,
    replay: Replay | None,
    unreadable: Mapping[str, str] = NOTHING,
) -> WouldHelp:
    """The changes that are predicted to help and worth advice (`is_worth`), the best first.

    Of numbers of workers it is the fewest that are about as good as the best.

    Args:
        info: contents of the `run.json`.
        summed: its steps.
        replay: of these, where there is one.
        unreadable: see `why_unknown`.
    """
    facts = facts_from(info)
    if replay is None or replay.refused:
        why = replay.refused if replay else None
        if replay is None and (unreadable or not _is_told_anyway(info, summed)):
            why = why_unknown(info, summed, unreadable).why
        return {"changes": [], "unknown": {}, "refused": why, "replayed": False}
    fit = workers_in_memory(facts, summed.mean()["memory/worker_rss_bytes"])
    room = min(facts.usable_cpus or 1.0, fit)
    found = [_alone(change, replay, facts) for change in parse(_tried(room, replay))]
    if not facts.may_keep_workers:
        found = [one for one in found if "persistent" not in one["values"]]
    sure = [one for one in found if is_worth(one["values"], one["gain"])]
    most = max((one["gain"][0] for one in sure if "workers" in one["values"]), default=0.0)
    enough = [one for one in sure if "workers" in one["values"] and one["gain"][0] >= ABOUT * most]
    best = [one for one in sure if "workers" not in one["values"]] + enough[:1]
    best = in_order(best, lambda one: one["values"], lambda one: one["gain"])
    unknown = dict(replay.unknown)
    return {"changes": best[:_SHOWN], "unknown": unknown, "refused": None, "replayed": True}


def _is_told_anyway(info: Mapping[str, Any], summed: SummedSteps) -> bool:
    """Whether a report says why nothing is known: there is no verdict, or no eBPF."""
    if why_no_replay(facts_from(info), summed):
        return False
    return len(summed) < FEWEST_STEPS or (len(summed) >= FEWEST and info.get("level") != "ebpf")


def _alone(change: Change, replay: Replay, facts: Facts) -> HelpfulChange:
    kind = KNOWN[change.name]
    values: dict[str, float | bool] = {change.name: True if kind.is_switch else change.value}
    now = f", now {replay.trace.workers}" if change.name == "workers" else ""
    found = told((change,), replay.predict([change]))
    argument = f" ({kind.argument})" if kind.argument else ""
    means = f"{_amount(change)}{kind.tells}{argument}{now}"
    if change.name == "persistent" and facts.has_new_loaders:
        means = MADE_ONCE
    return {**found, "means": means, "values": values}


def _amount(change: Change) -> str:
    """How much of what it scales a change leaves, in words: only these are tried by themselves."""
    kind = KNOWN[change.name]
    if not kind.is_factor:
        return ""
    amount = {0.5: "half", 2.0: "twice"}[change.value]
    return f"{amount} of " if kind.tells.startswith("what") else f"{amount} the "


def _tried(room: float, replay: Replay) -> list[str]:
    """Changes that can be made: none or more workers, as there is room; not less of the work."""
    now = replay.trace.workers
    workers = [n for n in (0, 1, 2, 4, 8, 16) if (not n and now) or now < n <= room]
    real = (word for word in TRIED if not word.startswith(("workers", "compute")))
    found = (*(f"workers={n}" for n in workers), *real)
    return [word for word in found if replay.can_try(word.partition("=")[0])]


def told(changes: tuple[Change, ...], prediction: Prediction) -> ToldChange:
    """A prediction, as `whatif` has it."""
    return {
        "change": " ".join(map(str, changes)),
        "step_ns": [prediction.low, prediction.high],
        "gain": list(prediction.gain),
    }
