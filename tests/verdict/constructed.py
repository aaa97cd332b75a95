"""Steps made up column by column: a step of 100 ms that computes, and what is put into it."""

from __future__ import annotations

import numpy as np

from trainobs.verdict.facts import Facts
from trainobs.verdict.metric_names import PHASES, STEP
from trainobs.verdict.rules import judge
from trainobs.verdict.summed_steps import SummedSteps
from trainobs.verdict.verdict import Verdict

MS = 1e6
STEPS = 64

COMPUTING = {
    "loader/wait_ns": 1 * MS,
    "phase/transfer_ns": 1 * MS,
    "phase/forward_ns": 38 * MS,
    "phase/backward_ns": 50 * MS,
    "phase/optimizer_ns": 8 * MS,
    "phase/other_ns": 2 * MS,
    "python/gc_ns": 0.1 * MS,
    "sched/main_offcpu_ns": 3 * MS,
    "sched/main_iowait_ns": 0.0,
    "sched/main_runqueue_ns": 1 * MS,
    "sched/thread_runqueue_ns": 1 * MS,
    "sched/worker_iowait_ns": 0.0,
    "sched/worker_runqueue_ns": 0.0,
    "sched/others_cpu_ratio": 0.02,
    "net/sent_bytes": 0.0,
    "batch/count": 1.0,
}

IN_STEP = {
    "sched__work_offcpu_ns": 62 * MS,
    "sched__work_runqueue_ns": 1 * MS,
    "sched__work_iowait_ns": 0.0,
    "sched__transfer_sleep_ns": 0.0,
    "sched__forward_sleep_ns": 0.0,
    "sched__backward_sleep_ns": 0.0,
    "sched__optimizer_sleep_ns": 0.0,
    "sched__other_sleep_ns": 0.0,
}

MARKS = ("phase/forward_ns", "phase/backward_ns", "phase/optimizer_ns", "phase/transfer_ns")

WAITING = {"loader__wait_ns": 100 * MS}  # of 199: the step computes for 98 more
SPLIT = ("device", "cpu_wait", "compute", "sleep", "handover")

TWO_CPUS = Facts(usable_cpus=2.0, all_cpus=2.0, workers=2, world_size=1)


def columns(steps: int = STEPS, without: tuple[str, ...] = (), **changed: object) -> dict:
    """Columns of a computing step, with some changed (`loader__wait_ns=...`, a number or a list).

    The step is the sum of its phases.
    """
    values = COMPUTING | {name.replace("__", "/"): value for name, value in changed.items()}
    made = {
        name: np.array(np.broadcast_to(np.asarray(value, float), steps))
        for name, value in values.items()
        if name not in without
    }
    made[STEP] = sum(made[name] for name in PHASES if name in made)
    return made


def verdict_on(facts: Facts = TWO_CPUS, **changed: object) -> Verdict:
    """The verdict on `columns(**changed)`."""
    summed = SummedSteps()
    summed.add(columns(**changed))
    return judge(summed, facts)


def every(period: int, value: float, steps: int = STEPS) -> list[float]:
    """A cost of `value` in one step of `period`, and none in the others."""
    return [value if step % period == period - 1 else 0.0 for step in range(steps)]


def split(**ms: float) -> dict[str, float]:
    return WAITING | {f"loader__{part}_ns": ms.get(part, 0.0) * MS for part in SPLIT}
