"""Too few CPUs, too little memory, too many who want them."""

from __future__ import annotations

from faults.case import because, fault
from faults.machine import CPUS

OTHERS = because("COMPUTE", "OTHERS")
QUOTA = because("COMPUTE", "QUOTA")
MEMORY = because("MEMORY", "FAULTS", "RECLAIM")

CASES = (
    fault(
        "too_many_threads",
        "8 threads for each CPU",
        because("COMPUTE", "OWN_THREADS"),
        threads=8 * CPUS,
        width=32,
        steps=60,
        remedy={"threads": 1},
    ),
    fault(
        "busy_neighbours",
        "2 busy processes for each CPU beside it",
        OTHERS,
        busy_per_cpu=2,
        width=32,
        steps=60,
        remedy={"busy_per_cpu": 0},
    ),
    fault(
        "busy_neighbours_loader",
        "the same, and a worker that would keep up",
        OTHERS + because("LOADER", "OTHERS"),
        busy_per_cpu=2,
        item_cpu_ms=1,
        steps=60,
        remedy={"busy_per_cpu": 0},
    ),
    fault(
        "busy_first_epoch",
        "4 busy processes for each CPU in the first of 4 epochs",
        OTHERS + because("LOADER", "OTHERS"),
        busy_per_cpu=4,
        busy_first_epoch=True,
        steps=50,
        epochs=4,
        persistent=True,
        remedy={"busy_per_cpu": 0},
    ),
    fault(
        "quota",
        "a quota of half a CPU, no worker",
        QUOTA,
        cpus=0.5,
        workers=0,
        steps=150,
        remedy={"cpus": None},
    ),
    fault(
        "quota_with_workers",
        "a quota of one CPU, 2 workers that compute",
        QUOTA + because("LOADER", "QUOTA"),
        cpus=1.0,
        workers=2,
        item_cpu_ms=2,
        remedy={"cpus": None},
    ),
    fault(
        "full",
        "2 threads and 2 workers that use all CPUs",
        because("COMPUTE", "FULL", "OWN_THREADS", "CPU")
        + because("LOADER", "FULL", "OWN_THREADS", "CPU", "TRANSFORM"),
        threads=CPUS,
        workers=CPUS,
        item_cpu_ms=4,
        width=32,
        steps=60,
        remedy={"item_cpu_ms": 0},
    ),
    fault(
        "memory_hog",
        "a mapped table, its memory taken by another process",
        MEMORY,
        table_mb=512,
        memory_mb=1024,
        held_mb=700,
        steps=60,
        remedy={"held_mb": 0},
    ),
    fault(
        "memory_limit",
        "a mapped table, larger than what its group may use",
        MEMORY,
        table_mb=768,
        memory_mb=640,
        steps=60,
        remedy={"memory_mb": 2048},
    ),
)
