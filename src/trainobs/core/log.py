"""The logger of what a run has to say, which no handler of somebody's that fails makes harmful."""

from __future__ import annotations

import logging
from typing import Any

from trainobs.core.signals import let_signals_through

_SENDER = "trainobs"


class _Harmless(logging.LoggerAdapter):  # type: ignore[type-arg]
    """Python's own handlers catch what goes wrong in them; those of others need not.

    Where there is no handler at all Python prints the bare message, in the middle of what a
    training says: there it begins with who says it.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """See `logging.Logger`."""
        kwargs.setdefault("stacklevel", 2)  # whoever calls it is meant, and not this
        try:
            if not self.logger.hasHandlers():
                text = str(msg) % args if args else str(msg)
                msg, args = text if text.startswith(_SENDER) else f"{_SENDER}: {text}", ()
            super().log(level, msg, *args, **kwargs)
        except Exception:
            let_signals_through()


logger = _Harmless(logging.getLogger("trainobs"), {})
