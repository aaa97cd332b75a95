"""Verdicts on a run log: on each epoch, and on the whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trainobs.core.records import SETUP
from trainobs.runlog.rank import RankLog
from trainobs.verdict.blocks import INPUTS, Blocks
from trainobs.verdict.rules import judge
from trainobs.verdict.sentence import lines, sentence
from trainobs.verdict.verdict import Facts, Verdict, facts_from

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
    training = rank.step() != SETUP
    columns = {name: rank.metric(name)[training] for name in INPUTS}
    epochs = rank.epoch()[training]
    return {
        "run": _told(_judged(columns, facts)),
        "epochs": {
            int(epoch): _told(_judged(_rows(columns, epochs == epoch), facts))
            for epoch in np.unique(epochs)
        },
    }


def _judged(columns: Mapping[str, npt.NDArray[np.float64]], facts: Facts) -> Verdict:
    record = Blocks()
    record.add(columns)
    return judge(record, facts)


def _rows(
    columns: Mapping[str, npt.NDArray[np.float64]], rows: npt.NDArray[np.bool_]
) -> dict[str, npt.NDArray[np.float64]]:
    return {name: column[rows] for name, column in columns.items()}


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
