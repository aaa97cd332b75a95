"""What `trainobs report --after` prints."""

from __future__ import annotations

from typing import Any

from trainobs.core.text import duration, printable, times
from trainobs.report.rows import row


def render(found: dict[str, Any]) -> str:
    """What changed, what was predicted, and what came."""
    before, after = found["step_ns"]
    lines = [f"{found['run']}, after {found['old']}", row("What changed", "was", "is")]
    lines += [
        row(f"  {name}", *("-" if value is None else str(value) for value in values))
        for name, values in found["changes"].items()
    ]
    if not found["changes"]:
        lines.append("  nothing that is known")
    lines.append(row("A step took", duration(before), duration(after)))
    lines.append(f"  came: {times(found['gain'])} times as fast (these two runs alone)")
    if found["predicted"]:
        low, high = map(times, found["predicted"])
        word = "as predicted" if found["holds"] else "not as predicted"
        lines.append(f"  predicted: {low} to {high} times as fast; {word}")
    else:
        lines.append(f"  predicted: nothing; {found['why_not']}")
    return "\n".join(map(printable, lines))
