"""The custom-scalars page: which charts TensorBoard draws, and in what order."""

from __future__ import annotations

import re

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

from trainobs.core.catalogue import CATALOGUE
from trainobs.core.catalogue.ranks import COMPARED, over_ranks
from trainobs.core.metrics import Kind, Metric


def layout(ranks: bool = False) -> Layout:
    """What a step did on average, and how far its slow ones and other ranks were from that.

    Args:
        ranks: whether there are several.
    """
    apart = [Category(title="trainobs: ranks", chart=_ranks())] if ranks else []
    return Layout(
        category=[
            Category(title="trainobs", chart=_averages()),
            *apart,
            Category(title="trainobs: slow steps", chart=_spreads(), closed=True),
        ]
    )


def layout_event(wall_time: float, ranks: bool = False) -> Event:
    """`layout` as the event in which TensorBoard looks for it."""
    text = layout(ranks).SerializeToString()
    tensor = TensorProto(dtype=DT_STRING, string_val=[text], tensor_shape=TensorShapeProto())
    value = Summary.Value(
        tag=metadata.CONFIG_SUMMARY_TAG,
        metadata=metadata.create_summary_metadata(),
        tensor=tensor,
    )
    return Event(wall_time=wall_time, step=0, summary=Summary(value=[value]))


def _averages() -> list[Chart]:
    """One chart for each title and unit of the catalogue, in its order."""
    charts: dict[str, list[str]] = {}
    for metric in CATALOGUE:
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
    return f"{metric.unit} per step" if metric.kind is Kind.SUM else metric.unit


def _chart(title: str, tags: list[str]) -> Chart:
    """TensorBoard takes a tag as a pattern; anchored, `io/read` does not also draw `io/reads`."""
    patterns = [f"^{re.escape(tag)}$" for tag in tags]
    return Chart(title=title, multiline=MultilineChartContent(tag=patterns))
