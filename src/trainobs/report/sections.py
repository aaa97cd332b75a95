"""The sections of the report's page, one function each; a section without data is empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainobs.analysis import no_steps as without
from trainobs.analysis.io.unnamed_reads import told_of
from trainobs.analysis.metric_statistics import Statistics
from trainobs.analysis.step_time import TAKING, StepTime
from trainobs.analysis.summary import Summary, mean_of
from trainobs.analysis.verdicts import ToldVerdict
from trainobs.core import labels
from trainobs.core.catalogue import METRICS, phase_metric
from trainobs.core.labels import BYTES, CACHE, GPU, PHASES, WAITS, label_of
from trainobs.core.text import bar, counted, duration, gained, percent, quantity, size
from trainobs.report.brief_lines import LIBAIO
from trainobs.report.rows import FORMATS, LABEL, WIDTH, or_unknown, paragraph, row
from trainobs.report.verdict_text import unpredicted_workers

_BAR = 36
PART_LABELS = {
    **{phase_metric(phase): label for phase, label in PHASES.items()},
    TAKING: labels.TAKING,
}
"""Parts of the step."""

_SHOWN = 5

_ENOUGH = {50: 2, 95: 20, 99: 100}
"""Percentile -> events that it takes to speak of it."""


def step_time(summary: Summary) -> Iterator[str]:
    """How long a step took, and where the training thread spent it."""
    step = summary["step"]
    if step is None:
        return
    yield step_line(step)
    yield from ends(step)
    if step["first_is_out"]:
        yield "  bytes, waits and counts below are of all steps, the first included"
    if step["mean_ns"]:
        yield f"  steps per second: {1e9 / step['mean_ns']:.4g}"
    spent = {name: ns for name, ns in step["parts"].items() if ns > 0}
    if spent and step["mean_ns"]:
        yield row("Where the step went", "mean", "share")
        for name in sorted(spent, key=lambda name: -spent[name]):
            yield part(part_label(name), spent[name], step["mean_ns"])


def part_label(name: str) -> str:
    """The name for people of a part of the step."""
    return PART_LABELS.get(name) or label_of(name)


def step_line(step: StepTime) -> str:
    """The time of a step, in words."""
    first = " after the first" if step["first_is_out"] else ""
    whose = "of these " if step["first_is_out"] else ""
    p95 = f"p95 {duration(step['p95_ns'])}, " if step["steps"] >= _ENOUGH[95] else ""
    spread = f"; {whose}{p95}slowest {duration(step['max_ns'])}" if step["steps"] > 1 else ""
    of = counted(step["steps"], "step")
    return f"A step: {duration(step['mean_ns'])}, the mean of {of}{first}{spread}"


def ends(step: StepTime) -> Iterator[str]:
    """What the first step took, which the others are told without, where that is much.

    And what the last one took, of a run that an exception ended.
    """
    if step["first_is_long"] and step["first_ns"] and step["first_share"]:
        took, share = duration(step["first_ns"]), percent(step["first_share"])
        yield f"  the first step took {took}, {share} of the time of all steps"
    if step["failed_ns"] and step["failed_share"]:
        took, share = duration(step["failed_ns"]), percent(step["failed_share"])
        yield f"  the last step, up to the exception, took {took}, {share} of the time of all"


def part(label: str, ns: float, of_ns: float) -> str:
    """A part of the step, with a bar."""
    share = min(1.0, ns / of_ns) if of_ns else 0.0
    return f"{row(f'  {label}', duration(ns), percent(share))}  {bar(share, _BAR)}"


def rates(summary: Summary) -> Iterator[str]:
    """What was moved, per step, per second of training and in all."""
    seconds = summary["training_ns"] / 1e9
    sums = {name: label for name, label in BYTES.items() if summary["metrics"][name]["sum"]}
    rows = sums | _above_zero(summary, BYTES)
    unnamed = summary["unnamed_bytes"]
    if rows and seconds:
        yield row("Bytes", "per step", "per second", "in all")
        for name, label in rows.items():
            mean, total = summary["metrics"][name]["mean"], summary["metrics"][name]["sum"]
            if total is not None:
                total -= summary["setup"].get(name, 0)
            rate = None if total is None else total / seconds
            columns = (or_unknown(size, mean), or_unknown(_per_second, rate))
            yield row(f"  {label}", *columns, or_unknown(size, total))
    if unnamed is not None:
        attached, named = bool(summary["attached"]), summary["data_is_named"]
        why = told_of(unnamed, attached=attached, named=named)
        yield from paragraph(f"training data: unknown; {why}", "  ", "  ")
    elif summary["mapped_data"]:
        some = "some training data" if summary["mapped_data"] == "some" else "training data"
        yield f"  {some} is mapped, and what is read of a mapping is in no row"
    if summary["has_libaio"]:
        yield f"  {LIBAIO}"


def _per_second(rate: float) -> str:
    return f"{size(rate)}/s"


def cache(summary: Summary) -> Iterator[str]:
    """How well the page cache served the training data."""
    rows = _above_zero(summary, CACHE)
    if rows:
        yield "Page cache"
        for name, label in rows.items():
            share = mean_of(summary, name) or 0.0
            yield f"  {label:<{LABEL + 3}}{percent(share):>8}  {bar(share, _BAR)}"


def waits(summary: Summary) -> Iterator[str]:
    """Time lost outside computation."""
    rows = _above_zero(summary, WAITS)
    if rows:
        yield row("Waits in a step, over all threads", "mean", "p95", "slowest")
        for name, label in rows.items():
            yield row(f"  {label}", *_spread(summary["metrics"][name], duration))


def gpu(summary: Summary) -> Iterator[str]:
    """What the GPU of this rank did."""
    labels = {n: text for n, text in GPU.items() if mean_of(summary, n) is not None}
    if labels:
        yield row("GPU", "mean", "p95", "highest")
        device = summary["gpu"]
        if "name" in device:
            yield f"  {device['name']}, {device['uuid']}, driver {device.get('driver', '?')}"
        for name, label in labels.items():
            form = FORMATS[METRICS[name].unit]
            yield row(f"  {label}", *_spread(summary["metrics"][name], form))
        energy_mj = summary["metrics"]["gpu/energy_mj"]
        if energy_mj["mean"]:
            total = or_unknown(lambda mj: f"{mj / 1e6:.3g} kJ", energy_mj["sum"])
            yield row("  energy: per step, in all", f"{energy_mj['mean'] / 1e3:.3g} J", total)
        if window_ns := mean_of(summary, "gpu/window_ns"):
            yield f"  read over windows of {duration(window_ns)}; shorter steps share a window"


def _spread(found: Statistics, form: Callable[[float], str]) -> Iterator[str]:
    for value in (found["mean"], found["p95"], found["max"]):
        yield or_unknown(form, value)


def checkpoints(summary: Summary) -> Iterator[str]:
    """What saving cost, and what it left to the kernel; of many, those that blocked longest."""
    found = summary["checkpoints"]
    if not found:
        return
    shown = sorted(found, key=lambda one: one["blocking_ns"] or 0)[-_SHOWN:]
    title = f"Checkpoints: {len(found)}" + (f", longest {_SHOWN}" if len(found) > _SHOWN else "")
    yield row(title, "blocked", "written", "fsync", "at once", "later")
    for one in (one for one in found if one in shown):
        label = "before the first step" if one["step"] is None else f"step {one['step']}"
        yield row(
            f"  {label}",
            or_unknown(duration, one["blocking_ns"]),
            or_unknown(size, one["written_bytes"]),
            or_unknown(duration, one["fsync_ns"]),
            or_unknown(size, one["block_bytes"]),
            or_unknown(size, one["later_block_bytes"]),
        )
        if one["until_step"] is not None:
            later = or_unknown(duration, one["later_ns"])
            yield f"    written back until step {one['until_step']}, {later} later"
    if all(one["block_bytes"] == one["later_block_bytes"] == 0 for one in found):
        yield "  at once, later: to block devices; what a server takes (NFS, FUSE) is in neither"


def distributions(summary: Summary) -> Iterator[str]:
    """Latency histograms as bars, one row for each power of two. They know of no steps."""
    for distribution in filter(None, summary["latency"].values()):
        yield ""
        of = {50: distribution["p50_ns"], 95: distribution["p95_ns"], 99: distribution["p99_ns"]}
        enough = [q for q, least in _ENOUGH.items() if distribution["count"] >= least]
        times = "   ".join(f"p{q} {duration(of[q])}" for q in enough)
        count = f"{quantity(distribution['count'])} including the set-up"
        yield f"{distribution['title']}: {count}   {times}"
        tallest = max(bucket["count"] for bucket in distribution["buckets"])
        for bucket in distribution["buckets"]:
            bounds = f"{duration(bucket['from_ns'])} - {duration(bucket['to_ns'])}"
            number = f"{quantity(bucket['count']):>8}"
            yield f"  {bounds:>20} {number}  {bar(bucket['count'] / tallest, _BAR)}"


def no_steps(summary: Summary) -> Iterator[str]:
    """Why there is no step to tell of."""
    yield without.found(summary)
    yield from paragraph(without.reason(summary), "  ", "  ")


def setup(summary: Summary) -> Iterator[str]:
    """What went on before the first step; it is in the sums of `--json`."""
    labels = {
        name: label.strip()
        for name, label in {**BYTES, **WAITS}.items()
        if summary["setup"].get(name)
    }
    if labels:
        yield "Before the first step (included above in the histograms only)"
        for name, label in labels.items():
            value = FORMATS.get(METRICS[name].unit, quantity)(summary["setup"][name])
            yield row(f"  {label}", value)


_EVENTS = ("backward", "optimizer", "fetch")


def attached(found: Mapping[str, Any]) -> str:
    """What is a step of a process that marks none, and how many events each had."""
    if found.get("periods"):
        return f"{found.get('pid', '?')}: {periods(found['periods'])}"
    each = found.get("events_per_step", {})
    counts = ", ".join(f"{name} {each[name]:.3g}" for name in _EVENTS if name in each)
    of = f"; events a step: {counts}" if counts else ""
    return f"{found.get('pid', '?')}: {found.get('steps', 'steps of unknown kind')}{of}"


_PERIODS = 4
"""Periods that are told, of those of which a loop had most."""


def periods(spells: Sequence[Mapping[str, Any]]) -> str:
    """The rate and the period of a loop, estimated from its system calls, one after the other."""
    longest = sorted(spells, key=lambda spell: spell["begin_ns"] - spell["end_ns"])[:_PERIODS]
    told = ", then ".join(_period(spell) for spell in spells if spell in longest)
    more = f", and {len(spells) - len(longest)} shorter ones" if len(spells) > len(longest) else ""
    return f"{told}{more}; estimated from the periodicity of its system calls"


def _period(spell: Mapping[str, Any]) -> str:
    each, low, high = spell["period_ns"], spell.get("low_ns"), spell.get("high_ns")
    between = f" ({duration(low)} to {duration(high)})" if low and high else ""
    rate = f"{quantity(1e9 / each)} a second" if each > 0 else "unknown rate"
    for_ns = duration(spell["end_ns"] - spell["begin_ns"])
    return f"a period of {duration(each)}{between}, {rate}, for {for_ns}"


def own_share(summary: Summary) -> str | None:
    """What observing took, in words; None where that is not told."""
    share = summary["own_cpu_ratio"]
    if share is None:
        return None
    return f"{percent(share)} of a CPU" if share <= 1 else f"{share:.1f} CPUs"


def _above_zero(summary: Summary, labels: Mapping[str, str]) -> dict[str, str]:
    """The labels of metrics of which there is something to tell."""
    return {name: label for name, label in labels.items() if mean_of(summary, name)}


def verdict(summary: Summary) -> Iterator[str]:
    """The verdict on the run, and those epochs that differ."""
    run = summary["verdict"]["run"]
    yield "Verdict"
    for line in run["text"]:  # rows of evidence fit, and keep their columns
        yield from [f"  {line}"] if len(line) < WIDTH - 2 else paragraph(line, "  ", "    ")
    changes = list(_changed_verdicts(summary["verdict"]["epochs"]))
    if len(changes) > 1:
        yield from (f"  epoch {epoch}: {verdict['text'][0]}" for epoch, verdict in changes)


def would_help(summary: Summary) -> Iterator[str]:
    """Changes that a replay of the run predicts to help."""
    found = summary["would_help"]
    if found["changes"]:
        yield "What would help, by a replay of this run (trainobs whatif)"
        for one in found["changes"]:
            yield f"  {one['change']:<22}{gained(*one['gain'])}: {one['means']}"
    elif found["refused"]:
        yield f"What {'else ' if summary['verdict']['run']['advice'] else ''}would help: not known"
        yield from paragraph(found["refused"], "  ", "  ")
    if why := unpredicted_workers(summary):
        yield from paragraph(why, "  ", "    ")


def _changed_verdicts(epochs: Mapping[int, ToldVerdict]) -> Iterator[tuple[int, ToldVerdict]]:
    """Epochs whose verdict is another one than that of the epoch before."""
    before: tuple[object, object] | None = None
    for epoch, verdict in epochs.items():
        if (now := (verdict["kind"], verdict["cause"])) != before:
            yield epoch, verdict
        before = now
