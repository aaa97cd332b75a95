"""What the GPU of this process did, read through NVML, and timed by CUDA events."""

from __future__ import annotations

from trainobs.core.metrics import Metric, MetricKind

_CYCLES = (
    "A share of clock cycles, not of time: look at gpu/sm_clock_mhz beside it. Steps shorter than "
    "gpu/window_ns share one value."
)
_BOARD = "Under MIG it is the whole board's."
_POWER = (
    "The whole board's, under MIG too. The counter moves every 100 ms, and on A100 and H100 the "
    "sensor behind it samples only 25 % of the time (arXiv 2312.02741)."
)
_RATE = "The rate over gpu/window_ns, times the length of the step."
_EVENTS = (
    "Idle time of the stream in between counts, too; the work of other streams does not. Null "
    "while a CUDA graph is captured."
)
_NVML = "NVML"
_GPM = "NVML GPM"


def _level(
    name: str, unit: str, tells: str, blind: str, chart: str = "", source: str = _NVML
) -> Metric:
    return Metric(f"gpu/{name}", unit, MetricKind.GAUGE, source, tells, blind, chart)


def _amount(name: str, unit: str, tells: str, blind: str, source: str) -> Metric:
    return Metric(f"gpu/{name}", unit, MetricKind.SUM, source, tells, blind)


LEVELS: tuple[Metric, ...] = (
    _level(
        "sm_active_ratio",
        "ratio",
        "Share of cycles in which a multiprocessor had work, averaged over all of them.",
        "One warp that waits for memory counts as work. " + _CYCLES,
        "GPU: multiprocessors at work",
        _GPM,
    ),
    _level(
        "sm_occupancy_ratio",
        "ratio",
        "Warps resident on the multiprocessors, as a share of those that fit.",
        _CYCLES,
        source=_GPM,
    ),
    _level(
        "tensor_active_ratio",
        "ratio",
        "Share of cycles in which the tensor cores worked.",
        _CYCLES,
        source=_GPM,
    ),
    _level(
        "dram_active_ratio",
        "ratio",
        "Share of cycles in which the device memory moved data; about 0.8 is the most in practice.",
        _CYCLES,
        source=_GPM,
    ),
    _level("sm_clock_mhz", "MHz", "Clock of the multiprocessors.", _BOARD),
    _level("memory_clock_mhz", "MHz", "Clock of the device memory.", _BOARD),
    _level(
        "throttle_power_ratio",
        "ratio",
        "Share of time in which the power limit held the clocks down.",
        _BOARD,
    ),
    _level(
        "throttle_thermal_ratio",
        "ratio",
        "Share of time in which the driver held the clocks down because of heat.",
        _BOARD,
    ),
    _level(
        "throttle_hardware_ratio",
        "ratio",
        "Share of readings at which the hardware itself slowed down: heat, or the power supply.",
        "What came and went between two readings. " + _BOARD,
    ),
    _level(
        "memory_used_bytes",
        "bytes",
        "Device memory in use, by all processes.",
        "Whose it is, and how much of it torch's caching allocator holds but does not use.",
        "GPU memory",
    ),
    _level("temperature_c", "degrees Celsius", "Temperature of the chip.", _BOARD),
    _level(
        "power_w",
        "W",
        "Mean power over gpu/window_ns, from the energy counter.",
        _POWER,
        "GPU power",
    ),
    _level(
        "window_ns",
        "ns",
        "Time between the two readings that the values of this step came from.",
        "",
    ),
)
"""Levels that hold over a window."""

AMOUNTS: tuple[Metric, ...] = (
    _amount(
        "energy_mj",
        "mJ",
        "Energy that the board used.",
        f"{_RATE} {_POWER}",
        _NVML,
    ),
    *(
        _amount(
            f"{link}_{way}_bytes",
            "bytes",
            f"Bytes that the device {tells} over {title}.",
            _RATE + more,
            source,
        )
        for link, title, more, source in (
            ("pcie", "PCIe", "", "NVML GPM, or NVML's counters"),
            ("nvlink", "NVLink", "", _GPM),
        )
        for way, tells in (("sent", "sent"), ("received", "received"))
    ),
)
"""Amounts that grow with time; a reading holds them by the second."""

EVENT_TIMES: tuple[Metric, ...] = tuple(
    _amount(
        f"{phase}_ns",
        "ns",
        f"Time of the phase {phase} on the GPU's current stream.",
        _EVENTS,
        "CUDA events",
    )
    for phase in ("transfer", "forward", "backward", "optimizer")
)

GPU: tuple[Metric, ...] = (*LEVELS, *AMOUNTS, *EVENT_TIMES)
