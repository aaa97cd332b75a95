"""What cannot be known of a process that is observed from outside: it tells no phase."""

from __future__ import annotations

from collections.abc import Iterator

from trainobs.core.abi import FileClass, Op, Phase
from trainobs.core.catalogue import kernel_metrics
from trainobs.core.metrics import Cells, Metric, Ratio

_SEEN = frozenset({Phase.LOADER, Phase.OTHER})
"""Phases that are marked, where fetches are timed."""


def unknown_metrics(*, times_fetches: bool, finds_data: bool) -> frozenset[str]:
    """Metrics that the kernel side counts and that would say something false.

    Args:
        times_fetches: whether it is marked when the training thread waits for its loader.
        finds_data: whether files with training data are told from others.
    """
    return frozenset(
        metric.name
        for metric in kernel_metrics()
        if not all(_is_known(cells, times_fetches, finds_data) for cells in _sums(metric))
    )


def _sums(metric: Metric) -> Iterator[Cells]:
    if isinstance(metric.formula, Ratio):
        yield from metric.formula.sums
    elif metric.formula:
        yield metric.formula


def _is_known(cells: Cells, times_fetches: bool, finds_data: bool) -> bool:
    if cells.phases:
        return times_fetches and not _SEEN.isdisjoint(cells.phases)
    if Op.AWAIT in cells.ops:  # a wait for the loader is none of these
        return times_fetches
    # Files are checkpoints by the phase in which they are written.
    is_data_known = finds_data or FileClass.DATA not in cells.classes
    return FileClass.CHECKPOINT not in cells.classes and is_data_known
