"""Checks of the GPU room on a real GPU; run by hand, since the tests have none.

python tests/gpu/on_device.py [RESULTS.json]

Prints a JSON document, and writes it where told (`benchmarks/results/gpu-DATE.json`): what NVML
answered, what each call costs while the GPU is idle and while it works, what GPM says of windows
from 20 ms to 1 s, what an observed training run has in its record, and the checks of all that. The
exit status is 1 if a check failed.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pynvml
import torch

from trainobs import observe
from trainobs.gpu.doctor import examine
from trainobs.gpu.gpm import METRICS
from trainobs.gpu.nvml import Nvml
from trainobs.hooks.cuda import Cuda

Numbers = dict[str, Any]

WINDOWS_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
STEPS = 60
SIZE = 8192


@contextmanager
def load() -> Iterator[None]:
    """Matrix products on the GPU, one after the other."""
    matrix = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            matrix @ matrix
            torch.cuda.synchronize()

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(1)
    try:
        yield
    finally:
        stop.set()
        thread.join()


def cost(call: Callable[[], object], times: int = 200) -> Numbers:
    """Time of a call, us; or what it failed with."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter_ns()
        try:
            call()
        except pynvml.NVMLError as error:
            return {"failed": str(error)}
        taken.append((time.perf_counter_ns() - begin) / 1e3)
    return {
        "p50_us": median(taken),
        "p99_us": float(np.percentile(taken, 99)),
        "max_us": max(taken),
    }


def uuid_of(torch_uuid: str) -> str:
    """UUID of the device that torch uses, as NVML tells it."""
    nvml = Nvml()
    device = nvml.open(torch_uuid)
    uuid = device.uuid
    device.close()
    nvml.close()
    return uuid


def costs(uuid: str) -> dict[str, Numbers]:
    """Of each call that the poller makes, and of some that it does not for their price."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    calls: dict[str, Callable[[], object]] = {
        "fields": lambda: pynvml.nvmlDeviceGetFieldValues(handle, [83, 74, 75, 197, 198]),
        "sm clock": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "memory clock": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        "memory": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2),
        "temperature": lambda: pynvml.nvmlDeviceGetTemperature(handle, 0),
        "reasons": lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        "not made: utilization": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle),
        "not made: average power": lambda: pynvml.nvmlDeviceGetFieldValues(handle, [185]),
    }
    found = {name: cost(call) for name, call in calls.items()}
    throughput = lambda: pynvml.nvmlDeviceGetPcieThroughput(handle, 0)  # noqa: E731
    found["not made: PCIe throughput"] = cost(throughput, 10)
    if pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
        sample = pynvml.nvmlGpmSampleAlloc()
        found["GPM sample"] = cost(lambda: pynvml.nvmlGpmSampleGet(handle, sample))
        pynvml.nvmlGpmSampleFree(sample)
    nvml = Nvml()
    device = nvml.open(uuid)
    found["one whole reading"] = cost(device.read)
    device.close()
    nvml.close()
    pynvml.nvmlShutdown()
    return found


def raw_fields(uuid: str) -> list[Numbers]:
    """What the fields answer, twice a second apart: types, units and how far they move."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    answers = []
    for _ in range(2):
        fields = pynvml.nvmlDeviceGetFieldValues(handle, [83, 74, 75, 197, 198])
        answers.append(
            {
                str(f.fieldId): [f.nvmlReturn, f.valueType, f.value.ullVal, f.timestamp]
                for f in fields
            }
        )
        time.sleep(1)
    pynvml.nvmlShutdown()
    return answers


def gpm_windows(uuid: str) -> dict[str, Numbers]:
    """GPM by the length of the window, without the floor of 100 ms that the room keeps.

    Values are strings, since some may be nan; a number is an error of NVML.
    """
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    found: dict[str, Numbers] = {}
    if pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
        first, second = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        request = pynvml.c_nvmlGpmMetricsGet_t(
            pynvml.NVML_GPM_METRICS_GET_VERSION, len(METRICS), first, second
        )
        for index, (number, _) in enumerate(METRICS.values()):
            request.metrics[index].metricId = number
        for window_s in WINDOWS_S:
            pynvml.nvmlGpmSampleGet(handle, first)
            time.sleep(window_s)
            pynvml.nvmlGpmSampleGet(handle, second)
            pynvml.nvmlGpmMetricsGet(request)
            metrics = [request.metrics[index] for index in range(len(METRICS))]
            values = [str(m.value) if m.nvmlReturn == 0 else m.nvmlReturn for m in metrics]
            found[f"{window_s} s"] = dict(zip(METRICS, values, strict=True))
    pynvml.nvmlShutdown()
    return found


def train(run_dir: Path | None) -> tuple[float, list[float]]:
    """Products in forward and backward; seconds for all, and ms of each forward by own events."""
    matrix = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    batch = torch.randn(SIZE, 256).pin_memory()
    own = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(STEPS)]
    torch.cuda.synchronize()
    begin = time.perf_counter()
    os.environ["TRAINOBS"] = "on" if run_dir else "off"
    with observe(run_dir=run_dir, probes="off") as obs:
        for before, after in own:
            with obs.step():
                with obs.phase("transfer"):
                    batch.to("cuda", non_blocking=True)
                with obs.phase("forward"):
                    before.record()
                    for _ in range(20):
                        matrix @ matrix
                    after.record()
                with obs.phase("backward"):
                    for _ in range(40):
                        matrix @ matrix
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
    return seconds, [before.elapsed_time(after) for before, after in own]


def record(run_dir: Path) -> dict[str, np.ndarray]:
    """GPU columns of a run, without the set-up."""
    table = pq.read_table(next(run_dir.glob("rank=0/steps-*.parquet"))).slice(1)
    names = [n for n in table.column_names if n.startswith(("gpu/", "step/"))]
    return {n: table[n].to_numpy(zero_copy_only=False).astype(float) for n in names}


def observed() -> tuple[Numbers, dict[str, bool]]:
    """A run with its record, held against what was measured beside it."""
    train(None)
    pairs = []
    for _ in range(5):  # interleaved, since clocks and heat drift
        without, _ = train(None)
        folder = Path(tempfile.mkdtemp(), "run")
        with_, forward_ms = train(folder)
        pairs.append(with_ / without)
    columns = record(folder)
    known = {name: float(np.nanmean(c)) for name, c in columns.items() if np.isfinite(c).any()}
    gpu = columns["gpu/forward_ns"][: len(forward_ms)] / 1e6
    truth = np.array(forward_ms)[: len(gpu)]
    checks = {
        "phases are timed in nearly all steps": bool(np.isfinite(gpu).mean() > 0.9),
        "forward is what the loop's own events say, within 5 %": bool(
            abs(np.nanmedian(gpu) / np.median(truth) - 1) < 0.05
        ),
        "backward takes twice as long, within 10 %": bool(
            abs(known.get("gpu/backward_ns", 0) / known.get("gpu/forward_ns", 1) - 2) < 0.2
        ),
        "the multiprocessors worked": known.get("gpu/sm_active_ratio", 0) > 0.5,
        "the tensor cores worked": known.get("gpu/tensor_active_ratio", 0) > 0.1,
        "power is that of a board at work": 50 < known.get("gpu/power_w", 0) < 2000,
        "the window is a second": 0.9e9 < known.get("gpu/window_ns", 0) < 1.3e9,
    }
    return {"means": known, "with / without, 5 pairs": sorted(pairs)}, checks


def main() -> int:
    """All of it."""
    torch.cuda.init()
    torch_uuid = Cuda().uuid()
    assert torch_uuid, "torch sees no GPU"
    uuid = uuid_of(torch_uuid)
    numbers, checks = observed()
    document: Numbers = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": {"python": platform.python_version(), "cpu_count": os.cpu_count()},
        "torch": torch.__version__,
        "doctor": examine(),
        "uuid of torch": torch_uuid,
        "fields": raw_fields(uuid),
        "cost idle": costs(uuid),
        "gpm idle": gpm_windows(uuid),
    }
    with load():
        document |= {"cost at work": costs(uuid), "gpm at work": gpm_windows(uuid)}
        document["fields at work"] = raw_fields(uuid)
    checks["torch and NVML mean the same device"] = torch_uuid in uuid
    document |= {"observed": numbers, "checks": checks}
    text = json.dumps(document, indent=2)
    print(text)
    for path in sys.argv[1:]:
        Path(path).write_text(text + "\n")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
