"""A training and the machine around it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from faults.machine import Machine
from faults.training import Training

_OF_MACHINE = {field.name for field in fields(Machine)}


@dataclass(frozen=True)
class Setting:
    """What is run."""

    training: Training = Training()
    machine: Machine = Machine()

    def changed(self, **changes: Any) -> Setting:
        """The same with other values of some fields, of the training or of the machine."""
        around = {name: value for name, value in changes.items() if name in _OF_MACHINE}
        within = {name: value for name, value in changes.items() if name not in _OF_MACHINE}
        return Setting(replace(self.training, **within), replace(self.machine, **around))

    def unusual(self) -> dict[str, Any]:
        """Fields that have another value than by default."""
        usual = asdict(Training()) | asdict(Machine())
        mine = asdict(self.training) | asdict(self.machine)
        return {name: value for name, value in mine.items() if value != usual[name]}
