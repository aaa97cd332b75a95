"""Jobs in processes of their own, since pynvml finds its library once, when it is first asked.

Usage: python job.py FUNCTION [ARGUMENT ...]; prints what the function returns, as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.gpu.machine import uuid
from trainobs.core.errors import GpuError
from trainobs.gpu import share
from trainobs.gpu.nvml import Nvml
from trainobs.gpu.poller import Poller
from trainobs.gpu.reading import Reading
from trainobs.gpu.watch import GpuWatch

share.NAME = NAME = "\0" + os.environ["SOCKET"]  # or a run of trainobs beside would be met


def read(name: str, *pauses: str) -> dict[str, Any]:
    """Readings of a device, each after a pause, and what is true of it."""
    nvml = Nvml()
    try:
        device = nvml.open(name)
    except GpuError as error:
        return {"failed": error.failed, "found": error.found, "do": error.do}
    readings = []
    for pause in pauses:
        time.sleep(float(pause))
        try:
            readings.append(device.read().values)
        except GpuError as error:
            readings.append({"found": error.found})
    device.close()
    device.close()
    nvml.close()
    return {"about": device.about, "readings": readings}


def uuids() -> list[str] | str:
    """Devices that NVML lists, or why it does not open."""
    try:
        nvml = Nvml()
    except GpuError as error:
        return str(error)
    listed = nvml.uuids()
    nvml.close()
    return listed


def doctor() -> list[Any]:
    """What the doctor finds, and how it says so."""
    from trainobs.gpu.doctor import examine, render

    found = examine()
    return [found, render(found)]


def doctor_without_pynvml() -> list[Any]:
    """The same, where nvidia-ml-py is not installed."""
    sys.modules["pynvml"] = None  # type: ignore[assignment]
    return doctor()


def doctor_with_old_pynvml() -> list[Any]:
    """The same, where a package of before GPM has taken the name."""
    sys.modules["pynvml"] = SimpleNamespace(__file__="pynvml/__init__.py")  # type: ignore
    return doctor()


def poll(seconds: str, interval: str) -> int:
    """Number of readings of the first device, polled for some time."""
    import socket

    taken: list[Reading] = []
    nvml, (wake, other) = Nvml(), socket.socketpair()
    poller = Poller(nvml, None, wake, float(interval))
    poller.watch(uuid(0), taken.append)
    timer = threading.Timer(float(seconds), other.close)
    timer.start()
    poller.serve(lambda: timer.finished.is_set())
    poller.close()
    nvml.close()
    wake.close()
    return len(taken)


def watch(name: str, interval: str = "0.2", warn: str = "") -> dict[str, Any]:
    """Watch a device until a line comes on stdin; prints a line at the first reading."""
    if not warn:
        logging.getLogger("trainobs").setLevel(logging.ERROR)
    taken: list[Reading] = []

    def take(reading: Reading) -> None:
        if not taken:
            print("first reading", flush=True)
        taken.append(reading)

    watched = GpuWatch(take, interval_s=float(interval))
    watched.start(name)
    print("started", flush=True)
    sys.stdin.readline()
    begin = time.monotonic()
    count = len(taken)
    watched.close()
    watched.close()
    return {
        "readings": count,
        "last": taken[-1].values if taken else None,
        "about": watched.about,
        "close_s": time.monotonic() - begin,
        "cpu_ns": watched.cpu_ns,
        "threads": [t.name for t in threading.enumerate() if t.name == "trainobs-gpu"],
    }


def pretend_cuda(device: int = 0) -> None:
    """Have torch say what it says on a machine with a GPU; the part behind torch is not ours."""
    import torch

    torch.version.cuda = "13.0"
    torch.cuda.is_initialized = lambda: True
    torch.cuda.current_device = lambda: device
    torch.cuda.get_device_properties = lambda i: SimpleNamespace(uuid=uuid(i)[4:])
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.Event = InstantEvent


class InstantEvent:
    """An event of a GPU that is always done at once."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at_ms = time.perf_counter() * 1000

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: InstantEvent) -> float:
        return end.at_ms - self.at_ms


def train(run_dir: str, seconds: str, device: str = "0", probes: str = "off") -> dict[str, Any]:
    """A loop on a GPU."""
    from trainobs import observe

    pretend_cuda(int(device))
    with observe(run_dir=run_dir, probes=probes) as obs:
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            with obs.step():
                with obs.phase("forward"):
                    time.sleep(0.03)
                time.sleep(0.02)
    return {
        "run_dir": str(obs.run_dir),
        "main": threading.main_thread().native_id,
        "run": json.loads(Path(obs.run_dir, "run.json").read_text()),
    }


def train_on_cpu(run_dir: str) -> dict[str, Any]:
    """A loop without a GPU."""
    from trainobs import observe

    with observe(run_dir=run_dir, probes="off") as obs:
        for _ in range(8):
            with obs.step():
                time.sleep(0.1)
        threads = sorted(thread.name for thread in threading.enumerate())
    return {
        "run_dir": str(obs.run_dir),
        "threads": threads,
    }


def fork_and_outlive(run_dir: str) -> dict[str, Any]:
    """Whether the poller's name is free after the run, while a child lives on."""
    from trainobs import observe

    pretend_cuda()
    with observe(run_dir=run_dir, probes="off") as obs:
        while not obs._session._gpu._watch.about:
            with obs.step():
                time.sleep(0.05)
        held = share.claim()
        assert held is None, "the poller has the name"
        child = os.fork()
        if not child:
            time.sleep(30)
            os._exit(0)
    claimed = share.claim()
    os.kill(child, 9)
    os.waitpid(child, 0)
    if claimed:
        claimed.close()
    return {"free": claimed is not None}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
