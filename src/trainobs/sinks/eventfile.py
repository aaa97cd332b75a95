"""TensorBoard's event file, written in a way that survives a failing disk."""

from __future__ import annotations

import io
import itertools
import os
import socket
import time
from pathlib import Path
from typing import Protocol

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

from trainobs.sinks.files import write_all

PENDING_BYTES = 4 << 20
"""Bytes kept in memory while the disk refuses them: some 2000 logged steps."""

_serial = itertools.count()


class EventWriter(Protocol):
    """Where `TensorBoardSink` puts its events."""

    def add_event(self, event: Event) -> None:
        """Take one event; `OSError` if it cannot be kept."""

    def flush(self) -> None:
        """Make what was taken so far visible to TensorBoard; `OSError` if that fails for now."""

    def close(self) -> None:
        """Flush, and take no more events."""


class EventFile:
    """Event file of our own in `log_dir`.

    TensorBoard's `EventFileWriter` brings a thread of its own, dies for good at the first full disk
    and may leave half a record, behind which no reader sees anything. This one writes whole records
    from the caller's thread, once per flush, and takes back what a failing disk accepted in part.
    """

    def __init__(self, log_dir: Path) -> None:
        self._path = Path(log_dir) / _file_name()
        self._pending = io.BytesIO()
        self._records = RecordWriter(self._pending)

    def add_event(self, event: Event) -> None:
        """Take one event.

        Raises:
            OSError: no more can be kept, and the disk refuses what there is.
        """
        if self._pending.tell() >= PENDING_BYTES:
            self.flush()
        self._records.write(event.SerializeToString())

    def flush(self) -> None:
        """Append the events taken since the last flush.

        Raises:
            OSError: the disk refused; the events are kept, and the next flush tries again.
        """
        if self._pending.tell() == 0:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Opened anew each time: were the directory removed, an open file would swallow all.
        with open(self._path, "ab", buffering=0) as file:
            self._append(file.fileno())
        self._pending.seek(0)
        self._pending.truncate()

    def close(self) -> None:
        """Flush; no file is left open between calls."""
        self.flush()

    def _append(self, fd: int) -> None:
        length = os.fstat(fd).st_size
        start = b"" if length else _version_record()
        try:
            write_all(fd, start + self._pending.getvalue())
        except OSError:
            os.ftruncate(fd, length)
            raise


def _file_name() -> str:
    """The pattern of TensorBoard's own writer; readers take files in the order of their names."""
    where = f"{socket.gethostname()}.{os.getpid()}.{next(_serial)}"
    return f"events.out.tfevents.{int(time.time()):010d}.{where}.trainobs"


def _version_record() -> bytes:
    """What every event file begins with."""
    stream = io.BytesIO()
    event = Event(wall_time=time.time(), file_version="brain.Event:2")
    RecordWriter(stream).write(event.SerializeToString())
    return stream.getvalue()
