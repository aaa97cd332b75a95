"""Runs a setting in a process of its own, and keeps what it left."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from faults.machine import arranged
from faults.setting import Setting

BENCHMARKS = Path(__file__).parents[1]
JOB_S = 240
WITHOUT_PROBES = ("setpriv", "--bounding-set=-sys_admin,-bpf,-perfmon")
RUN = "run"
"""Directory of the run log, beside the file of `Kept`."""


class Failed(Exception):
    """The training ended with an error; has its output."""


class Kept(NamedTuple):
    """What a run left: the run log is in the directory `RUN`.

    Attributes:
        place: its directory.
        step_ms: wall time of all steps by their number, what came between them included.
        middle_ms: the same of the middle half of the steps.
        wall_s: wall time of all steps.
        steps: their number.
        others_cpus: CPUs that others took while it ran, on average.
        setting: what was not as usual.
    """

    place: Path
    step_ms: float
    middle_ms: float
    wall_s: float
    steps: int
    others_cpus: float
    setting: dict[str, Any]

    @property
    def run_dir(self) -> Path:
        """Its run log."""
        return self.place / RUN


def kept(place: Path) -> Kept | None:
    """What an earlier run left there; None: none has ended there."""
    try:
        return Kept(place, **json.loads((place / "kept.json").read_text()))
    except FileNotFoundError:
        return None


def run(setting: Setting, place: Path) -> Kept:
    """Run a setting, unless there is what it left.

    Raises:
        Unavailable: this machine does not let it be so.
        Failed: the training did.
    """
    if found := kept(place):
        return found
    place.mkdir(parents=True, exist_ok=True)
    began, busy_s, ours_s = time.monotonic(), _busy_s(), _ours_s()
    with tempfile.TemporaryDirectory(prefix="trainobs-fault-", dir="/var/tmp") as folder:
        with arranged(setting.machine, Path(folder)) as environment:
            _train(setting, Path(folder), place, environment)
        times = json.loads(Path(folder, "times.json").read_text())
    others_s = (_busy_s() - busy_s) - (_ours_s() - ours_s)
    facts = {
        **times,
        "others_cpus": max(others_s, 0.0) / (time.monotonic() - began),
        "setting": setting.unusual(),
    }
    (place / "kept.json").write_text(json.dumps(facts))
    return Kept(place, **facts)


def _train(setting: Setting, folder: Path, place: Path, environment: dict[str, str]) -> None:
    ranks = setting.training.ranks
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [
        *(WITHOUT_PROBES if setting.machine.unprivileged else []),
        sys.executable,
        *(launcher if ranks > 1 else []),
        *("-m", "faults.job"),
        json.dumps(asdict(setting.training)),
        *(str(path) for path in (folder, (place / RUN).resolve(), folder / "times.json")),
    ]
    with _process(command, os.environ | environment) as process:
        output, _ = process.communicate(timeout=JOB_S)
    if process.returncode:
        raise Failed(output.decode()[-4000:])


@contextmanager
def _process(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, of which nothing is left afterwards."""
    found_first = (str(BENCHMARKS), environment.get("PYTHONPATH"))
    process = subprocess.Popen(
        command,
        env=environment | {"PYTHONPATH": os.pathsep.join(filter(None, found_first))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _busy_s() -> float:
    """CPU time that this machine has used, and what its host took from it."""
    values = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    ticks = {name: int(value) for name, value in zip(names, values, strict=False)}
    used = sum(value for name, value in ticks.items() if name not in ("idle", "iowait"))
    return used / os.sysconf("SC_CLK_TCK")


def _ours_s() -> float:
    """CPU time of this process, and of all that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
