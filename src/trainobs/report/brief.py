"""A run log in 25 lines: what `trainobs report` prints."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import NamedTuple

from trainobs.analysis.observed import observed_by
from trainobs.analysis.summary import Summary
from trainobs.analysis.verdicts import ToldEvidence
from trainobs.core.labels import PART_OF, label_among
from trainobs.core.text import counted, duration, gained, measured, percent, printable
from trainobs.report import brief_lines, sections
from trainobs.report.losses import found_and_remedy, lost, not_observed, unreadable
from trainobs.report.rows import WIDTH, cut, cut_path, paragraph, row, statement
from trainobs.report.sections import (
    PART_LABELS,
    attached,
    ends,
    own_share,
    part,
    part_label,
    step_line,
)
from trainobs.report.verdict_text import NOTHING_SURE, unpredicted_workers

LINES = 25
"""Lines that a terminal shows at once."""

_GAIN = 26
"""Characters of a usual gain; the longest that is shown makes the column wider."""

_RAGGED = 40
"""Characters that lines of words may leave free."""

_ENDING = 36
"""Characters of how a run ended that its first line has room for, beside the name of the run."""

_SMALL = 0.01
"""Share of a step below which a part of it has no line of its own."""


class _Room(NamedTuple):
    """Lines for what there may be any number of."""

    verdict: int
    evidence: int
    changes: int
    parts: int
    statement: int


_USUAL = _Room(verdict=2, evidence=3, changes=4, parts=5, statement=2)
_LITTLE = _Room(verdict=2, evidence=1, changes=2, parts=2, statement=1)
_LEAST = _LITTLE._replace(verdict=1, changes=1, parts=1)
"""For a run of which there is everything to tell: tables, ranks, a GPU, checkpoints, losses."""

_ROOMS = (_USUAL, _USUAL._replace(evidence=1, changes=2, parts=2), _LITTLE, _LEAST)
"""The first with which the report is no longer than a screen is taken."""


def render(summary: Summary, now_ns: int, *, is_newest: bool = False) -> str:
    """At most 25 lines of at most 100 columns; what was not measured is left out.

    Args:
        summary: what `analysis.summary.summarize` returns.
        now_ns: time since 1970.
        is_newest: whether a directory was asked for, of which this is the newest run.
    """
    groups: list[list[str]] = []
    for room in _ROOMS:
        groups = [list(_head(summary, room, now_ns, is_newest)), *_about_steps(summary, room)]
        groups.append(
            [*brief_lines.others(summary, room.statement), *_missing(summary, room), _more(summary)]
        )
        groups = [group for group in groups if group]
        free = LINES - sum(map(len, groups))
        if free >= 0:
            break
    lines: list[str] = []
    for number, group in enumerate(groups):
        lines += [""] if 0 < number <= free else []
        lines += group
    return "\n".join(cut(printable(line)) for line in lines)


def _about_steps(summary: Summary, room: _Room) -> list[list[str]]:
    if not summary["steps"]:
        return [list(sections.no_steps(summary))]
    return [
        list(_verdict(summary, room)),
        list(_would_help(summary, room)),
        list(_step(summary, room)),
        list(brief_lines.loader_and_storage(summary, room.statement)),
    ]


def _head(summary: Summary, room: _Room, now_ns: int, is_newest: bool) -> Iterator[str]:
    newest = "the newest " if summary["is_part"] else ""
    took = f"{newest}{counted(summary['steps'], 'step')} in {duration(summary['training_ns'])}"
    took = took if summary["steps"] else "no steps"
    if summary["steps"] and (missing := summary["lost"]["missing_steps"]):
        took += f", {missing:,} missing"
    if summary["epochs"] > 1:
        took += f", {counted(summary['epochs'], 'epoch')}"
    how = f"ended: {summary['outcome']}" if summary["outcome"] else "not ended, or killed"
    has_room = len(how) <= _ENDING
    begin, end = "trainobs report of ", f": {took}{f', {how}' if has_room else ''}"
    which = " (the newest)" if is_newest else ""
    yield begin + cut_path(summary["run"], WIDTH - len(begin + which + end)) + which + end
    yield from () if has_room else statement(f"  {how}", 1)
    host, world_size = summary["host"], summary["world_size"]
    where = f"on {host.get('hostname', '?')}, Linux {host.get('kernel', '?')}"
    where += f", rank {summary['rank']} of {world_size}" if (world_size or 1) > 1 else ""
    share = own_share(summary)
    cost = "" if share is None else f", which took {share}"
    by = observed_by(summary["level"], summary["capabilities"])
    yield from statement(
        f"  {_age(summary, now_ns)}{where}; observed by {by}{cost}", room.statement
    )
    if summary["attached"]:
        yield from paragraph(f"process {attached(summary['attached'])}", "  ", "  ")


def _age(summary: Summary, now_ns: int) -> str:
    """How old the newest step of a run is that has not ended, as far as anybody knows."""
    wall_ns = summary["newest"]["wall_ns"] if summary["newest"] else None
    if summary["outcome"] or wall_ns is None or wall_ns > now_ns:
        return ""
    return f"newest step {duration(now_ns - wall_ns)} ago; "


def _verdict(summary: Summary, room: _Room) -> Iterator[str]:
    verdict = summary["verdict"]["run"]
    why = verdict["abstained_because"]
    told = verdict["text"][0] if verdict["kind"] else f"none ({why})"
    yield from statement(f"Verdict: {told}", room.verdict)
    # Phases are told below, all of them.
    phases = {*PART_LABELS, *(summary["step"] or {"parts": ()})["parts"]}
    rows = [one for one in verdict["evidence"] if one["metric"] not in phases]
    rows = [one for one in rows if one["share"] is None or one["share"] >= _SMALL]
    most = room.evidence * (2 if verdict["kind"] == "mixed" else 1)  # of each cost
    for one in _in_order(rows)[:most]:
        share = [] if one["share"] is None else [percent(one["share"])]
        label = label_among(one["metric"], ())
        of = "wait: " if one["metric"].startswith("loader/") else ""
        of = "  of it: " if _whole(one, rows) is not one else of
        yield row(f"  {of}{label}", measured(one["value"], one["unit"]), *share)
    for note in verdict["notes"]:
        yield from statement(f"  {note}", room.statement)


def _in_order(rows: list[ToldEvidence]) -> list[ToldEvidence]:
    """The largest first; what is within another after that one."""

    def key(one: ToldEvidence) -> tuple[float, bool]:
        whole = _whole(one, rows)
        return -(whole["share"] or 0.0), whole is not one

    return sorted(rows, key=key)


def _whole(one: ToldEvidence, rows: list[ToldEvidence]) -> ToldEvidence:
    """The row that a row is within, itself if there is none."""
    within = PART_OF.get(one["metric"])
    return next((other for other in rows if other["metric"] == within), one)


def _would_help(summary: Summary, room: _Room) -> Iterator[str]:
    found, advice = summary["would_help"], summary["verdict"]["run"]["advice"]
    gains = {advice["text"]: gained(*advice["gain"])} if advice else {}
    for one in found["changes"]:
        if not advice or one["values"].keys() != advice["change"].keys():
            gains[f"{one['change']}: {one['means']}"] = gained(*one["gain"])
    width = max((_GAIN, *map(len, gains.values())))
    indent = " " * (width + 4)
    rows = [f"{gain:<{width}}  {text}" for text, gain in gains.items()]
    told = [paragraph(line, "  ", indent) for line in rows]
    if told:
        yield "What would help, as predicted"
        lines = list(_whole_ones(told, room.changes))
        yield from lines or statement(f"  {rows[0]}", room.changes)
    elif found["replayed"]:
        yield from statement(f"What would help: not known; {NOTHING_SURE}")
    elif found["refused"]:
        yield from statement(f"What would help: not known; {found['refused']}", room.verdict)
    if why := unpredicted_workers(summary):
        yield from statement(f"  {why}", room.statement)


def _whole_ones(told: list[list[str]], most: int) -> Iterator[str]:
    """The first of what takes some lines each, as far as all of it has room."""
    for lines in told:
        most -= len(lines)
        if most < 0:
            return
        yield from lines


def _step(summary: Summary, room: _Room) -> Iterator[str]:
    step = summary["step"]
    if step is None:
        yield "The step: not timed"
        return
    yield step_line(step)
    yield from ends(step)
    found = {name: ns for name, ns in step["parts"].items() if ns > 0}
    parts = sorted(found, key=lambda name: -found[name])
    shown = [name for name in parts if found[name] >= _SMALL * step["mean_ns"]][: room.parts]
    for name in shown:
        yield part(part_label(name), found[name], step["mean_ns"])
    rest = [name for name in parts if name not in shown]
    if rest:
        others = sum(found[name] for name in rest)
        yield part(f"{counted(len(rest), 'other part')}", others, step["mean_ns"])


def _missing(summary: Summary, room: _Room) -> Iterator[str]:
    """What the reader cannot know from the above; where room is scarce in four lines."""
    if found := lost(summary):
        yield from statement(f"Lost: {', '.join(found)}", room.statement)
    if files := unreadable(summary):
        more = f", and {len(files) - 1} more" if len(files) > 1 else ""
        yield from _message(f"Unreadable: {files[0]}", more, room.statement)
    off = not_observed(summary)
    if summary["level"] in ("procfs", "timing") and "ebpf" in off:
        why, remedy = found_and_remedy(off["ebpf"])
        yield from statement(f"Not eBPF, because: {why}", room.verdict)
        if remedy:
            yield from statement(f"  To get it: {remedy}", room.verdict)
    elif off:
        name, why = next(iter(off.items()))
        why = found_and_remedy(why)[0]
        more = f", and {len(off) - 1} more" if len(off) > 1 else ""
        yield from _message(f"Off: {name} ({why}", f"){more}", room.statement)


def _message(text: str, end: str, most: int) -> list[str]:
    """What may be of any length, in so many lines, with an end that is never cut off."""
    room = most * WIDTH - (most - 1) * _RAGGED
    return paragraph(cut(text, room - len(end)) + end)


def _more(summary: Summary) -> str:
    run = shlex.quote(summary["run"])
    curves = ", `tensorboard --logdir {name}`" if summary["has_curves"] else ""
    line = f"More: `trainobs report {{name}} --full`, `--html FILE`{curves}"
    lines = (line.format(name=name) for name in (run, "RUN"))
    return next(line for line in lines if len(line) <= WIDTH)
