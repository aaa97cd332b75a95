"""What keeps a fault of our own from reaching the training."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("trainobs")


def harmless(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook of a callback that does nothing without a session, and whose fault disarms it.

    The callback has a `_session`, which the hook gets as its first argument, and `_give_up`, which
    gets what the hook gets from the framework.
    """

    @functools.wraps(hook)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> None:
        session = self._session
        if session is None:
            return
        try:
            hook(self, session, *args, **kwargs)
        except Exception:
            tell_fault("stops observing this run")
            self._give_up(*args)

    del guarded.__wrapped__  # it takes one argument more
    return guarded


def tell_fault(what: str) -> None:
    """Say what trainobs does because of the exception that is being handled."""
    logger.warning(
        "trainobs %s; the training goes on\n  found: the fault below\n  do:    please report it",
        what,
        exc_info=True,
    )
