"""Time off the CPU, and in the run queue."""

from __future__ import annotations

from trainobs.core.abi import Op, Phase, Role
from trainobs.core.catalogue.making import MAIN, THREAD, WORK, WORKER, by_phase, kernel
from trainobs.core.metrics import Cells, Metric, MetricKind

_WORK = "outside loader, checkpoints and validation"

_UNTOLD = (
    "A wake-up that the kernel does not tell of (on a virtual machine under load, one in 600 to "
    "4,000): that wait counts as sleep."
)

_STORAGE = (
    "for storage: in reads of data, writes of checkpoints, calls that sync files or ask for or "
    "set their names and attributes, and where the kernel says that it waits for I/O"
)

_OTHER_CALLS = (
    "Sleep for a server (NFS, FUSE): in other reads and writes; of FUSE, when a file is opened "
    "(unless for a batch) or closed; before Linux 5.15, in all but reads and writes."
)

TASKS: tuple[Metric, ...] = (
    kernel(
        "sched/main_offcpu_ns",
        Cells("ns", (Op.OFFCPU,), (), MAIN),
        "Time the training thread was not on a CPU.",
        source="sched_switch",
        spread=True,
    ),
    kernel(
        "sched/main_iowait_ns",
        Cells("wait_ns", (Op.OFFCPU,), (), MAIN),
        f"Time the training thread slept {_STORAGE}.",
        source="sched_switch",
        blind=_OTHER_CALLS,
    ),
    kernel(
        "sched/main_runqueue_ns",
        Cells("ns", (Op.RUNQUEUE,), (), MAIN),
        "Time the training thread was ready to run and had no CPU.",
        source="sched_switch, sched_wakeup",
        blind=_UNTOLD,
        chart="Training thread ready to run, no CPU",
        spread=True,
    ),
    kernel(
        "sched/thread_runqueue_ns",
        Cells("ns", (Op.RUNQUEUE,), (), THREAD),
        "Time the other threads of the training process were ready to run and had no CPU.",
        source="sched_switch, sched_wakeup",
        blind=_UNTOLD,
    ),
    kernel(
        "sched/main_await_ns",
        Cells("ns", (Op.AWAIT,), (), MAIN),
        "Time the training thread slept until another thread of its process was done, outside the "
        "loader: in collectives on the CPU (gloo), for intra-op threads, a lock or a queue; not "
        "for the interpreter lock (python/gil_wait_ns).",
        source="sched_switch",
        blind="Waiting that spins: NCCL's, and the first moments of OpenMP's.",
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
        f"Time loader workers slept {_STORAGE}.",
        source="sched_switch",
        blind=_OTHER_CALLS,
    ),
    kernel(
        "sched/thread_iowait_ns",
        Cells("wait_ns", (Op.OFFCPU,), (), (Role.THREAD, Role.CHILD)),
        "Time other threads of the training process, and processes that it started (not its loader "
        f"workers), slept {_STORAGE}.",
        source="sched_switch",
        blind=_OTHER_CALLS,
    ),
    kernel(
        "sched/worker_runqueue_ns",
        Cells("ns", (Op.RUNQUEUE,), (), WORKER),
        "Time loader workers were ready to run and had no CPU.",
        source="sched_switch, sched_wakeup",
        blind=_UNTOLD,
        chart="Loader workers ready to run, no CPU",
        spread=True,
    ),
    kernel(
        "sched/wait_offcpu_ns",
        by_phase("ns", Op.PHASE_OFF, Phase.LOADER),
        "The part of sched/main_offcpu_ns in loader/wait_ns; in the rest of that the thread ran.",
        source="sched_switch",
    ),
    kernel(
        "sched/wait_runqueue_ns",
        by_phase("wait_ns", Op.PHASE_OFF, Phase.LOADER),
        "The part of sched/main_runqueue_ns in loader/wait_ns.",
        source="sched_switch, sched_wakeup",
    ),
    kernel(
        "sched/work_offcpu_ns",
        by_phase("ns", Op.PHASE_OFF, *WORK),
        f"The part of sched/main_offcpu_ns {_WORK}.",
        source="sched_switch",
    ),
    kernel(
        "sched/work_runqueue_ns",
        by_phase("wait_ns", Op.PHASE_OFF, *WORK),
        f"The part of sched/main_runqueue_ns {_WORK}.",
        source="sched_switch, sched_wakeup",
    ),
    kernel(
        "sched/work_iowait_ns",
        by_phase("wait_ns", Op.PHASE_SLEEP, *WORK),
        f"The part of sched/main_iowait_ns {_WORK}.",
        source="sched_switch",
    ),
    *(
        kernel(
            f"sched/{phase.name.lower()}_sleep_ns",
            by_phase("ns", Op.PHASE_SLEEP, phase),
            f"Time the training thread slept {where}, for something that is not known: a network, "
            "a timer, another process.",
            source="sched_switch",
            blind="Waiting for a thread of the process (sched/main_await_ns). Null of a phase that "
            "nobody marks: all is in sched/other_sleep_ns.",
        )
        for phase, where in {
            Phase.TRANSFER: "while it moved the batch to the device",
            Phase.FORWARD: "in the forward pass",
            Phase.BACKWARD: "in the backward pass",
            Phase.OPTIMIZER: "in the optimizer",
            Phase.OTHER: "in no phase, in loggers, or in a phase with a name of the user's",
        }.items()
    ),
    *(
        kernel(
            f"sched/{part}_stopped_ns",
            cells,
            f"The part of {slept} in which the training thread was stopped: by a signal (SIGSTOP, "
            "Ctrl-Z), or by a debugger or strace.",
            unit="ns",
            source="sched_switch",
            blind="A control group that is frozen (docker pause), for which see sched/frozen_ns; "
            "and a machine that is suspended.",
        )
        for part, cells, slept in (
            ("main", Cells("bytes", (Op.PHASE_SLEEP,), (), MAIN), "sched/main_offcpu_ns"),
            ("work", by_phase("bytes", Op.PHASE_SLEEP, *WORK), "the sleeps by phase"),
        )
    ),
    *(
        kernel(
            f"sched/{role.name.lower()}_cpu_ns",
            Cells("ns", (Op.ONCPU,), (), (role,)),
            f"CPU time of {whose}.",
            source="sched_switch",
            blind="Time on a CPU counts as a whole in the step in which the thread leaves it.",
            chart=chart,
        )
        for role, whose, chart in (
            (Role.THREAD, "the other threads of the training process", ""),
            (Role.WORKER, "the loader workers", "CPU time of loader workers"),
            (Role.CHILD, "other processes that the training started", ""),
        )
    ),
    Metric(
        "sched/throttled_ns",
        "ns",
        MetricKind.SUM,
        "cpu.stat.local, cpu.stat",
        "Time in which the quota of its control groups kept this process off CPUs, summed over "
        "CPUs; read about once a second, and spread evenly in between.",
        "Before Linux 6.6, quotas of groups above the one that a container shows; and of a group "
        "that it enters later, what that counts until the next reading.",
    ),
    Metric(
        "sched/frozen_ns",
        "ns",
        MetricKind.SUM,
        "cgroup.stat.local",
        "Time in which the control group of this process was frozen (docker pause), from the order "
        "to freeze to the order to go on; read about once a second, and spread evenly in "
        "between.",
        "Groups of version 1, and any before Linux 6.18: null. What follows the last step.",
    ),
    Metric(
        "sched/others_cpu_ratio",
        "ratio",
        MetricKind.GAUGE,
        "/proc/stat",
        "Of the time of the CPUs this process may use, the share that went to processes outside "
        "its tree and to the hypervisor; read once a second.",
        "It is too small if processes of this run use other CPUs, and too large by what a daemon "
        "takes: who is no descendant any more is somebody else.",
        "CPU taken by other processes",
    ),
)
