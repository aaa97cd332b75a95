"""Loaders that keep the training waiting."""

from __future__ import annotations

from typing import Any

from faults.case import because, fault

ASLEEP = because("LOADER", "SLEEP")
HELPERS = because("LOADER", "HELPERS", "SLEEP")  # which may be "another process"
NETWORK = because("LOADER", "NETWORK", "SLEEP")
COMPUTES = because("LOADER", "TRANSFORM")
DEVICE = because("LOADER", "STORAGE")
FIRST_READ = because("LOADER", "FIRST_READ", "STORAGE")

COLD: dict[str, Any] = {"source": "files", "cold": True, "steps": 40}
THROTTLED: dict[str, Any] = {**COLD, "read_mb_s": 10}
"""A batch of 16 files of 128 KiB takes 210 ms."""

_ASLEEP = (
    fault(
        "far_one_worker",
        "a storage 4 ms away, one worker",
        ASLEEP,
        item_sleep_ms=4,
        remedy={"item_sleep_ms": 0},
    ),
    fault(
        "far_no_worker",
        "a storage 4 ms away, no worker",
        ASLEEP,
        workers=0,
        item_sleep_ms=4,
        steps=60,
        remedy={"item_sleep_ms": 0},
    ),
    fault(
        "far_lightning",
        "a storage 10 ms away, 2 workers",
        ASLEEP,
        loop="Lightning",
        workers=2,
        item_sleep_ms=10,
        steps=80,
        remedy={"item_sleep_ms": 0},
    ),
    fault(
        "http_one_worker",
        "an HTTP server that takes 6 ms, one worker",
        NETWORK,
        source="http",
        answer_ms=6,
        steps=60,
        remedy={"answer_ms": 0},
    ),
    fault(
        "http_no_worker",
        "an HTTP server that takes 6 ms, no worker",
        NETWORK,
        source="http",
        answer_ms=6,
        workers=0,
        steps=50,
        remedy={"answer_ms": 0},
    ),
    fault(
        "locked_workers",
        "3 workers, and a lock around a sleep of 4 ms",
        ASLEEP,
        workers=3,
        item_sleep_ms=4,
        locked=True,
        steps=80,
        remedy={"locked": False},
    ),
    fault(
        "slow_sample_asleep",
        "one item of a batch takes 100 ms, asleep",
        ASLEEP,
        slow_every=1,
        slow_sleep_ms=100,
        steps=60,
        remedy={"slow_every": 0},
    ),
    fault(
        "rarely_slow",
        "one item of 50 batches takes 4 s, asleep",
        ASLEEP,
        slow_every=50,
        slow_sleep_ms=4000,
        steps=120,
        remedy={"slow_every": 0},
    ),
    fault(
        "slow_from_half",
        "a storage 6 ms away from 55 % of the run on",
        ASLEEP,
        item_sleep_ms=6,
        from_share=0.55,
        remedy={"item_sleep_ms": 0},
    ),
    fault(
        "slow_at_the_end",
        "a storage 14 ms away from 80 % of the run on",
        ASLEEP,
        item_sleep_ms=14,
        from_share=0.8,
        steps=160,
        remedy={"item_sleep_ms": 0},
    ),
    fault(
        "program_one_worker",
        "a program that computes 40 ms for each batch, one worker",
        HELPERS,
        program_ms=40,
        steps=60,
        quick=True,
        remedy={"program_ms": 0},
    ),
    fault(
        "program_no_worker",
        "a program that computes 40 ms for each batch, no worker",
        HELPERS,
        workers=0,
        program_ms=40,
        steps=60,
        remedy={"program_ms": 0},
    ),
)

_COMPUTE = (
    fault(
        "transform_one_worker",
        "a transform of 3 ms an image, one worker",
        COMPUTES,
        item_cpu_ms=3,
        remedy={"item_cpu_ms": 0},
    ),
    fault(
        "transform_no_worker",
        "a transform of 3 ms an image, no worker",
        COMPUTES,
        workers=0,
        item_cpu_ms=3,
        steps=80,
        remedy={"item_cpu_ms": 0},
    ),
    fault(
        "slow_transform",
        "a transform of 6 ms an image, one worker",
        COMPUTES,
        loop="Lightning",
        item_cpu_ms=6,
        steps=60,
        remedy={"item_cpu_ms": 0},
    ),
    fault(
        "transform_two_workers",
        "a transform of 8 ms an image, 2 workers",
        because("LOADER", "TRANSFORM", "FULL", "CPU", "OWN_THREADS"),
        workers=2,
        item_cpu_ms=8,
        steps=50,
        remedy={"item_cpu_ms": 0},
    ),
    fault(
        "transform_stream",
        "a transform of 4 ms an image of a stream",
        COMPUTES,
        iterable=True,
        item_cpu_ms=4,
        steps=80,
        remedy={"item_cpu_ms": 0},
    ),
    fault(
        "slow_sample",
        "one image of a batch takes 100 ms CPU time",
        COMPUTES,
        slow_every=1,
        slow_cpu_ms=100,
        steps=60,
        remedy={"slow_every": 0},
    ),
    fault(
        "stat_storm",
        "2,000 calls of stat for each image",
        COMPUTES,
        stats=2000,
        steps=60,
        remedy={"stats": 0},
    ),
    fault(
        "garbage_in_worker",
        "a worker that makes garbage and collects it",
        because("LOADER", "TRANSFORM", "GARBAGE"),
        garbage=50_000,
        steps=40,
        remedy={"garbage": 0},
    ),
)

_STORAGE = (
    fault(
        "slow_storage",
        "cold files on a disk throttled to 10 MB/s, 2 workers",
        DEVICE,
        workers=2,
        **THROTTLED,
        remedy={"read_mb_s": None},
    ),
    fault(
        "slow_storage_no_worker",
        "cold files on a disk throttled to 10 MB/s, no worker",
        DEVICE,
        workers=0,
        **THROTTLED,
        remedy={"cold": False},
    ),
    fault(
        "slow_storage_lightning",
        "a stream of cold files, throttled to 20 MB/s, 4 workers",
        DEVICE,
        loop="Lightning",
        iterable=True,
        workers=4,
        **THROTTLED | {"read_mb_s": 20},
        remedy={"cold": False},
    ),
    fault(
        "small_reads",
        "cold reads of 4 KiB at random, 80 an image",
        DEVICE,
        source="random",
        cold=True,
        read_kb=4,
        reads=80,
        steps=60,
        remedy={"cold": False},
    ),
    fault(
        "mapped_cold",
        "a cold file by np.memmap, in the training thread",
        FIRST_READ,
        source="mapped",
        cold=True,
        workers=0,
        read_kb=4,
        reads=3,
        file_mb=512,
        read_mb_s=60,
        steps=60,
        remedy={"cold": False},
    ),
    fault(
        "mapped_cold_worker",
        "a cold file by np.memmap, in a worker",
        FIRST_READ,
        source="mapped",
        cold=True,
        read_kb=4,
        reads=3,
        file_mb=512,
        read_mb_s=60,
        steps=60,
        remedy={"cold": False},
    ),
)

_WORKERS = (
    fault(
        "workers_recreated",
        "epochs of 6 steps, each with new workers",
        because("LOADER", "START"),
        workers=2,
        steps=6,
        epochs=20,
        side=16,
        width=8,
        remedy={"persistent": True},
    ),
    fault(
        "short_steps",
        "steps of 2 ms, and a worker for a loader that costs nothing",
        because("LOADER", "HANDOVER"),
        side=16,
        width=6,
        steps=400,
        remedy={"workers": 0},
    ),
    fault(
        "slow_sampler",
        "a sampler that computes 40 ms for each batch, 2 workers",
        because("LOADER", "FETCH"),
        workers=2,
        sampler_ms=40,
        steps=60,
        remedy={"sampler_ms": 0},
    ),
    fault(
        "large_batch",
        "a batch with a tensor of 96 MB",
        because("LOADER", "HANDOVER"),
        ballast_mb=96,
        remedy={"ballast_mb": 0},
    ),
)

CASES = (*_ASLEEP, *_COMPUTE, *_STORAGE, *_WORKERS)
