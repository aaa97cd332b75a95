"""What a metric is, and how it is made from kernel cells.

A metric made from kernel cells carries its formula, so one class (`Formulas`) serves steps, windows
of steps and a whole run: ratios are always formed from sums.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import BY_PHASE, CELLS_SHAPE, FIELDS, FileClass, Op, Phase, Role
from trainobs.core.cells import WORDS, StepCells
from trainobs.core.coverage import Programs, feeds
from trainobs.core.quotients import divided


class MetricKind(Enum):
    """How values of several steps are combined."""

    SUM = "sum per step"
    RATIO = "ratio of sums"
    QUANTILE = "quantile of a histogram"
    GAUGE = "level, averaged over time"


@dataclass(frozen=True)
class Cells:
    """A sum over kernel cells: one field of some ops, file classes and roles (empty: all)."""

    field: str
    ops: tuple[Op, ...]
    classes: tuple[FileClass, ...] = ()
    roles: tuple[Role, ...] = ()

    @cached_property
    def _picked(self) -> npt.NDArray[np.bool_]:
        """Of each word in a row taken as a flat array of words, whether it is selected."""
        words = np.arange(WORDS).reshape(*CELLS_SHAPE, len(FIELDS))
        words = words[list(self.ops)][:, list(self.classes or FileClass)]
        words = words[:, :, list(self.roles or Role), FIELDS.index(self.field)]
        picked = np.zeros(WORDS, np.bool_)
        picked[words] = True
        return picked

    @property
    def sums(self) -> tuple[Cells, ...]:
        """What it is made from: itself."""
        return (self,)

    @property
    def programs(self) -> Programs:
        """Programs of the kernel side that the sum rests on."""
        return Programs().union(*(feeds(op, self.field, self.classes) for op in self.ops))

    @property
    def phases(self) -> frozenset[Phase]:
        """Phases of the training thread in which it is counted; none where that is no matter."""
        return frozenset(map(Phase, self.classes if set(self.ops) & set(BY_PHASE) else ()))

    def total(self, cells: StepCells) -> npt.NDArray[np.uint64]:
        """Sum of each of n steps over the selected cells; shape (n,)."""
        picked = self._picked[cells.places]
        total: npt.NDArray[np.uint64] = cells.values[:, picked].sum(axis=1, dtype=np.uint64)
        return total


@dataclass(frozen=True)
class Ratio:
    """`part / whole`, or one minus that; clipped to [0, 1]; undefined where `whole` is 0.

    Nor is it defined where `unless` is not 0: something that nobody can tell the share of.
    """

    part: Cells
    whole: Cells
    complement: bool = False
    unless: Cells | None = None

    @property
    def sums(self) -> tuple[Cells, ...]:
        """What it is made from, in the order that `of` takes."""
        return (self.part, self.whole, *((self.unless,) if self.unless else ()))

    @property
    def programs(self) -> Programs:
        """Programs of the kernel side that the sums rest on."""
        return Programs().union(*(cells.programs for cells in self.sums))

    def of(
        self,
        part: npt.NDArray[np.float64],
        whole: npt.NDArray[np.float64],
        *unless: npt.NDArray[np.float64],
    ) -> npt.NDArray[np.float64]:
        """The share, from the sums; shape (n,)."""
        share = np.clip(divided(part, whole), 0.0, 1.0)
        for sums in unless:
            share = np.where(sums > 0, np.nan, share)
        return 1.0 - share if self.complement else share


TAGS = "trainobs/"
"""What every tag in TensorBoard begins with: one group on its page, apart from the user's own."""

_FOR_PEOPLE = {
    "ns": ("ns", "ms", 1e-6),
    "bytes": ("bytes", "MB", 1e-6),
    "ratio": ("ratio", "percent", 100.0),
    "mJ": ("mj", "J", 1e-3),
}
"""Unit -> how names end that say it, how tags end, and what one of it is in the unit of the tag."""


class Tag(NamedTuple):
    """What TensorBoard shows of a metric.

    Attributes:
        name: of the curve; it ends with the unit.
        unit: unit of its points.
        factor: what a value of the record is multiplied by.
    """

    name: str
    unit: str
    factor: float


@dataclass(frozen=True)
class Metric:
    """One number of the record.

    Attributes:
        name: Parquet column, and key in the report's JSON.
        unit: unit of the value.
        kind: how values of several steps are combined.
        chart: title of its chart, in TensorBoard and on the page of a run alike, which both show it
            by default; "" if TensorBoard shows it on request only, and the page not at all.
        tells: what a user learns from it.
        blind: what it cannot see.
        formula: how it is made from kernel cells; None where user space measures it.
        spread: whether TensorBoard also gets p95 and max of the logging window.
        label: what it has a value for beside the step ("table"), or "" for the step alone.
        rests_on: programs of the kernel side that it needs, where no formula says so.
    """

    name: str
    unit: str
    kind: MetricKind
    source: str
    tells: str
    blind: str = ""
    chart: str = ""
    formula: Cells | Ratio | None = None
    spread: bool = False
    label: str = ""
    rests_on: Programs = Programs()

    @cached_property
    def tag(self) -> Tag:
        """Its curve in TensorBoard: `step/duration_ns` is `trainobs/step/duration_ms` there.

        Of a part that its name tells, `x_ns{role=worker}`, it is `x_ms/worker`.
        """
        name, _, part = self.name.removesuffix("}").partition("{")
        below = f"/{part.partition('=')[2]}" if part else ""
        if self.unit not in _FOR_PEOPLE:
            return Tag(f"{TAGS}{name}{below}", self.unit, 1.0)
        end, unit, factor = _FOR_PEOPLE[self.unit]
        stem = name.removesuffix(end)
        joint = "_" if stem == name else ""
        return Tag(f"{TAGS}{stem}{joint}{unit}{below}", unit, factor)

    @cached_property
    def programs(self) -> Programs:
        """Programs of the kernel side without which it is unknown."""
        return self.formula.programs if self.formula else self.rests_on


class Formulas:
    """Metrics that are made from kernel cells, evaluated together: each sum is made once.

    Args:
        metrics: those with a formula; others are left out.
    """

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = [metric for metric in metrics if metric.formula is not None]
        parts = [metric.formula.sums for metric in self._metrics if metric.formula]
        sums = dict.fromkeys(chain.from_iterable(parts))
        numbers = {cells: number for number, cells in enumerate(sums)}
        self._numbers = [tuple(numbers[cells] for cells in each) for each in parts]
        self._picked = np.array([cells._picked for cells in sums]).reshape(-1, WORDS)

    def evaluate(self, cells: StepCells) -> dict[str, npt.NDArray[np.float64]]:
        """Values by name, each of shape (n,); NaN where a ratio has nothing to divide by."""
        sums = self._sums(cells)
        columns = {}
        for metric, numbers in zip(self._metrics, self._numbers, strict=True):
            column = sums[numbers[0]]
            if isinstance(metric.formula, Ratio):
                column = metric.formula.of(*(sums[number] for number in numbers))
            columns[metric.name] = column
        return columns

    def _sums(self, cells: StepCells) -> npt.NDArray[np.float64]:
        """The sums of n steps, shape (sums, n)."""
        number, column = np.nonzero(self._picked[:, cells.places])
        sums = np.zeros((len(self._picked), len(cells)))
        if len(number):
            first = np.flatnonzero(np.diff(number, prepend=-1))
            sums[number[first]] = np.add.reduceat(cells.values.T[column], first, axis=0)
        return sums


def evaluate(metric: Metric, cells: StepCells) -> npt.NDArray[np.float64]:
    """Value of one metric for each of n steps; see `Formulas`.

    Raises:
        ValueError: the metric has no formula.
    """
    formula = metric.formula
    if formula is None:
        raise ValueError(f"{metric.name} is not made from kernel cells")
    sums = [each.total(cells).astype(np.float64) for each in formula.sums]
    return formula.of(*sums) if isinstance(formula, Ratio) else sums[0]
