"""Parts of a run that come and may fail in the middle of it: what its record says of them."""

from __future__ import annotations

import logging

from trainobs.core.records import RunInfo

logger = logging.getLogger("trainobs")


class OptionalPart:
    """Tells of a part that a run may have: in its capabilities, and, if it is given up, aloud.

    Args:
        info: of the run; it says nothing of the part before `begin`.
        name: of the part among the capabilities.
        given_up: what is to be told of a fault, such as "lookups are no longer counted".
    """

    def __init__(self, info: RunInfo, name: str, given_up: str) -> None:
        self._info = info
        self._name = name
        self._given_up = given_up

    def begin(self) -> None:
        """The run has it."""
        self._say("on")

    def give_up(self, error: Exception) -> None:
        """It failed, and nobody asks it any more."""
        what, found = type(error).__name__, str(error).partition("\n")[0]
        self._say(f"given up: {what}: {found}")
        logger.warning(
            "%s; the training goes on\n  found: %s: %s\n  do:    please report it",
            self._given_up,
            what,
            found,
        )
        logger.debug("the fault in %s", self._name, exc_info=error)

    def _say(self, state: str) -> None:
        """A new dictionary, since the observer's thread may be going through the old one."""
        self._info.capabilities = {**self._info.capabilities, self._name: state}
