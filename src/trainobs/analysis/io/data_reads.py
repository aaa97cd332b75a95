"""Training data that read calls do not tell of: in mapped files, and read by libaio."""

from __future__ import annotations

from collections.abc import Mapping

from trainobs.analysis.metric_statistics import Statistics
from trainobs.core.abi import Op
from trainobs.runlog.rank import RankLog

HEADERS = 1 << 10
"""Bytes read by calls in a step, below which they are headers, and no data."""

_SOME = 0.01
"""Share of what calls read, below which what is mapped is no matter."""

_READ, _MAPPED, _FILLED = "io/data_read_bytes", "io/data_mmap_bytes", "cache/fault_fill_bytes"


def mapped_data(metrics: Mapping[str, Statistics]) -> str | None:
    """How much of the training data is mapped, beside what calls read of it.

    Args:
        metrics: as in `analysis.summary.summarize`.

    Returns:
        "most", "some", or None where hardly any is known to be. Mappings that are older than the
        run show by what faults brought into memory alone.
    """
    mapped, faults = _sum(metrics, _MAPPED), _sum(metrics, "io/data_fault_count")
    amount = max(mapped, _sum(metrics, _FILLED))
    if not amount and not faults:
        return None
    read, in_a_step = _sum(metrics, _READ), metrics[_READ]["mean"] or 0.0
    if in_a_step < HEADERS or amount > read:
        return "most"
    return "some" if amount >= _SOME * read else None


def has_libaio(rank: RankLog) -> bool:
    """Whether the run read or wrote by libaio (`io_submit`), which no probe sees."""
    return bool(rank.cells()["count"][Op.AIO].sum())


def _sum(metrics: Mapping[str, Statistics], name: str) -> float:
    return metrics[name]["sum"] or 0.0
