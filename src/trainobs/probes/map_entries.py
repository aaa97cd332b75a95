"""What is in a map of the kernel: a hash, or an array that lies in memory."""

from __future__ import annotations

import ctypes as C
import errno
import mmap
import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from trainobs.probes.libbpf import open_library

Rows = npt.NDArray[np.void]

_AT_ONCE = 4096


def mapping(descriptor: int, size: int, *, writable: bool = False) -> mmap.mmap:
    """The memory of an array; it outlives the descriptor."""
    pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    return mmap.mmap(descriptor, pages, mmap.MAP_SHARED, access)


def entries(
    descriptor: int, key: np.dtype[np.void], value: np.dtype[np.void]
) -> Iterator[tuple[Rows, Rows]]:
    """Keys and values of a hash, some at a time; of what changes meanwhile some may be missing.

    Raises:
        OSError: the kernel does not tell.
    """
    library = open_library()
    place, is_first, more = C.c_uint32(), True, True
    while more:
        keys, values = np.empty(_AT_ONCE, key), np.empty(_AT_ONCE, value)
        count = C.c_uint32(_AT_ONCE)
        result = library.bpf_map_lookup_batch(
            descriptor,
            None if is_first else C.addressof(place),
            C.addressof(place),
            keys.ctypes.data,
            values.ctypes.data,
            C.byref(count),
            None,
        )
        more, is_first = result != -errno.ENOENT, False
        if more:
            check(result)
        yield keys[: count.value], values[: count.value]


def remove(descriptor: int, keys: Rows) -> None:
    """Take entries out.

    Raises:
        OSError: the kernel refuses.
    """
    count = C.c_uint32(len(keys))
    check(open_library().bpf_map_delete_batch(descriptor, keys.ctypes.data, C.byref(count), None))


def check(result: int) -> None:
    """Raise what a call of libbpf returned, if that is an error."""
    if result < 0:
        raise OSError(-result, f"cannot read what the probes counted: {os.strerror(-result)}")
