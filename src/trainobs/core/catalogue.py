"""The catalogue: every number that trainobs logs, what it means and how it is made.

TensorBoard tags, Parquet columns, the report and `docs/metrics.md` all come from `CATALOGUE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainobs.core.kernel import FileClass, Op, Phase, Role
from trainobs.core.metrics import Cells, Kind, Metric, Ratio

_DATA = (FileClass.DATA,)
_CHECKPOINT = (FileClass.CHECKPOINT,)
_MAIN = (Role.MAIN,)
_WORKER = (Role.WORKER,)
_READS = (Op.READ, Op.URING_READ)
_WRITES = (Op.WRITE, Op.URING_WRITE)


def _kernel(
    name: str,
    unit: str,
    formula: Cells,
    tells: str,
    *,
    chart: str = "",
    blind: str = "",
    source: str = "system calls",
    spread: bool = False,
) -> Metric:
    return Metric(name, unit, Kind.SUM, source, tells, blind, chart, formula, spread)


def _timed(
    name: str, tells: str, *, chart: str = "", blind: str = "", spread: bool = False
) -> Metric:
    return Metric(name, "ns", Kind.SUM, "training loop", tells, blind, chart, None, spread)


def _phase(phase: Phase, tells: str) -> Metric:
    return _timed(phase_metric(phase), tells, chart="Where the step went")


def phase_metric(phase: Phase) -> str:
    """Name of the metric that holds the time of a phase."""
    return "loader/wait_ns" if phase is Phase.LOADER else f"phase/{phase.name.lower()}_ns"


_WAITS = "Read-ahead in earlier steps can hide or overshoot it: judge it over many steps."
_AHEAD = "Workers read ahead, so this is what they did during the step, not what the step consumed."
_TREE = "Sockets and pipes count too, as the kernel counts them."

CATALOGUE: tuple[Metric, ...] = (
    _timed(
        "step/duration_ns",
        "Wall time from one step's first fetch to the next step's.",
        chart="Step time",
        spread=True,
    ),
    _timed(
        "loader/wait_ns",
        "Time the training thread waited for the next batch.",
        chart="Where the step went",
        blind="Lightning's start of workers at the beginning of an epoch: it is in phase/other_ns.",
        spread=True,
    ),
    _phase(Phase.TRANSFER, "Time moving the batch to the device, as the host sees it."),
    _phase(Phase.FORWARD, "Time in the forward pass, as the host sees it."),
    _phase(Phase.BACKWARD, "Time in the backward pass, as the host sees it."),
    _phase(Phase.OPTIMIZER, "Time in the optimizer, forward and backward inside it left out."),
    _phase(Phase.CHECKPOINT, "Time the training thread was blocked by saving a checkpoint."),
    _phase(Phase.VALIDATION, "Time in validation between this step and the next."),
    _phase(Phase.LOGGING, "Time the training thread spent in loggers."),
    _phase(Phase.OTHER, "What is left of the step."),
    _kernel(
        "io/data_read_bytes",
        "bytes",
        Cells("bytes", _READS, _DATA),
        "Bytes of training data returned by read calls (read, pread, readv, io_uring).",
        chart="Data read",
        blind=_AHEAD,
        spread=True,
    ),
    _kernel(
        "io/data_read_count",
        "calls",
        Cells("count", _READS, _DATA),
        "Read calls on training data, those at end of file included.",
        chart="Data calls",
        blind=_AHEAD,
    ),
    _kernel(
        "io/data_read_ns",
        "ns",
        Cells("ns", (Op.READ,), _DATA),
        "Time inside read calls on training data, summed over all workers.",
        chart="Time in I/O calls",
    ),
    _kernel(
        "io/data_open_count",
        "calls",
        Cells("count", (Op.OPEN,), _DATA),
        "Training-data files opened.",
        chart="Data calls",
    ),
    _kernel(
        "io/data_direct_read_bytes",
        "bytes",
        Cells("bytes", (Op.DIRECT_READ,), _DATA),
        "The part of io/data_read_bytes that went round the page cache (O_DIRECT).",
    ),
    _kernel(
        "io/data_mmap_bytes",
        "bytes",
        Cells("bytes", (Op.MMAP,), _DATA),
        "Bytes of training data newly mapped with mmap; mapped is not yet read.",
    ),
    _kernel(
        "io/data_fault_count",
        "faults",
        Cells("count", (Op.FAULT,), _DATA),
        "Page faults on mapped training data that the page tables could not serve.",
        blind="Pages mapped by fault-around cost no further fault.",
        source="mm_filemap_fault",
    ),
    _kernel(
        "io/checkpoint_write_bytes",
        "bytes",
        Cells("bytes", _WRITES, _CHECKPOINT),
        "Bytes of checkpoints handed to the kernel.",
        chart="Checkpoint",
        blind="What another thread writes outside the checkpoint directories (AsyncCheckpointIO).",
    ),
    _kernel(
        "io/checkpoint_write_ns",
        "ns",
        Cells("ns", (Op.WRITE,), _CHECKPOINT),
        "Time inside write calls on checkpoints.",
        chart="Time in I/O calls",
    ),
    _kernel(
        "io/fsync_ns",
        "ns",
        Cells("ns", (Op.FSYNC,)),
        "Time inside fsync, fdatasync, sync_file_range and msync.",
        chart="Time in I/O calls",
    ),
    _kernel("io/fsync_count", "calls", Cells("count", (Op.FSYNC,)), "Calls of the fsync family."),
    _kernel(
        "io/library_read_bytes",
        "bytes",
        Cells("bytes", _READS, (FileClass.LIBRARY,)),
        "Bytes of Python code and shared libraries read, mostly when workers start.",
    ),
    _kernel(
        "io/read_bytes",
        "bytes",
        Cells("bytes", _READS),
        "Bytes returned by all read calls of the process tree.",
        blind=_TREE,
    ),
    _kernel(
        "io/write_bytes",
        "bytes",
        Cells("bytes", _WRITES),
        "Bytes accepted by all write calls of the process tree.",
        blind=_TREE,
    ),
    Metric(
        "cache/hit_ratio",
        "ratio",
        Kind.RATIO,
        "mm_filemap_add_to_page_cache",
        "Share of the data pages read that were in memory before the read asked for them.",
        "Mapped files, and direct reads, which go round the cache. " + _WAITS,
        "Page cache",
        Ratio(
            Cells("bytes", (Op.CACHE_MISS,), _DATA), Cells("bytes", (Op.CACHE_READ,), _DATA), True
        ),
    ),
    Metric(
        "cache/demand_hit_ratio",
        "ratio",
        Kind.RATIO,
        "page_cache_sync_ra (Linux 6.18)",
        "Share of the data reads that did not have to start read-ahead and wait for it.",
        "Mapped files.",
        "Page cache",
        Ratio(
            Cells("count", (Op.DEMAND_MISS,), _DATA), Cells("count", (Op.CACHE_READ,), _DATA), True
        ),
    ),
    Metric(
        "cache/read_stall_ratio",
        "ratio",
        Kind.RATIO,
        "sched_switch",
        "Share of the time inside data reads that was spent asleep, waiting for the device.",
        "Mapped files.",
        "Page cache",
        Ratio(Cells("wait_ns", (Op.READ,), _DATA), Cells("ns", (Op.READ,), _DATA)),
    ),
    _kernel(
        "cache/miss_bytes",
        "bytes",
        Cells("bytes", (Op.CACHE_MISS,), _DATA),
        "Data pages brought into memory by reads, read-ahead included.",
        source="mm_filemap_add_to_page_cache",
        chart="Data read",
    ),
    _kernel(
        "cache/fault_fill_bytes",
        "bytes",
        Cells("bytes", (Op.FAULT_FILL,), _DATA),
        "Data pages brought into memory by faults of mapped files and by readahead hints.",
        source="mm_filemap_add_to_page_cache",
    ),
    _kernel(
        "block/read_bytes",
        "bytes",
        Cells("bytes", (Op.BLOCK_READ,)),
        "Bytes read from block devices for the process tree.",
        source="block_io_done",
        blind="Network file systems have no block device.",
        chart="Block device bytes",
    ),
    _kernel(
        "block/data_read_bytes",
        "bytes",
        Cells("bytes", (Op.BLOCK_READ,), _DATA),
        "The part of block/read_bytes that is training data.",
        source="block_io_done",
        chart="Block device bytes",
    ),
    _kernel(
        "block/read_count",
        "requests",
        Cells("count", (Op.BLOCK_READ,)),
        "Block requests that read.",
        source="block_io_done",
    ),
    _kernel(
        "block/read_ns",
        "ns",
        Cells("ns", (Op.BLOCK_READ,)),
        "Time of reading block requests from issue to completion, summed.",
        source="block_io_start, block_io_done",
    ),
    Metric(
        "block/read_p99_ns",
        "ns",
        Kind.QUANTILE,
        "block_io_start, block_io_done",
        "99th percentile latency of reading block requests, interpolated in log2 buckets.",
        "A step with few requests shows nearly its slowest one.",
        "Block device latency",
        None,
        True,
    ),
    _kernel(
        "block/write_bytes",
        "bytes",
        Cells("bytes", (Op.BLOCK_WRITE,)),
        "Bytes written to block devices: by the process tree, and by the kernel for its files.",
        source="block_io_done",
        blind="Write-back of files that are neither data nor checkpoint.",
        chart="Block device bytes",
    ),
    _kernel(
        "block/checkpoint_write_bytes",
        "bytes",
        Cells("bytes", (Op.BLOCK_WRITE,), _CHECKPOINT),
        "Bytes of checkpoints written to block devices, whoever issued the write.",
        source="block_io_done",
        chart="Checkpoint",
    ),
    _kernel(
        "sched/main_offcpu_ns",
        "ns",
        Cells("ns", (Op.OFFCPU,), (), _MAIN),
        "Time the training thread was not on a CPU.",
        source="sched_switch",
        chart="Scheduler: training thread",
        spread=True,
    ),
    _kernel(
        "sched/main_iowait_ns",
        "ns",
        Cells("wait_ns", (Op.OFFCPU,), (), _MAIN),
        "Time the training thread slept for a block device.",
        source="sched_switch",
        chart="Scheduler: training thread",
    ),
    _kernel(
        "sched/main_runqueue_ns",
        "ns",
        Cells("ns", (Op.RUNQUEUE,), (), _MAIN),
        "Time the training thread was ready to run and had no CPU.",
        source="sched_switch, sched_wakeup",
        chart="Scheduler: training thread",
        spread=True,
    ),
    _kernel(
        "sched/worker_offcpu_ns",
        "ns",
        Cells("ns", (Op.OFFCPU,), (), _WORKER),
        "Time loader workers were not on a CPU, idle time included, summed over their threads.",
        source="sched_switch",
        blind="A sleep counts whole in the step in which it ends: idle workers exceed the step.",
    ),
    _kernel(
        "sched/worker_iowait_ns",
        "ns",
        Cells("wait_ns", (Op.OFFCPU,), (), _WORKER),
        "Time loader workers slept for a block device.",
        source="sched_switch",
        chart="Scheduler: loader workers",
    ),
    _kernel(
        "sched/worker_runqueue_ns",
        "ns",
        Cells("ns", (Op.RUNQUEUE,), (), _WORKER),
        "Time loader workers were ready to run and had no CPU.",
        source="sched_switch, sched_wakeup",
        chart="Scheduler: loader workers",
        spread=True,
    ),
    _kernel(
        "net/sent_bytes",
        "bytes",
        Cells("bytes", (Op.SEND,), (FileClass.SOCKET,)),
        "Bytes sent on internet sockets, loopback included.",
        source="sock_send_length",
        blind="RDMA, and GPU-direct transports, bypass sockets.",
        chart="Network",
    ),
    _kernel(
        "net/received_bytes",
        "bytes",
        Cells("bytes", (Op.RECEIVE,), (FileClass.SOCKET,)),
        "Bytes received on internet sockets, loopback included.",
        source="sock_recv_length",
        blind="RDMA, and GPU-direct transports, bypass sockets.",
        chart="Network",
    ),
    *(
        Metric(
            f"pressure/{resource}_ns",
            "ns",
            Kind.SUM,
            f"/proc/pressure/{resource}",
            f"Time in which some task of the whole machine waited for {what}.",
            "Whose task it was. Logged on the procfs rung only.",
        )
        for resource, what in {"cpu": "a CPU", "io": "I/O", "memory": "memory"}.items()
    ),
    Metric(
        "memory/major_fault_count",
        "faults",
        Kind.SUM,
        "getrusage",
        "Page faults of the training process that had to read from a device.",
        "Faults of loader workers.",
    ),
    Metric(
        "obs/lost_count",
        "events",
        Kind.SUM,
        "trainobs",
        "Kernel events and step records that could not be counted or stored.",
        chart="Cost of observing",
    ),
    Metric(
        "obs/cpu_ns",
        "ns",
        Kind.SUM,
        "trainobs",
        "CPU time of trainobs in user space: its hooks in the training thread, and its own thread.",
        "The probes inside the kernel: see obs/probe_ns.",
        chart="Cost of observing",
    ),
    Metric(
        "obs/probe_ns",
        "ns",
        Kind.SUM,
        "BPF statistics",
        "CPU time of the probes in the kernel, on all CPUs: a rate sampled now and then by the "
        "kernel's own BPF statistics, times the length of the step.",
        "An estimate; needs CAP_SYS_ADMIN, null without.",
        chart="Cost of observing",
    ),
)

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in CATALOGUE}


def kernel_metrics() -> Iterable[Metric]:
    """Metrics whose value follows from kernel cells."""
    return (metric for metric in CATALOGUE if metric.formula is not None)
