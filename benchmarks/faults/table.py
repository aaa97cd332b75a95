"""All faults, and what is right about them."""

from __future__ import annotations

from faults import loader, memory, moving, processor
from faults.fault import Fault
from trainobs.verdict.verdict import Cause, VerdictKind

_ALL = (
    Fault(
        "healthy_compute",
        "nothing: a network computes",
        VerdictKind.COMPUTE,
        (),
        processor.healthy_compute,
        loop="Lightning",
    ),
    Fault(
        "healthy_light_loader",
        "nothing: short steps, a light loader",
        VerdictKind.COMPUTE,
        (),
        processor.healthy_light_loader,
        quick=True,
    ),
    Fault(
        "slow_storage",
        "cold files on a disk throttled to 10 MB/s (control group)",
        VerdictKind.LOADER,
        (Cause.STORAGE,),
        loader.slow_storage,
        loader.throttled,
    ),
    Fault(
        "slow_transform",
        "a transform of 6 ms an image",
        VerdictKind.LOADER,
        (Cause.TRANSFORM, Cause.LOADER_CPU),
        loader.slow_transform,
        loop="Lightning",
    ),
    Fault(
        "too_many_threads",
        "8 threads for each CPU",
        VerdictKind.COMPUTE,
        (Cause.OWN_THREADS,),
        processor.too_many_threads,
    ),
    Fault(
        "cpu_hog",
        "2 busy processes for each CPU beside it",
        VerdictKind.COMPUTE,
        (Cause.OTHERS,),
        processor.cpu_hog,
        processor.hogs,
    ),
    Fault(
        "memory_hog",
        "a mapped table, its memory taken by another process (control group)",
        VerdictKind.MEMORY,
        (Cause.FAULTS, Cause.RECLAIM),
        memory.memory_hog,
        memory.hog,
    ),
    Fault(
        "slow_copy",
        "a batch that grows on its way to the device",
        VerdictKind.COPY,
        (),
        moving.slow_copy,
        loop="Lightning",
    ),
    Fault(
        "slow_collective",
        "one of two ranks (gloo) 100 ms late in backward",
        VerdictKind.COMMUNICATION,
        (Cause.STRAGGLER,),
        moving.slow_collective,
        ranks=2,
    ),
    Fault(
        "large_checkpoints",
        "200 MB saved every 6 steps",
        VerdictKind.CHECKPOINT,
        (Cause.WRITE, Cause.FSYNC),
        moving.large_checkpoints,
        quick=True,
    ),
    Fault(
        "frequent_gc",
        "50,000 live objects, and `gc.collect()` in every step",
        VerdictKind.COMPUTE,
        (Cause.GARBAGE,),
        processor.frequent_gc,
        quick=True,
    ),
    Fault(
        "python_thread",
        "a thread that computes in Python beside the loop",
        VerdictKind.COMPUTE,
        (Cause.INTERPRETER,),
        processor.python_thread,
    ),
)

FAULTS = {fault.name: fault for fault in _ALL}
