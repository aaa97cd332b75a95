"""What the training thread does beside its network, or is kept from it."""

from __future__ import annotations

from typing import Any

from faults.case import ABSTAINS, because, fault

ASLEEP = because("SLEEP", "UNKNOWN")
COLLECTS = because("COMPUTE", "GARBAGE")
SAVES = because("CHECKPOINT", "WRITE", "FSYNC")
VALIDATES = because("VALIDATION", None, "TRANSFORM")
LATE = because("COMMUNICATION", "STRAGGLER")

CHECKPOINT: dict[str, Any] = {
    "checkpoint": "blocking",
    "checkpoint_mb": 200,
    "checkpoint_every": 6,
    "steps": 60,
}
VALIDATION: dict[str, Any] = {
    "validate_every": 20,
    "validation_batches": 20,
    "validation_cpu_ms": 2,
}

_FORWARD = (
    fault(
        "answer_in_forward",
        "forward waits 60 ms for an answer",
        ASLEEP,
        step_sleep_ms=60,
        remedy={"step_sleep_ms": 0},
    ),
    fault(
        "answer_now_and_then",
        "forward waits 1.5 s for an answer, every 25 steps",
        ASLEEP,
        step_sleep_ms=1500,
        sleep_every=25,
        remedy={"step_sleep_ms": 0},
    ),
    fault(
        "polls_in_forward",
        "forward asks for a lock every 5 ms, for 100 ms",
        ASLEEP,
        poll_ms=100,
        steps=60,
        remedy={"poll_ms": 0},
    ),
    fault(
        "program_in_forward",
        "forward waits for a program that computes 60 ms",
        because("SLEEP", "CHILDREN", "UNKNOWN"),
        step_program_ms=60,
        steps=60,
        remedy={"step_program_ms": 0},
    ),
    fault(
        "frequent_gc",
        "50,000 live objects, and `gc.collect()` in every step",
        COLLECTS,
        live_objects=50_000,
        collect_every=1,
        steps=40,
        quick=True,
        remedy={"collect_every": 0},
    ),
    fault(
        "gc_unmarked",
        "the same every other step, in no phase",
        COLLECTS + ABSTAINS,
        live_objects=100_000,
        collect_every=2,
        collect_marked=False,
        steps=40,
        remedy={"collect_every": 0},
    ),
    fault(
        "python_thread",
        "a thread that computes in Python beside the loop",
        because("COMPUTE", "INTERPRETER") + because("LOADER", "INTERPRETER"),
        beside="computes",
        remedy={"beside": ""},
    ),
    fault(
        "printing_callback",
        "a callback that takes 40 ms to print, in no phase",
        ABSTAINS,
        loop="Lightning",
        log_cpu_ms=40,
        remedy={"log_cpu_ms": 0},
    ),
    fault(
        "remote_log",
        "a callback that waits 40 ms for a server of logs, in no phase",
        ASLEEP + ABSTAINS,
        log_sleep_ms=40,
        remedy={"log_sleep_ms": 0},
    ),
)

_MOVING = (
    fault(
        "slow_copy",
        "a batch that grows on its way to the device",
        because("COPY"),
        loop="Lightning",
        copies=256,
        steps=60,
        remedy={"copies": 1},
    ),
    fault(
        "transform_in_transfer",
        "a transform of 60 ms on the way to the device",
        because("COPY"),
        transfer_cpu_ms=60,
        remedy={"transfer_cpu_ms": 0},
    ),
    fault(
        "late_in_backward",
        "one of 2 ranks (gloo) 100 ms late in backward",
        LATE,
        ranks=2,
        late_ms=100,
        steps=60,
        remedy={"late_ms": 0},
    ),
    fault(
        "late_by_computing",
        "one of 2 ranks computes 80 ms more in forward",
        LATE,
        ranks=2,
        late_ms=80,
        late_in="forward",
        steps=60,
        remedy={"late_ms": 0},
    ),
    fault(
        "bare_late",
        "the same in a loop that marks nothing",
        LATE,
        loop="bare",
        ranks=2,
        late_ms=80,
        late_in="forward",
        steps=60,
        remedy={"late_ms": 0},
    ),
    fault(
        "late_by_loader",
        "one of 2 ranks waits 100 ms more for its loader",
        LATE,
        ranks=2,
        late_ms=100,
        late_in="loader",
        steps=60,
        remedy={"late_ms": 0},
    ),
)

_SAVING = (
    fault(
        "large_checkpoints",
        "200 MB saved every 6 steps",
        SAVES,
        **CHECKPOINT,
        quick=True,
        remedy={"checkpoint": ""},
    ),
    fault(
        "synchronised_checkpoints",
        "100 MB saved and synchronised every 6 steps",
        SAVES,
        **CHECKPOINT | {"checkpoint_mb": 100},
        checkpoint_fsync=True,
        remedy={"checkpoint": ""},
    ),
    fault(
        "unmarked_checkpoints",
        "200 MB saved every 6 steps, in no phase",
        ABSTAINS + SAVES,
        **CHECKPOINT | {"checkpoint": "unmarked"},
        remedy={"checkpoint": ""},
    ),
    fault(
        "unmarked_and_reading",
        "the same, and a worker that reads cold files and keeps up",
        ABSTAINS + SAVES,
        **CHECKPOINT | {"checkpoint": "unmarked", "source": "files", "cold": True, "read_kb": 4},
        remedy={"checkpoint": ""},
    ),
    fault(
        "bare_checkpoints",
        "200 MB saved every 10 steps, in a loop that marks nothing",
        ABSTAINS,
        loop="bare",
        **CHECKPOINT | {"checkpoint": "unmarked", "checkpoint_every": 10},
        remedy={"checkpoint": ""},
    ),
    fault(
        "background_checkpoints",
        "500 MB saved by a thread every 6 steps",
        because("COMPUTE", "INTERPRETER", "OWN_THREADS", "CPU", "FULL")
        + because("CHECKPOINT", "WRITE", "INTERPRETER", None),
        **CHECKPOINT | {"checkpoint": "background", "checkpoint_mb": 500},
        remedy={"checkpoint": ""},
    ),
)

_VALIDATING = (
    fault(
        "validation",
        "20 batches of validation, 2 ms an image, every 20 steps",
        VALIDATES,
        **VALIDATION,
        remedy={"validate_every": 0},
    ),
    fault(
        "bare_validation",
        "20 batches of validation, every 20 steps, in a loop that marks nothing",
        ABSTAINS,
        loop="bare",
        **VALIDATION,
        remedy={"validate_every": 0},
    ),
    fault(
        "bare_validation_often",
        "4 batches of validation, every 5 steps, in a loop that marks nothing",
        ABSTAINS,
        loop="bare",
        **VALIDATION | {"validate_every": 5, "validation_batches": 4},
        remedy={"validate_every": 0},
    ),
    fault(
        "validation_lightning",
        "the same by Lightning",
        VALIDATES,
        loop="Lightning",
        **VALIDATION,
        remedy={"validate_every": 0},
    ),
    fault(
        "validation_cold",
        "16 batches of cold files at 20 MB/s, every 40 steps",
        because("VALIDATION", None, "STORAGE", "FIRST_READ"),
        validate_every=40,
        validation_batches=16,
        validation_cold=True,
        read_mb_s=20,
        steps=80,
        remedy={"validate_every": 0},
    ),
    fault(
        "validation_rare",
        "one long validation at the end",
        VALIDATES,
        **VALIDATION | {"validate_every": 100, "validation_batches": 60},
        remedy={"validate_every": 0},
    ),
)

CASES = (*_FORWARD, *_MOVING, *_SAVING, *_VALIDATING)
