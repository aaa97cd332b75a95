"""Embedding tables in TensorBoard: curves of the window, and a table of tables as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from trainobs.core.catalogue.embeddings import EMBEDDINGS, QUOTIENTS, field_of
from trainobs.core.embedding_table import EmbeddingTable
from trainobs.core.lookup_sums import LookupSums
from trainobs.core.metrics import Metric
from trainobs.core.text import percent, printable, quantity, size
from trainobs.tensorboard.values import as_text

CURVES = 8
"""Tables with curves of their own: those that read the most bytes in the first window. A model may
have a thousand, and TensorBoard draws every tag."""

BY_TABLE = (
    "embedding/lookup_count",
    "embedding/bytes",
    "embedding/unique_rows",
    "embedding/hottest_1pct_ratio",
    "embedding/hottest_10pct_ratio",
    "embedding/gradient_bytes",
    "embedding/forward_ns",
)
"""Metrics of which a table has a curve, on request; of all there is one over all tables."""

_LISTED = 20
"""Tables in the text."""


class TableCurves:
    """The tables of a run, summed over windows and over the run.

    Args:
        tables: those of the run.
        every_tag: whether tables have curves of their own, and metrics have a curve that
            TensorBoard shows on request only.
    """

    def __init__(self, tables: Sequence[EmbeddingTable], every_tag: bool = False) -> None:
        self._tables = tuple(tables)
        self._every_tag = every_tag
        self._window = LookupSums(len(tables))
        self._run = LookupSums(len(tables))
        self._run_steps = 0
        self._shown: list[int] | None = None

    @property
    def shown(self) -> list[str]:
        """Tables with curves of their own, in the order of their bytes; none before a window."""
        return [self._tables[index].name for index in self._shown or ()]

    def add(self, rows: npt.NDArray[np.void]) -> None:
        """Take the lookups of some steps of the window."""
        self._window.add(rows)

    def scalars(self, step_count: int) -> Iterator[tuple[str, float]]:
        """Tag and value of each point of a window of `step_count` steps, and begin the next.

        `<metric>` is that of all tables together, of those in which it is known; `<metric>/<table>`
        that of one table. Amounts are those of a step, on average.
        """
        window = self.end_window(step_count)
        if not window.row_count.any():
            return
        if self._shown is None:
            self._shown = _largest(window.mean("bytes", 1), CURVES)
        for metric in EMBEDDINGS:
            if metric.chart or self._every_tag:
                yield from self._curves(metric, window, step_count, self._shown)

    def end_window(self, step_count: int) -> LookupSums:
        """Add the window, of `step_count` steps, to the run, and begin the next."""
        window, self._window = self._window, LookupSums(len(self._tables))
        self._run.merge(window)
        self._run_steps += step_count
        return window

    def text(self) -> str:
        """The tables that read the most bytes so far, as a table of Markdown; "" before any."""
        read = self._run.mean("bytes", self._run_steps)
        if not np.isfinite(read).any():
            return ""
        listed = _largest(read, _LISTED)
        rows = [_HEAD, *("| " + " | ".join(self._row(index, read)) + " |" for index in listed)]
        rest = len(self._tables) - len(listed)
        return "\n".join([*rows, *([f"\nand {rest} tables that read less"] if rest else [])])

    def _curves(
        self, metric: Metric, window: LookupSums, step_count: int, shown: Sequence[int]
    ) -> Iterator[tuple[str, float]]:
        if metric.name in QUOTIENTS:
            each, together = window.ratio(metric.name), window.ratio_of_all(metric.name)
        else:
            each = window.mean(field_of(metric), step_count)
            together = float(np.nansum(each)) if np.isfinite(each).any() else np.nan
        tag, _, factor = metric.tag
        if np.isfinite(together):
            yield tag, together * factor
        if metric.name in BY_TABLE and self._every_tag:
            for index in shown:
                if np.isfinite(each[index]):
                    yield f"{tag}/{printable(self._tables[index].name)}", each[index] * factor

    def _row(self, index: int, read: npt.NDArray[np.float64]) -> Iterator[str]:
        table, run = self._tables[index], self._run
        yield as_text(table.name)
        yield quantity(table.row_count)
        yield str(table.dim)
        yield table.placement
        yield _told(quantity, run.mean("lookup_count", self._run_steps)[index])
        yield size(read[index])
        yield percent(read[index] / np.nansum(read))
        for name in ("duplicate_ratio", "hottest_1pct_ratio", "hottest_10pct_ratio"):
            yield _told(percent, run.ratio(f"embedding/{name}")[index])


_HEAD = """\
| table | rows | dim | where | lookups a step | bytes a step | of all bytes | repeated | \
hottest 1 % | hottest 10 % |
|---|---|---|---|---|---|---|---|---|---|"""


def _told(form: Callable[[float], str], value: float) -> str:
    return form(value) if np.isfinite(value) else "-"


def _largest(values: npt.NDArray[np.float64], count: int) -> list[int]:
    """Places of the largest values, largest first; what is unknown is none."""
    order = np.argsort(-np.nan_to_num(values), kind="stable")[:count]
    return [int(index) for index in order if values[index] > 0]
