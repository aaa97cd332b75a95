"""Time off the CPU, and in the run queue."""

from __future__ import annotations

from trainobs.core.abi import Op
from trainobs.core.catalogue.making import MAIN, THREAD, WORKER, kernel
from trainobs.core.metrics import Cells, Metric, MetricKind

TASKS: tuple[Metric, ...] = (
    kernel(
        "sched/main_offcpu_ns",
        Cells("ns", (Op.OFFCPU,), (), MAIN),
        "Time the training thread was not on a CPU.",
        source="sched_switch",
        chart="Scheduler: training thread",
        spread=True,
    ),
    kernel(
        "sched/main_iowait_ns",
        Cells("wait_ns", (Op.OFFCPU,), (), MAIN),
        "Time the training thread slept for a block device.",
        source="sched_switch",
        chart="Scheduler: training thread",
    ),
    kernel(
        "sched/main_runqueue_ns",
        Cells("ns", (Op.RUNQUEUE,), (), MAIN),
        "Time the training thread was ready to run and had no CPU.",
        source="sched_switch, sched_wakeup",
        chart="Scheduler: training thread",
        spread=True,
    ),
    kernel(
        "sched/thread_runqueue_ns",
        Cells("ns", (Op.RUNQUEUE,), (), THREAD),
        "Time the other threads of the training process were ready to run and had no CPU.",
        source="sched_switch, sched_wakeup",
        chart="Scheduler: training thread",
    ),
    kernel(
        "sched/main_await_ns",
        Cells("ns", (Op.AWAIT,), (), MAIN),
        "Time the training thread slept until another thread of its process was done, outside the "
        "loader: in collectives on the CPU (gloo), for intra-op threads, a lock or a queue; not "
        "for the interpreter lock (python/gil_wait_ns).",
        source="sched_switch",
        blind="Waiting that spins: NCCL's, and the first moments of OpenMP's.",
        chart="Scheduler: training thread",
    ),
    kernel(
        "sched/worker_offcpu_ns",
        Cells("ns", (Op.OFFCPU,), (), WORKER),
        "Time loader workers were not on a CPU, including idle time, summed over their threads.",
        source="sched_switch",
        blind="A sleep counts as a whole in the step in which it ends: idle workers exceed the "
        "step.",
    ),
    kernel(
        "sched/worker_iowait_ns",
        Cells("wait_ns", (Op.OFFCPU,), (), WORKER),
        "Time loader workers slept for a block device.",
        source="sched_switch",
        chart="Scheduler: loader workers",
    ),
    kernel(
        "sched/worker_runqueue_ns",
        Cells("ns", (Op.RUNQUEUE,), (), WORKER),
        "Time loader workers were ready to run and had no CPU.",
        source="sched_switch, sched_wakeup",
        chart="Scheduler: loader workers",
        spread=True,
    ),
    Metric(
        "sched/others_cpu_ratio",
        "ratio",
        MetricKind.GAUGE,
        "/proc/stat",
        "Of the time of the CPUs this process may use, the share that went to processes outside "
        "its tree and to the hypervisor; read once a second.",
        "It is too small if processes of this run use other CPUs.",
        "Taken by others",
    ),
)
