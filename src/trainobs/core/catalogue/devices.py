"""Requests to block devices."""

from __future__ import annotations

from trainobs.core.abi import FileClass, Op
from trainobs.core.catalogue.making import CHECKPOINT, DATA, kernel
from trainobs.core.coverage import BLOCK
from trainobs.core.metrics import Cells, Metric, MetricKind

_LIMITS = "What a limit of a control group (io.max) holds back has not been issued: that is sleep."
_HELD_BACK = (
    "Where no program may attach to functions of the kernel: direct and synchronous writes that a "
    "limit of a control group (io.max) held back."
)
_THEIR_OWN = (
    "What dm-crypt (LUKS), RAID 4, 5 and 6 of Linux, and ZFS write: by threads of their own, from "
    "pages of their own."
)
_NONE = "Devices without requests (pmem, brd, zram)."
_TWICE = "What a loop device with direct I/O passes on may count again."

DEVICES: tuple[Metric, ...] = (
    kernel(
        "block/read_bytes",
        Cells("bytes", (Op.BLOCK_READ,)),
        "Bytes read from block devices for the process tree.",
        source="block_rq_complete",
        blind=f"Network file systems have no block device. ZFS reads by its own threads. {_NONE} "
        f"{_TWICE}",
        chart="Read from block devices",
    ),
    kernel(
        "block/data_read_bytes",
        Cells("bytes", (Op.BLOCK_READ,), DATA),
        "The part of block/read_bytes that is training data.",
        source="block_rq_complete",
        blind="Direct reads by io_uring, whose file is not known there. Memory that was swapped "
        "out, and comes back for a read of data, counts.",
    ),
    kernel(
        "block/library_read_bytes",
        Cells("bytes", (Op.BLOCK_READ,), (FileClass.LIBRARY,)),
        "The part of block/read_bytes that is code and libraries, including mapped ones.",
        source="block_rq_complete",
    ),
    kernel(
        "block/read_count",
        Cells("count", (Op.BLOCK_READ,)),
        "Block requests that read.",
        unit="requests",
        source="block_rq_complete",
    ),
    kernel(
        "block/read_ns",
        Cells("ns", (Op.BLOCK_READ,)),
        "Time of block requests that read, from issue to completion, summed.",
        blind=_LIMITS,
        source="block_io_start, block_rq_complete",
    ),
    Metric(
        "block/read_p99_ns",
        "ns",
        MetricKind.QUANTILE,
        "block_io_start, block_rq_complete",
        "99th percentile latency of block requests that read, interpolated in log2 buckets.",
        blind=f"A step with few requests shows nearly its slowest one. {_LIMITS}",
        chart="Reads from block devices: 99th percentile",
        spread=True,
        rests_on=BLOCK,
    ),
    kernel(
        "block/write_bytes",
        Cells("bytes", (Op.BLOCK_WRITE,)),
        "Bytes written to block devices: by the process tree, and by the kernel for its files.",
        source="block_rq_complete",
        blind="Write-back of files that are neither data nor checkpoint. "
        f"{_THEIR_OWN} {_NONE} {_HELD_BACK} {_TWICE}",
    ),
    kernel(
        "block/checkpoint_write_bytes",
        Cells("bytes", (Op.BLOCK_WRITE,), CHECKPOINT),
        "Bytes of checkpoints written to block devices, whoever issued the write.",
        source="block_rq_complete",
        blind=f"Write-back of files that btrfs compresses. {_THEIR_OWN} {_NONE} {_TWICE}",
    ),
)
