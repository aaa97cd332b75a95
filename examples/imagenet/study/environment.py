"""The machine on which a run was made, as a paper tells it."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trainobs.host.facts import host_facts

PACKAGES = ("trainobs", "torch", "lightning", "torchvision", "pillow", "numpy")


def environment(data: Path) -> dict[str, Any]:
    """Facts about this machine; what cannot be found out is None.

    Args:
        data: folder of the data set, whose disk is told.

    Returns:
        What ``trainobs.host.facts.host_facts`` returns; `cpu` (model), `virtual` (whether a
        hypervisor is below), `disk` (see ``disk_of``), `packages` (name -> version), `load`
        (runnable tasks in the last minute, before the run).
    """
    cpu = cpu_facts()
    return {
        **host_facts(),
        "cpu": cpu.get("model name"),
        "virtual": "hypervisor" in cpu["flags"].split() if "flags" in cpu else None,
        "disk": disk_of(data),
        "packages": {name: version_of(name) for name in PACKAGES},
        "load": os.getloadavg()[0],
    }


def cpu_facts() -> dict[str, str]:
    """What /proc/cpuinfo says of the first CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }


def disk_of(path: Path) -> dict[str, Any]:
    """File system and block device below a path.

    Returns:
        `file_system`, `source` (what is mounted), and of a block device `rotational`, `model`,
        `read_ahead_kb`, `scheduler`.

    Source: proc_pid_mountinfo(5); Documentation/ABI/stable/sysfs-block.
    """
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    found: dict[str, Any] = {"file_system": None, "source": None}
    for line in read(Path("/proc/self/mountinfo")).splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == number:
            found["file_system"], found["source"] = rest.split()[:2]
    block = Path("/sys/dev/block", number)
    disk = block.resolve().parent if (block / "partition").exists() else block
    for name in ("rotational", "read_ahead_kb", "scheduler"):
        found[name] = read(disk / "queue" / name).strip() or None
    found["model"] = read(disk / "device" / "model").strip() or None
    return found


def read(path: Path) -> str:
    """Return a file's text, empty where it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


def version_of(package: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
