"""The contract between `bpf/trainobs.h` and user space, seen from Python.

Every number here stands in the C header too; `tests/kernel/test_contract.py` compares both
through the BTF of the built object, so that neither side can drift alone.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Op(IntEnum):
    """What the kernel did (`enum tobs_op`)."""

    READ = 0
    WRITE = 1
    FSYNC = 2
    OPEN = 3
    MMAP = 4
    URING_ENTER = 5
    URING_READ = 6
    URING_WRITE = 7
    DIRECT_READ = 8
    CACHE_READ = 9
    CACHE_MISS = 10
    DEMAND_MISS = 11
    FAULT = 12
    FAULT_FILL = 13
    BLOCK_READ = 14
    BLOCK_WRITE = 15
    OFFCPU = 16
    RUNQUEUE = 17
    SEND = 18
    RECEIVE = 19
    RECLAIM = 20
    AWAIT = 21
    ONCPU = 22
    PHASE_OFF = 23
    PHASE_SLEEP = 24
    AIO = 25
    HINT = 26
    MAP_WRITE = 27
    UNNAMED_FILL = 28


BY_PHASE = (Op.PHASE_OFF, Op.PHASE_SLEEP)
"""Of the training thread, by its phase, whose number stands in place of a class."""

UNTABLED = (Op.ONCPU, Op.PHASE_OFF, Op.PHASE_SLEEP)
"""Operations that the run log has as columns of steps alone: those by phase have no class."""


class FileClass(IntEnum):
    """What kind of file it was done to (`enum tobs_class`)."""

    OTHER = 0
    DATA = 1
    CHECKPOINT = 2
    LIBRARY = 3
    SHM = 4
    PIPE = 5
    SOCKET = 6
    PSEUDO = 7


class Role(IntEnum):
    """Who did it (`enum tobs_role`)."""

    MAIN = 0  # the thread that runs the training loop
    THREAD = 1  # another thread of the same process
    WORKER = 2  # a DataLoader worker process
    CHILD = 3  # any other descendant
    KERNEL = 4  # a kernel thread, for write-back of a file of ours


class Phase(IntEnum):
    """What the training loop says it is doing (`enum tobs_phase`)."""

    OTHER = 0
    LOADER = 1
    TRANSFER = 2
    FORWARD = 3
    BACKWARD = 4
    OPTIMIZER = 5
    CHECKPOINT = 6
    VALIDATION = 7
    LOGGING = 8


RING = 128
"""Step rows kept by the kernel; a step's row is `serial % RING`."""

BUCKETS = 40
"""log2 latency buckets: bucket b counts latencies of [2**b, 2**(b+1)) nanoseconds."""

CELL = np.dtype([("count", "<u8"), ("bytes", "<u8"), ("ns", "<u8"), ("wait_ns", "<u8")])
"""`struct tobs_cell`: events, bytes, time in them, and how much of it was spent waiting for I/O."""

CELLS_SHAPE = (len(Op), len(FileClass), len(Role))
"""Axes of one step row."""

MARK = len(Op)
"""`TOBS_MARK`: stands for an op in the table of system calls, for the call that marks batches."""

STAT, LIST = MARK + 1, MARK + 2
"""`TOBS_STAT`, `TOBS_LIST`: likewise, for calls that are counted only where files are."""

NO_OFFSET = 255
"""`TOBS_NO_OFFSET`: the position of a call in its file is not among the arguments."""

RWF = 8
"""`TOBS_RWF`: added to the argument with the position where the sixth has flags (pwritev2(2))."""

BATCHES = 512
"""Batches of loaders kept by the kernel; the entry of the nth, from 0, is `n % BATCHES`."""

BATCH_BEGIN, BATCH_END, BATCH_VOID = 0x746F6273, 0x746F6274, 0x746F6275
"""First argument of the `prctl` calls that mark a batch."""

MAIN_WORKER = 2**32 - 1
"""`tobs_batch::worker` of a batch that the training thread makes itself."""

BATCH = np.dtype(
    [
        ("ordinal", "<u8"),
        ("loader", "<u8"),
        ("pass", "<u4"),
        ("worker", "<u4"),
        ("number", "<u8"),
        ("begin_ns", "<u8"),
        ("end_ns", "<u8"),
        ("read_bytes", "<u8"),
        ("read_count", "<u8"),
        ("read_ns", "<u8"),
        ("device_ns", "<u8"),
        ("runqueue_ns", "<u8"),
        ("sleep_ns", "<u8"),
        ("received_bytes", "<u8"),
        ("handed_bytes", "<u8"),
        ("slowest_ns", "<u8"),
        ("slowest_name", "S48"),
    ]
)
"""`struct tobs_batch`: what it took to make one batch of a loader."""

FIELDS: tuple[str, ...] = CELL.names or ()

OWN_COUNTERS = 32
"""Counters that a program of a user's may have."""

OWN_CELL = np.dtype([("count", "<u8"), ("value", "<u8")])
"""`struct tobs_own_cell`; a row has one for each counter and role."""

LOSSES = np.dtype([("tasks", "<u8"), ("requests", "<u8"), ("classes", "<u8")])
"""`struct tobs_losses`: what could not be counted."""

ROWS_EACH = 16
"""Rows in an element of the kernel's array; its last element is `COUNTS`."""

COUNTS = np.dtype(
    [
        ("step_latency", "<u8", (RING, BUCKETS)),
        ("histograms", "<u8", (*CELLS_SHAPE, BUCKETS)),
        ("losses", LOSSES),
        ("touched", "u1", CELLS_SHAPE),
        ("batch_count", "<u8"),
        ("batches", BATCH, (BATCHES,)),
    ]
)
"""`struct tobs_counts`: what is counted for a session beside its rows. Cells that are `touched`
have grown."""

SUMS = np.dtype([("rows", CELL, (RING, *CELLS_SHAPE)), *COUNTS.descr])
"""All that is counted for a session, as its elements follow each other."""


class Event(IntEnum):
    """What a process that imports nothing of ours is seen to do (`enum tobs_event`)."""

    BACKWARD = 0  # autograd's engine is started
    OPTIMIZER = 1  # an optimizer begins to step
    FETCH = 2  # a loader is asked for a batch


SEEN_STEP = np.dtype([("begin_ns", "<u8"), ("loader_ns", "<u8"), ("counts", "<u8", (len(Event),))])
"""`struct tobs_seen_step`: a step of such a process."""

SEEN = np.dtype(
    [
        ("opens", "<u4"),
        ("needs", "<u4"),
        ("came", "<u4"),
        ("timed", "<u4"),
        ("depth", "<u4"),
        ("half_turns", "<u4"),
        ("nests", "<u4"),
        ("inside", "<u4"),
        ("outer_ns", "<u8"),
        ("fetch_ns", "<u8"),
        ("scopes", "<u8"),
        ("ends", "<u8"),
        ("counts", "<u8", (len(Event),)),
        ("tids", "<u4", (len(Event) + 1,)),
        ("elsewhere", "<u4", (len(Event) + 1,)),
        ("steps", SEEN_STEP, (RING,)),
    ]
)
"""`struct tobs_seen`: what is seen of such a process, and the rule by which it has steps."""

CALLS = 32768
"""System calls that are kept of a process in which no function of torch is found."""

CALL_NUMBERS = 512
"""`TOBS_SYSCALLS`: a word of `SEEN_CALLS` modulo this is the number of the call."""

SEEN_CALLS = np.dtype([("count", "<u8"), ("calls", "<u8", (CALLS,))])
"""`struct tobs_calls`: when each began, in ns; the low bits are its number."""

SLOTS = 64
"""Sessions that one set of programs can serve."""


class FileOp(IntEnum):
    """What is done to files where each of them is counted (`enum tobs_file_op`)."""

    READ = 0
    WRITE = 1
    STAT = 2  # asking for attributes
    LIST = 3  # listing a directory


ACCESS = np.dtype(
    [
        (name, "<u8")
        for name in (
            *("count", "bytes", "ns", "empty_count", "failed_count"),
            *("first_count", "consecutive_count", "forward_count", "backward_count"),
            *("aligned_count", "open_count", "mmap_count"),
            *("unique_least", "unique_most", "untold_bytes"),
        )
    ]
)
"""`struct tobs_access`: calls, and how they lie in their files."""

SIZES = 32
"""log2 buckets of the bytes that a call moved."""

TOTAL_KEY = np.dtype([("epoch", "<u4"), ("op", "<u2"), ("class", "<u2")])
"""`struct tobs_total_key`."""

TOTAL = np.dtype([("access", ACCESS), ("unlisted_count", "<u8"), ("sizes", "<u8", (SIZES,))])
"""`struct tobs_total`: all files of a class, what was done to them in an epoch."""

PEER_KEY = np.dtype(
    [
        ("address", "<u4", (4,)),
        ("epoch", "<u4"),
        *((name, "<u2") for name in ("own_port", "port", "phase", "role")),
    ]
)
"""`struct tobs_peer_key`: who was sent to or received from; the address is in network order."""

PEER = np.dtype(
    [(f"{way}_{what}", "<u8") for way in ("sent", "received") for what in ("count", "bytes")]
)
"""`struct tobs_peer`."""

FILE_KEY = np.dtype(
    [("ino", "<u8"), ("dev", "<u4"), ("generation", "<u4"), ("epoch", "<u4"), ("op", "<u4")]
)
"""`struct tobs_file_key`."""

FILE = np.dtype(
    [
        ("access", ACCESS),
        ("front", "<u8"),
        ("size", "<u8"),
        ("class", "<u4"),
        ("mixed", "<u4"),
        ("parent", "S32"),
        ("name", "S48"),
    ]
)
"""`struct tobs_file`: one file, what was done to them in an epoch."""
