"""Objects in memory that another process can read: pickled, their arrays beside the pickle.

Sending one never waits for the other side, and the memory is nobody's own: a descriptor is all that
either process holds of it.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
from collections.abc import Callable, Mapping
from itertools import accumulate

_LENGTH = struct.Struct("<Q")
_MOST_AT_ONCE = 1024
"""Blocks that `writev` takes: IOV_MAX of Linux."""


def pack(thing: object, stay: Mapping[int, str] | None = None) -> int:
    """A descriptor of memory with a copy of `thing`.

    Args:
        thing: what is copied.
        stay: id of an object that stays behind -> its name.

    Raises:
        OSError: there is no more memory, or no more descriptors.
        Exception: something in it cannot be pickled.
    """
    blocks: list[memoryview | bytes] = []
    stream = io.BytesIO()

    def keep(buffer: pickle.PickleBuffer) -> None:
        blocks.append(buffer.raw())

    if stay is None:
        pickle.Pickler(stream, 5, buffer_callback=keep).dump(thing)
    else:
        _Pickler(stream, stay, keep).dump(thing)
    blocks.insert(0, stream.getbuffer())
    lengths = [len(block) for block in blocks]
    head = _LENGTH.pack(len(blocks)) + b"".join(map(_LENGTH.pack, lengths))
    fd = os.memfd_create("trainobs", os.MFD_CLOEXEC)
    try:
        _write(fd, [head, *blocks], len(head) + sum(lengths))
    except BaseException:
        os.close(fd)
        raise
    return fd


def unpack(fd: int, stayed: Mapping[str, object] | None = None) -> object:
    """The copy in such memory.

    Args:
        fd: what `pack` returned; it stays open.
        stayed: name of an object that stayed behind -> what stands for it here.
    """
    data = bytearray(os.fstat(fd).st_size)
    if os.preadv(fd, [data], 0) != len(data):
        raise EOFError
    view = memoryview(data)
    (count,) = _LENGTH.unpack_from(view)
    lengths = struct.unpack_from(f"<{count}Q", view, _LENGTH.size)
    ends = list(accumulate(lengths, initial=_LENGTH.size * (1 + count)))
    blocks = [view[first:end] for first, end in zip(ends, ends[1:], strict=False)]
    return _Unpickler(io.BytesIO(blocks[0]), blocks[1:], stayed or {}).load()


def _write(fd: int, blocks: list[bytes | memoryview], size: int) -> None:
    written = 0
    for first in range(0, len(blocks), _MOST_AT_ONCE):
        written += os.writev(fd, blocks[first : first + _MOST_AT_ONCE])
    if written != size:
        raise OSError("no more memory for what is handed over")


class _Pickler(pickle.Pickler):
    def __init__(
        self,
        stream: io.BytesIO,
        stay: Mapping[int, str],
        keep: Callable[[pickle.PickleBuffer], None],
    ) -> None:
        super().__init__(stream, 5, buffer_callback=keep)
        self._stay = stay

    def persistent_id(self, thing: object) -> str | None:
        return self._stay.get(id(thing))


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, stream: io.BytesIO, blocks: list[memoryview], stayed: Mapping[str, object]
    ) -> None:
        super().__init__(stream, buffers=blocks)
        self._stayed = stayed

    def persistent_load(self, name: str) -> object:
        return self._stayed[name]
