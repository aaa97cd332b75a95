"""What a case is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from faults.setting import Setting

Right = tuple[str | None, str | None]
"""Names of a kind and a cause, of `VerdictKind` and `Cause`; no kind: the verdict abstains."""

HEALTHY: Right = ("COMPUTE", None)


@dataclass(frozen=True)
class Case:
    """A setting, and the verdict that is right about it.

    Attributes:
        name: on the command line and in the results.
        tells: what is wrong, for the table in docs/verdicts.md.
        setting: what is run.
        remedy: changes of fields of the setting that take away what is wrong; none: it is healthy.
        right: verdicts that are right. Naming no cause where one is right is vague, not wrong.
        quick: whether it is in the quick suite.
    """

    name: str
    tells: str
    setting: Setting
    remedy: Mapping[str, Any] = field(default_factory=dict)
    right: tuple[Right, ...] = (HEALTHY,)
    quick: bool = False

    def changed(self, **changes: Any) -> Case:
        """The same with other values of some fields of its setting."""
        return replace(self, setting=self.setting.changed(**changes))

    @property
    def healthy(self) -> bool:
        """Nothing is wrong with it."""
        return not self.remedy


def fault(
    name: str,
    tells: str,
    right: tuple[Right, ...],
    *,
    remedy: Mapping[str, Any],
    quick: bool = False,
    **fields: Any,
) -> Case:
    """A case in which something is wrong: fields of a setting that are not as usual."""
    return Case(name, tells, Setting().changed(**fields), remedy, right, quick)


def control(name: str, tells: str, *, quick: bool = False, **fields: Any) -> Case:
    """A case in which nothing is wrong."""
    return Case(name, tells, Setting().changed(**fields), quick=quick)


def because(kind: str, *causes: str | None) -> tuple[Right, ...]:
    """Verdicts of one kind with one of some causes; without causes: with none."""
    return tuple((kind, cause) for cause in causes or (None,))


ABSTAINS: tuple[Right, ...] = ((None, None),)
