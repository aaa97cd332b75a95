"""Delivery of the record to the sinks, none of which may harm the training or each other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from trainobs.core.records import StepBatch
from trainobs.sinks.sink import Sink

logger = logging.getLogger("trainobs")


class Delivery:
    """Calls one sink; a fault is told once and counted."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._armed = True
        self._told = False
        self._undelivered = 0

    @property
    def lost_steps(self) -> int:
        """Step records that did not reach the sink, or that it dropped."""
        return self._undelivered + self._sink.lost_steps

    def write(self, batch: StepBatch) -> None:
        """Hand over closed steps; once the sink is disarmed they count as lost."""
        if not self.call(lambda: self._sink.write(batch)):
            self._undelivered += len(batch)

    def call(self, action: Callable[[], None]) -> bool:
        """Do something with the sink; False if the sink is disarmed, or is now."""
        if not self._armed:
            return False
        try:
            action()
        except OSError as error:
            self._tell(error, "it is kept, and tried again every few seconds")
        except Exception as error:
            self._armed = False
            self._tell(error, "it is given up for this run")
            logger.debug("the fault in %s", self._sink.name, exc_info=True)
            return False
        return True

    def _tell(self, error: Exception, then: str) -> None:
        if not self._told:
            self._told = True
            logger.warning(
                "cannot store the record in the %s; %s\n"
                "  found: %s: %s\n  do:    nothing for this training run, it goes on; "
                "`trainobs report` says what was lost",
                self._sink.name,
                then,
                type(error).__name__,
                error,
            )


class Deliveries:
    """All sinks of a run."""

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._sinks = tuple(sinks)
        self._deliveries = tuple(map(Delivery, self._sinks))

    @property
    def lost_steps(self) -> dict[str, int]:
        """Lost step records, by sink."""
        pairs = zip(self._sinks, self._deliveries, strict=True)
        return {sink.name: delivery.lost_steps for sink, delivery in pairs}

    def write(self, batch: StepBatch) -> None:
        """Hand closed steps to every sink."""
        for delivery in self._deliveries:
            delivery.write(batch)

    def each(self, action: Callable[[Sink], None]) -> None:
        """Do the same with every sink."""
        for sink, delivery in zip(self._sinks, self._deliveries, strict=True):
            delivery.call(lambda sink=sink: action(sink))  # type: ignore[misc]
