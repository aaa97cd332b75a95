"""What programs of a user's count: numbers that a run brings along, beside the catalogue."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainobs.core.abi import Role

OWN_ROLES = (Role.MAIN, Role.THREAD, Role.WORKER, Role.CHILD)
"""Roles that a program can find a task in; a kernel thread is in none."""

OWN = "probe/"
"""What the names of their metrics begin with."""

_TITLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,39}")
_UNIT = re.compile(r"[A-Za-z0-9%][A-Za-z0-9 %/_.-]{0,19}")


@dataclass(frozen=True)
class OwnCounter:
    """One sum of a user's program: how often something happened, or what was measured of it.

    Attributes:
        title: its name, as the program has it.
        unit: of the sum: "calls", "ns", "bytes".
        probe: the program, as `RunInfo.capabilities` has it.
    """

    title: str
    unit: str
    probe: str

    @property
    def name(self) -> str:
        """Name of its metric."""
        return OWN + self.title.replace(" ", "_")

    def fault(self) -> str | None:
        """What is wrong with the words; None if nothing is. They become columns and tags."""
        if not _TITLE.fullmatch(self.title):
            return "a name has 1 to 40 letters, digits, blanks and _.-, first a letter or digit"
        if not _UNIT.fullmatch(self.unit):
            return "a unit has 1 to 20 letters, digits, blanks and %/_.-, first no blank or sign"
        return None


def of_role(name: str, role: Role) -> str:
    """Name of the metric that holds one role's part of such a sum."""
    return f"{name}{{role={role.name.lower()}}}"
