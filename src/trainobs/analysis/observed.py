"""By what a run was observed, in words."""

from __future__ import annotations

from collections.abc import Mapping

from trainobs.core.catalogue import kernel_metrics
from trainobs.core.labels import LEVELS


def observed_by(level: str | None, capabilities: Mapping[str, str] | None) -> str:
    """By what a run was observed; some probes may run where system calls are not seen.

    Args:
        level: of its `run.json`.
        capabilities: the same.
    """
    text = LEVELS.get(str(level), level) or "unknown means"
    on = {name for name, state in (capabilities or {}).items() if state == "on"}
    some = level not in ("ebpf", "attached") and any(
        metric.programs & on for metric in kernel_metrics()
    )
    return f"{text} for system calls; other probes run" if some else text
