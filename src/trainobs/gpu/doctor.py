"""What can be read of the GPUs of this machine: a part of `trainobs doctor`."""

from __future__ import annotations

from contextlib import closing
from typing import TypedDict

from trainobs.core.errors import GpuError
from trainobs.gpu.nvml import Nvml


class WhyNotRead(TypedDict):
    """What was found, and what to do."""

    found: str
    do: str


class DeviceFindings(TypedDict, total=False):
    """One device.

    Attributes:
        uuid: of it.
        name: of one that can be read.
        gpm: "on" for that one, or why it tells of no activity.
        why: what keeps it from being read.
    """

    uuid: str
    name: str
    gpm: str
    why: WhyNotRead


class GpuFindings(TypedDict):
    """What `examine` found.

    Attributes:
        driver: its version; None where NVML cannot be opened.
        why: what keeps NVML from being opened; None: nothing does.
        devices: all that it lists.
    """

    driver: str | None
    why: WhyNotRead | None
    devices: list[DeviceFindings]


def examine() -> GpuFindings:
    """Open NVML and every device that it lists, once."""
    found: GpuFindings = {"driver": None, "why": None, "devices": []}
    try:
        with closing(Nvml()) as nvml:
            found["driver"] = nvml.driver
            found["devices"] = [_device(nvml, uuid) for uuid in nvml.uuids()]
    except GpuError as error:
        found["why"] = _reason(error)
    return found


def _device(nvml: Nvml, uuid: str) -> DeviceFindings:
    try:
        device = nvml.open(uuid)
    except GpuError as error:
        return {"uuid": uuid, "why": _reason(error)}
    device.close()
    return {"uuid": uuid, "name": device.about["name"], "gpm": device.about["gpm"]}


def _reason(error: GpuError) -> WhyNotRead:
    return {"found": error.found, "do": error.do}


def render(found: GpuFindings) -> str:
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
