"""What a run must say, and when it must say nothing: known values, and the programs behind them.

A number that is there must be right; without its programs it must not be there. The table is
written down anew, and not taken from the catalogue, so that a wrong entry there is found.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CALLS = ("tobs_sys_enter", "tobs_sys_exit")
BLOCK = ("tobs_blk_start", "tobs_blk_done")
SCHED = ("tobs_switch",)
QUEUE = ("tobs_switch", "tobs_wakeup", "tobs_wakeup_new")

NEEDS: dict[str, tuple[str, ...]] = {
    "io/data_read_bytes": CALLS,
    "io/data_read_count": CALLS,
    "io/data_read_ns": CALLS,
    "io/data_open_count": CALLS,
    "io/data_direct_read_bytes": CALLS,
    "io/data_mmap_bytes": CALLS,
    "io/data_fault_count": ("tobs_fault",),
    "io/checkpoint_write_bytes": CALLS,
    "io/checkpoint_write_ns": CALLS,
    "io/checkpoint_fsync_ns": CALLS,
    "io/fsync_ns": CALLS,
    "io/fsync_count": CALLS,
    "io/library_read_bytes": CALLS,
    "cache/hit_ratio": (*CALLS, "tobs_cache_add"),
    "cache/demand_hit_ratio": (*CALLS, "tobs_ra_wait"),
    "cache/read_stall_ratio": (*CALLS, *SCHED),
    "cache/miss_bytes": (*CALLS, "tobs_cache_add"),
    "cache/fault_fill_bytes": ("tobs_cache_add",),
    "block/data_read_bytes": (*BLOCK, "tobs_cache_add"),
    "block/library_read_bytes": (*BLOCK, "tobs_cache_add"),
    "block/read_count": BLOCK,
    "block/read_ns": BLOCK,
    "block/read_p99_ns": BLOCK,
    "block/checkpoint_write_bytes": (*BLOCK, "tobs_cache_add"),
    "sched/main_offcpu_ns": SCHED,
    "sched/main_iowait_ns": SCHED,
    "sched/main_runqueue_ns": QUEUE,
    "sched/thread_runqueue_ns": QUEUE,
    "sched/main_await_ns": ("tobs_switch", "tobs_await"),
    "sched/thread_cpu_ns": SCHED,
    "sched/forward_sleep_ns": ("tobs_switch", "tobs_await"),
    "sched/other_sleep_ns": ("tobs_switch", "tobs_await"),
    "sched/worker_offcpu_ns": SCHED,
    "sched/worker_iowait_ns": SCHED,
    "sched/worker_runqueue_ns": QUEUE,
    "net/sent_bytes": ("tobs_send",),
    "net/received_bytes": ("tobs_receive",),
    "memory/reclaim_ns": ("tobs_reclaim", "tobs_reclaimed"),
    "memory/reclaim_bytes": ("tobs_reclaim", "tobs_reclaimed"),
}
"""Metric -> programs without which it is unknown, on a run that eBPF observes."""

FROM_PROCFS = frozenset(
    f"sched/{what}_ns"
    for what in (
        *("main_offcpu", "main_runqueue", "thread_runqueue"),
        *("worker_offcpu", "worker_runqueue"),
    )
)
"""Metrics with another source where there is no eBPF: the kernel's own totals."""


@dataclass
class Truth:
    """What is known of a run.

    Attributes:
        exact: metric -> value.
        between: metric -> the least and the most it can be.
    """

    exact: dict[str, float] = field(default_factory=dict)
    between: dict[str, tuple[float, float]] = field(default_factory=dict)


def report_of(run: Path) -> dict[str, Any]:
    """What `trainobs report RUN --json` prints."""
    command = [sys.executable, "-m", "trainobs", "report", str(run), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"trainobs report failed: {done.stderr[-2000:]}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def value_of(report: Mapping[str, Any], name: str) -> float | None:
    """A metric over the whole run: its sum, or for ratios and quantiles its value."""
    about = report["metrics"].get(name) or {}
    value = about.get("sum")
    return about.get("mean") if value is None else value


def judge(report: Mapping[str, Any], truth: Truth) -> dict[str, Any]:
    """Compare a report with what is true.

    Returns:
        `lies`: in words; `truth`: metrics of which a value is known; `right`: those of them that
        are there and right; `unknown`: metrics that are not there; `values`: all looked at.
    """
    states = report["capabilities"]
    traced = report["level"] == "ebpf"
    lies: list[str] = []
    right: list[str] = []
    unknown: list[str] = []
    values = {name: value_of(report, name) for name in NEEDS}
    for name, needs in NEEDS.items():
        value = values[name]
        off = [program for program in needs if states.get(program, "off") != "on"]
        known = name in truth.exact or name in truth.between
        if value is None:
            unknown.append(name)
            if known and traced and not off:
                lies.append(f"LIE {name} is missing, though {', '.join(needs)} are on")
        elif off and not (name in FROM_PROCFS and not traced):
            lies.append(f"LIE {name} is {value:g}, but {', '.join(off)} is off")
        elif name in truth.exact and abs(value - truth.exact[name]) > 1e-9 * abs(value):
            lies.append(f"LIE {name} is {value:.12g}, not {truth.exact[name]:.12g}")
        elif (
            name in truth.between and not truth.between[name][0] <= value <= truth.between[name][1]
        ):
            low, high = truth.between[name]
            lies.append(f"LIE {name} is {value:g}, not between {low:g} and {high:g}")
        elif known:
            right.append(name)
    truths = sorted(truth.exact | truth.between)
    return {"lies": lies, "truth": truths, "right": right, "unknown": unknown, "values": values}
