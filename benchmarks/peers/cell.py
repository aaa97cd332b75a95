"""One run of one tool on one loop: started, watched to its end, and measured from outside."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.peers.processes import RUNNER, end_descendants
from benchmarks.peers.tools import TOOLS, Tool

PEERS = Path(__file__).parent
TIMEOUT_S = 240


@dataclass(frozen=True)
class Settings:
    """How long a run trains before it is measured, and how long it is measured."""

    warm_up_s: float
    window_s: float


def run_cell(loop: str, name: str, data: Path, settings: Settings) -> dict[str, Any]:
    """Run the loop under the tool.

    Returns:
        `loop`, `tool` and either `failed`, why nothing could be measured, or: `steps` (measured),
        `mean_step_us`, `median_step_us`, `cpu_us_per_step` (of all processes, in the window),
        `peak_rss_bytes` (of the training and the tool's processes, not of loader workers, which
        share the training's pages), `bytes_per_1000_steps` (what the tool left on disk) and
        `outside_s` (start and end of the run: its time outside the window).
    """
    with tempfile.TemporaryDirectory(prefix="trainobs-peers-") as scratch:
        folder = Path(scratch)
        (folder / "tool").mkdir()
        begin = time.perf_counter()
        error = _run(loop, name, folder, data, settings)
        wall_s = time.perf_counter() - begin
        measured = {"failed": error} if error else _measured(folder, wall_s)
    return {"loop": loop, "tool": name, **measured}


def _run(loop: str, name: str, folder: Path, data: Path, settings: Settings) -> str:
    """Run it to the end; returns why it failed, empty if it did not."""
    tool = TOOLS[name]
    arguments = [loop, name, str(folder), "--files", str(data)]
    times = ["--warm-up-s", str(settings.warm_up_s), "--window-s", str(settings.window_s)]
    training = [sys.executable, str(PEERS / "loops.py"), *arguments, *times]
    output = folder / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            tool.wrap(training, folder / "tool"),
            cwd=folder / "tool",  # what a tool drops where it stands counts as written by it
            env=_environment(tool, folder / "tool", data),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            status: int | str = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            status = f"none within {TIMEOUT_S} s"
        end_descendants()
    if status == 0 and (folder / "result.json").exists():
        return (
            "" if tool.has_observed(folder / "tool") else f"it left no {tool.proof} that shows it"
        )
    said = output.read_text(errors="replace").strip().splitlines()
    return f"exit status {status}: {said[-1] if said else 'without a word'}"


def _environment(tool: Tool, folder: Path, data: Path) -> dict[str, str]:
    paths = [PEERS.parent, PEERS.parents[1], os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths if str(path)),
        RUNNER: str(os.getpid()),
        **tool.environment(folder, data),
    }


def _measured(folder: Path, wall_s: float) -> dict[str, Any]:
    found = json.loads((folder / "result.json").read_text())
    ends = found["ends_ns"]
    steps_us = [(after - before) / 1e3 for before, after in pairwise(ends)]
    window_s = (ends[-1] - ends[0]) / 1e9
    written = sum(file.stat().st_size for file in (folder / "tool").rglob("*") if file.is_file())
    return {
        "steps": len(steps_us),
        "mean_step_us": round(statistics.fmean(steps_us), 1),
        "median_step_us": round(statistics.median(steps_us), 1),
        "cpu_us_per_step": round(found["cpu_s"] * 1e6 / len(steps_us), 1),
        "peak_rss_bytes": found["rss_bytes"],
        "bytes_per_1000_steps": round(written * 1000 / found["all_steps"]),
        "outside_s": round(wall_s - window_s, 2),
    }
