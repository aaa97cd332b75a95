"""The logger of what a run has to say, which no handler of somebody's that fails makes harmful."""

from __future__ import annotations

import logging
from typing import Any

from trainobs.core.signals import let_signals_through


class _Harmless(logging.LoggerAdapter):  # type: ignore[type-arg]
    """Python's own handlers catch what goes wrong in them; those of others need not."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """See `logging.Logger`."""
        kwargs.setdefault("stacklevel", 2)  # whoever calls it is meant, and not this
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception:
            let_signals_through()


logger = _Harmless(logging.getLogger("trainobs"), {})
