"""The report's section on the batches of loaders, worker by worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainobs.analysis.loader_workers import MADE
from trainobs.core.text import counted, duration, quantity
from trainobs.report.rows import or_unknown, row

_SHOWN = 16
_LABEL = 22

DID = {
    "compute_ns": "computing",
    "device_ns": "asleep for a device",
    "cpu_wait_ns": "without a CPU",
    "sleep_ns": "asleep, not for a device",
}
"""Where the time of making a batch went, in words: see `analysis.loader_workers.MADE`."""


def section(summary: dict[str, Any]) -> Iterator[str]:
    """Batches by worker, those that were waited for longest first."""
    found = sorted(summary["workers"], key=lambda one: -(one["wait_ns"] or 0))
    if not found:
        return
    titles = ("batches", "device", "no CPU", "computing", "asleep", "waited", "of it ready")
    yield row("Who made the batches", *titles, width=_LABEL)
    for one in found[:_SHOWN]:
        times = (*MADE, "wait_ns", "handover_ns")
        columns = (or_unknown(duration, one[name]) for name in times)
        yield row(f"  {maker(one['worker'])}", quantity(one["batches"]), *columns, width=_LABEL)
    if len(found) > _SHOWN:
        yield f"  and {len(found) - _SHOWN} more"
    if others := summary["loader"]["of_no_step"]:
        known = [one for one in found[:_SHOWN] if one["of_no_step"]]
        of = ", ".join(f"{one['of_no_step']} by {maker(one['worker'])}" for one in known)
        yield f"  and {counted(others, 'batch', 'batches')} of no known step{of and ': ' + of}"
    loader = summary["loader"]
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
