"""Embedding lookups of a rank as metrics by table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from trainobs.analysis.metric_statistics import Statistics
from trainobs.core.catalogue.embeddings import EMBEDDINGS, QUOTIENTS, field_of, labelled
from trainobs.core.embedding_table import LOOKUP_FIELDS
from trainobs.core.lookup_sums import LookupSums
from trainobs.core.metrics import Metric
from trainobs.core.records import SETUP
from trainobs.runlog.rank import RankLog

Floats = npt.NDArray[np.float64]

HELD_VALUES = 1 << 24
"""Values of metrics in memory at once, of those that percentiles need: 134 MB. Of a longer run the
files are read several times."""


class TableLookups:
    """The lookups of one rank, summed by table.

    Args:
        rank: the rank.
        is_part: whether these are only the newest steps, and lookups: they need not begin together.
        are_whole: whether all of its files of lookups are there; else nothing is known of any.

    Attributes:
        sums: of all training steps; of a part, of those whose lookups are read as well.
        step_count: training steps up to the last with a row: of what came after a crash or a fault
            nothing is known, and unknown is not zero.
        sampled_count: those of which ids were taken.
    """

    def __init__(self, rank: RankLog, *, is_part: bool = False, are_whole: bool = True) -> None:
        self._rank = rank
        self.sums = LookupSums(len(rank.tables))
        self._first, self._later = LookupSums(len(rank.tables)), LookupSums(len(rank.tables))
        sampled: set[int] = set()
        last = SETUP
        steps = rank.step()
        first = int(steps[steps != SETUP].min(initial=np.iinfo(steps.dtype).max))
        columns, begin = ("step", "table", "sampled", *LOOKUP_FIELDS), SETUP + 1
        for part in rank.lookups(columns) if are_whole else ():
            if is_part and len(part["step"]):
                # Of the first step in it some rows may be in the file before.
                begin, is_part = max(first, int(part["step"].min()) + 1), False
            training = part["step"] >= begin
            rows = {name: column[training] for name, column in part.items()}
            self.sums.add(rows)
            at_first = rows["step"] == first
            self._first.add({name: column[at_first] for name, column in rows.items()})
            self._later.add({name: column[~at_first] for name, column in rows.items()})
            sampled.update(rows["step"][rows["sampled"]].tolist())
            last = max(last, int(rows["step"].max(initial=SETUP)))
        self.step_count = int(((steps >= begin) & (steps <= last)).sum())
        self.sampled_count = len(sampled)

    def forward_ns(self) -> Floats:
        """Time of the forward of one step, by table; NaN where unknown. Shape (tables,).

        The first step is sampled whatever the pace, and slow as no other: it touches the memory of
        the tables first. It counts once, and the other sampled steps stand for all the rest.
        """
        count = self.step_count
        first = self._first.mean("forward_ns", 1)
        later = self._later.mean("forward_ns", count - 1)
        mean = (first + later * (count - 1)) / max(1, count)
        return np.where(np.isfinite(mean), mean, self.sums.mean("forward_ns", count))

    def metrics(self) -> dict[str, Statistics]:
        """`<metric>{table=<table>}` -> statistics; no rows, no metrics.

        `sum` is of training steps, and None unless the amount is known in all in which the table
        served; `mean` is that of `LookupSums.mean`, and of a ratio formed from sums; `p50`, `p95`
        and `max` are over the steps in which the table served and the value is known.
        """
        if not self.sums.row_count.any():
            return {}
        names = [table.name for table in self._rank.tables]
        at_once = max(1, int(HELD_VALUES // self.sums.row_count.sum()))
        found = {}
        for begin in range(0, len(EMBEDDINGS), at_once):
            some = EMBEDDINGS[begin : begin + at_once]
            for metric, by_table in zip(some, self._values(some), strict=True):
                totals, means = self._whole(metric)
                for index, values in enumerate(by_table):
                    total, mean = _number(totals[index]), _number(means[index])
                    told = _told(metric.unit, total, mean, np.concatenate(values))
                    found[labelled(metric, names[index])] = told
        return found

    def _whole(self, metric: Metric) -> tuple[Floats, Floats]:
        """The sum and the mean for each table."""
        if metric.name in QUOTIENTS:
            ratio = self.sums.ratio(metric.name)
            return np.full(len(ratio), np.nan), ratio
        field = field_of(metric)
        return self.sums.total(field), self.sums.mean(field, self.step_count)

    def _values(self, metrics: Sequence[Metric]) -> list[list[list[Floats]]]:
        """Values of each metric in the steps in which it is known, for each table, in pieces."""
        needed = [_fields(metric) for metric in metrics]
        found = [[[np.empty(0)] for _ in self._rank.tables] for _ in metrics]
        for part in self._rank.lookups(("step", "table", *chain.from_iterable(needed))):
            training = part["step"] != SETUP
            for metric, fields, values in zip(metrics, needed, found, strict=True):
                column = part[fields[0]]
                if metric.name in QUOTIENTS:
                    column = QUOTIENTS[metric.name].of(*(part[field] for field in fields))
                known = np.isfinite(column) & training
                order = np.argsort(part["table"][known], kind="stable")
                tables, begins = np.unique(part["table"][known][order], return_index=True)
                pieces = np.split(column[known][order], begins[1:])
                for index, piece in zip(tables.tolist(), pieces, strict=False):
                    values[index].append(piece)
        return found


def _fields(metric: Metric) -> tuple[str, ...]:
    """Columns of lookups that a metric is, or is formed from."""
    quotient = QUOTIENTS.get(metric.name)
    return (quotient.part, quotient.whole) if quotient else (field_of(metric),)


def _told(unit: str, total: float | None, mean: float | None, values: Floats) -> Statistics:
    p50, p95, most = None, None, None
    if values.size:
        p50, p95 = np.percentile(values, (50, 95)).tolist()
        most = float(values.max())
    return {"unit": unit, "sum": total, "mean": mean, "p50": p50, "p95": p95, "max": most}


def _number(value: np.float64) -> float | int | None:
    """What is a whole number is one in JSON, too."""
    if not np.isfinite(value):
        return None
    return int(value) if value == int(value) else float(value)
