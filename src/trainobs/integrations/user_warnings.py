"""Warnings that a user gets once in a process."""

from __future__ import annotations

from trainobs.core.log import logger

_told: set[str] = set()


def warn_once(failed: str, found: str, do: str, *, kind: str = "") -> None:
    """Warn of something in three lines, the first time that it is so.

    Args:
        failed: the first line.
        found: the second.
        do: the third.
        kind: what is told once, where the first line differs from time to time.
    """
    kind = kind or failed
    if kind not in _told:
        _told.add(kind)
        logger.warning("%s\n  found: %s\n  do:    %s", failed, found, do)
