"""The modes in which a sharder keeps hot rows."""

from __future__ import annotations

from typing import Literal, get_args

from trainobs.core.errors import SettingError

Mode = Literal["overlay", "paper", "partitioned"]


def check_mode(mode: object, what: str, *more: str) -> None:
    """Raise a SettingError for what is no `Mode`, nor one of `more`."""
    modes = (*get_args(Mode), *more)
    if mode not in modes:
        raise SettingError(what, f"mode {mode!r}", f"give one of {', '.join(modes)}")
