"""Switches in the environment; `TRAINOBS` turns all of it off."""

from __future__ import annotations

import os

from trainobs.core.errors import SettingError, shown

SWITCH = "TRAINOBS"
"""`off` turns every entry point into a no-op."""

PURE = "TRAINOBS_PURE_PYTHON"
"""1 leaves what is in C alone: Python does the same, and slower."""

_OFF = frozenset({"off", "0", "false", "no"})
_ON = frozenset({"on", "1", "true", "yes"})


def switched_off() -> bool:
    """Whether the environment turns trainobs off.

    Raises:
        SettingError: the variable has a value that means nothing.
    """
    value = os.environ.get(SWITCH, "").lower()
    if value not in {"", *_ON, *_OFF}:
        raise SettingError(
            f"bad value in the environment for {SWITCH}", shown(value), 'set it to "on" or "off"'
        )
    return value in _OFF


def is_on(name: str) -> bool:
    """Whether a variable asks for what is off without it; what means nothing does not."""
    return os.environ.get(name, "").lower() in _ON
