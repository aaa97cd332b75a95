"""The report's section on the batches of loaders, worker by worker."""

from __future__ import annotations

from collections.abc import Iterator

from trainobs.analysis.batches.workers import Made
from trainobs.analysis.one_step import BatchOfStep
from trainobs.analysis.summary import Summary
from trainobs.core.text import counted, duration, quantity
from trainobs.report.rows import or_unknown, row

_SHOWN = 16
_LABEL = 22

DID = {
    "compute_ns": "computing",
    "device_ns": "asleep for a device",
    "cpu_wait_ns": "without a CPU",
    "sleep_ns": "asleep otherwise",
}
"""Where the time of making a batch went, in words: see `analysis.batches.workers.MADE`."""


def did(made: Made | BatchOfStep) -> dict[str, float | None]:
    """These words -> the time."""
    times = (made["compute_ns"], made["device_ns"], made["cpu_wait_ns"], made["sleep_ns"])
    return dict(zip(DID.values(), times, strict=True))


def section(summary: Summary) -> Iterator[str]:
    """Batches by worker, those that were waited for longest first."""
    found = sorted(summary["workers"], key=lambda one: -(one["wait_ns"] or 0))
    loader = summary["loader"]
    if loader is None:
        return
    titles = ("batches", "device", "no CPU", "computing", "asleep", "waited", "of it ready")
    yield row("Who made the batches", *titles, width=_LABEL)
    for one in found[:_SHOWN]:
        made = (one["device_ns"], one["cpu_wait_ns"], one["compute_ns"], one["sleep_ns"])
        times = (*made, one["wait_ns"], one["handover_ns"])
        columns = (or_unknown(duration, ns) for ns in times)
        yield row(f"  {maker(one['worker'])}", quantity(one["batches"]), *columns, width=_LABEL)
    if loader["workers"] > sum(one["worker"] is not None for one in found):
        yield f"  {loader['workers']} workers at once: those of several loaders share numbers"
    if len(found) > _SHOWN:
        yield f"  and {len(found) - _SHOWN} more"
    if others := loader["of_no_step"]:
        known = [one for one in found[:_SHOWN] if one["of_no_step"]]
        of = ", ".join(f"{one['of_no_step']} by {maker(one['worker'])}" for one in known)
        yield f"  and {counted(others, 'batch', 'batches')} of no known step{of and ': ' + of}"
    if not loader["are_all"]:
        more = (loader["got"] or 0) - loader["batches"] - others
        of = counted(more, "batch", "batches") if more > 0 else "others"
        yield f"  and {of} of which nothing is known"
    slow = max(found, key=lambda one: one["slowest_ns"])
    if slow["slowest_file"]:
        which = "slowest file" if loader["are_all"] else "slowest known file"
        yield f"  {which}: {slow['slowest_file']}, {duration(slow['slowest_ns'])}"
        yield f"    read by {maker(slow['worker'])} for step {slow['slowest_step']}"


def maker(worker: int | None) -> str:
    """Who made a batch."""
    return "the training thread" if worker is None else f"worker {worker}"
