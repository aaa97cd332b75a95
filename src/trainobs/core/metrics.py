"""What a metric is, and how it is made from kernel cells.

A metric made from kernel cells carries its formula, so one function (`evaluate`) serves a step,
a window of steps and a whole run: ratios are always formed from sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from trainobs.core.kernel import CELLS_SHAPE, FIELDS, FileClass, Op, Role


class Kind(Enum):
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
    def _index(self) -> npt.NDArray[np.intp]:
        """Places of the selected words in a row taken as a flat array of words."""
        words = np.arange(np.prod(CELLS_SHAPE) * len(FIELDS)).reshape(*CELLS_SHAPE, len(FIELDS))
        picked = words[list(self.ops)][:, list(self.classes or FileClass)]
        picked = picked[:, :, list(self.roles or Role), FIELDS.index(self.field)]
        return picked.ravel()

    def total(self, rows: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
        """Sum of contiguous `rows` (..., op, class, role) over the selected cells; shape (...)."""
        words = rows.view("<u8").reshape(*rows.shape[: -len(CELLS_SHAPE)], -1)
        total: npt.NDArray[np.uint64] = words[..., self._index].sum(axis=-1, dtype=np.uint64)
        return total


@dataclass(frozen=True)
class Ratio:
    """`part / whole`, or one minus that; clipped to [0, 1]; undefined where `whole` is 0."""

    part: Cells
    whole: Cells
    complement: bool = False


@dataclass(frozen=True)
class Metric:
    """One number of the record.

    Attributes:
        name: TensorBoard tag and Parquet column.
        unit: unit of the value.
        kind: how values of several steps are combined.
        chart: title of the TensorBoard chart that shows it, or "" for none.
        tells: what a user learns from it.
        blind: what it cannot see.
        formula: how it is made from kernel cells; None where user space measures it.
        spread: whether TensorBoard also gets p95 and max of the logging window.
    """

    name: str
    unit: str
    kind: Kind
    source: str
    tells: str
    blind: str = ""
    chart: str = ""
    formula: Cells | Ratio | None = None
    spread: bool = False


def evaluate(metric: Metric, rows: npt.NDArray[np.void]) -> npt.NDArray[np.float64]:
    """Value of a metric for kernel rows of shape (..., op, class, role).

    Returns:
        Array of shape (...); NaN where a ratio has nothing to divide by.

    Raises:
        ValueError: the metric has no formula.
    """
    formula = metric.formula
    if formula is None:
        raise ValueError(f"{metric.name} is not made from kernel cells")
    if isinstance(formula, Cells):
        return formula.total(rows).astype(np.float64)
    part = formula.part.total(rows).astype(np.float64)
    whole = formula.whole.total(rows).astype(np.float64)
    share = np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)
    share = np.clip(share, 0.0, 1.0)
    return 1.0 - share if formula.complement else share
