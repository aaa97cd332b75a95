"""What read and write calls did, and how the page cache served them."""

from __future__ import annotations

from trainobs.core.abi import FileClass, Op
from trainobs.core.catalogue.making import CHECKPOINT, DATA, MAIN, READS, WRITES, kernel
from trainobs.core.metrics import Cells, Metric, MetricKind, Ratio

_WAITS = (
    "Read-ahead of pages that nobody reads (headers of files, one column) makes it too low, that "
    "in earlier steps too high: judge it over many steps."
)
_AHEAD = "What the step consumed: workers read ahead, and this is what they did meanwhile."
_HINTED = Cells("bytes", (Op.HINT,), DATA)
_HINTS = "Unknown where hints brought data in (cache/hint_bytes): for which reads is not told."
_PAST = "reads that bypass the cache (io/data_direct_read_bytes), and hits of FUSE passthrough"
_TREE = "Sockets and pipes count too, as the kernel counts them."

FILES: tuple[Metric, ...] = (
    kernel(
        "io/data_read_bytes",
        Cells("bytes", READS, DATA),
        "Bytes of training data returned by read calls (read, pread, readv, io_uring).",
        chart="Data read",
        blind=_AHEAD,
        spread=True,
    ),
    kernel(
        "io/data_read_count",
        Cells("count", READS, DATA),
        "Read calls on training data, including those at end of file.",
        unit="calls",
        blind=_AHEAD,
    ),
    kernel(
        "io/data_read_ns",
        Cells("ns", (Op.READ,), DATA),
        "Time inside read calls on training data, summed over all threads.",
    ),
    kernel(
        "io/data_open_count",
        Cells("count", (Op.OPEN,), DATA),
        "Training-data files opened.",
        unit="calls",
        blind="Of files that nobody named, opens before the file is data: by who loads nothing, or "
        "to read and write before the first read.",
    ),
    kernel(
        "io/data_direct_read_bytes",
        Cells("bytes", (Op.DIRECT_READ,), DATA),
        "The part of io/data_read_bytes that bypassed the page cache: under O_DIRECT, or as its "
        "file system does (FUSE with direct I/O, 9p without a cache, ZFS, DAX).",
        blind="Such file systems beneath an overlay: their reads count as hits. Under O_DIRECT, "
        "btrfs reads compressed files, and into memory that nobody has touched yet, by way of the "
        "page cache: what is in it counts as bypassed, and so does what io_uring reads with "
        "RWF_DONTCACHE.",
    ),
    kernel(
        "io/data_mmap_bytes",
        Cells("bytes", (Op.MMAP,), DATA),
        "Bytes of training data newly mapped with mmap; mapped is not yet read.",
    ),
    kernel(
        "io/data_fault_count",
        Cells("count", (Op.FAULT,), DATA),
        "Page faults that mapped a page of training data, without those that fault-around served: "
        "by writes, and by reads of pages that were not in memory.",
        unit="faults",
        blind="Nearly all reads of pages in memory: their faults are served with pages around, or "
        "there is none. All faults on tmpfs and hugetlbfs.",
        source="mm_filemap_fault",
    ),
    kernel(
        "io/checkpoint_write_bytes",
        Cells("bytes", WRITES, CHECKPOINT),
        "Bytes of checkpoints handed to the kernel.",
        blind="What another thread writes outside the checkpoint directories (AsyncCheckpointIO). "
        "Unknown once one was mapped to be written: what is written so makes no call.",
    ),
    kernel(
        "io/checkpoint_write_ns",
        Cells("ns", (Op.WRITE,), CHECKPOINT),
        "Time inside write calls on checkpoints.",
    ),
    kernel(
        "io/checkpoint_fsync_ns",
        Cells("ns", (Op.FSYNC,), CHECKPOINT),
        "The part of io/fsync_ns for checkpoints.",
    ),
    kernel(
        "io/fsync_ns",
        Cells("ns", (Op.FSYNC,)),
        "Time inside fsync, fdatasync, sync_file_range and msync.",
    ),
    kernel(
        "io/main_fsync_ns",
        Cells("ns", (Op.FSYNC,), (), MAIN),
        "The part of io/fsync_ns in the training thread.",
    ),
    kernel(
        "io/fsync_count",
        Cells("count", (Op.FSYNC,)),
        "Calls of the fsync family.",
        unit="calls",
    ),
    kernel(
        "io/library_read_bytes",
        Cells("bytes", READS, (FileClass.LIBRARY,)),
        "Bytes of Python code and shared libraries read, mostly when workers start.",
    ),
    kernel(
        "io/read_bytes",
        Cells("bytes", READS),
        "Bytes returned by all read calls of the process tree.",
        blind=_TREE,
    ),
    kernel(
        "io/write_bytes",
        Cells("bytes", WRITES),
        "Bytes accepted by all write calls of the process tree.",
        blind=_TREE,
    ),
    Metric(
        "cache/hit_ratio",
        "ratio",
        MetricKind.RATIO,
        "mm_filemap_add_to_page_cache",
        "Share of the pages that read calls on data asked for (those that each touched) "
        "that were in memory before. Small reads ask for a page again and again, so that it "
        "is no share of the bytes.",
        f"Mapped files, {_PAST}. {_HINTS} {_WAITS}",
        "Page cache hits, of data pages asked for",
        Ratio(
            Cells("bytes", (Op.CACHE_MISS,), DATA),
            Cells("bytes", (Op.CACHE_READ,), DATA),
            True,
            _HINTED,
        ),
    ),
    Metric(
        "cache/demand_hit_ratio",
        "ratio",
        MetricKind.RATIO,
        "page_cache_sync_ra",
        "Share of the data reads that did not have to start read-ahead and wait for it.",
        f"Mapped files, reads by io_uring, {_PAST}. {_HINTS}",
        formula=Ratio(
            Cells("count", (Op.DEMAND_MISS,), DATA),
            Cells("count", (Op.CACHE_READ,), DATA),
            True,
            _HINTED,
        ),
    ),
    Metric(
        "cache/read_stall_ratio",
        "ratio",
        MetricKind.RATIO,
        "sched_switch",
        "Share of the time inside data reads that was spent asleep: for a device, or "
        "for a server (FUSE, network file systems).",
        "Mapped files; and of sendfile and its like, sleep for a server.",
        formula=Ratio(Cells("wait_ns", (Op.READ,), DATA), Cells("ns", (Op.READ,), DATA)),
    ),
    kernel(
        "cache/miss_bytes",
        Cells("bytes", (Op.CACHE_MISS,), DATA),
        "Data pages brought into memory by reads, including read-ahead.",
        source="mm_filemap_add_to_page_cache",
        blind="Pages that io_uring writes to files of data, which count as if they were read.",
    ),
    kernel(
        "cache/fault_fill_bytes",
        Cells("bytes", (Op.FAULT_FILL,), DATA),
        "Data pages brought into memory by faults of mapped files, and by madvise for them.",
        source="mm_filemap_add_to_page_cache",
        blind="Of files that nobody named, those that may be run, or that the run has opened for "
        "writing, until they are read by calls. Where `tobs_fault` does not run: what a call "
        "writes from a mapping, or reads into one.",
    ),
    kernel(
        "cache/hint_bytes",
        _HINTED,
        "Data pages brought into memory by posix_fadvise and readahead, ahead of what reads them.",
        source="mm_filemap_add_to_page_cache",
        blind="Hints by io_uring, which count in cache/miss_bytes.",
    ),
)
