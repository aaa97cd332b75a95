"""Proxies in the writer process of what sinks know of the training process, and their messages."""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trainobs.tensorboard import protos
from trainobs.tensorboard.event_file import EventWriter

EVENTS, INFO = "events", "info"
"""Names of what stays in the training process, beside those of `Source`."""

Fault = tuple[int, str]
"""Error number, 0 for none, and text."""


class SourceResult(NamedTuple):
    """What a `Source` said; or the fault that it raised, which the sink is to meet."""

    said: Any
    fault: Fault | None = None


class SinkCall(NamedTuple):
    """A call of the sinks on its way to the writer process.

    Attributes:
        name: method of `Deliveries`.
        args: what it takes.
        answers: name of each `Source` -> what it says to the sinks in this call.
        fault: why the training's writer of events takes none now, or None.
        facts: attributes of the `RunInfo`.
    """

    name: str
    args: tuple[Any, ...]
    answers: dict[str, SourceResult]
    fault: Fault | None
    facts: dict[str, Any]


@dataclass
class WriterReply:
    """What the writer process tells after a call.

    Attributes:
        number: of the call.
        logged: level and text of what was logged.
        said: for standard error.
        events: for the training's writer of events, serialized; an empty one is a flush.
    """

    number: int
    logged: list[tuple[int, str]] = field(default_factory=list)
    said: str = ""
    events: list[bytes] = field(default_factory=list)


class Source:
    """A function of the training process that a sink asks; in the writer process, its last answer.

    Args:
        ask: the function; None in the writer process.
    """

    def __init__(self, ask: Callable[[bool], Any] | None = None) -> None:
        self._ask = ask
        self.answer: SourceResult | None = None

    def __call__(self, is_last: bool = False) -> Any:
        """What it says, once; where that came with a call, it is not asked again."""
        answer, self.answer = self.answer, None
        if answer is None:
            assert self._ask is not None, "a call brings its answers"
            return self._ask(is_last)
        if answer.fault:
            raise OSError(*answer.fault) if answer.fault[0] else RuntimeError(answer.fault[1])
        return answer.said

    def asked(self, is_last: bool) -> SourceResult:
        """What it says now, for a call."""
        try:
            return SourceResult(self(is_last))
        except Exception as error:  # the sink's to tell, wherever it is
            return SourceResult(None, fault_of(error))


def fault_of(error: Exception) -> Fault:
    """A fault as another process can raise it again."""
    text = getattr(error, "strerror", None) or str(error)
    return getattr(error, "errno", None) or 0, text


class EventReceiver:
    """The training's own writer of events, to which those that a writer process made come back."""

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer
        self._refused: deque[bytes] = deque()
        self.is_deaf = False
        self.fault: Fault | None = None

    def add_event(self, event: protos.Event) -> None:
        """Take one event, unless it came before."""
        if not self.is_deaf:
            self._writer.add_event(event)

    def flush(self) -> None:
        """See `EventWriter`."""
        self._writer.flush()

    def close(self) -> None:
        """See `EventWriter`."""
        self._writer.close()

    def take(self, events: Iterable[bytes]) -> None:
        """Take what the writer process made; what is refused is kept, and taken with the next."""
        self._refused += events
        try:
            while self._refused:
                self._put(self._refused[0])
                self._refused.popleft()
            self.fault = None
        except Exception as error:  # it is the user's
            number, text = fault_of(error)
            self.fault = number or errno.EIO, text

    def _put(self, event: bytes) -> None:
        if event:
            self._writer.add_event(protos.Event.FromString(event))
        else:
            self._writer.flush()


class EventForwarder:
    """The writer of events in the writer process: it sends them to an `EventReceiver`."""

    def __init__(self) -> None:
        self.made: list[bytes] = []
        self.fault: Fault | None = None

    def add_event(self, event: protos.Event) -> None:
        """Take one event.

        Raises:
            OSError: the training's writer takes none now.
        """
        self._check()
        self.made.append(event.SerializeToString())

    def flush(self) -> None:
        """Have it flush.

        Raises:
            OSError: its writer has failed.
        """
        self._check()
        self.made.append(b"")

    def close(self) -> None:
        """Flush: the file is its owner's."""
        self.flush()

    def _check(self) -> None:
        if self.fault:
            raise OSError(*self.fault)


class LogCaptureHandler(logging.Handler):
    """Keeps what is logged, for the training to log."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it as text: what it was made of may not be for another process."""
        self.records.append((record.levelno, record.getMessage()))
