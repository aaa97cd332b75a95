"""What hot rows served, in the report."""

from __future__ import annotations

from collections.abc import Iterator

from trainobs.analysis.summary import Summary, mean_of
from trainobs.analysis.tables.hot_rows import HotRows
from trainobs.core.text import duration, percent, size
from trainobs.report.rows import or_unknown

_STEP_KINDS = {"fae/pure_step_ns": "pure step", "fae/mixed_step_ns": "mixed step"}


def section(summary: Summary) -> Iterator[str]:
    """What hot rows served, and how long steps of both kinds took; of a run that has any."""
    if "hot_rows" not in summary["capabilities"]:
        return
    if mean_of(summary, "fae/lookup_count") is None:
        return
    yield "Hot rows"
    shares = {"fae/hot_lookup_ratio": "lookups", "fae/hot_input_ratio": "inputs, in pure steps"}
    for name, what in shares.items():
        if (share := mean_of(summary, name)) is not None:
            yield f"  {percent(share):>8} of the {what}"
    if (drift := mean_of(summary, "fae/drift_ratio")) is not None:
        more = "fewer" if drift > 0 else "more"
        yield f"  {percent(abs(drift)):>8} {more} hot lookups than calibrated"
    yield from _over_the_run(summary["hot_rows"])
    saved, sync_ns = (mean_of(summary, name) for name in ("fae/saved_bytes", "fae/sync_ns"))
    yield f"  {or_unknown(size, saved):>8} a step read from them, not from the tables"
    yield from _held(summary["hot_rows"])
    for name, what in _STEP_KINDS.items():
        took = summary["metrics"][name]
        if took["mean"] is not None:
            median = or_unknown(duration, took["p50"])
            yield f"  {duration(took['mean']):>8} a {what}, median {median}"
    yield f"  {or_unknown(duration, sync_ns):>8} a step to keep them equal"


def _held(found: HotRows | None) -> Iterator[str]:
    """What hot rows take, and what others took that they were given up for."""
    held = found["held"] if found else []
    for one in held:
        since = f" from step {one['first_step']}" if len(held) > 1 else ""
        yield f"  {size(one['bytes']):>8} on the device{since}"


def _over_the_run(found: HotRows | None) -> Iterator[str]:
    """Hot lookups in each part of a run, and whether a refresh could bring some."""
    if not found:
        return
    parts = found["parts"]
    if len(parts) > 1:
        shares = ", ".join(or_unknown(percent, part["hot_lookup_ratio"]) for part in parts)
        first, last = parts[0]["first_step"], parts[-1]["last_step"]
        yield f"  of the lookups, from step {first} to {last}: {shares}"
    if found["at_most_ratio"] is not None:
        most = percent(found["at_most_ratio"])
        yield f"  {most:>8} at most of those counted by row, had the rows looked up most been hot"
