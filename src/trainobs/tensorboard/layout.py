"""The custom-scalars page: which charts TensorBoard draws, and in what order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from trainobs.core.catalogue import EMBEDDINGS, STEP_METRICS
from trainobs.core.catalogue.ranks import over_ranks
from trainobs.core.metrics import Metric, MetricKind
from trainobs.tensorboard import protos
from trainobs.tensorboard.event_file import EventWriter
from trainobs.tensorboard.values import string_tensor
from trainobs.tensorboard.window import WAITED

CATEGORY = "trainobs"

_Drawn = tuple["protos.layout.Chart", frozenset[str]]
"""A chart with the tags of its curves."""


class LayoutWriter:
    """An event writer that also lays out the charts of what it was given.

    A chart is there once one of its curves is (`Curves`). It has all of its curves then, and so is
    the same in every run: TensorBoard puts the layouts of all runs together, each chart once.
    """

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer
        self._tags: set[str] = set()
        self._drawn: list[protos.layout.Chart] = []
        self._wall_time = 0.0

    def add_event(self, event: protos.Event) -> None:
        """Take one event."""
        self._writer.add_event(event)
        self._tags.update(value.tag for value in event.summary.value)
        self._wall_time = event.wall_time

    def flush(self) -> None:
        """Make what was taken so far visible, with its charts; of two layouts the last counts."""
        charts = [chart for chart, tags in _charts() if not tags.isdisjoint(self._tags)]
        if charts != self._drawn:
            self._writer.add_event(_event(charts, self._wall_time))
            self._drawn = charts
        self._writer.flush()

    def close(self) -> None:
        """Flush, and take no more events."""
        self.flush()
        self._writer.close()


def _event(charts: list[protos.layout.Chart], wall_time: float) -> protos.Event:
    """A layout as the event in which TensorBoard looks for it."""
    category = protos.layout.Category(title=CATEGORY, chart=charts)
    value = protos.Summary.Value(
        tag=protos.custom_scalars.CONFIG_SUMMARY_TAG,
        metadata=protos.custom_scalars.create_summary_metadata(),
        tensor=string_tensor(protos.layout.Layout(category=[category]).SerializeToString()),
    )
    return protos.Event(wall_time=wall_time, step=0, summary=protos.Summary(value=[value]))


@cache
def _charts() -> tuple[_Drawn, ...]:
    return tuple(_all_charts())


def _all_charts() -> Iterator[_Drawn]:
    """Each chart with the tags of its curves.

    TensorBoard draws all curves of a run in one colour, so a chart has one, or two of which one is
    always above the other.
    """
    for metric in (*STEP_METRICS, *EMBEDDINGS):
        tag, unit = metric.tag.name, _unit(metric)
        if metric.chart:
            yield _chart(f"{metric.chart} ({unit})", tag)
        if metric.name == "step/duration_ns":
            yield _chart(f"Slow steps: p95 and maximum ({unit})", f"{tag}/p95", f"{tag}/max")
            yield _over_ranks(metric)
        if metric.name == "loader/wait_ns":
            yield _chart(f"{metric.chart} (percent of the step)", WAITED)


def _chart(title: str, *tags: str) -> _Drawn:
    """TensorBoard takes a tag as a pattern."""
    patterns = [f"^{re.escape(tag)}$" for tag in tags]
    content = protos.layout.MultilineChartContent(tag=patterns)
    return protos.layout.Chart(title=title, multiline=content), frozenset(tags)


def _over_ranks(metric: Metric) -> _Drawn:
    """A band from the least to the greatest rank, with the median in it."""
    tag = over_ranks(metric.tag.name)
    value = f"{tag}/median"
    margin = protos.layout.MarginChartContent
    band = margin.Series(value=value, lower=f"{tag}/min", upper=f"{tag}/max")
    title = f"{metric.chart}, all ranks ({_unit(metric)})"
    return protos.layout.Chart(title=title, margin=margin(series=[band])), frozenset([value])


def _unit(metric: Metric) -> str:
    unit = metric.tag.unit
    return f"{unit} per step" if metric.kind is MetricKind.SUM else unit
