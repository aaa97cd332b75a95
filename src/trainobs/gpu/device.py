"""One GPU, or one MIG instance, read now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from trainobs.core.errors import GpuError
from trainobs.gpu.gpm import Gpm
from trainobs.gpu.reading import Reading

# Only fields that kept their number: those of the hardware slowdowns were renumbered between
# drivers (251-253, later 269-271), and a wrong number is answered with another field's value.
_ENERGY, _POWER_LIMITED, _HEAT_LIMITED, _PCIE_SENT, _PCIE_RECEIVED = 83, 74, 75, 197, 198
_FIELDS = (_ENERGY, _POWER_LIMITED, _HEAT_LIMITED, _PCIE_SENT, _PCIE_RECEIVED)

_BRAKES = 0x08 | 0x40 | 0x80
"""HwSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown of nvmlClocksEventReasons."""

_GONE = ("GpuIsLost", "ResetRequired", "Uninitialized", "DriverNotLoaded")
_NEVER = (
    "NotSupported",
    "NoPermission",
    "FunctionNotFound",
    "InvalidArgument",
    "ArgumentVersionMismatch",
    "Deprecated",
)
"""Answers after which a question is not asked again."""

Counters = dict[int, float]


class Device:
    """Reads one device; use `Nvml.open`. For one thread.

    Attributes:
        uuid: of the board, or of the MIG instance.
        about: what is true for the whole run, for the run log: uuid, name, driver, gpm ("on" or
            why not).
        read_ns: when it was read last, CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        board: Any,
        *,
        uuid: str,
        name: str,
        driver: str,
    ) -> None:
        self._nvml = nvml
        self._board = board
        self._gone = _errors(nvml, _GONE)
        self._never = _errors(nvml, _NEVER)
        self._levels: dict[str, Callable[[], float]] = {
            "gpu/sm_clock_mhz": partial(nvml.nvmlDeviceGetClockInfo, board, nvml.NVML_CLOCK_SM),
            "gpu/memory_clock_mhz": partial(
                nvml.nvmlDeviceGetClockInfo, board, nvml.NVML_CLOCK_MEM
            ),
            "gpu/temperature_c": partial(
                nvml.nvmlDeviceGetTemperature, board, nvml.NVML_TEMPERATURE_GPU
            ),
            "gpu/memory_used_bytes": partial(self._memory_used, handle),
            "gpu/throttle_hardware_ratio": self._braked,
        }
        self.uuid = uuid
        self.read_ns = time.monotonic_ns()
        self._counters = self._read_counters()
        if _ENERGY not in self._counters:  # before Volta
            self._levels["gpu/power_w"] = self._sensor_power
        self._gpm, why_not = self._open_gpm(handle)
        self.about = {"uuid": uuid, "name": name, "driver": driver, "gpm": why_not or "on"}

    def read(self) -> Reading:
        """Values since the reading before.

        Raises:
            GpuError: the device has gone for good.
        """
        try:
            begin_ns, self.read_ns = self.read_ns, time.monotonic_ns()
            before, self._counters = self._counters, self._read_counters()
            values = {"gpu/window_ns": float(self.read_ns - begin_ns)}
            values.update(self._rates(before, self.read_ns - begin_ns))
            values.update(self._read_gpm())  # of what both know, GPM knows better
            values.update(self._read_levels())
        except self._gone as error:
            raise GpuError(
                "a GPU is read no more",
                f"{self.uuid}: {error}",
                "nothing for this run; see `nvidia-smi -q` and the kernel's log for the cause",
            ) from error
        return Reading(begin_ns, self.read_ns, values)

    def close(self) -> None:
        """Give back what the library holds for it."""
        if self._gpm:
            gpm, self._gpm = self._gpm, None
            with suppress(self._nvml.NVMLError):  # gone, and its samples with it
                gpm.close()

    def _open_gpm(self, handle: Any) -> tuple[Gpm | None, str]:
        """GPM, by trial: its documentation says "Hopper or newer", others were seen to have it."""
        nvml, board = self._nvml, self._board
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(board).isSupportedDevice:
                return None, "not supported by this device"
            if handle is board:
                sample = partial(nvml.nvmlGpmSampleGet, board)
            else:
                instance = nvml.nvmlDeviceGetGpuInstanceId(handle)
                sample = partial(nvml.nvmlGpmMigSampleGet, board, instance)
            return Gpm(nvml, sample), ""
        except nvml.NVMLError as error:
            return None, str(error)

    def _read_gpm(self) -> dict[str, float]:
        try:
            return self._gpm.values() if self._gpm else {}
        except self._gone:
            raise
        except self._nvml.NVMLError:
            return {}  # as while a MIG instance is without a compute instance

    def _read_levels(self) -> dict[str, float]:
        values = {}
        for name, read in list(self._levels.items()):
            try:
                values[name] = float(read())
            except self._gone:
                raise
            except self._never:
                del self._levels[name]
            except self._nvml.NVMLError:
                continue
        return values

    def _memory_used(self, handle: Any) -> float:
        # Version 2 does not count what the driver reserves for itself as used.
        return float(self._nvml.nvmlDeviceGetMemoryInfo(handle, self._nvml.nvmlMemory_v2).used)

    def _sensor_power(self) -> float:
        return float(self._nvml.nvmlDeviceGetPowerUsage(self._board)) / 1000

    def _braked(self) -> float:
        return float(bool(self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._board) & _BRAKES))

    def _read_counters(self) -> Counters:
        """Counters by field; one call, since the driver answers many fields at once."""
        nvml = self._nvml
        try:
            fields = nvml.nvmlDeviceGetFieldValues(self._board, list(_FIELDS))
        except self._gone:
            raise
        except nvml.NVMLError:
            return {}
        # A PCIe counter of 32 bits would come round several times a second.
        long = (nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, nvml.NVML_VALUE_TYPE_UNSIGNED_LONG)
        return {
            field.fieldId: field.value.ullVal
            for field in fields
            if field.nvmlReturn == nvml.NVML_SUCCESS and field.valueType in long
        }

    def _rates(self, before: Counters, window_ns: int) -> dict[str, float]:
        def grown(field: int) -> float:
            """NaN where a counter is not there, or began anew."""
            growth = self._counters.get(field, math.nan) - before.get(field, math.nan)
            return growth if growth >= 0 else math.nan

        seconds = window_ns / 1e9
        rates = {
            "gpu/energy_mj": grown(_ENERGY) / seconds,
            "gpu/power_w": grown(_ENERGY) / seconds / 1000,
            # The counters move every 100 ms, so that a share may come out above 1.
            "gpu/throttle_power_ratio": min(grown(_POWER_LIMITED) / window_ns, 1.0),
            "gpu/throttle_thermal_ratio": min(grown(_HEAT_LIMITED) / window_ns, 1.0),
            "gpu/pcie_sent_bytes": grown(_PCIE_SENT) / seconds,
            "gpu/pcie_received_bytes": grown(_PCIE_RECEIVED) / seconds,
        }
        return {name: value for name, value in rates.items() if math.isfinite(value)}


def _errors(nvml: Any, names: tuple[str, ...]) -> tuple[type[Exception], ...]:
    """Classes of errors, as far as this version of pynvml has them."""
    found = (getattr(nvml, f"NVMLError_{name}", None) for name in names)
    return tuple(error for error in found if error)
