"""Observing every Trainer of a machine: Lightning asks entry points for callbacks.

Off unless `TRAINOBS_AUTO=1`. Nobody asked for this in the script, so it says next to nothing, and
writes nothing into the directories of the training: its runs go to a directory of their own.
"""

from __future__ import annotations

from typing import Any

from trainobs.core.log import logger
from trainobs.core.switch import is_on

SWITCH = "TRAINOBS_AUTO"
"""Environment variable; 1 puts an observer on every Lightning Trainer."""


def callbacks() -> list[Any]:
    """What Lightning adds to a Trainer (entry point group `callbacks_factory`).

    Returns:
        One callback, or none where `TRAINOBS_AUTO` does not ask for it. Never raises.
    """
    if not is_on(SWITCH):
        return []
    try:
        from trainobs.integrations.unasked import UnaskedCallback
    except Exception:
        logger.warning("trainobs cannot observe this Trainer", exc_info=True)
        return []
    return [UnaskedCallback()]
