"""What a user is told once in a process."""

from __future__ import annotations

from trainobs.core.errors import shown
from trainobs.core.log import logger

_told: set[str] = set()


def tell_once(failed: str, value: object, do: str) -> None:
    """Warn of something in three lines, the first time that it is so."""
    if failed not in _told:
        _told.add(failed)
        logger.warning("%s\n  found: %s\n  do:    %s", failed, shown(value), do)


def take_no_notice(what: str, value: object, do: str) -> None:
    """Warn of something that counts for nothing."""
    tell_once(f"trainobs takes no notice of a {what}", value, do)
