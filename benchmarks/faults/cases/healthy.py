"""Trainings with which nothing is wrong: steps of 2, 20 and 200 ms, loaders that keep up."""

from __future__ import annotations

from typing import Any

from faults.case import control

TINY: dict[str, Any] = {"side": 16, "width": 6, "steps": 400, "workers": 0}
"""Steps of some 2 ms; to hand a batch over takes as long, so that there are no workers."""

SHORT: dict[str, Any] = {"width": 16, "steps": 200}
"""Steps of some 10 ms."""

LARGE: dict[str, Any] = {"width": 112, "steps": 40}
"""Steps of some 200 ms."""

CASES = (
    control("healthy_2ms", "steps of 2 ms, no worker", **TINY),
    control("healthy_2ms_stream", "steps of 2 ms, a stream, no worker", iterable=True, **TINY),
    control("healthy_2ms_lightning", "steps of 2 ms, no worker", loop="Lightning", **TINY),
    control("healthy_10ms", "steps of 10 ms, one worker", **SHORT),
    control("healthy_10ms_stream", "steps of 10 ms, 2 workers", workers=2, iterable=True, **SHORT),
    control("healthy_light_loader", "a light loader, 2 workers", workers=2, steps=80, quick=True),
    control("healthy_bare", "a loop that marks nothing, no worker", loop="bare", workers=0),
    control("healthy_no_worker", "a light loader, no worker", workers=0),
    control("healthy_4_workers", "4 workers, which rest", workers=4),
    control("healthy_stream", "a stream, 2 workers", iterable=True, workers=2),
    control("healthy_sufficient", "a worker that computes 10 of 20 ms", item_cpu_ms=0.6),
    control("healthy_latency", "a far storage, 4 workers that keep up", workers=4, item_sleep_ms=2),
    control("healthy_warm_files", "files in the page cache", source="files", workers=2),
    control("healthy_lightning", "a network computes", loop="Lightning"),
    control("healthy_epochs", "short epochs, workers stay", epochs=8, steps=16, persistent=True),
    control(
        "healthy_validation",
        "a light validation now and then",
        loop="Lightning",
        validate_every=50,
        validation_batches=2,
    ),
    control(
        "healthy_checkpoints",
        "1 MB saved now and then",
        checkpoint="blocking",
        checkpoint_every=20,
        checkpoint_mb=1,
    ),
    control("healthy_poller", "a thread beside it polls a queue", beside="polls"),
    control("healthy_200ms", "long steps, no worker", workers=0, **LARGE),
    control("healthy_200ms_heavy", "long steps, a worker computes half", item_cpu_ms=6, **LARGE),
    control(
        "healthy_200ms_lightning",
        "long steps, 2 workers read and compute",
        loop="Lightning",
        workers=2,
        source="files",
        cold=True,
        item_cpu_ms=4,
        **LARGE,
    ),
)
