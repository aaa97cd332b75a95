"""The custom-scalars page: which charts TensorBoard draws, and in what order."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.custom_scalar import metadata
from tensorboard.plugins.custom_scalar.layout_pb2 import (
    Category,
    Chart,
    Layout,
    MarginChartContent,
    MultilineChartContent,
)

from trainobs.core.catalogue import EMBEDDINGS, STEP_METRICS
from trainobs.core.catalogue.ranks import over_ranks
from trainobs.core.metrics import Metric, MetricKind
from trainobs.tensorboard.event_file import EventWriter
from trainobs.tensorboard.window import WAITED

CATEGORY = "trainobs"


class LaidOut:
    """An event writer that also lays out the charts of what it was given.

    A chart is there once one of its curves has a point. It has all of its curves then, and so is
    the same in every run: TensorBoard puts the layouts of all runs together, each chart once.
    """

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer
        self._tags: set[str] = set()
        self._drawn: list[Chart] = []
        self._wall_time = 0.0

    def add_event(self, event: Event) -> None:
        """Take one event."""
        self._writer.add_event(event)
        self._tags.update(value.tag for value in event.summary.value)
        self._wall_time = event.wall_time

    def flush(self) -> None:
        """Make what was taken so far visible, with its charts; of two layouts the last counts."""
        charts = [chart for chart, tags in _CHARTS if not tags.isdisjoint(self._tags)]
        if charts != self._drawn:
            self._writer.add_event(_event(charts, self._wall_time))
            self._drawn = charts
        self._writer.flush()

    def close(self) -> None:
        """Flush, and take no more events."""
        self.flush()
        self._writer.close()


def _event(charts: list[Chart], wall_time: float) -> Event:
    """A layout as the event in which TensorBoard looks for it."""
    text = Layout(category=[Category(title=CATEGORY, chart=charts)]).SerializeToString()
    value = Summary.Value(
        tag=metadata.CONFIG_SUMMARY_TAG,
        metadata=metadata.create_summary_metadata(),
        tensor=TensorProto(dtype=DT_STRING, string_val=[text], tensor_shape=TensorShapeProto()),
    )
    return Event(wall_time=wall_time, step=0, summary=Summary(value=[value]))


def _charts() -> Iterator[tuple[Chart, frozenset[str]]]:
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


def _chart(title: str, *tags: str) -> tuple[Chart, frozenset[str]]:
    """TensorBoard takes a tag as a pattern."""
    patterns = [f"^{re.escape(tag)}$" for tag in tags]
    return Chart(title=title, multiline=MultilineChartContent(tag=patterns)), frozenset(tags)


def _over_ranks(metric: Metric) -> tuple[Chart, frozenset[str]]:
    """A band from the least to the greatest rank, with the median in it."""
    tag = over_ranks(metric.tag.name)
    value = f"{tag}/median"
    band = MarginChartContent.Series(value=value, lower=f"{tag}/min", upper=f"{tag}/max")
    title = f"{metric.chart}, all ranks ({_unit(metric)})"
    return Chart(title=title, margin=MarginChartContent(series=[band])), frozenset([value])


def _unit(metric: Metric) -> str:
    unit = metric.tag.unit
    return f"{unit} per step" if metric.kind is MetricKind.SUM else unit


_CHARTS = tuple(_charts())
