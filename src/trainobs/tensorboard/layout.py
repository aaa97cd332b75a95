"""The custom-scalars page: which charts TensorBoard draws, and in what order."""

from __future__ import annotations

import re
from collections.abc import Iterable

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

from trainobs.core.catalogue import CATALOGUE, EMBEDDINGS, HOT_ROWS
from trainobs.core.catalogue.ranks import COMPARED, over_ranks
from trainobs.core.metrics import Metric, MetricKind
from trainobs.tensorboard.table_curves import BY_TABLE


def layout(ranks: bool = False, tables: bool = False, hot_rows: bool = False) -> Layout:
    """What a step did on average, and how far its slow ones and other ranks were from that.

    Args:
        ranks: whether there are several.
        tables: whether the lookups of embedding tables are counted.
        hot_rows: whether some of their rows are kept on the device.
    """
    apart = [Category(title="trainobs: ranks", chart=_ranks())] if ranks else []
    hot = [Category(title="trainobs: hot rows", chart=_charts(HOT_ROWS))] if hot_rows else []
    asked = Category(title="trainobs: embedding lookups", chart=_charts(EMBEDDINGS))
    lookups = [asked] if tables else []
    return Layout(
        category=[
            Category(title="trainobs", chart=_charts(CATALOGUE)),
            *lookups,
            *hot,
            *apart,
            Category(title="trainobs: slow steps", chart=_spreads(), closed=True),
        ]
    )


def layout_event(
    wall_time: float, ranks: bool = False, tables: bool = False, hot_rows: bool = False
) -> Event:
    """`layout` as the event in which TensorBoard looks for it."""
    text = layout(ranks, tables, hot_rows).SerializeToString()
    tensor = TensorProto(dtype=DT_STRING, string_val=[text], tensor_shape=TensorShapeProto())
    value = Summary.Value(
        tag=metadata.CONFIG_SUMMARY_TAG,
        metadata=metadata.create_summary_metadata(),
        tensor=tensor,
    )
    return Event(wall_time=wall_time, step=0, summary=Summary(value=[value]))


def _charts(metrics: Iterable[Metric]) -> list[Chart]:
    """One chart for each title and unit, in their order."""
    charts: dict[str, list[str]] = {}
    for metric in metrics:
        if metric.chart:
            charts.setdefault(f"{metric.chart} ({_unit(metric)})", []).append(metric.name)
    return [_chart(title, names) for title, names in charts.items()]


def _spreads() -> list[Chart]:
    names = [metric.name for metric in CATALOGUE if metric.spread]
    return [_chart(name, [name, f"{name}/p95", f"{name}/max"]) for name in names]


def _ranks() -> list[Chart]:
    """A band from the least to the greatest rank, with the median in it."""
    series = [(name, f"{over_ranks(name)}/") for name in COMPARED]
    return [
        Chart(
            title=f"{name} over ranks",
            margin=MarginChartContent(
                series=[
                    MarginChartContent.Series(
                        value=f"{tag}median", lower=f"{tag}min", upper=f"{tag}max"
                    )
                ]
            ),
        )
        for name, tag in series
    ]


def _unit(metric: Metric) -> str:
    return f"{metric.unit} per step" if metric.kind is MetricKind.SUM else metric.unit


def _chart(title: str, tags: list[str]) -> Chart:
    """TensorBoard takes a tag as a pattern; anchored, `io/read` does not also draw `io/reads`.

    Where there are curves by table, these are drawn, and not that of all tables.
    """
    patterns = [f"^{re.escape(tag)}{'/' if tag in BY_TABLE else '$'}" for tag in tags]
    return Chart(title=title, multiline=MultilineChartContent(tag=patterns))
