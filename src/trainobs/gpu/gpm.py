"""GPM, the counters inside the GPU: from two samples, what happened between them.

Source: nvml.h, "GPM Metric Identifiers" and `nvmlGpmMetricsGet`; they are those that DCGM reads on
Hopper and newer, without its daemon, and they do not stand in the way of a profiler.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

SHORTEST_NS = 100_000_000
"""The samples are refreshed that often inside the GPU: closer ones give invalid values."""

_PERCENT = 0.01
_MEBIBYTE = 1024.0**2

METRICS: dict[str, tuple[int, float]] = {
    "gpu/sm_active_ratio": (2, _PERCENT),
    "gpu/sm_occupancy_ratio": (3, _PERCENT),
    "gpu/tensor_active_ratio": (5, _PERCENT),
    "gpu/dram_active_ratio": (10, _PERCENT),
    "gpu/pcie_sent_bytes": (20, _MEBIBYTE),
    "gpu/pcie_received_bytes": (21, _MEBIBYTE),
    "gpu/nvlink_received_bytes": (60, _MEBIBYTE),
    "gpu/nvlink_sent_bytes": (61, _MEBIBYTE),
}
"""Metric of the catalogue -> number of the GPM metric, and the unit that it has."""


class Gpm:
    """Samples of one device.

    The structure for the metrics has 19 kB, so there is one, reused.

    Args:
        nvml: the module pynvml.
        sample: fills a sample: `nvmlGpmSampleGet` of a board, or its like of a MIG instance.

    Raises:
        NVMLError: the device gives no samples after all.
    """

    def __init__(self, nvml: Any, sample: Callable[[Any], None]) -> None:
        self._nvml = nvml
        self._sample = sample
        self._at_ns = 0
        self._samples: list[Any] = []
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(METRICS)
        for index, (number, _) in enumerate(METRICS.values()):
            self._request.metrics[index].metricId = number
        try:
            self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
            self._take(self._samples[0])
        except nvml.NVMLError:
            self.close()
            raise

    def values(self) -> dict[str, float]:
        """Values since the call before, by catalogue name; {} if that was too short ago.

        Raises:
            NVMLError: no sample could be had.
        """
        if time.monotonic_ns() - self._at_ns < SHORTEST_NS:
            return {}
        before, after = self._samples
        self._take(after)
        self._samples = [after, before]  # only now: a sample that could not be had counts for none
        self._request.sample1, self._request.sample2 = before, after
        self._nvml.nvmlGpmMetricsGet(self._request)
        # The request has room for more.
        answers = zip(METRICS.items(), self._request.metrics, strict=False)
        return {
            name: metric.value * unit
            for (name, (_, unit)), metric in answers
            if metric.nvmlReturn == self._nvml.NVML_SUCCESS and math.isfinite(metric.value)
        }

    def close(self) -> None:
        """Give the samples back. May be called twice."""
        while self._samples:
            self._nvml.nvmlGpmSampleFree(self._samples.pop())

    def _take(self, sample: Any) -> None:
        self._sample(sample)
        self._at_ns = time.monotonic_ns()  # afterwards, so that two are never closer than they seem
