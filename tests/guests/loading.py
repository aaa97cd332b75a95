"""What it takes to load the probes on this kernel, and which of them it takes.

Prints one JSON object.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from typing import Any

from trainobs.core.errors import ProbeError
from trainobs.probes.kernel_side import KernelSide

TIMES = 3


def load() -> dict[str, Any]:
    """Load and take out again; what it took, and what came of it."""
    wall, cpu = time.perf_counter(), time.process_time()
    side = KernelSide()
    try:
        took = {
            "ms": (time.perf_counter() - wall) * 1e3,
            "cpu_ms": (time.process_time() - cpu) * 1e3,
        }
        loader = side._probes._loader
        ways = {
            name: [p for p, _ in loader.hooks(name)]
            for name in side.status
            if side.status[name] == "on"
        }
        return took | {"status": dict(side.status), "loads": loader.load_count, "ways": ways}
    finally:
        side.stop()


def main() -> int:
    """Run as a command."""
    about: dict[str, Any] = {
        "check": "load",
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    try:
        tries = [load() for _ in range(TIMES)]
    except ProbeError as error:
        print(json.dumps(about | {"refused": str(error), "cause": error.cause.name, "lies": []}))
        return 0
    best = min(tries, key=lambda one: float(one["ms"]))
    print(json.dumps(about | best | {"lies": []}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
