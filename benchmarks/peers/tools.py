"""The tools that are compared: how each is switched on, and what it can tell.

Each is switched on as its documentation says, in the cheapest form that still yields its result.
What it tells is said of that form, under Lightning, without a GPU.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Command = list[str]

EACH = "each"
"""What `per_step` says of a tool whose result has a line for every step."""


def _nothing(folder: Path) -> dict[str, Any]:
    return {}


def _as_it_is(command: Command, folder: Path) -> Command:
    return command


@dataclass(frozen=True)
class Tool:
    """One way to observe a training run.

    Attributes:
        title: what the table calls it.
        tells: what one learns from its output.
        per_step: which steps it reports on, one by one; empty for none.
        packages: distributions it comes from.
        program: what it needs on the PATH.
        trial: a command that fails where it may not observe.
        switch_on: called in the training process with the folder for the tool's files; returns
            what to add to the Trainer's arguments.
        wrap: turns the command that starts the training into the one that starts it observed.
        environment: variables for the training, of the tool's folder and that of the data.
        proof: pattern of the files in which it must have left `mark`, or it did not observe.
    """

    title: str
    tells: str
    per_step: str = ""
    packages: tuple[str, ...] = ()
    program: str = ""
    trial: tuple[str, ...] = ()
    switch_on: Callable[[Path], dict[str, Any]] = _nothing
    wrap: Callable[[Command, Path], Command] = _as_it_is
    environment: Callable[[Path, Path], dict[str, str]] = lambda folder, data: {}
    proof: str = ""
    mark: bytes = b""

    def missing(self) -> str:
        """Why it cannot run here; empty if it can."""
        for package in self.packages:
            if importlib.util.find_spec(MODULES.get(package, package)) is None:
                return f"the package {package} is not installed"
        if self.program and shutil.which(self.program) is None:
            return f"no {self.program} on the PATH"
        if self.trial:
            done = subprocess.run(self.trial, capture_output=True, text=True, check=False)
            if done.returncode:
                return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[0]
        return ""

    def has_observed(self, folder: Path) -> bool:
        """Whether its files show that it did what it is there for."""
        if not self.proof:
            return True
        return any(self.mark in file.read_bytes() for file in folder.glob(self.proof))


MODULES = {"traceml-ai": "traceml_ai", "pydftracer": "dftracer.python"}
"""Packages whose module has another name."""


def _trainobs(folder: Path) -> dict[str, Any]:
    from trainobs import ObsCallback

    return {"callbacks": [ObsCallback(run_dir=folder / "run")]}


def _simple_profiler(folder: Path) -> dict[str, Any]:
    from lightning.pytorch.profilers import SimpleProfiler

    return {"profiler": SimpleProfiler(folder, "report")}


def _advanced_profiler(folder: Path) -> dict[str, Any]:
    from lightning.pytorch.profilers import AdvancedProfiler

    return {"profiler": AdvancedProfiler(folder, "report")}


def _device_stats(folder: Path) -> dict[str, Any]:
    from lightning.pytorch.callbacks import DeviceStatsMonitor
    from lightning.pytorch.loggers import TensorBoardLogger

    return {"callbacks": [DeviceStatsMonitor()], "logger": TensorBoardLogger(folder)}


def _torch_profiler(folder: Path) -> dict[str, Any]:
    from benchmarks.peers.callbacks import TorchProfiler

    return {"callbacks": [TorchProfiler(folder / "trace.json")]}


def _dftracer(folder: Path) -> dict[str, Any]:
    from benchmarks.peers.callbacks import DFTracerSteps

    return {"callbacks": [DFTracerSteps(folder / "trace")]}


def _traceml(command: Command, folder: Path) -> Command:
    python, script, *arguments = command
    launcher = [str(Path(python).with_name("traceml")), "run", script]
    # The default ports may be another's.
    ports = ["--master-port", _free_port(), "--aggregator-port", _free_port()]
    return [*launcher, "--logs-dir", str(folder), "--run-name", "run", *ports, "--args", *arguments]


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _dftracer_environment(folder: Path, data: Path) -> dict[str, str]:
    return {
        "DFTRACER_ENABLE": "1",
        "DFTRACER_INIT": "FUNCTION",
        "DFTRACER_DATA_DIR": str(data),
    }


BARE, AGAIN = "bare", "again"
OURS = "trainobs"

TOOLS = {
    BARE: Tool("no observer", ""),
    # How far from 1 a ratio is by chance; and the others are compared with the mean of the two.
    AGAIN: Tool("no observer, again", "how far chance alone moves a ratio"),
    OURS: Tool(
        "trainobs",
        "phases, fetch, and what the kernel did: calls, files, page cache, disk, scheduler, "
        "network; of the training and its workers; TensorBoard, Parquet",
        per_step=EACH,
        switch_on=_trainobs,
        proof="run/run.json",
        mark=b'"level": "ebpf"',
    ),
    "simple_profiler": Tool(
        "Lightning SimpleProfiler",
        "mean and total time of each hook and of the fetch, over the run",
        switch_on=_simple_profiler,
        proof="*report*",
        mark=b"run_training_batch",
    ),
    "advanced_profiler": Tool(
        "Lightning AdvancedProfiler",
        "calls and time of every Python function under each hook, over the run",
        switch_on=_advanced_profiler,
        proof="*report*",
        mark=b"function calls",
    ),
    "device_stats": Tool(
        "Lightning DeviceStatsMonitor",
        "CPU, memory and swap of the machine in per cent; TensorBoard",
        per_step="1 in 50",
        switch_on=_device_stats,
        proof="**/events.out.tfevents.*",
        mark=b"cpu_percent",
    ),
    "torch_profiler": Tool(
        "torch.profiler, all steps",
        "start and duration of every operator; a trace to open in Perfetto",
        per_step=EACH,
        switch_on=_torch_profiler,
        proof="trace.json",
        mark=b"ProfilerStep#",
    ),
    "traceml": Tool(
        "TraceML",
        "fetch, forward, backward, optimizer, the rest; a verdict; CPU and memory once a second",
        per_step=EACH,
        packages=("traceml-ai",),
        wrap=_traceml,
        proof="run/final_summary.json",
        mark=b'"forward_ms"',
    ),
    "dftracer": Tool(
        "DFTracer",
        "every POSIX call on the data, of the training and its workers; steps that one marks",
        per_step=EACH,
        packages=("dftracer", "pydftracer"),
        switch_on=_dftracer,
        environment=_dftracer_environment,
        proof="*-app.pfw.gz",
        mark=b"\x1f\x8b",  # gzip
    ),
    "strace": Tool(
        "`strace -f -c`",
        "number of system calls of each kind, and time in them, over the run",
        program="strace",
        trial=("strace", "-f", "-c", "true"),
        wrap=lambda command, folder: ["strace", "-f", "-c", "-o", f"{folder}/calls", *command],
        proof="calls",
        mark=b"total",
    ),
    "perf_trace": Tool(
        "`perf trace -s`",
        "number of system calls of each kind and thread, shortest, mean and longest, over the run",
        program="perf",
        trial=("perf", "trace", "-s", "true"),
        wrap=lambda command, folder: ["perf", "trace", "-s", "-o", f"{folder}/calls", *command],
        proof="calls",
        mark=b"Summary of events",
    ),
}


def versions() -> dict[str, str]:
    """Version of each package and program that is there."""
    found = {}
    for package in ("torch", "lightning", *(name for t in TOOLS.values() for name in t.packages)):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    for program in filter(shutil.which, (tool.program for tool in TOOLS.values() if tool.program)):
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        found[program] = done.stdout.partition("\n")[0].rpartition(" ")[2]
    return found
