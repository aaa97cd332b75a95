"""Verdicts on a run log: on each epoch, and on the whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from trainobs.core.records import SETUP
from trainobs.runlog.rank import RankLog
from trainobs.verdict.record import (
    BATCH_NEEDED,
    INPUTS,
    LOADER,
    Record,
    batch_columns,
    waited_until,
)
from trainobs.verdict.rules import judge
from trainobs.verdict.sentence import lines, sentence
from trainobs.verdict.verdict import Verdict, facts_from

_WAIT = "ranks/wait_ns"


def verdicts(info: Mapping[str, Any], ranks: Mapping[int, RankLog]) -> dict[str, Any]:
    """Verdicts on the lowest rank of a run.

    Args:
        info: contents of its `run.json`.
        ranks: rank number -> its record.

    Returns:
        run: the verdict on all steps; epochs: epoch -> verdict; both as `Verdict.as_json` with the
        `text` of the page.
    """
    rank, *others = list(ranks.values()) or [RankLog(0, {})]
    facts = replace(facts_from(info), others_wait_ns=_waits(others))
    run, epochs = records(rank)
    return {
        "run": _told(judge(run, facts)),
        "epochs": {epoch: _told(judge(record, facts)) for epoch, record in epochs.items()},
    }


def records(rank: RankLog) -> tuple[Record, dict[int, Record]]:
    """The steps of a run, and those of each of its epochs, as verdicts take them.

    The first step of the run is left out: in it workers, caches and kernels are made.
    """
    rows = np.flatnonzero(rank.step() != SETUP)[1:]
    steps, epochs = rank.step()[rows], rank.epoch()[rows]
    metrics = (name for name in INPUTS if not name.startswith("batch/"))
    columns = {name: rank.metric(name)[rows] for name in metrics}
    until = waited_until(rank.start_ns()[rows], columns[LOADER])
    columns |= batch_columns(steps, until, {n: rank.batches(n) for n in BATCH_NEEDED})
    run, of_epochs = Record(), {}
    if len(rows):
        run.add(columns, epochs, steps)
    for epoch in np.unique(epochs).tolist():
        own = epochs == epoch
        of_epochs[epoch] = Record()
        own_columns = {name: column[own] for name, column in columns.items()}
        of_epochs[epoch].add(own_columns, epochs[own], steps[own])
    return run, of_epochs


def _told(verdict: Verdict) -> dict[str, Any]:
    return {**verdict.as_json(), "text": [sentence(verdict), *lines(verdict)]}


def _waits(ranks: list[RankLog]) -> dict[int, float]:
    """Time in collectives per step of the ranks that know theirs."""
    waits = {}
    for rank in ranks:
        values = rank.metric(_WAIT)[rank.step() != SETUP]
        if np.isfinite(values).any():
            waits[rank.rank] = float(np.nanmean(values))
    return waits
