"""io_uring with bare system calls: enough to read and write a file (io_uring(7))."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import time
from pathlib import Path

SETUP, ENTER, REGISTER = 425, 426, 427  # the same numbers on all machines
READ, WRITE = 22, 23  # IORING_OP_*
READV_FIXED, WRITEV_FIXED = 60, 61  # of registered buffers, since v6.15
REGISTER_BUFFERS = 0  # IORING_REGISTER_BUFFERS
ASYNC = 1 << 4  # IOSQE_ASYNC: to a thread of the kernel's, at once
GET_EVENTS = 1  # IORING_ENTER_GETEVENTS
SQ_RING, SQES = 0, 0x10000000  # IORING_OFF_*; both rings lie in one mapping since v5.4

SQE = struct.Struct("<BBHiQQIIQHHiQQ")
"""struct io_uring_sqe: opcode, flags, ioprio, fd, off, addr, len, then what we leave zero."""

_libc = ctypes.CDLL(None, use_errno=True)


def _call(*arguments: object) -> int:
    result: int = _libc.syscall(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def kernel_threads() -> list[str]:
    """Threads of this process that the kernel runs requests in."""
    tasks = Path("/proc/self/task").iterdir()
    return [task.name for task in tasks if is_kernel_thread(task / "comm")]


def is_kernel_thread(comm: Path) -> bool:
    try:
        return comm.read_text().startswith("iou-")
    except OSError:  # it has ended meanwhile
        return False


class Uring:
    """A ring that takes `entries` requests at a time."""

    def __init__(self, entries: int) -> None:
        params = ctypes.create_string_buffer(120)  # struct io_uring_params
        self._fd = _call(SETUP, entries, params)
        sq_entries, cq_entries = struct.unpack_from("II", params.raw, 0)
        sq, cq = struct.unpack_from("7I", params.raw, 40), struct.unpack_from("6I", params.raw, 80)
        self._sq_tail, self._sq_array = sq[1] // 4, sq[6] // 4
        self._cq_head, self._cq_tail, self._cqes = cq[0] // 4, cq[1] // 4, cq[5] // 4
        self._mask, self._cq_mask = sq_entries - 1, cq_entries - 1
        size = max(sq[6] + 4 * sq_entries, cq[5] + 16 * cq_entries)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        self._ring = mmap.mmap(self._fd, size, flags, offset=SQ_RING)
        self._sqes = mmap.mmap(self._fd, SQE.size * sq_entries, flags, offset=SQES)
        self._words = memoryview(self._ring).cast("I")

    def transfer(self, opcode: int, fd: int, buffer: mmap.mmap, size: int, flags: int = 0) -> int:
        """Move `size` bytes between a file's beginning and a buffer, in requests of its length.

        Returns:
            The number of io_uring_enter calls that it took.
        """
        length = len(buffer)
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        offsets = range(0, size, length)
        batches = range(0, len(offsets), self._mask + 1)
        for first in batches:
            batch = offsets[first : first + self._mask + 1]
            for offset in batch:
                self._put(SQE.pack(opcode, flags, 0, fd, offset, address, length, *[0] * 7))
            _call(ENTER, self._fd, len(batch), len(batch), GET_EVENTS, None, 0)
            results = self._take()
            assert results == [length] * len(batch), results
        return len(batches)

    def transfer_fixed(self, opcode: int, fd: int, buffer: mmap.mmap) -> int:
        """Move a vector of one buffer, which is registered before, to or from a file's beginning.

        Returns:
            Bytes moved, or a negative error number.
        """
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        vector = ctypes.create_string_buffer(struct.pack("QQ", address, len(buffer)), 16)
        _call(REGISTER, self._fd, REGISTER_BUFFERS, vector, 1)
        self._put(SQE.pack(opcode, 0, 0, fd, 0, ctypes.addressof(vector), 1, *[0] * 7))
        _call(ENTER, self._fd, 1, 1, GET_EVENTS, None, 0)
        (result,) = self._take()
        return result

    def close(self) -> None:
        self._words.release()
        self._ring.close()
        self._sqes.close()
        os.close(self._fd)
        deadline = time.monotonic() + 60.0
        while kernel_threads() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _put(self, entry: bytes) -> None:
        tail = self._words[self._sq_tail]
        slot = tail & self._mask
        self._sqes[slot * SQE.size : (slot + 1) * SQE.size] = entry
        self._words[self._sq_array + slot] = slot
        self._words[self._sq_tail] = tail + 1

    def _take(self) -> list[int]:
        head, tail = self._words[self._cq_head], self._words[self._cq_tail]
        at = [self._cqes + 4 * (number & self._cq_mask) + 2 for number in range(head, tail)]
        self._words[self._cq_head] = tail
        return [ctypes.c_int32(self._words[word]).value for word in at]
