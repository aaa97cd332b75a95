"""`BccProbe`: a program of the user's as bcc has it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainobs.core.errors import SettingError, shown
from trainobs.probes.own_probe import checked_places

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_TOLD = re.compile(
    r'^[ \t]*TRAINOBS_(COUNTER|VALUE)\(\s*([^,]*?)\s*,\s*"([^"]*)"\s*,\s*"([^"]*)"\s*\)',
    re.MULTILINE,
)


@dataclass(frozen=True)
class BccProbe:
    """A program of bcc, whose counts land in the step that they belong to.

    Args:
        text: C as bcc's `BPF(text=...)` takes it, with TRAINOBS_COUNTER and `trainobs_add`.
        name: what the run log and errors call it.
        attach: function of the text -> where it is attached: see `Probe`.

    Raises:
        SettingError: an argument is something else.
    """

    text: str
    name: str = "bcc"
    attach: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise SettingError("bad value for `text` of a BccProbe", shown(self.text), "give C")
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            do = "give up to 40 letters, digits and _.-"
            raise SettingError("bad value for `name` of a BccProbe", shown(self.name), do)
        object.__setattr__(self, "attach", checked_places(self.attach))

    @property
    def label(self) -> str:
        """What the run log and errors call it."""
        return f"bcc {self.name}"

    def told(self) -> list[str]:
        """Its counters, in the words of an object: see `declared_counters`."""
        return [
            f"{kind.lower()}:{n}:{title}:{unit}"
            for kind, n, title, unit in _TOLD.findall(self.text)
        ]
