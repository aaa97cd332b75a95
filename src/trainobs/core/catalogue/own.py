"""What observing cost, and what it lost."""

from __future__ import annotations

from trainobs.core.metrics import Metric, MetricKind

OWN: tuple[Metric, ...] = (
    Metric(
        "obs/lost_count",
        "events",
        MetricKind.SUM,
        "trainobs",
        "Kernel events and step records that could not be counted or stored.",
        chart="Lost by trainobs",
    ),
    Metric(
        "obs/cpu_ns",
        "ns",
        MetricKind.SUM,
        "trainobs",
        "CPU time of trainobs in user space: its hooks in the training thread, and its own thread.",
        "The probes inside the kernel: see obs/probe_ns. Hooks on embedding tables.",
        chart="CPU time of trainobs",
    ),
    Metric(
        "obs/probe_ns",
        "ns",
        MetricKind.SUM,
        "BPF statistics",
        "CPU time of the probes in the kernel, on all CPUs: a rate sampled now and then by the "
        "kernel's own BPF statistics, times the length of the step.",
        "An estimate; needs CAP_SYS_ADMIN, null without.",
    ),
)
