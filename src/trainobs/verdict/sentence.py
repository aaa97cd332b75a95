"""A verdict as a sentence, and as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from trainobs.core.labels import label_among
from trainobs.core.text import counted, duration, measured, percent, size
from trainobs.verdict.advice import told
from trainobs.verdict.verdict import Cause, Verdict, VerdictKind

_PLACES = {"other": "no phase", "named": "no phase, logging or a phase of its own"}

_SHARE = 0.1
"""Of the step, from which on a row of evidence that seems to contradict the sentence is told of."""

_SHOWN = 6
"""Rows of evidence that are shown; all are in the JSON."""


def sentence(verdict: Verdict) -> str:
    """The verdict in one sentence; without a verdict, why there is none."""
    if verdict.kind is None:
        return f"no verdict: {verdict.abstained_because}"
    text = verdict.kind.value
    if verdict.costs:
        text += f" of {' and '.join(cost.value for cost in verdict.costs)}"
    if verdict.ns_per_step is not None and verdict.share is not None:
        lost = "held up for " if verdict.held_up and not verdict.cause else ""
        of = "a step on average, {} of all time" if verdict.when else "a step, {} of it"
        lost += "at least " if verdict.is_least else ""
        text += f": {lost}{duration(verdict.ns_per_step)} {of.format(percent(verdict.share))}"
    text += f", in {_PLACES.get(verdict.where, verdict.where)}" if verdict.where else ""
    text += f", {verdict.when}" if verdict.when else ""
    if verdict.cause:
        return f"{text}; cause: {verdict.cause.value}"
    return f"{text}; by no one cause" if verdict.held_up else text


def lines(verdict: Verdict) -> Iterator[str]:
    """The evidence, the advice, and what a reader should know besides."""
    shown = [row.metric for row in verdict.evidence[:_SHOWN]]
    for number, row in enumerate(verdict.evidence[:_SHOWN]):
        label = label_among(row.metric, shown[:number])
        share = "" if row.share is None else f" {percent(row.share):>8}"
        yield f"{label:<40}{measured(row.value, row.unit):>11}{share}"
    yield from notes(verdict)
    if verdict.advice:
        yield f"advice: {told(verdict.advice)}"


def _limit(limit: float | None) -> str:
    return f": a control group allows {size(limit)}" if limit else ""


def notes(verdict: Verdict) -> Iterator[str]:
    """What explains numbers that seem to contradict the sentence, or that it does not."""
    shares = {row.metric: row.share or 0.0 for row in verdict.evidence}
    late = shares.get("loader/handover_ns", 0.0) > shares.get("loader/compute_ns", 0.0)
    if verdict.cause is Cause.TRANSFORM and late:
        yield (
            "batches that are made are received late: their worker may hold Python's interpreter "
            "lock, or lack a CPU"
        )
    if verdict.kind is VerdictKind.SLEEP and verdict.polled_share >= _SHARE:
        yield (
            "no other thread computed meanwhile, so what looks like a wait for the GIL is another "
            "lock, asked for again and again"
        )
    if verdict.kernel_may_compute:
        yield (
            "much of what the loader computes may be the kernel's, which copies what is read, or "
            "frees memory"
        )
    if verdict.may_be_read_again:
        yield (
            "half or more of what is read from storage may have been in memory before, which could "
            f"not hold it{_limit(verdict.memory_limit_bytes)}"
        )
    if verdict.cpu_taken_by:
        share = percent(verdict.cpu_lacked_share)
        yield f"a CPU was lacking for {share} of the step, because of {verdict.cpu_taken_by.value}"
    if verdict.siblings:
        whose = counted(verdict.siblings, "other process", "other processes")
        yield (
            f"{whose} with torch, of its process group, took "
            f"{percent(verdict.siblings_cpu_ratio)} of the CPUs"
        )
    if not verdict.knows_phases:
        yield (
            "loading and training are not told apart in these steps; `obs.loader` or `obs.phase` "
            "in the script tell them apart"
        )
