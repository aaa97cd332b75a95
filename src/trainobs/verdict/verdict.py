"""What a verdict is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, NamedTuple


class VerdictKind(Enum):
    """What bounds a step: the part of it that would have to shrink first.

    `NO_CPU`, `DEVICE` and `ON_CPU` are of steps of which no phase is known: of whatever the
    training thread did, loading and training are not told apart.
    """

    LOADER = "loader-bound"
    COPY = "copy-bound"
    COMPUTE = "compute-bound"
    COMMUNICATION = "communication-bound"
    CHECKPOINT = "checkpoint-bound"
    VALIDATION = "validation-bound"
    MEMORY = "memory-bound"
    SLEEP = "asleep"
    NO_CPU = "no CPU free"
    DEVICE = "waiting for a device"
    ON_CPU = "computing"
    MIXED = "mixed"


class Cause(Enum):
    """Why that part takes the time it takes."""

    STORAGE = "storage"
    TRANSFORM = "the loader's own computation"
    LOADER_SLEEP = (
        "the loader asleep, for something not known (a network, a lock, a thread, a process)"
    )
    NETWORK = "the loader asleep, while it received its data from a network"
    STORAGE_BESIDE = "the loader asleep, while threads of this run waited for storage"
    HELPERS = "the loader asleep, while other threads or processes of this run computed"
    WORKERS = "what its workers compute"
    FETCH_SLEEP = (
        "the loader asleep, for something not known (a device, a network, a lock, a thread, a "
        "process)"
    )
    HIGH = (
        "memory.high of its control group, beyond which the kernel puts to sleep who takes memory"
    )
    SAMPLER = "the sampler of the loader, which the training thread asks for each batch"
    FETCH = "what the training thread itself computes to get a batch"
    HANDOVER = "the hand-over of batches"
    START = "workers that start and end with each epoch"
    REMADE = "loaders that are made anew, each with new workers"
    OTHERS = "other processes on its CPUs"
    QUOTA = "the CPU quota of its control group"
    FULL = "this run uses all the CPU time that it can get"
    OWN_THREADS = "far more threads of this run than CPUs"
    CPU = "waiting for a CPU"
    GARBAGE = "Python's garbage collector"
    INTERPRETER = "other threads that hold Python's interpreter lock"
    RECLAIM = "freeing memory for new pages"
    FAULTS = "reading back what memory could not hold"
    FSYNC = "fsync"
    WRITE = "write calls"
    STRAGGLER = "a rank that arrives late"
    CHILDREN = "other processes of this run, which computed meanwhile"
    STOPPED = "the process was stopped, by a signal or a debugger"
    UNKNOWN = "not known"


@dataclass(frozen=True)
class Evidence:
    """One number behind a verdict.

    Attributes:
        metric: name in the catalogue.
        value: per step, over all steps but the first of the run. The wait for data is here without
            what taking over any batch costs.
        unit: unit of the value.
        share: of the step; None for what is no part of its time.
    """

    metric: str
    value: float
    unit: str = "ns"
    share: float | None = None


@dataclass(frozen=True)
class Advice:
    """A change that was replayed, or follows from the shares.

    Attributes:
        text: what to do.
        gain: least and most speed-up that it is predicted to bring; None: nobody knows the most.
        change: the same for programs: name -> value.
    """

    text: str
    gain: tuple[float, float | None]
    change: Mapping[str, float | bool] = field(default_factory=dict)


class Outcome(NamedTuple):
    """What bounds the steps, and for how long; or why nobody can tell.

    Attributes:
        kind: None where a verdict abstains.
        ns: time of the part that `kind` names.
        abstained_because: why there is no `kind`, or None.
    """

    kind: VerdictKind | None
    ns: float = 0.0
    abstained_because: str | None = None


def abstained(because: str) -> Outcome:
    """No kind, and why."""
    return Outcome(None, abstained_because=because)


@dataclass(frozen=True)
class Verdict:
    """What bounds the steps of an epoch or of a run.

    Attributes:
        steps: steps it was made from.
        kind: None where it abstains.
        cause: None where no one cause covers enough of the time.
        ns_per_step: time of the part that `kind` names; of computation that is held up, what the
            cause takes of it, where one is named; None where it abstains.
        share: the same as a share of all time.
        step_ns: time of a step, validation and checkpoints included.
        costs: of a mixed verdict, the kinds of cost that it is about, the largest first.
        held_up: whether that time is no computation, but what holds it up.
        when: where in the run that time lies ("since step 120"), or "" if it is in all steps.
        where: the phase that it lies in ("forward"), or "".
        is_least: whether that time is a lower bound.
        cpu_taken_by: who had the CPUs that were lacking for a fifth of the step or more, where that
            is known, and is not the cause.
        cpu_lacked_share: of the step, in which the training thread, or who made its batches, waited
            for a CPU.
        polled_share: of the step, in which the training thread asked for a lock again and again.
        siblings: other trainings of the same job, where others had the CPUs and these took some.
        siblings_cpu_ratio: how much of all CPUs.
        kernel_may_compute: whether a third or more of the loader's own computation, where that is
            the cause, may be the kernel's: its time is known of all threads, and not by who.
        may_be_read_again: whether half or more of what a loader reads from storage may have been in
            memory before: of all that the control group read, so much was read again.
        memory_limit_bytes: what the control groups of the run allow it, if less than the machine.
        knows_phases: whether any phase of the steps is known, or the time of the training thread
            alone.
        evidence: rows of numbers, those that decided first.
        advice: the change that is predicted to help most, or None.
        abstained_because: why there is no `kind`, or None.
        replayed: whether the replay of the run brought it forth; False: it did not; None: there was
            nothing to replay.
    """

    steps: int
    kind: VerdictKind | None = None
    cause: Cause | None = None
    ns_per_step: float | None = None
    share: float | None = None
    step_ns: float | None = None
    costs: tuple[VerdictKind, ...] = ()
    held_up: bool = False
    when: str = ""
    where: str = ""
    is_least: bool = False
    cpu_taken_by: Cause | None = None
    cpu_lacked_share: float = 0.0
    polled_share: float = 0.0
    siblings: int = 0
    siblings_cpu_ratio: float = 0.0
    kernel_may_compute: bool = False
    may_be_read_again: bool = False
    memory_limit_bytes: float | None = None
    knows_phases: bool = True
    evidence: tuple[Evidence, ...] = ()
    advice: Advice | None = None
    abstained_because: str | None = None
    replayed: bool | None = None

    def as_json(self) -> dict[str, Any]:
        """As a dictionary that `json.dumps` takes.

        `cause_code` and `cpu_taken_by_code` are for programs: the words of a cause may change.
        """
        causes = {"cause": self.cause, "cpu_taken_by": self.cpu_taken_by}
        told = {name: cause and cause.value for name, cause in causes.items()}
        codes = {f"{name}_code": cause and cause.name.lower() for name, cause in causes.items()}
        kinds = {"kind": self.kind and self.kind.value, "costs": [one.value for one in self.costs]}
        return {**asdict(self), **told, **codes, **kinds}
