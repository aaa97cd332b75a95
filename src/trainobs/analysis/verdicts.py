"""Verdicts on a run log: on each epoch, and on the whole run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from trainobs.core.catalogue import named_phase_metric
from trainobs.core.records import SETUP
from trainobs.replay.predict import Replay
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import BATCHES
from trainobs.verdict.record import (
    BATCH_NEEDED,
    INPUTS,
    LOADER,
    NAMED,
    Record,
    batch_columns,
    waited_until,
)
from trainobs.verdict.rules import judge, judge_by
from trainobs.verdict.sentence import lines, notes, sentence
from trainobs.verdict.verdict import Verdict, facts_from

_WAIT = "ranks/wait_ns"


def verdicts(run: RunLog, steps: Steps, replay: Replay | None) -> dict[str, Any]:
    """Verdicts on the lowest rank of a run.

    Args:
        run: its log.
        steps: what `records` found of that rank.
        replay: the replay of all of them, where there is one.

    Returns:
        run: the verdict on all steps; epochs: epoch -> verdict; both as `Verdict.as_json` with the
        `text` of the report, and of that the `notes`.
    """
    others = list(run.ranks.values())[1:]
    facts = replace(facts_from(run.info), others_wait_ns=_waits(others))
    whole = _told(judge_by(replay, steps.run, facts))
    if len(steps.epochs) == 1:
        return {"run": whole, "epochs": dict.fromkeys(steps.epochs, whole)}
    of_epochs = {epoch: _told(judge(record, facts)) for epoch, record in steps.epochs.items()}
    return {"run": whole, "epochs": of_epochs}


class Steps(NamedTuple):
    """The steps of a rank, as verdicts take them."""

    run: Record
    epochs: dict[int, Record]


def records(rank: RankLog) -> Steps:
    """The steps of a run, and those of each of its epochs.

    The first step of the run is left out, unless it is the only one: in it workers, caches and
    kernels are made.
    """
    rows = np.flatnonzero(rank.step() != SETUP)
    rows = rows[1:] if len(rows) > 1 else rows
    steps, epochs = rank.step()[rows], rank.epoch()[rows]
    metrics = [name for name in INPUTS if not name.startswith("batch/") and name != NAMED]
    metrics += map(named_phase_metric, rank.phases)
    columns = {name: column[rows] for name, column in rank.metrics(metrics).items()}
    until = waited_until(rank.start_ns()[rows], columns[LOADER])
    columns |= batch_columns(steps, until, rank.columns(BATCHES, BATCH_NEEDED))
    run, of_epochs = Record(), {}
    if len(rows):
        run.add(columns, epochs, steps)
    for epoch in np.unique(epochs).tolist():
        own = epochs == epoch
        if own.all():
            of_epochs[epoch] = run
            break
        of_epochs[epoch] = Record()
        own_columns = {name: column[own] for name, column in columns.items()}
        of_epochs[epoch].add(own_columns, epochs[own], steps[own])
    return Steps(run, of_epochs)


def _told(verdict: Verdict) -> dict[str, Any]:
    told = {"text": [sentence(verdict), *lines(verdict)], "notes": list(notes(verdict))}
    return verdict.as_json() | told


def _waits(ranks: list[RankLog]) -> dict[int, float]:
    """Time in collectives per step of the ranks that know theirs."""
    waits = {}
    for rank in ranks:
        values = rank.metric(_WAIT)[rank.step() != SETUP]
        if np.isfinite(values).any():
            waits[rank.rank] = float(np.nanmean(values))
    return waits
