"""A file system of FUSE that serves one file, by bare messages (include/uapi/linux/fuse.h)."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

LOOKUP, GETATTR, SETATTR, OPEN, READ, WRITE, FSYNC = 1, 3, 4, 14, 15, 16, 20
LISTXATTR, INIT, OPENDIR, READDIR = 23, 26, 27, 28
EMPTY = (18, FSYNC, LISTXATTR, 25, READDIR, 29)
"""With RELEASE, FLUSH, RELEASEDIR: answered with nothing."""

UNANSWERED = (2, 42)  # FORGET, BATCH_FORGET
DIRECT_IO = 1  # FOPEN_DIRECT_IO
ROOT, FILE = 1, 2
MAX_READ = 131_072

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def served(
    place: Path, size: int, *, direct: bool = False, slow: Mapping[int, float] | None = None
) -> Iterator[Path]:
    """A file of `size` bytes on FUSE.

    Args:
        place: an empty directory, to mount it at.
        size: of the file, in bytes.
        direct: whether reads go past the page cache.
        slow: what the server is asked -> how long it takes to answer, in seconds.
    """
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if _libc.mount(b"test", os.fsencode(place), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "mount")
    server = os.fork()
    if not server:
        _serve(device, size, direct, slow or {})
    os.close(device)
    try:
        yield place / "file"
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


def _serve(device: int, size: int, direct: bool, slow: Mapping[int, float]) -> None:
    try:
        while True:
            request = os.read(device, 1 << 20)
            _, what, unique, node = struct.unpack_from("<IIQQ", request)
            if what in UNANSWERED:
                continue
            time.sleep(slow.get(what, 0.0))
            answer = _answer(what, node, request[40:], size, direct)
            error = -38 if answer is None else 0  # ENOSYS
            data = answer or b""
            os.write(device, struct.pack("<IiQ", 16 + len(data), error, unique) + data)
    finally:
        os._exit(0)


def _answer(what: int, node: int, body: bytes, size: int, direct: bool) -> bytes | None:
    if what == INIT:
        flags = (7, 31, MAX_READ, 0, 16, 12, MAX_READ, 1, 32, 0, 0, 0, 0, 0)
        return struct.pack("<IIIIHHIIHHIIHH", *flags) + bytes(20)
    if what == LOOKUP:
        return struct.pack("<QQQQII", FILE, 0, 1, 0, 0, 0) + _attributes(FILE, size)
    if what in (GETATTR, SETATTR):
        return struct.pack("<QII", 0, 0, 0) + _attributes(node, size)
    if what == WRITE:
        (wanted,) = struct.unpack_from("<16xI", body)
        return struct.pack("<II", wanted, 0)
    if what in (OPEN, OPENDIR):
        return struct.pack("<QII", 1, DIRECT_IO if direct and what == OPEN else 0, 0)
    if what == READ:
        offset, wanted = struct.unpack_from("<8xQI", body)
        return bytes(max(0, min(wanted, size - offset)))
    return b"" if what in EMPTY else None


def _attributes(node: int, size: int) -> bytes:
    mode, bytes_ = (0o40755, 0) if node == ROOT else (0o100644, size)
    return struct.pack("<QQQQQQIIIIIIIIII", node, bytes_, *[0] * 7, mode, 1, 0, 0, 0, 4096, 0)
