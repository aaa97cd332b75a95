"""What it takes to load the probes on this kernel, and which of them it takes, also with `io=True`.

Prints one JSON object.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from typing import Any

from trainobs.core.errors import ProbeError
from trainobs.probes.local_backend import LocalBackend

TIMES = 3


def load(*, counts_files: bool = False) -> dict[str, Any]:
    """Load and take out again; what it took, and what came of it."""
    wall, cpu = time.perf_counter(), time.process_time()
    backend = LocalBackend(counts_files=counts_files)
    try:
        took = {
            "ms": (time.perf_counter() - wall) * 1e3,
            "cpu_ms": (time.process_time() - cpu) * 1e3,
        }
        loader = backend._probes._loader
        ways = {
            name: [p for p, _ in loader.attach_points(name)]
            for name in backend.status
            if backend.status[name] == "on"
        }
        return took | {"status": dict(backend.status), "loads": loader.load_count, "ways": ways}
    finally:
        backend.stop()


def main() -> int:
    """Run as a command."""
    about: dict[str, Any] = {
        "check": "load",
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    try:
        tries = [load() for _ in range(TIMES)]
        status = load(counts_files=True)["status"]
    except ProbeError as error:
        print(json.dumps(about | {"refused": str(error), "cause": error.cause.name, "lies": []}))
        return 0
    best = min(tries, key=lambda one: float(one["ms"]))
    lost = [name for name, state in status.items() if state != best["status"][name]]
    lies = [f"LIE with io=True {name} is off: {status[name]}" for name in lost]
    print(json.dumps(about | best | {"lies": lies}))
    return bool(lies)


if __name__ == "__main__":
    sys.exit(main())
