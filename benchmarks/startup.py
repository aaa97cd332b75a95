"""Time and memory of loading and attaching the probes, each in a fresh process."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import Any

PROBE = """
import json, os, time
def memory(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) / 1024
{imports}
before = memory("VmRSS:")
begin = time.perf_counter()
{start}
ready = time.perf_counter()
peak = memory("VmHWM:")
{stop}
print(json.dumps({{"ms": (ready - begin) * 1e3, "stop_ms": (time.perf_counter() - ready) * 1e3,
    "peak_mib": peak - before, "rss_mib": memory("VmRSS:") - before}}))
"""

CASES = {
    # The kernel side alone: load, attach, register the process.
    "probes": (
        "import numpy; from trainobs.probes.kernel_side import KernelSide",
        "kernel = KernelSide(); kernel.adopt()",
        "kernel.stop()",
    ),
    # All that `observe` does, the modules it imports beyond torch's and Lightning's included.
    "observe": (
        "import lightning.pytorch, torch.utils.tensorboard",
        "from trainobs import observe; context = observe(run_dir=RUN); context.__enter__()",
        "context.__exit__(None, None, None)",
    ),
}


def measure(*, quick: bool) -> dict[str, Any]:
    """Medians over fresh processes, ms and MiB."""
    return {name: _median(case, 3 if quick else 15) for name, case in CASES.items()}


def _median(case: tuple[str, str, str], runs: int) -> dict[str, float]:
    imports, start, stop = case
    where = "import tempfile; RUN = tempfile.mkdtemp() + '/run'\n"
    program = PROBE.format(imports=where + imports, start=start, stop=stop)
    command = [sys.executable, "-W", "ignore", "-c", program]
    found = [
        json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        for _ in range(runs)
    ]
    return {key: round(statistics.median(run[key] for run in found), 1) for key in found[0]}
