"""Why a run has no steps, as the reports say it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainobs.analysis.no_steps import reason
from trainobs.report.rows import paragraph


def why(summary: dict[str, Any]) -> Iterator[str]:
    """Why there is no step to tell of."""
    yield "No step was recorded"
    yield from paragraph(reason(summary), "  ", "  ")
