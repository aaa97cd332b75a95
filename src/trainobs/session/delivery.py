"""Delivery of the record to the sinks, none of which may harm the training or each other."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainobs.core.log import logger
from trainobs.core.once import Once
from trainobs.core.records import RunInfo, StepTable
from trainobs.core.sink import Points, Sink


class Delivery:
    """Calls one sink; a fault is told once and counted."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._armed = True
        self._once = Once()
        self._unsaved = 0
        self._dropped = 0
        self._fault = self._dropped_because = ""

    @property
    def name(self) -> str:
        """That of the sink."""
        return self.sink.name

    @property
    def lost_steps(self) -> int:
        """Step records that the sink dropped, or did not make safe so far."""
        return self._unsaved + self.sink.lost_steps

    @property
    def lost_because(self) -> str:
        """The fault that steps were lost by, as in "ENOSPC: No space left on device"; or ""."""
        return self._fault or self._dropped_because

    def write(self, table: StepTable) -> None:
        """Hand over closed steps."""
        before = self.sink.lost_steps
        self.call(lambda: self.sink.write(table))
        dropped = self.sink.lost_steps - before  # of this table, or of what came before it
        self._unsaved = max(0, self._unsaved + table.step_count - dropped)

    def flush(self) -> bool:
        """Make safe what was handed over; False if that failed, for now or for good."""
        is_safe = self.call(self.sink.flush)
        if self.sink.lost_steps > self._dropped:
            self._dropped = self.sink.lost_steps
            self._dropped_because = self._fault
        if is_safe or self.sink.has_all_steps():
            self._unsaved = 0
        if is_safe:
            self._fault = ""
        return is_safe

    def end(self, summary: dict[str, object]) -> None:
        """End the sink; one that is disarmed may still tell what was lost."""
        if self._armed:
            self.call(lambda: self.sink.end(summary))
            return
        with suppress(Exception):
            self.sink.end_disarmed(summary)

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
            logger.debug("the fault in %s", self.sink.name, exc_info=True)
            return False
        return True

    def _tell(self, error: Exception, then: str) -> None:
        if self._once.first():
            logger.warning(
                "cannot store the record in the %s; %s\n"
                "  found: %s: %s\n  do:    %s; this training goes on",
                self.sink.name,
                then,
                type(error).__name__,
                str(error),  # the error itself holds on to all that it went through
                _remedy(self._fault) or "nothing: `trainobs report` says what was lost",
            )


class SinkDispatcher(Protocol):
    """Makes calls of all sinks of a run: `Deliveries` does, and `SinkRouter`, wherever they are."""

    @property
    def survives(self) -> bool:
        """Whether what they are handed survives the end of this process, before a flush."""

    @property
    def is_full(self) -> bool:
        """Whether more would have to wait."""

    def prepare(self) -> None:
        """Import what the first steps will need."""

    def begin(self, info: RunInfo) -> None:
        """Begin the run."""

    def start(self) -> None:
        """Have the sinks where they are to be; the run goes on, and brings its first steps."""

    def add(self, sink: Sink) -> None:
        """Begin one more sink, in the middle of a run."""

    def poll(self) -> None:
        """Have sinks look, and see what became of what was handed over."""

    def write(self, table: StepTable) -> None:
        """Hand closed steps to every sink."""

    def latency(self, buckets: npt.NDArray[np.uint64]) -> None:
        """Hand over the latency histograms since the run began."""

    def flush(self) -> object:
        """Make every sink safe."""

    def end(self, summary: dict[str, object]) -> None:
        """Make safe what there is, tell what was lost, and end every sink."""

    def abandon(self) -> None:
        """In a forked child: let go of what is the parent's."""


class Deliveries:
    """All sinks of a run, in the order in which they are called."""

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._deliveries = [Delivery(sink) for sink in sinks]
        self.info: RunInfo | None = None

    def prepare(self) -> None:
        """Have every sink import what the first steps will need."""
        self._each(lambda sink: sink.prepare())

    def begin(self, info: RunInfo) -> None:
        """Begin the run."""
        self.info = info
        self._each(lambda sink: sink.begin(info))

    def add(self, sink: Sink) -> None:
        """Begin one more sink, in the middle of a run."""
        delivery, info = Delivery(sink), self.info
        assert info is not None, "begin comes first"
        self._deliveries.append(delivery)
        delivery.call(lambda: sink.begin(info))

    @property
    def survives(self) -> bool:
        """No: what sinks of this process did not flush ends with it."""
        return False

    @property
    def is_full(self) -> bool:
        """Never: a call returns once it is made."""
        return False

    def start(self) -> None:
        """They are here."""

    def poll(self) -> None:
        """Have every sink look."""
        self._each(lambda sink: sink.look())

    def abandon(self) -> None:
        """Nothing is a parent's."""

    def write(self, table: StepTable) -> None:
        """Hand closed steps to every sink."""
        self.poll()  # nobody else does in a writer process, where answers come with this call
        for delivery in self._deliveries:
            delivery.write(table)

    def latency(self, buckets: npt.NDArray[np.uint64]) -> None:
        """Hand over the latency histograms since the run began."""
        self._each(lambda sink: sink.latency(buckets))

    def points(self, points: Points) -> None:
        """Hand over points of curves that are made elsewhere."""
        self._each(lambda sink: sink.points(points))

    def made(self) -> list[Points]:
        """Points of curves that these sinks made for others since they were asked last."""
        return [points for delivery in self._deliveries for points in delivery.sink.made()]

    def flush(self) -> bool:
        """Make every sink safe; False if one was not."""
        return all([delivery.flush() for delivery in self._deliveries])

    def end(self, summary: dict[str, object]) -> None:
        """Make safe what there is, tell what was lost, and end every sink."""
        self.close(self.settle(summary))

    def settle(self, summary: dict[str, object]) -> dict[str, object]:
        """Make safe what there is, and tell what was lost; returns the summary with it."""
        if not self.flush():
            self.flush()  # a directory that was removed is made again at the second attempt
        lost = {d.name: d.lost_steps for d in self._deliveries}
        because = {d.name: d.lost_because for d in self._deliveries if d.lost_steps}
        because = {name: fault for name, fault in because.items() if fault}
        for name, count in lost.items():
            if count:
                _tell_lost(name, count, because.get(name, "no fault that it told of"))
        return {
            **summary,
            "lost_steps": {**_part(summary, "lost_steps"), **lost},
            "lost_because": {**_part(summary, "lost_because"), **because},
        }

    def close(self, summary: dict[str, object]) -> None:
        """End every sink."""
        first = [delivery for delivery in self._deliveries if delivery.sink.ends_first]
        for delivery in first:
            delivery.end(summary)
        rows = {table: n for one in first for table, n in one.sink.stored_rows().items()}
        for delivery in self._deliveries:
            if delivery not in first:
                delivery.end({**summary, "stored_rows": rows})

    def _each(self, action: Callable[[Sink], None]) -> None:
        for delivery in self._deliveries:
            delivery.call(partial(action, delivery.sink))


def _part(summary: dict[str, object], name: str) -> dict[str, object]:
    """What a summary has of other sinks."""
    part = summary.get(name, {})
    assert isinstance(part, dict)
    return part


def _tell_lost(name: str, count: int, because: str) -> None:
    logger.warning(
        "the %s lost the records of %d steps\n  found: %s\n  do:    %s",
        name,
        count,
        because,
        _remedy(because) or "nothing for this run",
    )


def _remedy(fault: str) -> str:
    """What to do about a fault of the disk, as in "EACCES: Permission denied"; "" for others."""
    code = fault.partition(":")[0]
    if code in ("EACCES", "EPERM", "EROFS", "ENOTDIR"):
        return "give `run_dir` a directory that can be written"
    return _ROOM.get(code, "")


_ROOM = {
    "ENOSPC": "make room on the disk, or for more files (`df -i`)",
    "EDQUOT": "make room within the quota",
    "EFBIG": "raise the limit on the size of files (`ulimit -f`)",
}
"""What to do where there was no room, by whose bound it was."""
