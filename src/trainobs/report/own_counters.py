"""What programs of the user's counted, in the report."""

from __future__ import annotations

from collections.abc import Iterator

from trainobs.analysis.summary import Summary
from trainobs.core.own_counter import OWN_ROLES, of_role
from trainobs.core.text import measured
from trainobs.report.rows import or_unknown, row

_UNITS = ("ns", "bytes", "ratio")
"""Units that a number tells by itself."""


def section(summary: Summary) -> Iterator[str]:
    """Each sum by step, and its parts by role; what a program that did not run counts is a dash."""
    if not summary["own"]:
        return
    yield row("Own probes", "mean", "p95", "highest", "in all")
    for one in summary["own"]:
        words = _words(one["unit"], one["title"]).strip()
        label = f"{one['title']}{words and f' ({words})'}"
        yield _row(summary, f"  {label}", one["name"], one["unit"])
        roles = {role: of_role(one["name"], role) for role in OWN_ROLES}
        known = {role: name for role, name in roles.items() if summary["metrics"][name]["sum"]}
        for role, name in known.items() if len(known) > 1 else ():
            yield _row(summary, f"    {role.name.lower()}", name, one["unit"])


def brief(summary: Summary) -> Iterator[str]:
    """The same in a line."""
    means = {one["title"]: (summary["metrics"][one["name"]]["mean"], one) for one in summary["own"]}
    told = [
        f"{title} {measured(mean, one['unit'])}{_words(one['unit'], title)}"
        for title, (mean, one) in means.items()
        if mean is not None
    ]
    if told:
        yield f"Own probes, a step: {', '.join(told)}"


def _words(unit: str, title: str) -> str:
    return "" if unit in _UNITS or title.endswith(unit) else f" {unit}"


def _row(summary: Summary, label: str, name: str, unit: str) -> str:
    found = summary["metrics"][name]
    columns = (found[key] for key in ("mean", "p95", "max", "sum"))
    return row(
        label, *(or_unknown(lambda value: measured(value, unit), value) for value in columns)
    )
