"""A framework's TensorBoard writer, for our events."""

from __future__ import annotations

from typing import Any

from tensorboard.compat.proto.event_pb2 import Event


class SummaryWriterEvents:
    """The file of a `SummaryWriter`, which its owner flushes and closes."""

    def __init__(self, summary_writer: Any) -> None:
        self._events = summary_writer._get_file_writer()

    def add_event(self, event: Event) -> None:
        """Take one event."""
        self._events.event_writer.add_event(event)

    def flush(self) -> None:
        """Make what was taken so far visible."""
        self._events.flush()

    def close(self) -> None:
        """Flush: the file stays open for its owner."""
        self.flush()
