"""Steps and their phases, timed in the training loop."""

from __future__ import annotations

from trainobs.core.abi import FileClass, Op, Phase
from trainobs.core.catalogue.making import WORKER, kernel, loader_part, phase, timed
from trainobs.core.metrics import Cells, Metric, MetricKind

STEPS: tuple[Metric, ...] = (
    timed(
        "step/duration_ns",
        "Wall time from one step's first fetch to the next step's.",
        chart="Step time",
        spread=True,
    ),
    timed(
        "loader/wait_ns",
        "Time the training thread waited for the next batch.",
        chart="Waiting for data",
        spread=True,
    ),
    loader_part(
        "loader/device_ns",
        "The part of loader/wait_ns in which the maker of the awaited batch slept for a device.",
        chart="Waiting for data: the device",
    ),
    loader_part(
        "loader/cpu_wait_ns",
        "The part of loader/wait_ns in which the maker of the batch was ready and had no CPU.",
        chart="Waiting for data: no CPU for the loader",
    ),
    loader_part(
        "loader/compute_ns",
        "The part of loader/wait_ns in which the maker of the awaited batch ran on a CPU.",
        chart="Waiting for data: the loader computes",
    ),
    loader_part(
        "loader/sleep_ns",
        "The part of loader/wait_ns in which the maker of the batch slept for anything but a "
        "device: for a network, a lock, a timer, a thread, a process.",
        chart="Waiting for data: the loader sleeps otherwise",
    ),
    loader_part(
        "loader/handover_ns",
        "What is left of loader/wait_ns: the batch was made, and on its way, or the training "
        "thread was at something else in `next` (a sampler); and workers that start or end.",
        chart="Waiting for data: batch made, not yet received",
    ),
    timed(
        "loader/start_stop_ns",
        "The part of loader/handover_ns in which loaders and their workers started, or ended.",
        blind="Iterators made outside the time that is known as waiting; without eBPF, the time "
        "from a worker's start to its first batch.",
    ),
    timed(
        "loader/worker_start_stop_ns",
        "The part of loader/start_stop_ns that is surely the workers': the training thread "
        "started them, or waited for them to begin or to end. The rest may be a sampler that makes "
        "its order.",
        blind="The end of workers of an iterable data set. Null in run logs of older versions.",
    ),
    Metric(
        "loader/batch_count",
        "batches",
        MetricKind.SUM,
        "training loop",
        "Batches that the training thread took from torch's loaders, but for those of validation.",
        "Batches of a loader of one's own. Null without eBPF.",
    ),
    kernel(
        "loader/received_bytes",
        Cells("bytes", (Op.RECEIVE,), (FileClass.SOCKET,), WORKER),
        "Bytes that loader workers received on internet sockets, loopback included.",
        source="sock_recv_length",
        blind="What the training thread receives for its loader where there is no worker.",
    ),
    phase(Phase.TRANSFER, "Time moving the batch to the device, as the host sees it."),
    phase(Phase.FORWARD, "Time in the forward pass, as the host sees it."),
    phase(Phase.BACKWARD, "Time in the backward pass, as the host sees it."),
    phase(Phase.OPTIMIZER, "Time in the optimizer, without forward and backward inside it."),
    phase(Phase.CHECKPOINT, "Time the training thread was blocked by saving a checkpoint."),
    phase(Phase.VALIDATION, "Time in validation between this step and the next."),
    phase(Phase.LOGGING, "Time the training thread spent in loggers."),
    phase(Phase.OTHER, "What is left of the step."),
)
