"""By what a run was observed, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainobs.core.catalogue import kernel_metrics
from trainobs.core.labels import LEVELS


def observed_by(about: Mapping[str, Any]) -> str:
    """By what a run was observed; some probes may run where system calls are not seen.

    Args:
        about: the run: its `level` and `capabilities`, as in its `run.json`.
    """
    level = about.get("level")
    text = LEVELS.get(str(level), level) or "unknown means"
    on = {name for name, state in (about.get("capabilities") or {}).items() if state == "on"}
    some = level not in ("ebpf", "attached") and any(
        metric.programs & on for metric in kernel_metrics()
    )
    return f"{text} for system calls; other probes run" if some else text
