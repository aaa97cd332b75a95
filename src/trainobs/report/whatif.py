"""What `trainobs whatif` prints."""

from __future__ import annotations

from trainobs.analysis.whatif import CHANGES, WhatIf
from trainobs.core.text import duration, percent, printable, times
from trainobs.report.rows import row


def render(found: WhatIf) -> str:
    """Predictions, one a line."""
    lines = [
        f"{found['run']}: {duration(found['step_ns'])} a step; the replay of the run as it was is "
        f"off by {percent(abs(found['fit'] - 1))}",
        row("predicted", "step from", "to", "gain from", "to"),
    ]
    for one in found["changes"]:
        steps = (duration(ns) for ns in one["step_ns"])
        gains = (times(gain) for gain in one["gain"])
        lines.append(row(f"  {one['change']}", *steps, *gains))
    return "\n".join(map(printable, lines))


def help_text() -> str:
    """The changes that can be named, for the help of the command."""
    width = max(map(len, CHANGES)) + 2
    names = (f"  {example:<{width}}{tells}" for example, tells in CHANGES.items())
    return "\n".join(("changes:", *names))
