"""Warnings that a user gets once in a process."""

from __future__ import annotations

from trainobs.core.log import logger
from trainobs.core.once import Once

_once = Once()


def warn_once(failed: str, found: str, do: str, *, kind: str = "") -> None:
    """Warn of something in three lines, the first time that it is so.

    Args:
        failed: the first line.
        found: the second.
        do: the third.
        kind: what is told once, where the first line differs from time to time.
    """
    if _once.first(kind or failed):
        logger.warning("%s\n  found: %s\n  do:    %s", failed, found, do)
