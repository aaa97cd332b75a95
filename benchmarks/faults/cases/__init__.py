"""All cases."""

from __future__ import annotations

from faults.cases import healthy, loader, machine, step

CASES = {case.name: case for part in (healthy, loader, step, machine) for case in part.CASES}
