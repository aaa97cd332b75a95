"""What `trainobs compare` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trainobs.analysis.comparison.changes import UNSET
from trainobs.analysis.comparison.intervals import PartDifference
from trainobs.analysis.comparison.two_sides import Comparison
from trainobs.core.text import duration, printable, times
from trainobs.report.rows import FORMATS, or_unknown, paragraph, row

_SMALL = 0.01
"""Share of the step below which parts that do not differ are put together."""

_NOTHING = 0.001
"""Share of the step below which what they come to is left out."""

_SETTINGS = 6
_NOTES = 3
_LABEL, _VALUE = 30, 32
"""Columns of a setting's name, and of each of its values."""


def render(found: Comparison) -> str:
    """The answer first, then what it rests on; at most 100 columns wide, names excepted.

    Args:
        found: what `analysis.comparison.two_sides.compare` returns.
    """
    sections = (_answer, _runs, _parts, _conditions, _changes, _notes)
    return "\n".join(printable(line) for section in sections for line in section(found))


def piece(found: Comparison) -> Mapping[str, object]:
    """What the page shows: the numbers, and in `text` the sentences that `render` prints.

    Args:
        found: what `analysis.comparison.two_sides.compare` returns.
    """
    lines = map(str.strip, (*_work(found), *_alone(found)))
    alone = " ".join(line[:1].upper() + line[1:] for line in lines)
    text = {"answer": _sentence(found), "alone": alone, "predicted": _prediction(found)}
    return {**found, "text": text}


def _answer(found: Comparison) -> Iterator[str]:
    yield _sentence(found)
    yield from _work(found)
    yield from _alone(found)


_WIDE = 10.0
"""Ratio of the ends of an interval from which on it tells nothing."""


def _sentence(found: Comparison) -> str:
    ends, gain = found["gain_interval"], found["gain"]
    if not ends or not gain:
        return f"Whether B is faster is unknown: {found['why_unknown']}"
    if found["answer"] == "none" and ends[1] > _WIDE * ends[0]:
        return "No difference is shown: the runs are too few, or differ too much, to tell"
    low, high = map(times, ends)
    slow_low, slow_high = (times(1 / end) for end in reversed(ends))
    of = "" if found["per"] == "step" else f", per {found['per']}"
    return {
        "faster": f"B is {times(gain)} times as fast as A ({low} to {high}){of}",
        "slower": f"B is slower: a {found['per']} takes {times(1 / gain)} times as long "
        f"as in A ({slow_low} to {slow_high})",
        "none": f"No difference is shown: B is {low} to {high} times as fast as A{of}, within "
        "noise",
    }[found["answer"]]


def _work(found: Comparison) -> Iterator[str]:
    if found["work"]:
        yield f"  {found['work']}: times below are those of steps."


def _alone(found: Comparison) -> Iterator[str]:
    if found["these_runs"]:
        low, high = map(times, found["these_runs"])
        yield f"  of these two alone, B is {low} to {high} times as fast; other runs may differ."
        yield "  Several of each tell more: trainobs compare A1 A2 A3 -- B1 B2 B3"


def _runs(found: Comparison) -> Iterator[str]:
    for name, runs in found["runs"].items():
        steps = " + ".join(f"{run['steps']:,}" for run in runs)
        steps += " step" if steps == "1" else " steps"
        step_ns = found["step_ns"]["AB".index(name)]
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        yield f"  {name}: {duration(step_ns)} a step, {steps}: {runs[0]['run']}{more}"


def _parts(found: Comparison) -> Iterator[str]:
    step_ns = max(found["step_ns"])
    yield row("Where a step went", "A", "B", "B - A", "+/-")
    yield from _rows(found["parts"], step_ns, "  ", "smaller parts, together")
    yield row("  the whole step", *_times(*found["step_ns"]))


def _rows(parts: Sequence[PartDifference], step_ns: float, indent: str, rest: str) -> Iterator[str]:
    """Rows of parts, the small ones in one."""
    large = [part for part in parts if part["claim"] or max(part["ns"]) >= _SMALL * step_ns]
    for part in large:
        columns = _times(*part["ns"])
        if part["interval_ns"]:
            columns.append(duration((part["interval_ns"][1] - part["interval_ns"][0]) / 2))
        noise = "" if part["claim"] else "  within noise" if part["interval_ns"] else "  unknown"
        yield row(f"{indent}{part['label']}", *columns) + noise
        if part["parts"]:
            yield from _rows(part["parts"], step_ns, f"{indent}  ", "the rest of the wait")
    small = [part["ns"] for part in parts if part not in large]
    sums = [sum(ns[side] for ns in small) for side in (0, 1)]
    if max(sums) >= _NOTHING * step_ns:
        yield row(f"{indent}{rest}", *_times(*sums))


def _times(a: float, b: float) -> list[str]:
    sign = "-" if b < a else "+"
    return [duration(a), duration(b), f"{sign}{duration(abs(b - a))}"]


def _conditions(found: Comparison) -> Iterator[str]:
    known = [one for one in found["conditions"] if any(one["values"])]
    if known:
        yield row("Under which conditions, in a step", "A", "B")
    for one in known:
        values = (or_unknown(FORMATS[one["unit"]], value) for value in one["values"])
        yield row(f"  {one['label']}", *values)


def _changes(found: Comparison) -> Iterator[str]:
    changes = list(found["changes"].items())
    if changes:
        yield "Which settings differ"
    for name, values in changes[:_SETTINGS]:
        before, after = ("-" if value is None else _short(str(value)) for value in values)
        yield f"{row(f'  {name}', width=_LABEL)} {before} -> {after}"
    if len(changes) > _SETTINGS:
        yield f"  {len(changes) - _SETTINGS} more: --json lists them"
    told = _prediction(found)
    yield from paragraph(told, "  ", "    ")


def _prediction(found: Comparison) -> str:
    if not found["predicted"]:
        return f"nothing was predicted: {found['why_not']}"
    low, high = map(times, found["predicted"])
    was_set = not found["changes"].keys() <= set(UNSET)  # else the code may be what has changed
    held = {
        True: "that held",
        False: "that did not hold" if was_set else "no setting tells why it came otherwise",
        None: "whether that holds is within noise",
    }
    but = f" ({found['left_out']})" if found["left_out"] else ""
    return f"predicted for that{but}: {low} to {high} times as fast; {held[found['holds']]}"


def _short(value: str) -> str:
    return value if len(value) <= _VALUE else f"{value[: _VALUE - 3]}..."


def _notes(found: Comparison) -> Iterator[str]:
    for note in found["notes"][:_NOTES]:
        yield from paragraph(note, "  ", "  ")
