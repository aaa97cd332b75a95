"""Readings of what other processes take, for the collector of steps."""

from __future__ import annotations

import logging

from trainobs.host.others import NAME, WINDOW_NS, OthersCpu
from trainobs.steps.timeline import Gauges

logger = logging.getLogger("trainobs")


class OthersReadings:
    """Reads `sched/others_cpu_ratio` when it is due; where `/proc` does not tell, it stays null.

    Args:
        wanted: False to read nothing: where a run is timed only.

    Attributes:
        gauges: the readings, for the collector of steps.
    """

    def __init__(self, wanted: bool) -> None:
        self.gauges = Gauges((NAME,), fresh_ns=3 * WINDOW_NS)
        self._others = OthersCpu() if wanted else None

    def read(self) -> None:
        """Take a reading if it is time for one; called by the observer's thread."""
        if self._others is None:
            return
        try:
            reading = self._others.reading()
        except (OSError, ValueError, IndexError) as error:
            self._others = None
            logger.debug("cannot tell what other processes take: %s", error)
            return
        if reading:
            self.gauges.add(reading[0], (reading[1],))
