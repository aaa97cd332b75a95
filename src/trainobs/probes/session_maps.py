"""The maps of one session, made and put into their slot."""

from __future__ import annotations

import ctypes as C
import os
import threading
from collections.abc import Callable, Collection
from typing import NamedTuple

from trainobs.core.abi import RING, ROWS_EACH, SUMS
from trainobs.probes.libbpf import MapOptions, open_library

CLOCK_BYTES = 64
"""`struct tobs_clock`."""

FILES = 65536
"""Files whose classes are kept for a session, and roots that it may have."""

_HASH, _ARRAY, _LRU_HASH = 1, 2, 9  # enum bpf_map_type
_NO_PREALLOC, _MMAPABLE = 1, 1 << 10  # BPF_F_NO_PREALLOC, BPF_F_MMAPABLE
_INODE_KEY_BYTES = 16  # struct inode_key
_ROWS_BYTES = SUMS["rows"].itemsize // RING * ROWS_EACH  # struct tobs_rows


class _Kind(NamedTuple):
    """A map as `struct bpf_map_create_opts` and its neighbours want it."""

    type: int
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int


KINDS = {
    "session_clocks": _Kind(_ARRAY, 4, CLOCK_BYTES, 1, _MMAPABLE),
    "session_sums": _Kind(_ARRAY, 4, _ROWS_BYTES, RING // ROWS_EACH + 1, _MMAPABLE),
    "session_classes": _Kind(_LRU_HASH, _INODE_KEY_BYTES, 8, FILES, 0),
    "session_roots": _Kind(_HASH, _INODE_KEY_BYTES, 4, FILES, _NO_PREALLOC),
}
"""Array of maps -> what each of its entries is."""


class SessionMaps:
    """Fresh maps for one session; whoever maps or holds them keeps them alive.

    Attributes:
        clock_fd: one cache line, for the session to write.
        sums_fd: `SUMS`; frozen, so that nobody but the programs can write it.

    Raises:
        OSError: the kernel has no memory or no descriptor for them.
    """

    def __init__(self) -> None:
        self._library = open_library()
        self._fds: dict[str, int] = {}
        try:
            for name, kind in KINDS.items():
                self._fds[name] = self._create(kind)
            _check(self._library.bpf_map_freeze(self.sums_fd))
        except BaseException:
            self.close()
            raise

    @property
    def clock_fd(self) -> int:
        """Descriptor of the clock's map."""
        return self._fds["session_clocks"]

    @property
    def sums_fd(self) -> int:
        """Descriptor of the sums' map."""
        return self._fds["session_sums"]

    def install(self, slot: int, map_fd: Callable[[str], int]) -> None:
        """Put them into a slot of the arrays of maps, whose descriptors `map_fd` tells.

        Raises:
            OSError: the kernel refuses one.
        """
        change(self._library, slot, [(map_fd(name), fd) for name, fd in self._fds.items()])

    def close(self) -> None:
        """Close the descriptors; may be called twice."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def _create(self, kind: _Kind) -> int:
        options = MapOptions(sz=C.sizeof(MapOptions), map_flags=kind.flags)
        return _check(
            self._library.bpf_map_create(
                kind.type,
                b"tobs_session",
                kind.key_bytes,
                kind.value_bytes,
                kind.entries,
                C.pointer(options),
            )
        )


def remove(slot: int, map_fd: Callable[[str], int]) -> None:
    """Take the maps of a session out of a slot."""
    change(open_library(), slot, [(map_fd(name), None) for name in KINDS])


def change(library: C.CDLL, slot: int, entries: Collection[tuple[int, int | None]]) -> None:
    """Set or delete the entry of a slot in some arrays of maps.

    At the same time, since the kernel waits in each call until no program can still be using what
    was there before: 8 ms where it was measured.
    """
    key = C.c_uint32(slot)
    results: list[int] = []

    def one(outer: int, inner: int | None) -> None:
        if inner is None:
            result = library.bpf_map_delete_elem(outer, C.addressof(key))
        else:
            value = C.c_uint32(inner)
            result = library.bpf_map_update_elem(outer, C.addressof(key), C.addressof(value), 0)
        results.append(int(result))

    threads = [threading.Thread(target=one, args=entry, name="trainobs") for entry in entries]
    for thread in threads:
        try:
            thread.start()
        except RuntimeError:  # no more threads
            thread.run()
    for thread in threads:
        if thread.ident is not None:
            thread.join()
    for result in results:
        _check(result)


def _check(result: int) -> int:
    """What libbpf returned, if it is no error."""
    if result < 0:
        raise OSError(-result, f"cannot make the maps of a session: {os.strerror(-result)}")
    return result
