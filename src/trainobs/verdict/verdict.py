"""What a verdict is, and the facts beside the record that it is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from trainobs.core.records import RunInfo


class VerdictKind(Enum):
    """What bounds a step: the part of it that would have to shrink first."""

    LOADER = "loader-bound"
    COPY = "copy-bound"
    COMPUTE = "compute-bound"
    COMMUNICATION = "communication-bound"
    CHECKPOINT = "checkpoint-bound"
    MEMORY = "memory-bound"
    MIXED = "mixed"


class Cause(Enum):
    """Why that part takes the time it takes."""

    STORAGE = "the device"
    TRANSFORM = "the loader's own computation"
    SLEEP = "the loader asleep, for something not known (a network, a lock, a timer)"
    HANDOVER = "the hand-over of batches"
    LOADER_CPU = "CPU time of the loader"
    OWN_THREADS = "other threads of this run on its CPUs"
    OTHERS = "other processes on its CPUs"
    CPU = "waiting for a CPU"
    GARBAGE = "Python's garbage collector"
    INTERPRETER = "other threads that hold Python's interpreter lock"
    RECLAIM = "freeing memory for new pages"
    FAULTS = "reading back what memory could not hold"
    FSYNC = "fsync"
    WRITE = "write calls"
    STRAGGLER = "a rank that arrives late"


@dataclass(frozen=True)
class Evidence:
    """One number behind a verdict.

    Attributes:
        metric: name in the catalogue.
        value: per step, of usual steps; a cost that comes now and then is its sum over steps.
        unit: unit of the value.
        share: of the step; None for what is no part of its time.
    """

    metric: str
    value: float
    unit: str = "ns"
    share: float | None = None


@dataclass(frozen=True)
class Facts:
    """What the record of steps does not hold.

    Attributes:
        usable_cpus: CPUs that this rank may use; None: unknown.
        workers: worker processes of the training loader, 0 for none; None: unknown.
        world_size: processes in the job.
        ranks_here: those of them that share the CPUs of this machine, this one included.
        others_wait_ns: rank -> `ranks/wait_ns` a step, of the other ranks, where their logs are
            at hand.
    """

    usable_cpus: float | None = None
    workers: int | None = None
    world_size: int = 1
    ranks_here: int = 1
    others_wait_ns: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """What bounds the steps of an epoch or of a run.

    Attributes:
        steps: steps it was made from.
        kind: None where it abstains.
        cause: None where no one cause covers enough of the time.
        ns_per_step: time of the part that `kind` names; None where it abstains.
        share: the same as a share of the step without validation.
        step_ns: the step without validation.
        evidence: rows of numbers, those that decided first.
        advice: one piece of advice that the evidence supports, or None.
        abstained_because: why there is no `kind`, or None.
        uneven: share of the time that went into slow steps beyond what a usual step takes.
    """

    steps: int
    kind: VerdictKind | None = None
    cause: Cause | None = None
    ns_per_step: float | None = None
    share: float | None = None
    step_ns: float | None = None
    evidence: tuple[Evidence, ...] = ()
    advice: str | None = None
    abstained_because: str | None = None
    uneven: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """As a dictionary that `json.dumps` takes."""
        named = {"kind": self.kind, "cause": self.cause}
        return {**asdict(self), **{key: value and value.value for key, value in named.items()}}


def facts_of(info: RunInfo) -> Facts:
    """Facts of a run that is going on."""
    return facts_from(vars(info))


def facts_from(info: Mapping[str, Any]) -> Facts:
    """Facts of a run from the contents of its `run.json`; what is not there is unknown."""
    world_size = int(info.get("world_size") or 1)
    settings, host = info.get("settings") or {}, info.get("host") or {}
    ranks_here = int(host.get("local_world_size") or world_size)
    return Facts(
        usable_cpus=_usable_cpus(host, ranks_here),
        workers=settings.get("loader_workers"),
        world_size=world_size,
        ranks_here=ranks_here,
    )


def _usable_cpus(host: Mapping[str, Any], ranks_here: int) -> float | None:
    """CPUs of this rank: what affinity and quota leave to it, shared with the ranks beside it.

    Where nobody says how many ranks are on this machine, all of them may be: advice that goes by
    this number is then too small, never too large.
    """
    limits = [host.get(key) for key in ("usable_cpu_count", "cpu_quota", "cpu_count")]
    known = [float(limit) for limit in limits if limit]
    return min(known) / ranks_here if known else None
