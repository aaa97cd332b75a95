"""What can be read of the GPUs of this machine: a part of `trainobs doctor`."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from trainobs.core.errors import GpuError
from trainobs.gpu.nvml import Nvml


def examine() -> dict[str, Any]:
    """Open NVML and every device that it lists, once.

    Returns:
        `driver` (version, or None), `why` (what keeps NVML from being opened: found, do; or None),
        `devices` (each with uuid, and either name and gpm, "on" or why not, or `why`).
    """
    found: dict[str, Any] = {"driver": None, "why": None, "devices": []}
    try:
        with closing(Nvml()) as nvml:
            found["driver"] = nvml.driver
            found["devices"] = [_device(nvml, uuid) for uuid in nvml.uuids()]
    except GpuError as error:
        found["why"] = _reason(error)
    return found


def _device(nvml: Nvml, uuid: str) -> dict[str, Any]:
    try:
        device = nvml.open(uuid)
    except GpuError as error:
        return {"uuid": uuid, "why": _reason(error)}
    device.close()
    return {"uuid": uuid, "name": device.about["name"], "gpm": device.about["gpm"]}


def _reason(error: GpuError) -> dict[str, str]:
    return {"found": error.found, "do": error.do}


def render(found: dict[str, Any]) -> str:
    """The same for a terminal."""
    lines = ["gpu"]
    if found["why"]:
        lines.append(f"  not read: {found['why']['found']}")
        lines.append(f"  with a GPU of NVIDIA: {found['why']['do']}")
        return "\n".join(lines)
    lines.append(f"  driver {found['driver']}, devices: {len(found['devices'])}")
    for device in found["devices"]:
        if "why" in device:
            lines.append(f"  {device['uuid']}  not read: {device['why']['found']}")
            continue
        gpm = device["gpm"]
        gives = "SM, tensor and memory activity" if gpm == "on" else f"no activity: {gpm}"
        lines.append(f"  {device['uuid']}  {device['name']}: clocks, power, memory; {gives}")
    return "\n".join(lines)
