"""What NVML and the clocks tell."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from trainobs.core.errors import GpuError
from trainobs.gpu.nvml import Nvml


class Meter:
    """Energy and traffic of the GPU, by NVML; None where there is none, or it does not say."""

    def __init__(self, device: torch.device) -> None:
        self._device: Any = None
        self.sees_link = False
        if device.type == "cuda":
            with suppress(GpuError):
                uuid = str(torch.cuda.get_device_properties(device).uuid)
                self._device = Nvml().open(uuid)
                time.sleep(0.5)  # less is too short for it
                self.sees_link = self.read()["link_bytes"] is not None

    @property
    def about(self) -> dict[str, str] | None:
        """The device, its driver, and whether GPM is there."""
        return dict(self._device.about) if self._device is not None else None

    def read(self) -> dict[str, float | None]:
        """Joules, and bytes over the host's link both ways, since the last call."""
        values: dict[str, float] = {}
        with suppress(GpuError):
            values = self._device.read().values if self._device is not None else {}
        seconds = values.get("gpu/window_ns", 0.0) / 1e9
        energy = values.get("gpu/energy_mj")
        sent, received = (values.get(f"gpu/pcie_{way}_bytes") for way in ("sent", "received"))
        known = sent is not None and received is not None
        return {
            "joules": None if energy is None else energy * seconds / 1000,
            "link_bytes": (sent + received) * seconds if known else None,  # type: ignore[operator]
        }


def between_us(mark: Any, next_mark: Any) -> float:
    """Microseconds between two moments."""
    if isinstance(mark, float):
        return float(next_mark - mark) * 1e6
    return float(mark.elapsed_time(next_mark)) * 1e3


def quartiles(values: list[float]) -> dict[str, float] | None:
    """Median and quartiles; None where nothing is known."""
    if not values:
        return None
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return {"median": middle, "quartile1": low, "quartile3": high, "count": len(values)}
