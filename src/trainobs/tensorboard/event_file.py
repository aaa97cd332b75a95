"""TensorBoard's event file, written in a way that survives a failing disk."""

from __future__ import annotations

import itertools
import os
import socket
import struct
from pathlib import Path
from typing import Protocol

import google_crc32c

from trainobs.core.files import make_directory, write_all
from trainobs.core.now import wall_s
from trainobs.core.text import in_a_file_name
from trainobs.tensorboard import protos

PENDING_BYTES = 4 << 20
"""Bytes kept in memory while the disk refuses them: some 2000 logged steps."""

_serial = itertools.count()


class EventWriter(Protocol):
    """Where `TensorBoardSink` puts its events."""

    def add_event(self, event: protos.Event) -> None:
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
        self._pending = bytearray()
        self._written = 0

    def add_event(self, event: protos.Event) -> None:
        """Take one event.

        Raises:
            OSError: no more can be kept, and the disk refuses what there is.
        """
        if len(self._pending) >= PENDING_BYTES:
            self.flush()
        self._pending += _record(event)

    def flush(self) -> None:
        """Append the events taken since the last flush.

        Raises:
            OSError: the disk refused; the events are kept, and the next flush tries again.
        """
        if not self._pending:
            return
        make_directory(self._path.parent)
        # Opened anew each time: were the directory removed, an open file would swallow all.
        with open(self._path, "ab", buffering=0, opener=_of_our_own) as file:
            length = os.fstat(file.fileno()).st_size
            if length > self._written:  # by a writer process that ended before it could tell
                os.ftruncate(file.fileno(), length := self._written)
            # What every event file begins with.
            start = protos.Event(wall_time=wall_s(), file_version="brain.Event:2")
            data = (b"" if length else _record(start)) + self._pending
            try:
                write_all(file.fileno(), data)
            except OSError as error:
                os.ftruncate(file.fileno(), length)
                error.filename = os.fspath(self._path)
                raise
        self._written = length + len(data)
        self._pending.clear()

    def close(self) -> None:
        """Flush; no file is left open between calls."""
        self.flush()


def _of_our_own(path: str, flags: int) -> int:
    """Opens no link, which somebody may have planted, and no pipe, which would be waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def _file_name() -> str:
    """The pattern of TensorBoard's own writer; readers take files in the order of their names."""
    host = in_a_file_name(socket.gethostname())  # of any bytes
    where = f"{host}.{os.getpid()}.{next(_serial)}"
    return f"events.out.tfevents.{int(wall_s()):010d}.{where}.trainobs"


def _record(event: protos.Event) -> bytes:
    """An event as TensorFlow frames it: `tensorflow/core/lib/io/record_writer.h`.

    TensorBoard's own writer takes the checksums in Python, which made up most of an event's cost.
    """
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return b"".join((length, _masked_crc(length), data, _masked_crc(data)))


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
