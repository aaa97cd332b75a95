"""Trainings with less than the usual: what trains unobserved trains observed, with equal losses.

Usage (as root): python -m benchmarks.storms.confined

Each confinement is tried on the training alone, then observed. Prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.storms.processes import ROOT

GROUP = Path("/sys/fs/cgroup/memory/trainobs-storm")
MEMORY_BYTES = 300 << 20

_HIDE = 'mount -t tmpfs none {}; exec "$@"'
_NO_ROOM = 'mount -t tmpfs -o size=1m none /dev/shm; exec "$@"'
_FEW = 'ulimit -n {}; exec "$@"'
_SMALL = f'echo $$ > {GROUP}/cgroup.procs; exec "$@"'

CONFINEMENTS: dict[str, tuple[list[str], list[str]]] = {
    "20 descriptors": (["sh", "-c", _FEW.format(20), "sh"], []),
    "24 descriptors, 2 workers": (["sh", "-c", _FEW.format(24), "sh"], ["--workers", "2"]),
    "no /proc": (["unshare", "-m", "sh", "-c", _HIDE.format("/proc"), "sh"], ["--tables", "0"]),
    "no /sys": (["unshare", "-m", "sh", "-c", _HIDE.format("/sys"), "sh"], []),
    "no bpf, no perf_event_open": ([sys.executable, "-m", "benchmarks.storms.without_calls"], []),
    "another clock": (["unshare", "-T", "--monotonic", "86400", "--boottime", "86400"], []),
    "a process name space": (["unshare", "-p", "-f", "--mount-proc"], ["--workers", "2"]),
    "no network": (["unshare", "-n"], []),
    "root without capabilities": (["setpriv", "--inh-caps=-all", "--bounding-set=-all"], []),
    "a user name space": (["unshare", "-U", "-r"], ["--workers", "2"]),
    "1 MiB of /dev/shm": (["unshare", "-m", "sh", "-c", _NO_ROOM, "sh"], ["--workers", "2"]),
    f"{MEMORY_BYTES >> 20} MiB of memory": (["sh", "-c", _SMALL, "sh"], []),
}
"""What is withheld -> what to put before the command, and words of the training."""


def main() -> None:
    """Try every confinement."""
    with tempfile.TemporaryDirectory(prefix="trainobs-storm-") as folder, _group():
        found = {
            name: _try(Path(folder, str(number)), *how)
            for number, (name, how) in enumerate(CONFINEMENTS.items())
        }
    troubles = [f"{name}: {result}" for name, result in found.items() if result["trouble"]]
    print(json.dumps({"tried": len(found), "found": found, "troubles": troubles}, indent=2))


def _try(folder: Path, before: list[str], words: list[str]) -> dict[str, Any]:
    plain, observed = (
        _train(folder / name, before, [*words, *more])
        for name, more in (("plain", ["--plain"]), ("observed", []))
    )
    if plain.returncode:
        return {"level": None, "trouble": "", "trains": False}
    file = folder / "observed" / "run" / "run.json"
    level = json.loads(file.read_bytes())["level"] if file.exists() else None
    trouble = ""
    if observed.returncode or _losses(plain) != _losses(observed):
        trouble = observed.stderr[-2000:] or "the losses differ"
    elif "report it" in observed.stderr or level is None:
        trouble = observed.stderr[-2000:]
    return {"level": level, "trouble": trouble, "trains": True}


def _train(folder: Path, before: list[str], words: list[str]) -> subprocess.CompletedProcess[str]:
    folder.mkdir(parents=True)
    module = ["-m", "benchmarks.storms.training", str(folder), "--steps", "6"]
    return subprocess.run(
        [*before, sys.executable, *module, *words], cwd=ROOT, capture_output=True, text=True
    )


def _losses(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout.splitlines()[-1]


@contextmanager
def _group() -> Iterator[None]:
    """A control group with little memory, of the first version; without one it is not limited."""
    GROUP.mkdir(exist_ok=True)
    try:
        (GROUP / "memory.limit_in_bytes").write_text(str(MEMORY_BYTES))
        yield
    finally:
        os.rmdir(GROUP)


if __name__ == "__main__":
    sys.exit(main())
