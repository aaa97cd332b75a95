"""Warnings that a user gets once in a process."""

from __future__ import annotations

from trainobs.core.errors import shown
from trainobs.core.log import logger

_told: set[str] = set()


def warn_once(failed: str, value: object, do: str) -> None:
    """Warn of something in three lines, the first time that it is so."""
    if failed not in _told:
        _told.add(failed)
        logger.warning("%s\n  found: %s\n  do:    %s", failed, shown(value), do)


def warn_ignored(what: str, value: object, do: str) -> None:
    """Warn of something that counts for nothing."""
    warn_once(f"trainobs takes no notice of a {what}", value, do)
