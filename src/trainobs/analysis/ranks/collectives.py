"""What the collectives of a step were given, by torch's record: numbers from its arrivals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from trainobs.core.collectives import Collective
from trainobs.core.records import SETUP
from trainobs.runlog.arrivals import is_kept
from trainobs.runlog.rank import RankLog
from trainobs.runlog.schema import ARRIVALS

Longs = npt.NDArray[np.int64]

_COLUMNS = ("group", "seq", "at_ns", "kind", "input_bytes", "output_bytes")


class CollectivesOfKind(TypedDict):
    """How many of a kind, and bytes of the tensors of this rank, None where unknown."""

    kind: str
    count: int
    input_bytes: int | None
    output_bytes: int | None


class Collectives(TypedDict):
    """The collectives of the steps of which all are known.

    Attributes:
        steps, of_steps: how many these are, and of how many.
        kinds: those with most bytes first.
        sent_bytes, received_bytes: of this rank, with all that it started, on internet sockets;
            None where unknown.
    """

    steps: int
    of_steps: int
    kinds: list[CollectivesOfKind]
    sent_bytes: int | None
    received_bytes: int | None


def collectives_of(rank: RankLog) -> Collectives | None:
    """Collectives of all ranks, and what moved on sockets, in the steps of which all are known.

    Not known are steps around a gap in the record (torch keeps the last 2,000, a long run one block
    in eight), and the last one that has a collective.

    Returns:
        None where there is no such step.

    Raises:
        RunLogError: a file is damaged.
    """
    table = rank.columns(ARRIVALS, _COLUMNS)
    training = rank.step() != SETUP
    if not len(table["seq"]) or (table["kind"] < 0).any():  # of a version that kept no kinds
        return None
    step = np.searchsorted(rank.start_ns()[training], table["at_ns"], "right") - 1
    known = _known(table, step, int(training.sum()))
    if not known.any():
        return None
    inside = (step >= 0) & known[step]
    rows = {name: column[inside] for name, column in table.items()}
    kinds = [_of_kind(kind, rows) for kind in Collective if (rows["kind"] == kind).any()]
    on_sockets = rank.metrics(("net/sent_bytes", "net/received_bytes")).values()
    sent, received = (_sum(column[training][known], np.nan) for column in on_sockets)
    return {
        "steps": int(known.sum()),
        "of_steps": int(training.sum()),
        "kinds": sorted(kinds, key=lambda one: -(one["input_bytes"] or 0)),
        "sent_bytes": sent,
        "received_bytes": received,
    }


def _known(table: Mapping[str, Longs], step: Longs, steps: int) -> npt.NDArray[np.bool_]:
    """Steps of which all collectives are in the record."""
    known = np.ones(steps, np.bool_)
    known[max(0, int(step.max())) :] = False
    for group in np.unique(table["group"]):
        own = np.flatnonzero(table["group"] == group)
        own = own[np.argsort(table["seq"][own])]
        seq, at = table["seq"][own], np.maximum(step[own], 0)
        if seq[0] > 1:  # torch counts from 0 or 1
            known[: at[0] + 1] = False
        for gap in np.flatnonzero(np.diff(seq) > 1).tolist():
            known[at[gap] : at[gap + 1] + 1] = False
        if not is_kept(int(seq[-1]) + 1):
            known[at[-1] :] = False
    return known


def _of_kind(kind: Collective, rows: Mapping[str, Longs]) -> CollectivesOfKind:
    own = rows["kind"] == kind
    return {
        "kind": kind.name.lower(),
        "count": int(own.sum()),
        "input_bytes": _sum(rows["input_bytes"][own], -1),
        "output_bytes": _sum(rows["output_bytes"][own], -1),
    }


def _sum(values: npt.NDArray[Any], missing: float) -> int | None:
    """The sum; None where one is missing."""
    lacks = np.isnan(values) if np.isnan(missing) else values == missing
    return None if lacks.any() else int(values.sum())
