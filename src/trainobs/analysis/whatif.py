"""What a run would have taken with a change, from its own record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from trainobs.analysis import no_steps
from trainobs.analysis.batches.unknown import Unknown, unreadable_of, why_unknown
from trainobs.analysis.summary import summarize
from trainobs.analysis.verdicts import summed_steps
from trainobs.analysis.would_help import TRIED, ToldChange, told
from trainobs.core.errors import TrainobsError
from trainobs.replay.parsing import examples, parse, parse_together
from trainobs.replay.predict import Prediction, Replay
from trainobs.replay.trace import FEWEST
from trainobs.runlog.reader import RunLog
from trainobs.verdict.facts import facts_from
from trainobs.verdict.replayable import replay_of
from trainobs.verdict.summed_steps import SummedSteps

CHANGES = dict(examples())
"""An example of each change -> what it means."""


def replayed(run: RunLog) -> Replay:
    """The replay of one rank of a run.

    Raises:
        TrainobsError: it cannot be replayed, and why.
    """
    summed = summed_steps(run).run
    replay = replay_of(summed, facts_from(run.info))
    if replay is None:
        unknown = _why_none(run, summed)
        raise TrainobsError(
            failed=f"Nothing can be predicted from {run.path}.", found=unknown.why, do=unknown.do
        )
    if replay.refused:
        raise TrainobsError(
            failed=f"Nothing is predicted from {run.path}.",
            found=replay.refused,
            do="observe a longer run, or one on a quieter machine; if that is the same, the step "
            "spends its time on what a replay does not know, and only a trial tells",
        )
    return replay


def _why_none(run: RunLog, summed: SummedSteps) -> Unknown:
    unreadable = unreadable_of(run)
    if unreadable or (run.rank.step() >= 0).any():
        return why_unknown(run.info, summed, unreadable)
    reason = no_steps.reason(summarize(run), "in its report").removesuffix(".")
    return Unknown(f"no steps. {reason}", f"observe a run of {FEWEST} steps after the first")


def predict(run: Path, changes: Mapping[str, float | bool | str]) -> Prediction:
    """The time of a step of a run after some changes.

    Args:
        run: its directory.
        changes: name -> value, or True for a change without one: see `replay.changes.KNOWN`.

    Raises:
        TrainobsError: a change is not known, or the run cannot be replayed.
    """
    words = [name if value is True else f"{name}={value}" for name, value in changes.items()]
    return replayed(RunLog.open(run)).predict(parse_together(words))


class WhatIf(TypedDict):
    """What `trainobs whatif` tells.

    Attributes:
        run: its directory.
        step_ns: as measured.
        fit: of the replay of the run as it was.
        changes: that were asked for, or tried.
    """

    run: str
    step_ns: float
    fit: float
    changes: list[ToldChange]


def whatif(run: RunLog, words: list[str]) -> WhatIf:
    """What `trainobs whatif` tells.

    Args:
        run: the run.
        words: changes, made together; none: some usual ones, each alone.

    Raises:
        TrainobsError: a change is not known, or the run cannot be replayed.
    """
    asked, replay = [parse_together(words)], replayed(run)
    if not words:
        tried = (change for change in parse(TRIED) if replay.can_try(change.name))
        asked = [(change,) for change in tried]
    return {
        "run": str(run.path),
        "step_ns": replay.trace.step_ns,
        "fit": replay.fit,
        "changes": [told(changes, replay.predict(changes)) for changes in asked],
    }
