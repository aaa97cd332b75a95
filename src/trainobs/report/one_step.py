"""What `trainobs report --step` prints."""

from __future__ import annotations

from collections.abc import Iterator

from trainobs.analysis.one_step import OneStep
from trainobs.core.labels import label_of
from trainobs.core.text import duration, printable, quantity, size
from trainobs.report.loaders import did, maker
from trainobs.report.rows import or_unknown, row

_START = "loader/start_stop_ns"

_LABELS = {
    "step/duration_ns": "took",
    _START: f"    of these: {label_of(_START).strip()}",  # the metric, whole
}


def render(found: OneStep) -> str:
    """What `explain` found, as text."""
    return "\n".join(map(printable, (*_step(found), "", *_makers(found))))


def _step(found: OneStep) -> Iterator[str]:
    yield f"step {found['step']} of {found['run']}, rank {found['rank']}, epoch {found['epoch']}"
    yield row("", "this step", "median")
    for name, values in found["metrics"].items():
        if values["value"]:
            label = _LABELS.get(name) or label_of(name)  # of a part of the wait, indented
            columns = (or_unknown(duration, ns) for ns in (values["value"], values["median"]))
            yield row(f"  {label}", *columns)


def _makers(found: OneStep) -> Iterator[str]:
    if not found["batches"]:
        is_outside = found["level"] == "attached"
        by = "the process was observed from outside" if is_outside else "not observed by eBPF"
        yield f"Its batches are not known: {found['unknown'] or by}"
    for batch in found["batches"]:
        ended = batch["ended_ns"]
        when = f"{duration(abs(ended))} {'after' if ended > 0 else 'before'} the step began"
        yield f"A batch of {maker(batch['worker'])}, finished {when}"
        yield row("  making it took", or_unknown(duration, batch["made_ns"]))
        for label, ns in did(batch).items():
            yield row(f"    {label}", or_unknown(duration, ns))
        calls = or_unknown(quantity, batch["read_count"])
        yield row("  reads by its maker, bytes", calls, or_unknown(size, batch["read_bytes"]))
        if batch["read_bytes"] is not None:
            yield from _beside(found)
        if batch["slowest_file"]:
            took = or_unknown(duration, batch["slowest_ns"])
            yield f"  slowest file: {batch['slowest_file']}, {took}"


def _beside(found: OneStep) -> Iterator[str]:
    """What else may have been read for a batch of which reads are known."""
    if found["is_mapped"]:
        yield "    and through mappings, how much is unknown"
    if found["apart_bytes"]:
        of_none = f"{size(found['apart_bytes'])} read in the run are of no batch"
        yield f"    and maybe by others: {of_none}"
