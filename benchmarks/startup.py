"""CPU time and memory of loading the probes, and of the start of a run, each in a fresh process.

`python benchmarks/startup.py [SOURCE...]` compares source trees, such as those of two versions:
their processes take turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = """
import gc, json, os, sys, time
{imports}
def memory(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) / 1024
gc.collect()  # of what torch left: or it falls into whatever comes next
before, modules = memory("VmRSS:"), len(sys.modules)
cpu, begin = time.process_time(), time.perf_counter()
{start}
cpu_ready, ready = time.process_time(), time.perf_counter()
peak, kept, loaded = memory("VmHWM:"), memory("VmRSS:"), len(sys.modules)
{stop}
print(json.dumps({{
    "cpu_ms": (cpu_ready - cpu) * 1e3, "ms": (ready - begin) * 1e3,
    "stop_cpu_ms": (time.process_time() - cpu_ready) * 1e3, "modules": loaded - modules,
    "peak_mib": peak - before, "started_mib": kept - before, "rss_mib": memory("VmRSS:") - before,
}}))
"""

CASES = {
    # The kernel side alone: load, attach, register the process.
    "probes": (
        "import numpy; from trainobs.probes.local_backend import LocalBackend",
        "kernel = LocalBackend(); kernel.adopt()",
        "kernel.stop()",
    ),
    # The modules that `observe` brings in beyond those of torch.
    "imports": ("import torch.utils.data", "from trainobs import observe", ""),
    # All of it. The end writes the run, and so imports what that takes.
    "observe": (
        "import tempfile, torch.utils.data; RUN = tempfile.mkdtemp() + '/run'",
        "from trainobs import observe; run = observe(run_dir=RUN); run.__enter__()",
        "run.__exit__(None, None, None)",
    ),
}

SOURCE = Path(__file__).parents[1] / "src"


def measure(*, quick: bool) -> dict[str, Any]:
    """Of each case the medians over fresh processes, ms and MiB, and the least CPU time."""
    return compare([SOURCE], 2 if quick else 9)[str(SOURCE)]


def compare(sources: list[Path], runs: int) -> dict[str, Any]:
    """The same for several source trees."""
    found: dict[str, Any] = {str(source): {case: [] for case in CASES} for source in sources}
    for run in range(runs):
        for case in CASES:
            for source in sources if run % 2 == 0 else reversed(sources):
                found[str(source)][case].append(run_case(CASES[case], source))
    return {
        source: {case: _middle(values) for case, values in cases.items()}
        for source, cases in found.items()
    }


def run_case(case: tuple[str, str, str], source: Path) -> dict[str, float]:
    """What the middle one of three parts of a program took in a fresh process."""
    imports, start, stop = case
    program = PROGRAM.format(imports=imports, start=start, stop=stop)
    environment = {**os.environ, "PYTHONPATH": str(source)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _middle(runs: list[dict[str, float]]) -> dict[str, float]:
    found = {key: round(statistics.median(run[key] for run in runs), 1) for key in runs[0]}
    return found | {"least_cpu_ms": round(min(run["cpu_ms"] for run in runs), 1)}


if __name__ == "__main__":
    print(json.dumps(compare([Path(path).resolve() for path in sys.argv[1:]] or [SOURCE], 15)))
