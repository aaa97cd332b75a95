"""A run log as a page of text: what `trainobs report --full` prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainobs.analysis.io.unnamed_reads import OF_DATA
from trainobs.analysis.observed import observed_by
from trainobs.analysis.summary import Summary, mean_of
from trainobs.core.text import duration, printable
from trainobs.report import hot_lookups, loaders, own_counters, rank_rows, sections, tables
from trainobs.report.losses import (
    killed,
    lost,
    missing_files,
    not_observed,
    nothing_lost,
    unreadable,
)
from trainobs.report.rows import paragraph
from trainobs.report.sections import attached, own_share


def render(summary: Summary) -> str:
    """A page of plain text, at most 100 columns wide; what was not measured is left out.

    Args:
        summary: what `analysis.summary.summarize` returns.
    """
    middle = _WITH_STEPS if summary["steps"] else (sections.no_steps, sections.setup)
    parts = (_header, *middle, _losses, _not_measured)
    texts = ("\n".join(map(printable, section(summary))) for section in parts)
    return "\n\n".join(text.strip("\n") for text in texts if text)


_WITH_STEPS = (
    sections.verdict,
    sections.would_help,
    sections.step_time,
    rank_rows.section,
    loaders.section,
    sections.rates,
    sections.cache,
    sections.waits,
    sections.checkpoints,
    sections.gpu,
    tables.section,
    hot_lookups.section,
    own_counters.section,
    sections.distributions,
    sections.setup,
)


def _header(summary: Summary) -> Iterator[str]:
    host = summary["host"]
    yield f"trainobs report of {summary['run']}"
    yield f"  host       {host.get('hostname', '?')}, Linux {host.get('kernel', '?')}"
    yield f"  observed   by {observed_by(summary['level'], summary['capabilities'])}"
    if summary["attached"]:
        yield from paragraph(attached(summary["attached"]), "  process    ", " " * 13)
    yield f"  rank       {summary['rank']}, of {summary['world_size']} in the job"
    steps = f"{summary['steps']}, in {duration(summary['training_ns'])}"
    what = f"; {summary['steps_are']}" if summary["steps"] and summary["steps_are"] else ""
    yield from paragraph(steps + what, "  steps      ", " " * 13)
    yield f"  ended      {summary['outcome'] or 'not yet, or it was killed'}"
    yield from paragraph(rank_rows.endings(summary), "  ranks      ", " " * 13)
    if told := killed(summary):
        yield f"  no memory  {told}"
    yield f"  cost       {_cost(summary)}"
    losses = [*missing_files(summary), *lost(summary)] or [nothing_lost(summary)]
    for number, line in enumerate(losses):
        yield f"  {'' if number else 'lost':<10} {line}"


def _cost(summary: Summary) -> str:
    """What observing took, as CPU time per step and as a share of one CPU."""
    parts = {"in user space": "obs/cpu_ns", "in the kernel": "obs/probe_ns"}
    means = {where: mean_of(summary, name) for where, name in parts.items()}
    known = {where: mean for where, mean in means.items() if mean is not None}
    share = own_share(summary)
    if share is None:
        return "not measured"
    details = " and ".join(f"{duration(mean)} {where}" for where, mean in known.items())
    return f"{share}: about {details} per step"


def _losses(summary: Summary) -> Iterator[str]:
    if off := not_observed(summary):
        yield "Probes that were off"
        yield from _wrapped(f"{probe}: {why}" for probe, why in off.items())
    if files := unreadable(summary):
        yield "Files that could not be read"
        yield from _wrapped(files)


def _not_measured(summary: Summary) -> Iterator[str]:
    """Missing is not zero."""
    rooms: dict[str, list[str]] = {}
    measured = set()
    for name, values in summary["metrics"].items():
        if name.endswith("}"):  # of an embedding table, in a section of their own
            continue
        if summary["unnamed_bytes"] is not None and name in OF_DATA:  # measured, and told above
            continue
        room, _, rest = name.partition("/")
        if values["max"] is None:
            rooms.setdefault(room, []).append(rest)
        else:
            measured.add(room)
    rooms |= {room: ["all"] for room in rooms.keys() - measured}
    if rooms:
        yield "Not measured in this run"
        yield from _wrapped(f"{room}: {', '.join(rest)}" for room, rest in rooms.items())


def _wrapped(paragraphs: Iterable[str]) -> Iterator[str]:
    for text in paragraphs:
        yield from paragraph(text, "  ", "    ")
