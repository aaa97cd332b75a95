"""Delivery of the record to the sinks, none of which may harm the training or each other."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable

from trainobs.core.records import RunInfo, StepTable
from trainobs.core.sink import Sink

logger = logging.getLogger("trainobs")


class Delivery:
    """Calls one sink; a fault is told once and counted."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._armed = True
        self._told = False
        self._unsaved = 0
        self._dropped = 0
        self._fault = self._dropped_because = ""

    @property
    def lost_steps(self) -> int:
        """Step records that the sink dropped, or did not make safe so far."""
        return self._unsaved + self._sink.lost_steps

    @property
    def lost_because(self) -> str:
        """The fault that steps were lost by, as in "ENOSPC: No space left on device"; or ""."""
        return self._fault or self._dropped_because

    def write(self, batch: StepTable) -> None:
        """Hand over closed steps."""
        before = self._sink.lost_steps
        self.call(lambda: self._sink.write(batch))
        dropped = self._sink.lost_steps - before  # of this batch, or of what came before it
        self._unsaved = max(0, self._unsaved + len(batch) - dropped)

    def flush(self) -> bool:
        """Make safe what was handed over; False if that failed, for now or for good."""
        is_safe = self.call(self._sink.flush)
        if self._sink.lost_steps > self._dropped:
            self._dropped = self._sink.lost_steps
            self._dropped_because = self._fault
        if is_safe:
            self._unsaved, self._fault = 0, ""
        return is_safe

    def call(self, action: Callable[[], None]) -> bool:
        """Do something with the sink; False if it failed, or the sink is disarmed."""
        if not self._armed:
            return False
        try:
            action()
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "OSError")
            self._fault = f"{name}: {error.strerror or error}"
            self._tell(error, "it is kept, and tried again every few seconds")
            return False
        except Exception as error:
            self._armed = False
            found = " ".join(str(getattr(error, "found", error)).split())
            self._fault = f"{type(error).__name__}: {found}"
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
                str(error),  # the error itself holds on to all that it went through
            )


class Deliveries:
    """All sinks of a run."""

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._sinks = tuple(sinks)
        self._deliveries = tuple(map(Delivery, self._sinks))

    def add(self, sink: Sink, info: RunInfo) -> None:
        """Begin one more sink, in the middle of a run."""
        self._sinks += (sink,)
        self._deliveries += (Delivery(sink),)
        self._deliveries[-1].call(lambda: sink.begin(info))

    @property
    def lost_steps(self) -> dict[str, int]:
        """Lost step records, by sink."""
        pairs = zip(self._sinks, self._deliveries, strict=True)
        return {sink.name: delivery.lost_steps for sink, delivery in pairs}

    @property
    def lost_because(self) -> dict[str, str]:
        """Why steps were lost, by sink; those that lost none are left out."""
        pairs = zip(self._sinks, self._deliveries, strict=True)
        return {s.name: d.lost_because for s, d in pairs if d.lost_steps and d.lost_because}

    def write(self, batch: StepTable) -> None:
        """Hand closed steps to every sink."""
        for delivery in self._deliveries:
            delivery.write(batch)

    def flush(self) -> bool:
        """Make every sink safe; False if one was not."""
        return all([delivery.flush() for delivery in self._deliveries])

    def each(self, action: Callable[[Sink], None]) -> None:
        """Do the same with every sink."""
        for sink, delivery in zip(self._sinks, self._deliveries, strict=True):
            delivery.call(lambda sink=sink: action(sink))  # type: ignore[misc]
