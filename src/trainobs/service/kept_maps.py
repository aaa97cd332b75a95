"""The memory of sessions that are over: who still has it."""

from __future__ import annotations

import os
import select
from pathlib import Path


class KeptMaps:
    """Counts the maps of ended sessions that their users still have open or mapped.

    The service has closed its own descriptors of them. The kernel takes a file out of an epoll set
    once nobody has it any more, so the set of a user holds what the user keeps. Not seen is what a
    user has pinned to a file, which takes a bpf file system that root lets users write to.
    """

    def __init__(self) -> None:
        self._of: dict[int, select.epoll] = {}

    def add(self, uid: int, descriptor: int) -> None:
        """Close the descriptor of a map that a user may have, too."""
        try:
            if uid not in self._of:
                self._of[uid] = select.epoll()
            self._of[uid].register(descriptor, 0)
        finally:
            os.close(descriptor)

    def counts(self) -> dict[int, int]:
        """User -> maps that the user keeps; without those who keep none."""
        found = {uid: _watched(epoll) for uid, epoll in self._of.items()}
        for uid in [uid for uid, number in found.items() if not number]:
            self._of.pop(uid).close()
            del found[uid]
        return found


def _watched(epoll: select.epoll) -> int:
    text = Path(f"/proc/self/fdinfo/{epoll.fileno()}").read_text()
    return sum(line.startswith("tfd:") for line in text.splitlines())
