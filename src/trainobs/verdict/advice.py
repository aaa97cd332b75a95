"""One piece of advice for a cause, where the evidence supports one."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan

from trainobs.core.text import size
from trainobs.verdict.causes import Situation, taken_by_others
from trainobs.verdict.verdict import Cause, VerdictKind

SMALL_REQUEST_BYTES = 65_536
"""Mean request below which a device spends its time on the number of requests, not on bytes."""

_CHEAPER = "make transforms cheaper, or do them beforehand"

Rule = Callable[[Situation], str | None]


def advise(kind: VerdictKind, cause: Cause | None, now: Situation) -> str | None:
    """Advice for a verdict, or None where there is nothing that was measured to go by."""
    rule = _BY_CAUSE.get((kind, cause)) or _BY_CAUSE.get((kind, None))
    return rule(now) if rule else None


def _storage(now: Situation) -> str | None:
    count, read = now.ns("block/read_count"), now.ns("block/read_bytes")
    if not isnan(count) and count > 0 and read / count < SMALL_REQUEST_BYTES:
        return f"store samples in fewer, larger files: a request fetches {size(read / count)}"
    return "keep the data on a faster device, or in memory"


def _transform(now: Situation) -> str | None:
    """More workers only up to the CPUs of this rank that are free, and only where all is known."""
    workers, cpus, taken = now.facts.workers, now.facts.usable_cpus, taken_by_others(now)
    if workers is None or cpus is None or isnan(taken):
        return _CHEAPER
    room = min(int(cpus), round(cpus * (1 - taken)))
    if workers < room:
        return f"num_workers={room}: there are {workers} now, and CPUs for {room}"
    return f"{_CHEAPER}: no CPU is left for more workers"


def _always(text: str) -> Rule:
    return lambda now: text


_BY_CAUSE: dict[tuple[VerdictKind, Cause | None], Rule] = {
    (VerdictKind.LOADER, Cause.STORAGE): _storage,
    (VerdictKind.LOADER, Cause.TRANSFORM): _transform,
    (VerdictKind.LOADER, Cause.LOADER_CPU): _always(_CHEAPER),
    (VerdictKind.LOADER, Cause.HANDOVER): _always(
        "let workers return fewer, larger tensors, and collate them in the worker"
    ),
    (VerdictKind.LOADER, Cause.OTHERS): _always(
        "give this run CPUs of its own, or end what else runs"
    ),
    (VerdictKind.COMPUTE, Cause.OTHERS): _always(
        "give this run CPUs of its own, or end what else runs"
    ),
    (VerdictKind.COMPUTE, Cause.GARBAGE): _always(
        "gc.freeze() after the set-up, and collect every some hundred steps instead of by count"
    ),
    (VerdictKind.COMPUTE, Cause.INTERPRETER): _always(
        "move what the other threads do in Python into a process, or end these threads"
    ),
    (VerdictKind.COPY, None): _always(
        "copy less: move the batch as it is stored, convert it afterwards"
    ),
    (VerdictKind.CHECKPOINT, None): _always("save less often, or in the background"),
    (VerdictKind.MEMORY, None): _always("give the run more memory, or let it hold less"),
    (VerdictKind.COMMUNICATION, Cause.STRAGGLER): _always("look at the rank that waits least"),
}
