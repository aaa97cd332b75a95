"""What a forked child must let go of.

Python runs these in the child of every `os.fork`, loader workers included. A handler cannot be
taken back, so there is one, for all sessions.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """Something a forked child inherits and must not use."""

    def abandon(self) -> None:
        """Let go of it, without touching the parent's."""


_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()
_registered = False


def others_here(thing: Inherited) -> bool:
    """Whether another of its kind is registered: for a session, another session of this process."""
    return any(type(other) is type(thing) and other is not thing for other in _inherited)


def register_fork_cleanup(thing: Inherited) -> None:
    """Have `thing.abandon()` called in every child forked from now on."""
    global _registered
    if not _registered:
        os.register_at_fork(after_in_child=_abandon_all)
        _registered = True
    _inherited.add(thing)


def unregister_fork_cleanup(thing: Inherited) -> None:
    """Undo `register_fork_cleanup`."""
    _inherited.discard(thing)


def _abandon_all() -> None:
    for thing in list(_inherited):
        thing.abandon()
    _inherited.clear()
