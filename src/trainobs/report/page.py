"""A run log as a page of text: what `trainobs report` prints."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from trainobs.core.catalogue import kernel_metrics
from trainobs.core.text import duration, percent, printable, quantity
from trainobs.report import loaders, sections, tables
from trainobs.report.sections import metric, training_ns

_WIDTH = 100

_LEVELS = {
    "ebpf": "eBPF probes in the kernel",
    "procfs": "/proc counters, without eBPF",
    "timing": "timing alone, without the kernel",
}


def render(summary: dict[str, Any]) -> str:
    """A page of plain text, at most 100 columns wide; what was not measured is left out.

    Args:
        summary: what `analysis.summary.summarize` returns.
    """
    middle = _WITH_STEPS if summary["steps"] else (_no_steps, sections.setup)
    parts = (_header, *middle, _losses, _not_measured)
    texts = ("\n".join(map(printable, section(summary))) for section in parts)
    return "\n\n".join(text.strip("\n") for text in texts if text)


_WITH_STEPS = (
    sections.verdict,
    sections.would_help,
    sections.step_time,
    sections.ranks,
    sections.phases,
    loaders.section,
    sections.rates,
    sections.cache,
    sections.waits,
    sections.checkpoints,
    sections.gpu,
    tables.section,
    sections.hot_rows,
    sections.distributions,
    sections.setup,
)


def _no_steps(summary: dict[str, Any]) -> Iterator[str]:
    yield "No step was recorded"
    yield "  In a loop of your own a step is what `with obs.step():` holds; under Lightning the run"
    yield "  ended before the second batch was fetched."


def _header(summary: dict[str, Any]) -> Iterator[str]:
    host = summary["host"]
    yield f"trainobs report of {summary['run']}"
    yield f"  host       {host.get('hostname', '?')}, Linux {host.get('kernel', '?')}"
    yield f"  observed   by {_observed(summary)}"
    yield f"  rank       {summary['rank']}, of {summary['world_size']} in the job"
    yield f"  steps      {summary['steps']}, in {duration(training_ns(summary))}"
    yield f"  ended      {summary['outcome'] or 'killed, or still running'}"
    yield f"  cost       {_cost(summary)}"
    yield f"  lost       {_lost(summary)}"


def _observed(summary: dict[str, Any]) -> str:
    """By what; some probes may run where system calls are not seen."""
    level = summary["level"]
    text = _LEVELS.get(level, level)
    on = {name for name, state in summary["capabilities"].items() if state == "on"}
    some = level != "ebpf" and any(metric.programs & on for metric in kernel_metrics())
    return f"{text} for system calls; other probes run" if some else text


def _cost(summary: dict[str, Any]) -> str:
    """What observing took, as CPU time per step and as a share of one CPU."""
    parts = {"in user space": "obs/cpu_ns", "in the kernel": "obs/probe_ns"}
    means = {where: metric(summary, name)["mean"] for where, name in parts.items()}
    known = {where: mean for where, mean in means.items() if mean is not None}
    step_ns = metric(summary, "step/duration_ns")["mean"]
    if not known or not step_ns:
        return "not measured"
    details = " and ".join(f"{duration(mean)} {where}" for where, mean in known.items())
    return f"{percent(sum(known.values()) / step_ns)} of one CPU: about {details} per step"


def _lost(summary: dict[str, Any]) -> str:
    lost = summary["lost"]
    causes = {name: n for name, n in lost["kernel"].items() if n}
    parts = [f"{quantity(n)} {_CAUSES.get(name, name)}" for name, n in causes.items()]
    rest = (lost["events"] or 0) - sum(causes.values())
    parts += [f"{quantity(rest)} kernel events or steps"] if rest > 0 else []
    parts += [f"{n} steps in the {sink}" for sink, n in lost["steps"].items() if n]
    parts += [f"unreadable files: {len(lost['files'])}"] if lost["files"] else []
    return ", ".join(parts) or "nothing"


_CAUSES = {
    "tasks": "tasks that were not followed",
    "requests": "block requests",
    "classes": "classes of files",
    "service": "loss of the service",
}


def _losses(summary: dict[str, Any]) -> Iterator[str]:
    missing = {k: why for k, why in summary["capabilities"].items() if why != "on"}
    gpm = summary["gpu"].get("gpm", "on")
    if gpm != "on":  # known only where the process used a GPU
        missing["gpu activity"] = gpm
    if missing:
        yield "Probes that were off"
        # Some reasons are messages of several lines.
        yield from _wrapped(f"{probe}: {' '.join(why.split())}" for probe, why in missing.items())
    if summary["lost"]["files"]:
        yield "Files that could not be read"
        yield from _wrapped(f"{path}: {why}" for path, why in summary["lost"]["files"].items())


def _not_measured(summary: dict[str, Any]) -> Iterator[str]:
    """Missing is not zero."""
    rooms: dict[str, list[str]] = {}
    measured = set()
    for name, values in summary["metrics"].items():
        if name.endswith("}"):  # of an embedding table, in a section of their own
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
    for paragraph in paragraphs:
        yield from textwrap.wrap(
            paragraph,
            _WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
