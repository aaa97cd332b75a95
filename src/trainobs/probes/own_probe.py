"""`Probe`: a program of the user's, to be loaded beside ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainobs.core.errors import SettingError, shown
from trainobs.core.text import encodable

KINDS = ("uprobe", "uretprobe", "usdt")
"""What `attach` can name."""

_SOURCE, _OBJECT = ".c", ".o"
_PLACES = (
    'give "uprobe/FILE:FUNCTION", "uretprobe/FILE:FUNCTION" or "usdt/FILE:PROVIDER:NAME" for the '
    "name of each program"
)


@dataclass(frozen=True)
class Probe:
    """An eBPF program of your own, whose counts land in the step that they belong to.

    `observe(probes=["auto", Probe("my.c")])`; see docs/own-probes.md.

    Args:
        path: C that includes `trainobs_probe.h`, or an object made of such.
        attach: program -> where it is attached, instead of what its section says: for code whose
            place is known in Python only.

    Raises:
        SettingError: there is no such file, or `attach` says something else.
    """

    path: str | os.PathLike[str]
    attach: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        path = _file(self.path)
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "attach", checked_places(self.attach))

    @property
    def label(self) -> str:
        """What the run log and errors call it."""
        return encodable(self.file.name)

    @property
    def file(self) -> Path:
        """The file."""
        return Path(self.path)

    @property
    def is_source(self) -> bool:
        """Whether it has to be compiled."""
        return self.file.suffix == _SOURCE


def _file(value: object) -> Path:
    found = shown(value)
    if isinstance(value, str | os.PathLike):
        path, found = Path(value).expanduser().absolute(), shown(os.fspath(value))
        if path.suffix in (_SOURCE, _OBJECT):
            if path.is_file():
                return path
            found = f"there is no file {path}"
    raise SettingError(
        "cannot use a probe of your own", found, f"give a file that ends in {_SOURCE} or {_OBJECT}"
    )


def checked_places(value: object) -> dict[str, str]:
    """What `attach` says, if that makes sense.

    Raises:
        SettingError: it does not.
    """
    if isinstance(value, Mapping) and all(map(_is_place, value.items())):
        return dict(value)
    raise SettingError("bad value for `attach` of a probe", shown(value), _PLACES)


def _is_place(item: tuple[object, object]) -> bool:
    program, place = item
    if not isinstance(program, str) or not isinstance(place, str):
        return False
    kind, _, rest = place.partition("/")
    return kind in KINDS and rest.count(":") >= (2 if kind == "usdt" else 1)
